#include "common/ids.h"

#include "gtest/gtest.h"

#include "common/status_macros.h"
#include "common/status_matchers.h"

namespace fargpu {
namespace {

TEST(IdsTest, HexRoundTrip) {
  const LeaseId id = RandomId<LeaseId>();
  ASSERT_OK_AND_ASSIGN(const LeaseId parsed, ParseId<LeaseId>(ToString(id)));
  EXPECT_EQ(parsed, id);
  EXPECT_NE(RandomId<LeaseId>(), id);
}

TEST(IdsTest, RejectsWrongLengthAndDigits) {
  EXPECT_THAT(ParseId<LeaseId>("00"), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ParseId<LeaseId>(std::string(32, 'g')), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(IdsTest, SecretsCompareEveryByte) {
  LeaseSecret a;
  FillRandom(absl::MakeSpan(a.bytes));
  LeaseSecret b = a;
  EXPECT_TRUE(SecretsEqual(a, b));
  b.bytes[31] ^= 1;
  EXPECT_FALSE(SecretsEqual(a, b));
}

}  // namespace
}  // namespace fargpu
