#pragma once

#include <atomic>
#include <memory>

#include "absl/status/statusor.h"

#include "softgpu/runtime/shared_file.h"

namespace fargpu::softgpu {

// What processes share of an event: how often it was recorded, and which record was reached last.
class SharedEvent {
 public:
  static absl::StatusOr<std::shared_ptr<SharedEvent>> Create();
  // CUDA_ERROR_INVALID_VALUE if the event is no more.
  static absl::StatusOr<std::shared_ptr<SharedEvent>> Open(const SharedFileName& name);
  ~SharedEvent();

  const SharedFileName& name() const { return name_; }
  uint64_t Record() { return state_->recorded.fetch_add(1, std::memory_order_acq_rel) + 1; }
  void Reach(uint64_t record);
  uint64_t latest() const { return state_->recorded.load(std::memory_order_acquire); }
  bool Reached(uint64_t record) const {
    return state_->reached.load(std::memory_order_acquire) >= record;
  }
  // Polls until `record` is reached or stop() says so.
  template <typename Stop>
  void Wait(uint64_t record, Stop stop) const {
    while (!Reached(record) && !stop()) Pause();
  }

 private:
  struct State {
    std::atomic<uint64_t> recorded;
    std::atomic<uint64_t> reached;
  };
  SharedEvent() = default;
  static absl::StatusOr<std::shared_ptr<SharedEvent>> Map(UniqueFd fd, SharedFileName name);
  static void Pause();

  UniqueFd fd_;
  SharedFileName name_;
  State* state_ = nullptr;
};

}  // namespace fargpu::softgpu
