#pragma once

#include <cuda.h>
#include <vector>

#include "absl/status/statusor.h"

#include "client/cuda/session.h"

namespace fargpu::client {

// Sends an image of this process ahead of the load call that names it. Borrows nothing when it
// returns. CUDA_ERROR_INVALID_IMAGE if it is none.
absl::StatusOr<wire::ImageId> SendImage(Session& session, const void* image);

// Options of a load as they travel: without those that point into this process.
struct JitOptions {
  std::vector<uint32_t> options;
  std::vector<uint64_t> values;
};
// `values` may be null, as some libraries pass it. CUDA_ERROR_NOT_SUPPORTED for options that would
// change the result and cannot travel.
absl::StatusOr<JitOptions> TakeJitOptions(unsigned count, const CUjit_option* options,
                                          void* const* values);
// Writes what the compiler said into the program's buffers, and how much it was.
void GiveJitLogs(unsigned count, const CUjit_option* options, void** values,
                 const std::string& info_log, const std::string& error_log);

}  // namespace fargpu::client
