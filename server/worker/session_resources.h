#pragma once

#include <atomic>
#include <cstdint>
#include <cuda.h>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "common/mutex.h"
#include "driver.h"
#include "memory/device_allocator.h"
#include "memory/lease_ledger.h"
#include "server/worker/admission.h"
#include "server/worker/async_copies.h"
#include "server/worker/host_functions.h"
#include "server/worker/image_store.h"
#include "server/worker/memory_exchange.h"
#include "server/worker/objects.h"
#include "server/worker/shared_memory.h"

namespace fargpu::server {

// The default stream of each client thread, where the program asks for per-thread default streams.
class ThreadStreams {
 public:
  static constexpr size_t kMaxStreams = 65536;

  explicit ThreadStreams(Driver* driver) : driver_(driver) {}

  // The context must be current. Made when first asked for.
  absl::StatusOr<CUstream> Get(wire::ContextId context, uint32_t thread);
  void ForgetContext(wire::ContextId context);

 private:
  Driver* const driver_;
  Mutex mutex_;
  std::map<std::pair<uint64_t, uint32_t>, CUstream> streams_ ABSL_GUARDED_BY(mutex_);
};

// What the program has mapped with cuMemMap; each mapping keeps its memory charged.
class ProgramMappings {
 public:
  void Add(uint64_t address, uint64_t bytes, std::shared_ptr<memory::Reservation> charge);
  // Everything that begins inside the range.
  void Remove(uint64_t address, uint64_t bytes);
  bool Overlaps(uint64_t address, uint64_t bytes) const;

 private:
  struct Mapping {
    uint64_t bytes = 0;
    std::shared_ptr<memory::Reservation> charge;  // shared with the handle and other mappings
  };
  mutable Mutex mutex_;
  std::map<uint64_t, Mapping> mappings_ ABSL_GUARDED_BY(mutex_);
};

// What the handlers of one session work on. Everything here is thread-safe or does not change.
struct SessionResources {
  // All pointers must outlive the session.
  SessionResources(Driver* session_driver, std::vector<CUdevice> session_devices,
                   memory::LeaseLedger* session_ledger, memory::DeviceAllocator* session_allocator,
                   Admission* session_admission)
      : driver(session_driver),
        devices(std::move(session_devices)),
        ledger(session_ledger),
        allocator(session_allocator),
        admission(session_admission),
        host_functions(session_driver),
        copies(session_driver),
        thread_streams(session_driver),
        shared_memory(session_driver) {}

  Driver* const driver;
  const std::vector<CUdevice> devices;  // of the lease, in its order, as the driver numbers them
  memory::LeaseLedger* const ledger;
  memory::DeviceAllocator* const allocator;
  Admission* const admission;
  HostFunctions host_functions;  // before those that hold its works
  Objects objects;
  ImageStore images;
  AsyncCopies copies;
  ThreadStreams thread_streams;
  ProgramMappings program_mappings;
  SharedMemory shared_memory;
  MemoryExchange memory_exchange;

  // Grows whenever a context goes, so that threads forget what they believed to be current.
  std::atomic<uint64_t> context_epoch{0};

  // The client's number of a device, which becomes the lease's; CUDA_ERROR_INVALID_DEVICE.
  absl::Status CheckDevice(int32_t device) const;
  // Frees all that belongs to a context which is about to go, and waits for its work.
  void DropContext(wire::ContextId id, const Context& context);
};

}  // namespace fargpu::server
