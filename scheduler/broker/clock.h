#pragma once

#include <chrono>
#include <cstdint>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace fargpu::scheduler {

// Time for the broker; tests bring their own. Waits are measured on the steady clock, because the
// wall clock can be set; the wall clock is only shown.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Duration Steady() const {
    return absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
  }
  virtual int64_t WallMillis() const { return absl::ToUnixMillis(absl::Now()); }
};

}  // namespace fargpu::scheduler
