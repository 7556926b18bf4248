#pragma once

#include <cstddef>
#include <cuda.h>

#include "absl/status/status.h"

#include "client/cuda/default_stream.h"
#include "client/cuda/session.h"

// What the copy calls share.
namespace fargpu::client {

// Makes sure that nothing is written into this host memory later, by waiting for the card if an
// asynchronous copy into it is under way.
void SettleDeliveries(Session& session, const void* memory, size_t bytes);

// Makes sure that this host memory holds what a copy out of it would find that is queued on
// `stream` now: bytes leave at the call, not when the stream gets there, which is too early if an
// earlier copy or a function of the program on the stream is still to fill it.
absl::Status SettleSource(Session& session, const void* memory, size_t bytes,
                          wire::StreamId stream);

// CUDA_ERROR_INVALID_VALUE if a range of device memory cannot be right: it lies outside the window
// of device addresses, or runs over the end of an allocation.
absl::Status CheckDeviceRange(Session& session, CUdeviceptr address, size_t bytes);

absl::Status CopyHostToDevice(Session& session, CUdeviceptr to, const void* from, size_t bytes,
                              DefaultStream default_stream);
absl::Status CopyDeviceToHost(Session& session, void* to, CUdeviceptr from, size_t bytes,
                              DefaultStream default_stream);
absl::Status CopyDeviceToDevice(Session& session, CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                DefaultStream default_stream);
absl::Status CopyHostToDeviceAsync(Session& session, CUdeviceptr to, const void* from, size_t bytes,
                                   wire::StreamId stream);
absl::Status CopyDeviceToHostAsync(Session& session, void* to, CUdeviceptr from, size_t bytes,
                                   wire::StreamId stream);
absl::Status CopyDeviceToDeviceAsync(Session& session, CUdeviceptr to, CUdeviceptr from,
                                     size_t bytes, wire::StreamId stream);
// After a synchronous call that has written to device memory: if that memory is the host's too, the
// program may look at once.
absl::Status SettleShared(Session& session, CUdeviceptr address, size_t bytes);
absl::Status SynchronizeContext(Session& session);
absl::Status SynchronizeStream(Session& session, wire::StreamId stream);

}  // namespace fargpu::client
