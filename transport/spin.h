#pragma once

#include <cstdint>

#include "transport/link.h"

namespace fargpu::transport {

// Nanoseconds of a clock that never jumps.
int64_t MonotonicNanos();

// Decides how long to poll before sleeping. A wake-up from sleep costs 25-50 microseconds on a
// virtual machine, so polling pays while the next frame is expected soon, and only while there is a
// core to burn: a spinner that is descheduled is slower than a sleeper (measured, oversubscribed:
// 14-124 against 20 microseconds).
//
// Used by one thread at a time (whoever polls the connection).
class SpinPolicy {
 public:
  // `cores`: how many this process may use.
  SpinPolicy(const LinkOptions& options, int cores);

  // Asked when polling has found nothing since `idle_since`.
  bool ShouldSpin(int64_t idle_since, int64_t now);
  // A sleep that began after `idle_since` ended with a frame at `now`: learn the gap.
  void Learn(int64_t idle_since, int64_t now);
  int64_t window_ns() const { return window_ns_; }

 private:
  bool CoresAreShort(int64_t now);

  int64_t shortest_ns_;
  int64_t longest_ns_;
  int64_t window_ns_;
  bool always_ = false;  // the environment asks for it, whatever the load
  int64_t next_load_check_ = 0;
  bool cores_are_short_ = false;
};

// The number of cores in the affinity mask of this process.
int UsableCores();

}  // namespace fargpu::transport
