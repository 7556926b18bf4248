#include "transport/spin.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>

#include "absl/strings/numbers.h"

#include "common/fd.h"

namespace fargpu::transport {
namespace {

constexpr int64_t kLoadCheckEvery = 200'000'000;  // ns; one costs about 5 microseconds

// How many threads of the machine run or want to run, this one included; 0 if unknown.
int RunnableThreads() {
  UniqueFd file(open("/proc/loadavg", O_RDONLY | O_CLOEXEC));
  char text[128] = {};
  if (!file.valid() || read(file.get(), text, sizeof(text) - 1) <= 0) return 0;
  // "0.20 0.18 0.12 1/80 11206": the number before the slash.
  const char* at = text;
  for (int field = 0; field < 3; ++field) {
    while (*at != '\0' && *at != ' ') ++at;
    while (*at == ' ') ++at;
  }
  return std::atoi(at);
}

}  // namespace

int64_t MonotonicNanos() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

int UsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  // Machines with more than 1024 cores fail here, and have enough.
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1024;
  return CPU_COUNT(&set);
}

SpinPolicy::SpinPolicy(const LinkOptions& options, int cores)
    : shortest_ns_(absl::ToInt64Nanoseconds(options.spin)),
      longest_ns_(std::max(shortest_ns_, absl::ToInt64Nanoseconds(options.active_spin))) {
  int64_t from_environment = 0;
  const char* text = std::getenv("FARGPU_SPIN_US");
  if (text != nullptr && absl::SimpleAtoi(text, &from_environment) && from_environment >= 0) {
    always_ = true;
    shortest_ns_ = longest_ns_ = std::min<int64_t>(from_environment, 1'000'000) * 1000;
  } else if (cores < 2) {
    always_ = true;
    shortest_ns_ = longest_ns_ = 0;
  }
  window_ns_ = shortest_ns_;
}

bool SpinPolicy::ShouldSpin(int64_t idle_since, int64_t now) {
  return now - idle_since < window_ns_ && !CoresAreShort(now);
}

void SpinPolicy::Learn(int64_t idle_since, int64_t now) {
  const int64_t gap = now - idle_since;
  if (gap <= longest_ns_) {
    // A longer window would have caught this one.
    window_ns_ = std::clamp(2 * gap, window_ns_, longest_ns_);
  } else {
    window_ns_ = std::max(shortest_ns_, window_ns_ / 2);
  }
}

bool SpinPolicy::CoresAreShort(int64_t now) {
  if (always_) return false;
  if (now >= next_load_check_) {
    next_load_check_ = now + kLoadCheckEvery;
    cores_are_short_ = RunnableThreads() > sysconf(_SC_NPROCESSORS_ONLN);
  }
  return cores_are_short_;
}

}  // namespace fargpu::transport
