#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/fd.h"
#include "common/mutex.h"
#include "memory/device_allocator.h"

// CUDA IPC between the sessions of one lease: workers of one machine hand each other descriptors of
// physical memory over unix sockets. The client sees a handle of eight words only: the session that
// made it and a random token.
namespace fargpu::server {

class MemoryExchange {
 public:
  using Id = std::array<uint8_t, 16>;
  static constexpr size_t kHandleWords = 8;
  static constexpr size_t kMaxOffers = 65536;

  MemoryExchange() = default;
  ~MemoryExchange();
  MemoryExchange(const MemoryExchange&) = delete;
  MemoryExchange& operator=(const MemoryExchange&) = delete;

  // Before anything else. `allocator` must outlive this; leases that differ never meet.
  void Start(memory::DeviceAllocator* allocator, const Id& lease, const Id& session);

  // The handle for what the allocator shares; the same for the same memory.
  absl::StatusOr<std::vector<uint64_t>> Offer(const memory::DeviceAllocator::Shared& shared);

  struct Taken {
    memory::DeviceAllocator::Shared shared;
    UniqueFd fd;
  };
  // Asks the worker that made the handle. CUDA_ERROR_INVALID_CONTEXT if that is this one,
  // CUDA_ERROR_INVALID_VALUE if there is none, it serves another lease or knows no such handle.
  absl::StatusOr<Taken> Take(const std::vector<uint64_t>& words);

 private:
  void Serve(int stop_fd);
  void Answer(UniqueFd connection);

  memory::DeviceAllocator* allocator_ = nullptr;
  Id lease_ = {};
  Id session_ = {};
  Mutex mutex_;
  std::map<Id, memory::DeviceAllocator::Shared> offers_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<std::thread> server_ ABSL_GUARDED_BY(mutex_);  // started by the first Offer()
  UniqueFd listener_;                                            // set before server_ starts
  UniqueFd stop_;
};

}  // namespace fargpu::server
