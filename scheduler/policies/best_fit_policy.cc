#include "scheduler/policies/best_fit_policy.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

namespace fargpu::scheduler {
namespace {

bool Fits(const PlacementRequest& request, const CardState& card) {
  return card.usable && card.free_memory_bytes >= request.memory_bytes &&
         card.free_cores_percent >= request.cores_percent;
}

// What would be left over, as shares of the whole card: 0 for a perfect fit, at most 2.
double Leftover(const PlacementRequest& request, const CardState& card) {
  const double memory = static_cast<double>(card.free_memory_bytes - request.memory_bytes) /
                        static_cast<double>(card.memory_bytes);
  const double cores = static_cast<double>(card.free_cores_percent - request.cores_percent) /
                       static_cast<double>(card.cores_percent);
  return memory + cores;
}

struct Candidate {
  double leftover;
  const CardState* card;
};

bool FitsTighter(const Candidate& a, const Candidate& b) {
  return std::tie(a.leftover, a.card->uuid, a.card->node) <
         std::tie(b.leftover, b.card->uuid, b.card->node);
}

}  // namespace

absl::StatusOr<Placement> BestFitPolicy::Place(const PlacementRequest& request,
                                               absl::Span<const CardState> cards) const {
  // Ordered by name: the outcome must not depend on the order of `cards`.
  std::map<std::string, std::vector<Candidate>> candidates_per_node;
  for (const CardState& card : cards) {
    if (Fits(request, card)) {
      candidates_per_node[card.node].push_back({Leftover(request, card), &card});
    }
  }

  std::optional<Placement> best;
  std::tuple<double, std::string> best_key;
  for (auto& [node, candidates] : candidates_per_node) {
    if (candidates.size() < request.count) continue;
    std::partial_sort(candidates.begin(), candidates.begin() + request.count, candidates.end(),
                      FitsTighter);
    double leftover = 0;
    for (uint32_t i = 0; i < request.count; ++i) leftover += candidates[i].leftover;
    std::tuple<double, std::string> key(leftover, candidates[0].card->uuid);
    if (best.has_value() && best_key <= key) continue;
    best.emplace();
    best->node = node;
    for (uint32_t i = 0; i < request.count; ++i) best->uuids.push_back(candidates[i].card->uuid);
    best_key = std::move(key);
  }
  if (!best.has_value()) {
    return absl::ResourceExhaustedError(DescribeShortage(request, cards));
  }
  return *std::move(best);
}

}  // namespace fargpu::scheduler
