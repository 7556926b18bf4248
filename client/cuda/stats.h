#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace fargpu::client {

// Counts of one session, for tests and for whoever asks why a program is slow over a network: what
// a program loses is the number of waiting round trips times the round-trip time (DESIGN D5).
struct Stats {
  std::atomic<uint64_t> waiting_round_trips{0};  // connecting counts as one
  std::atomic<uint64_t> calls{0};                // records sent
  std::atomic<uint64_t> frames{0};               // frames with calls sent
  std::atomic<uint64_t> bulk_bytes_sent{0};
  std::atomic<uint64_t> bulk_bytes_received{0};

  // One `name value` a line.
  std::string Format() const;
};

}  // namespace fargpu::client
