#pragma once

#include <cstddef>

namespace fargpu::client {

// Kernel parameters of the largest kind of cards, in bytes (PTX ISA 8.1).
inline constexpr size_t kMaxParameterBytes = 32764;

}  // namespace fargpu::client
