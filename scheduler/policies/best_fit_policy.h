#pragma once

#include "scheduler/policies/placement_policy.h"

namespace fargpu::scheduler {

// Picks the cards that the request fills most tightly, memory and compute counted alike (each as a
// share of the whole card), so that large free slices stay large. Ties break by uuid, then node.
class BestFitPolicy : public PlacementPolicy {
 public:
  absl::StatusOr<Placement> Place(const PlacementRequest& request,
                                  absl::Span<const CardState> cards) const override;
};

}  // namespace fargpu::scheduler
