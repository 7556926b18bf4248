#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace fargpu::scheduler {

// What a policy may know of one card.
struct CardState {
  std::string node;
  std::string uuid;
  uint64_t memory_bytes = 0;  // of the whole card
  uint32_t cores_percent = 100;
  uint64_t free_memory_bytes = 0;
  uint32_t free_cores_percent = 0;
  // False while its node is silent, or when it refused this very request.
  bool usable = true;
};

struct PlacementRequest {
  uint64_t memory_bytes = 0;   // of each card, at least 1
  uint32_t cores_percent = 0;  // of each card, at least 1
  uint32_t count = 1;          // different cards, all on one node, at least 1
};

struct Placement {
  std::string node;
  std::vector<std::string> uuids;  // request.count of them
};

// Chooses cards for a request. Pure: no clock, lock or RPC; equal input gives equal output in
// whatever order the cards come. Any thread.
class PlacementPolicy {
 public:
  virtual ~PlacementPolicy() = default;

  // kResourceExhausted, with a sentence that says what is free instead, if nothing fits now.
  virtual absl::StatusOr<Placement> Place(const PlacementRequest& request,
                                          absl::Span<const CardState> cards) const = 0;
};

// The sentence for a request that fits nowhere, e.g. "no card has 6144 MiB free; the largest free
// slice is 2048 MiB on node gpu-1 (GPU-...)". Says which of memory, compute and count is short.
std::string DescribeShortage(const PlacementRequest& request, absl::Span<const CardState> cards);

}  // namespace fargpu::scheduler
