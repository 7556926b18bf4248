#pragma once

#include <cstdint>
#include <cuda.h>
#include <deque>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"

#include "common/mutex.h"
#include "driver.h"
#include "protocol/wire/codec.h"
#include "transport/connection.h"
#include "transport/link.h"

namespace fargpu::server {

// Copies between the client's frames and the card that are queued on streams. Each is followed by
// an event that tells when its buffer is done with. Thread-safe; calls that queue need the copy's
// context to be current.
class AsyncCopies {
 public:
  // Buffers of copies under way hold no more; over it the oldest copy is waited for.
  static constexpr uint64_t kMaxBytes = 256 << 20;
  static constexpr size_t kMaxCopies = 4096;

  // Bytes that came from the card and go to the client in a delivery frame.
  struct Delivery {
    uint64_t token = 0;
    uint64_t offset = 0;
    transport::Message bytes;
  };

  explicit AsyncCopies(Driver* driver) : driver_(driver) {}

  // `bytes` lies in `frame`, which is kept until the copy is done.
  absl::Status ToDevice(wire::ContextId context, CUdeviceptr destination,
                        absl::Span<const char> bytes, CUstream stream,
                        std::shared_ptr<const transport::IncomingFrame> frame);
  // The same for a box whose source is `bytes`.
  absl::Status BoxToDevice(wire::ContextId context, const CUDA_MEMCPY3D& box, uint64_t bytes,
                           CUstream stream, std::shared_ptr<const transport::IncomingFrame> frame);
  // Keeps `thing` until the work that has been queued on the stream is done.
  absl::Status Keep(wire::ContextId context, CUstream stream, std::shared_ptr<const void> thing,
                    uint64_t bytes);
  absl::Status FromDevice(wire::ContextId context, CUdeviceptr source, uint64_t bytes,
                          CUstream stream, uint64_t token, uint64_t offset);

  // So much is under way that done copies should be taken without waiting for the next reply.
  bool ShouldTake();

  // Takes out what is done, in the order in which it was queued on each stream. Bytes of copies
  // that failed are dropped: the error reaches the program through its context.
  std::vector<Delivery> TakeDone();

  // The context is about to go and its work is done, with this outcome: its events are not asked
  // any more, and bytes of a context that failed are dropped.
  void SettleContext(wire::ContextId context, CUresult outcome);

 private:
  struct Copy {
    wire::ContextId context;
    CUstream stream = nullptr;
    CUevent event = nullptr;
    uint64_t bytes = 0;
    // What holds the bytes meanwhile (a frame is shared with the call and its neighbours).
    std::shared_ptr<const void> kept;
    // From the device.
    bool delivers = false;
    Delivery delivery;
  };

  absl::Status Add(Copy copy);
  void MakeRoom(uint64_t bytes);
  absl::StatusOr<CUevent> TakeEvent(wire::ContextId context);

  Driver* const driver_;
  Mutex mutex_;
  std::deque<Copy> copies_ ABSL_GUARDED_BY(mutex_);
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<wire::ContextId, std::vector<CUevent>> idle_events_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fargpu::server
