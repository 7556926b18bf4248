#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"

#include "client/cuda/box_plan.h"
#include "common/mutex.h"

namespace fargpu::client {

// Where the bytes of asynchronous device-to-host copies go. The program keeps the memory until it
// has learned that the copy is done, and by protocol the bytes arrive before it can learn that.
class Deliveries {
 public:
  // The token that the worker sends along with bytes for `destination`. Never 0.
  uint64_t Expect(void* destination, size_t bytes);

  // For a copy in a graph, whose bytes come with every run: the token stays until Gone(). Due():
  // a run is on its way.
  uint64_t ExpectRepeatedly(const HostBox& destination);
  void Due(uint64_t token);
  void Gone(uint64_t token);

  // kInvalidArgument: no such token, or bytes outside its destination. The worker is then not to be
  // trusted any more.
  absl::Status Apply(uint64_t token, uint64_t offset, absl::Span<const char> bytes);

  // Is anything still to be written into this memory?
  bool Overlaps(const void* memory, size_t bytes) const;

  // Gives up what is to be written into this memory; later bytes for it are dropped.
  void Cancel(const void* memory, size_t bytes);

 private:
  struct Destination {
    char* memory = nullptr;  // nullptr: cancelled
    size_t bytes = 0;
    size_t missing = 0;
  };
  struct Repeated {
    HostBox box;
    uint64_t due = 0;  // runs on their way; 0 also when they have been given up
    bool cancelled = false;
  };
  bool OverlapsEntry(const Destination& entry, const void* memory, size_t bytes) const;

  mutable Mutex mutex_;
  uint64_t last_token_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<uint64_t, Destination> pending_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, Repeated> repeated_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fargpu::client
