#pragma once

#include <cstddef>
#include <cuda.h>

#include "absl/status/status.h"

#include "client/cuda/session.h"

// What the calls that give and take device memory share. Every allocation is known here, so that
// wrong pointers are refused at once and questions about pointers need no round trip.
namespace fargpu::client {

// Which process has allocated memory.
enum class Maker { kThis, kOther };

// Notes what the worker has allocated in the current context, for `pool` if it is not null. Ends
// the session if it cannot be true.
absl::Status RememberDeviceMemory(Session& session, CUdeviceptr dptr, size_t bytes,
                                  CUmemoryPool pool, Maker maker = Maker::kThis);

// CUDA_ERROR_INVALID_VALUE for 0 bytes, CUDA_ERROR_OUT_OF_MEMORY over the lease. One round trip.
absl::Status AllocateDeviceMemory(Session& session, size_t bytes, CUmemoryPool pool,
                                  CUdeviceptr* dptr);

// CUDA_ERROR_INVALID_VALUE for what begins no allocation. Takes effect when the work that was
// queued before has ended.
absl::Status FreeDeviceMemory(Session& session, CUdeviceptr dptr);

}  // namespace fargpu::client
