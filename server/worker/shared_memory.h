#pragma once

#include <cstdint>
#include <cuda.h>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "common/mutex.h"
#include "driver.h"
#include "protocol/wire/codec.h"

namespace fargpu::server {

struct UnmapBytes {
  uint64_t bytes = 0;
  void operator()(char* memory) const;
};

// Memory of the card that stands for memory of the client's process: managed, mapped, registered
// (docs/design/011). For ranges that are watched a copy is kept of what both sides know, so that
// only what kernels have changed travels. Copies here wait for no stream of the program.
// Thread-safe; the context of `context` must be current, or none with {}.
class SharedMemory {
 public:
  // What a hostile client can make us remember.
  static constexpr uint64_t kMaxWatchedBytes = uint64_t{1} << 30;
  static constexpr size_t kMaxWatches = 65536;
  // What one SharedChanges reply holds at most, so that it fits a frame.
  static constexpr size_t kMaxRuns = 16384;
  static constexpr size_t kMaxWords = 65536;

  explicit SharedMemory(Driver* driver) : driver_(driver) {}

  // `bytes` holds runs one after another.
  absl::Status Write(wire::ContextId context, absl::Span<const uint64_t> addresses,
                     absl::Span<const uint32_t> sizes, absl::Span<const char> bytes);
  absl::Status Read(wire::ContextId context, uint64_t address, absl::Span<char> to);

  // CUDA_ERROR_OUT_OF_MEMORY over the limits, CUDA_ERROR_INVALID_VALUE if it overlaps another.
  absl::Status Watch(uint64_t address, uint64_t bytes);
  void Unwatch(uint64_t address);

  struct Changes {
    std::vector<uint64_t> addresses;
    std::vector<uint32_t> sizes;  // in words
    std::vector<uint32_t> words;
    uint64_t next = 0;
  };
  absl::StatusOr<Changes> TakeChanges(wire::ContextId context, uint64_t from);

  void ForgetContext(wire::ContextId context);

 private:
  // All zero at first, and memory only where it was written.
  using Known = std::unique_ptr<char[], UnmapBytes>;
  struct Watched {
    uint64_t bytes = 0;
    Known known;
  };
  static absl::StatusOr<Known> NewKnown(uint64_t bytes);
  absl::StatusOr<CUstream> StreamOf(wire::ContextId context);
  void NoteWritten(uint64_t address, absl::Span<const char> bytes);

  Driver* const driver_;
  Mutex mutex_;
  std::map<uint64_t, Watched> watched_ ABSL_GUARDED_BY(mutex_);
  uint64_t watched_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, CUstream> streams_ ABSL_GUARDED_BY(mutex_);  // by context
};

}  // namespace fargpu::server
