#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/fd.h"

namespace fargpu::memory {

// What the allocator needs of a CUDA driver. Devices are numbers within the lease; errors carry the
// driver's CUresult. Any thread.
class MemoryDriver {
 public:
  virtual ~MemoryDriver() = default;

  // The virtual memory interface; kUnimplemented where the driver has none.
  virtual absl::StatusOr<uint64_t> ReserveAddresses(uint64_t size, uint64_t alignment) = 0;
  virtual absl::StatusOr<uint64_t> Granularity(int device) = 0;
  virtual absl::StatusOr<uint64_t> CreatePhysical(int device, uint64_t size) = 0;
  virtual absl::Status ReleasePhysical(uint64_t handle) = 0;
  // Maps all of `handle`, readable and writable on `device`.
  virtual absl::Status Map(int device, uint64_t address, uint64_t size, uint64_t handle) = 0;
  virtual absl::Status Unmap(uint64_t address, uint64_t size) = 0;

  // Physical memory that another process can map: made like CreatePhysical(), named by a descriptor
  // that is valid in any process, and taken from one.
  virtual absl::StatusOr<uint64_t> CreateShareable(int device, uint64_t size) = 0;
  virtual absl::StatusOr<UniqueFd> ExportPhysical(uint64_t handle) = 0;
  virtual absl::StatusOr<uint64_t> ImportPhysical(int fd) = 0;

  // Plain allocation, in the context `owner`.
  virtual absl::StatusOr<uint64_t> Allocate(uint64_t owner, uint64_t size) = 0;
  virtual absl::Status Free(uint64_t owner, uint64_t address) = 0;

  // Sets the bytes to 0 and waits until they are.
  virtual absl::Status Zero(uint64_t owner, uint64_t address, uint64_t size) = 0;
  // Copies between places on the owner's device and waits until it is done.
  virtual absl::Status Copy(uint64_t owner, uint64_t to, uint64_t from, uint64_t size) = 0;
  // Waits until all that was queued in the context `owner` before is done.
  virtual absl::Status WaitIdle(uint64_t owner) = 0;
};

}  // namespace fargpu::memory
