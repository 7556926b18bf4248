#include "scheduler/policies/best_fit_policy.h"

#include <algorithm>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/status_matchers.h"

namespace fargpu::scheduler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;

CardState Card(std::string node, std::string uuid, uint64_t free_mib, uint32_t free_cores,
               uint64_t total_mib = 16384) {
  return CardState{.node = std::move(node),
                   .uuid = std::move(uuid),
                   .memory_bytes = total_mib * kMiB,
                   .cores_percent = 100,
                   .free_memory_bytes = free_mib * kMiB,
                   .free_cores_percent = free_cores};
}

struct Case {
  const char* name;
  PlacementRequest request;
  std::vector<CardState> cards;
  std::string node;  // empty: nothing fits
  std::vector<std::string> uuids;
  std::string message;  // what the refusal says
};

std::vector<Case> Cases() {
  return {
      {"TightestMemory",
       {4096 * kMiB, 10, 1},
       {Card("a", "GPU-1", 16384, 100), Card("a", "GPU-2", 5000, 100)},
       "a",
       {"GPU-2"},
       ""},
      {"TightestCores",
       {4096 * kMiB, 30, 1},
       {Card("a", "GPU-1", 8192, 100), Card("b", "GPU-2", 8192, 30)},
       "b",
       {"GPU-2"},
       ""},
      {"ExactFit", {4096 * kMiB, 30, 1}, {Card("a", "GPU-1", 4096, 30)}, "a", {"GPU-1"}, ""},
      {"TieBreaksByUuid",
       {1024 * kMiB, 10, 1},
       {Card("a", "GPU-9", 8192, 50), Card("b", "GPU-3", 8192, 50)},
       "b",
       {"GPU-3"},
       ""},
      {"SameUuidBreaksByNode",
       {1024 * kMiB, 10, 1},
       {Card("b", "GPU-1", 8192, 50), Card("a", "GPU-1", 8192, 50)},
       "a",
       {"GPU-1"},
       ""},
      {"CoresTooFew",
       {1024 * kMiB, 60, 1},
       {Card("a", "GPU-1", 8192, 50)},
       "",
       {},
       "no card has 1024 MiB and 60% of its compute free"},
      {"MemoryTooSmall",
       {6144 * kMiB, 10, 1},
       {Card("x", "GPU-1", 2048, 100), Card("y", "GPU-2", 1024, 100)},
       "",
       {},
       "no card has 6144 MiB free; the largest free slice is 2048 MiB on node x (GPU-1)"},
      {"TwoOnOneNode",
       {1024 * kMiB, 10, 2},
       {Card("a", "GPU-1", 1024, 10), Card("b", "GPU-2", 8192, 100), Card("b", "GPU-3", 4096, 100)},
       "b",
       {"GPU-3", "GPU-2"},
       ""},
      {"TwoPickTightest",
       {1024 * kMiB, 10, 2},
       {Card("b", "GPU-4", 2048, 100), Card("b", "GPU-2", 8192, 100),
        Card("b", "GPU-3", 4096, 100)},
       "b",
       {"GPU-4", "GPU-3"},
       ""},
      {"NotSpreadOverNodes",
       {1024 * kMiB, 10, 2},
       {Card("a", "GPU-1", 8192, 100), Card("b", "GPU-2", 8192, 100)},
       "",
       {},
       "no node has 2 cards with 1024 MiB and 10% of compute free on each; the most is 1 on node "
       "a"},
      {"NoCards", {1024 * kMiB, 10, 1}, {}, "", {}, "no card can be used now"},
  };
}

TEST(BestFitPolicyTest, Table) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    const auto placement = BestFitPolicy().Place(c.request, c.cards);
    if (c.node.empty()) {
      ASSERT_THAT(placement, StatusIs(absl::StatusCode::kResourceExhausted));
      EXPECT_THAT(std::string(placement.status().message()), HasSubstr(c.message));
      continue;
    }
    ASSERT_OK(placement);
    EXPECT_EQ(placement->node, c.node);
    EXPECT_EQ(placement->uuids, c.uuids);
  }
}

TEST(BestFitPolicyTest, UnusableCardsAreLeftOut) {
  std::vector<CardState> cards = {Card("a", "GPU-1", 4096, 100), Card("b", "GPU-2", 8192, 100)};
  cards[0].usable = false;
  const auto placement = BestFitPolicy().Place({4096 * kMiB, 50, 1}, cards);
  ASSERT_OK(placement);
  EXPECT_THAT(placement->uuids, ElementsAre("GPU-2"));
}

TEST(BestFitPolicyTest, OrderOfCardsDoesNotMatter) {
  std::vector<CardState> cards;
  std::mt19937 random(7);
  for (int i = 0; i < 40; ++i) {
    cards.push_back(Card(std::string(1, static_cast<char>('a' + i % 5)), "GPU-" + std::to_string(i),
                         1024 * (1 + random() % 8), 10 * (1 + random() % 10)));
  }
  for (uint32_t count = 1; count <= 4; ++count) {
    const PlacementRequest request{2048 * kMiB, 20, count};
    const auto first = BestFitPolicy().Place(request, cards);
    ASSERT_OK(first);
    for (int round = 0; round < 20; ++round) {
      std::shuffle(cards.begin(), cards.end(), random);
      const auto again = BestFitPolicy().Place(request, cards);
      ASSERT_OK(again);
      EXPECT_EQ(again->node, first->node);
      EXPECT_EQ(again->uuids, first->uuids);
    }
  }
}

}  // namespace
}  // namespace fargpu::scheduler
