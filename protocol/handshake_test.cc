#include "protocol/handshake.h"

#include "gtest/gtest.h"

#include "common/status_macros.h"
#include "common/status_matchers.h"

namespace fargpu {
namespace {

Welcome SomeWelcome() {
  Welcome welcome;
  welcome.version = 1;
  welcome.session = RandomId<SessionId>().bytes;
  welcome.address = std::string(700, 'a');
  welcome.driver_version = 13000;
  welcome.window_base = 1ull << 45;
  welcome.devices.resize(2);
  welcome.devices[1].name = "card";
  welcome.devices[1].attributes = {0, 1024, 32};
  return welcome;
}

TEST(HandshakeTest, WelcomeRoundTrip) {
  std::vector<char> bytes;
  wire::EncodeMessage(SomeWelcome(), &bytes);
  Welcome read;
  ASSERT_OK(wire::DecodeMessage(bytes, &read));
  EXPECT_EQ(read.devices.size(), 2u);
  EXPECT_EQ(read.devices[1].attributes, (std::vector<int32_t>{0, 1024, 32}));
  EXPECT_EQ(read.address.size(), 700u);
  EXPECT_EQ(read.window_base, 1ull << 45);
}

TEST(HandshakeTest, EveryTruncationIsRejected) {
  std::vector<char> bytes;
  wire::EncodeMessage(SomeWelcome(), &bytes);
  for (size_t size = 0; size < bytes.size(); ++size) {
    Welcome read;
    EXPECT_THAT(wire::DecodeMessage(absl::MakeSpan(bytes.data(), size), &read),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << size;
  }
}

TEST(HandshakeTest, HugeCountsAllocateNothing) {
  std::vector<char> bytes;
  wire::EncodeMessage(Hello{}, &bytes);
  for (size_t offset = 0; offset + 4 <= bytes.size(); ++offset) {
    std::vector<char> broken = bytes;
    std::memset(broken.data() + offset, 0xff, 4);
    Hello read;
    wire::DecodeMessage(broken, &read).IgnoreError();
    EXPECT_LE(read.address.size() + read.place.size() + read.program.size(), bytes.size());
  }
}

TEST(HandshakeTest, VersionsMustOverlap) {
  EXPECT_THAT(NegotiateVersion(kWireVersionMax + 1, kWireVersionMax + 5),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  ASSERT_OK_AND_ASSIGN(const uint16_t version, NegotiateVersion(0, 99));
  EXPECT_EQ(version, kWireVersionMax);
}

TEST(HandshakeTest, RefusalsKeepTheirReason) {
  const Welcome welcome = RefusingWelcome(absl::ResourceExhaustedError("no worker is free"));
  EXPECT_THAT(RefusalOf(welcome), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(RefusalOf(welcome).message(), "no worker is free");
  EXPECT_OK(RefusalOf(Welcome{}));
}

}  // namespace
}  // namespace fargpu
