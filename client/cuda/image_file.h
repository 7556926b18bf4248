#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace fargpu::client {

// The bytes of a file with an image of code; the string's final NUL ends PTX text.
// CUDA_ERROR_FILE_NOT_FOUND, or CUDA_ERROR_INVALID_IMAGE for what is no file to be read.
absl::StatusOr<std::string> ReadImageFile(const char* fname);

}  // namespace fargpu::client
