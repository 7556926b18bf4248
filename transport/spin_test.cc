#include "transport/spin.h"

#include <cstdlib>
#include <cstring>

#include "gtest/gtest.h"

#include "transport/connection.h"

namespace fargpu::transport {
namespace {

constexpr int64_t kMicro = 1000;

LinkOptions Options(int spin_us, int active_us) {
  return {.spin = absl::Microseconds(spin_us), .active_spin = absl::Microseconds(active_us)};
}

TEST(SpinPolicyTest, TheWindowFollowsTheGaps) {
  SpinPolicy policy(Options(50, 2000), /*cores=*/8);
  EXPECT_EQ(policy.window_ns(), 50 * kMicro);
  policy.Learn(0, 300 * kMicro);  // a frame came 300 us after the last: would have paid to wait
  EXPECT_EQ(policy.window_ns(), 600 * kMicro);
  policy.Learn(0, 100 * kMicro);  // shorter gaps are covered already
  EXPECT_EQ(policy.window_ns(), 600 * kMicro);
  policy.Learn(0, 1900 * kMicro);
  EXPECT_EQ(policy.window_ns(), 2000 * kMicro);  // the limit
  for (int i = 0; i < 10; ++i) policy.Learn(0, 50'000 * kMicro);
  EXPECT_EQ(policy.window_ns(), 50 * kMicro);  // the peer went quiet
}

TEST(SpinPolicyTest, WithoutActiveSpinTheWindowIsFixed) {
  SpinPolicy policy(Options(50, 0), /*cores=*/8);
  policy.Learn(0, 40 * kMicro);
  policy.Learn(0, 300 * kMicro);
  EXPECT_EQ(policy.window_ns(), 50 * kMicro);
}

TEST(SpinPolicyTest, OneCoreDoesNotSpin) {
  SpinPolicy policy(Options(50, 2000), /*cores=*/1);
  policy.Learn(0, 10 * kMicro);
  EXPECT_FALSE(policy.ShouldSpin(0, 1));
}

TEST(SpinPolicyTest, TheEnvironmentDecidesWhateverTheLoad) {
  setenv("FARGPU_SPIN_US", "70", 1);
  SpinPolicy policy(Options(50, 2000), /*cores=*/1);
  EXPECT_TRUE(policy.ShouldSpin(0, 69 * kMicro));
  EXPECT_FALSE(policy.ShouldSpin(0, 70 * kMicro));
  setenv("FARGPU_SPIN_US", "0", 1);
  SpinPolicy never(Options(50, 2000), /*cores=*/8);
  EXPECT_FALSE(never.ShouldSpin(0, 0));
  setenv("FARGPU_SPIN_US", "many", 1);
  EXPECT_EQ(SpinPolicy(Options(50, 0), 8).window_ns(), 50 * kMicro);
  unsetenv("FARGPU_SPIN_US");
}

TEST(NewMessageTest, LargeBuffersAreUsedAgain) {
  char* first = nullptr;
  {
    const Message message = NewMessage(1 << 20);
    first = message.storage.get();
    std::memset(first, 1, message.size);
  }
  const Message again = NewMessage((1 << 20) - 100);
  EXPECT_EQ(again.storage.get(), first);
  EXPECT_EQ(again.size, (1u << 20) - 100);
  const Message other = NewMessage(1 << 20);
  EXPECT_NE(other.storage.get(), first);
}

TEST(NewMessageTest, AnySizeCanBeWritten) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{32 << 10}, (size_t{32} << 10) + 1,
                            kMaxMessageBytes, kMaxMessageBytes + 1, size_t{64} << 20}) {
    Message message = NewMessage(size);
    EXPECT_EQ(message.size, size);
    if (size > 0) message.storage[size - 1] = 1;
  }
}

}  // namespace
}  // namespace fargpu::transport
