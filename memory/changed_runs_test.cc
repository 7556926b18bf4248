#include "memory/changed_runs.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fargpu::memory {
namespace {

using testing::ElementsAre;
using testing::Pair;

std::vector<std::pair<size_t, size_t>> Runs(const std::string& now, const std::string& before) {
  std::vector<std::pair<size_t, size_t>> runs;
  ForEachChangedRun(now.data(), before.data(), now.size(), [&](size_t begin, size_t size) {
    runs.push_back({begin, size});
  });
  return runs;
}

TEST(ChangedRunsTest, RunsAreWholeWordsAndNeighboursJoin) {
  const std::string before(10000, 'a');
  EXPECT_TRUE(Runs(before, before).empty());
  std::string now = before;
  now[1] = 'b';
  now[4] = 'b';
  now[12] = 'b';
  now[4095] = 'b';
  now[4096] = 'b';
  EXPECT_THAT(Runs(now, before),
              ElementsAre(Pair(0, 8), Pair(12, 4), Pair(4092, 4), Pair(4096, 4)));
}

TEST(ChangedRunsTest, TheEndMayBeNoWord) {
  const std::string before(4099, 'a');
  std::string now = before;
  now[4098] = 'b';
  EXPECT_THAT(Runs(now, before), ElementsAre(Pair(4096, 3)));
}

TEST(ChangedRunsTest, APageOfManyRunsGivesFew) {
  const std::string before(4096, 'a');
  std::string now = before;
  for (size_t i = 0; i < now.size(); i += 8) now[i] = 'b';
  const auto runs = Runs(now, before);
  ASSERT_EQ(runs.size(), 128u);
  // The last holds all the rest.
  EXPECT_EQ(runs.back().first + runs.back().second, 4092u);
}

}  // namespace
}  // namespace fargpu::memory
