#pragma once

#include <cuda.h>

#include "absl/strings/string_view.h"

namespace fargpu::driver_abi {

// Keeps what the entry point `call` has to say about its failure for cuLogsDump*, and tells the
// callbacks that the program registered. Any thread. What a callback's own calls fail with is kept,
// but tells nobody.
void AddToDriverLog(const char* call, CUresult result, absl::string_view message) noexcept;

}  // namespace fargpu::driver_abi
