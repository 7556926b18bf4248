#pragma once

#include <vector>

#include "driver.h"
#include "memory/memory_driver.h"

namespace fargpu::server {

// The memory calls of a Driver as the allocator wants them. `devices` are the lease's, as the
// driver numbers them; an owner is the CUcontext.
//
// Changes the current context of the calling thread where it has to, and puts it back.
class DriverMemory : public memory::MemoryDriver {
 public:
  DriverMemory(Driver* driver, std::vector<CUdevice> devices)
      : driver_(driver), devices_(std::move(devices)) {}

  absl::StatusOr<uint64_t> ReserveAddresses(uint64_t size, uint64_t alignment) override;
  absl::StatusOr<uint64_t> Granularity(int device) override;
  absl::StatusOr<uint64_t> CreatePhysical(int device, uint64_t size) override;
  absl::Status ReleasePhysical(uint64_t handle) override;
  absl::Status Map(int device, uint64_t address, uint64_t size, uint64_t handle) override;
  absl::Status Unmap(uint64_t address, uint64_t size) override;
  absl::StatusOr<uint64_t> CreateShareable(int device, uint64_t size) override;
  absl::StatusOr<UniqueFd> ExportPhysical(uint64_t handle) override;
  absl::StatusOr<uint64_t> ImportPhysical(int fd) override;
  absl::StatusOr<uint64_t> Allocate(uint64_t owner, uint64_t size) override;
  absl::Status Free(uint64_t owner, uint64_t address) override;
  absl::Status Zero(uint64_t owner, uint64_t address, uint64_t size) override;
  absl::Status Copy(uint64_t owner, uint64_t to, uint64_t from, uint64_t size) override;
  absl::Status WaitIdle(uint64_t owner) override;

 private:
  Driver* const driver_;
  const std::vector<CUdevice> devices_;
};

}  // namespace fargpu::server
