#pragma once

#include <cstdint>

namespace fargpu::wire {

// Where text belongs that kernels have printed: the offset of a delivery with token 0.
enum class PrintStream : uint64_t {
  kOut = 0,    // printf: the program's stdout
  kError = 1,  // assertions: its stderr
};

}  // namespace fargpu::wire
