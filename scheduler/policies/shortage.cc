#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"

#include "scheduler/policies/placement_policy.h"

namespace fargpu::scheduler {
namespace {

std::string Mebibytes(uint64_t bytes) { return absl::StrCat(bytes >> 20, " MiB"); }

// Larger free memory first, then name, so that the sentence is the same for the same pool.
bool OffersMore(const CardState& a, const CardState& b) {
  if (a.free_memory_bytes != b.free_memory_bytes) return a.free_memory_bytes > b.free_memory_bytes;
  if (a.node != b.node) return a.node < b.node;
  return a.uuid < b.uuid;
}

std::string Place(const CardState& card) {
  return absl::StrCat("on node ", card.node, " (", card.uuid, ")");
}

}  // namespace

std::string DescribeShortage(const PlacementRequest& request, absl::Span<const CardState> cards) {
  const CardState* most_memory = nullptr;  // of all usable cards
  const CardState* most_cores = nullptr;   // of the usable cards with enough memory
  std::map<std::string, uint32_t> fitting_per_node;
  for (const CardState& card : cards) {
    if (!card.usable) continue;
    if (most_memory == nullptr || OffersMore(card, *most_memory)) most_memory = &card;
    if (card.free_memory_bytes < request.memory_bytes) continue;
    if (most_cores == nullptr || card.free_cores_percent > most_cores->free_cores_percent ||
        (card.free_cores_percent == most_cores->free_cores_percent &&
         OffersMore(card, *most_cores))) {
      most_cores = &card;
    }
    if (card.free_cores_percent >= request.cores_percent) ++fitting_per_node[card.node];
  }

  if (most_memory == nullptr) return "no card can be used now";
  if (most_cores == nullptr) {
    return absl::StrCat("no card has ", Mebibytes(request.memory_bytes),
                        " free; the largest free slice is ",
                        Mebibytes(most_memory->free_memory_bytes), " ", Place(*most_memory));
  }
  if (fitting_per_node.empty()) {
    return absl::StrCat("no card has ", Mebibytes(request.memory_bytes), " and ",
                        request.cores_percent,
                        "% of its compute free; of the cards with that much "
                        "memory the one with most compute left has ",
                        most_cores->free_cores_percent, "% ", Place(*most_cores));
  }
  const auto most =
      std::max_element(fitting_per_node.begin(), fitting_per_node.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  return absl::StrCat("no node has ", request.count, " cards with ",
                      Mebibytes(request.memory_bytes), " and ", request.cores_percent,
                      "% of compute free on each; the most is ", most->second, " on node ",
                      most->first);
}

}  // namespace fargpu::scheduler
