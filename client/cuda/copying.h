#pragma once

#include <cstddef>
#include <cuda.h>

#include "absl/status/status.h"

#include "client/cuda/box_plan.h"
#include "client/cuda/default_stream.h"
#include "client/cuda/session.h"

// What the copy calls share.
namespace fargpu::client {

// Makes sure that nothing is written into this host memory later, by waiting for the card if an
// asynchronous copy into it is under way.
void SettleDeliveries(Session& session, const void* memory, size_t bytes);

// The same, and that nothing is read from it later: it is about to go.
void SettleHostMemory(Session& session, const void* memory, size_t bytes);

// Makes sure that this host memory holds what a copy out of it would find that is queued on
// `stream` now: bytes leave at the call, not when the stream gets there, which is too early if an
// earlier copy or a function of the program on the stream is still to fill it.
absl::Status SettleSource(Session& session, const void* memory, size_t bytes,
                          wire::StreamId stream);

// Must a queued copy take its bytes only when the stream comes to it? Yes if they are pinned, so
// that CUDA does not read them earlier either, and something is still to write them.
bool MustPull(Session& session, const void* memory, size_t bytes);
// Queues such a copy.
absl::Status PullBox(Session& session, const wire::BoxPlace& to, const HostBox& from,
                     wire::StreamId stream);

// Adds a memset that was checked to the graph of a stream that is being captured.
absl::Status CaptureFill(Session& session, wire::StreamId stream,
                         const CUDA_MEMSET_NODE_PARAMS_v2& params);

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
// Addresses are unified: they say themselves on which side they are.
absl::Status CopyUnifiedAsync(Session& session, CUdeviceptr to, CUdeviceptr from, size_t bytes,
                              wire::StreamId stream);
absl::Status SynchronizeStream(Session& session, wire::StreamId stream);

}  // namespace fargpu::client
