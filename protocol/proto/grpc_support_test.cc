#include "protocol/proto/grpc_support.h"

#include <unistd.h>

#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/status_matchers.h"

namespace fargpu {
namespace {

using ::testing::HasSubstr;

TEST(BrokerAddressTest, KnowsWhatStaysOnThisMachine) {
  const struct {
    const char* text;
    bool is_local;
  } cases[] = {
      {"127.0.0.1:4830", true},        {"127.8.9.1:1", true},
      {"localhost:4830", true},        {"[::1]:4830", true},
      {"unix:/run/f.sock", true},      {"0.0.0.0:4830", false},
      {"10.0.0.1:4830", false},        {"[::]:4830", false},
      {"[fe80::1]:4830", false},       {"gpu-1:4830", false},
      {"localhost.evil.com:1", false}, {"127.0.0.1.nip.io:1", false},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    ASSERT_OK_AND_ASSIGN(const BrokerAddress address, ParseBrokerAddress(c.text));
    EXPECT_EQ(address.is_local, c.is_local);
    EXPECT_EQ(address.text, c.text);
  }
}

TEST(BrokerAddressTest, RefusesWhatIsNoAddress) {
  for (const std::string& text :
       {std::string(), std::string("localhost"), std::string(":4830"), std::string("a:b"),
        std::string("a:70000"), std::string("::1:4830"), std::string("unix:relative"),
        std::string("unix:"), "unix:/" + std::string(107, 'x')}) {
    EXPECT_THAT(ParseBrokerAddress(text), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
}

TEST(CredentialsTest, PlaintextStaysOnLoopback) {
  const BrokerAddress local = ParseBrokerAddress("127.0.0.1:1").value();
  const BrokerAddress remote = ParseBrokerAddress("0.0.0.0:1").value();
  EXPECT_OK(MakeServerCredentials(local, {}));
  EXPECT_OK(MakeBrokerChannel(local, {}));
  const auto server = MakeServerCredentials(remote, {});
  EXPECT_THAT(server, StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(std::string(server.status().message()), HasSubstr("--tls-cert"));
  EXPECT_THAT(MakeBrokerChannel(remote, {}), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(CredentialsTest, NamesTheFileThatIsWrong) {
  const BrokerAddress remote = ParseBrokerAddress("0.0.0.0:1").value();
  EXPECT_THAT(MakeServerCredentials(remote, {.certificate = "x", .key = "", .ca = ""}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  const auto missing =
      MakeServerCredentials(remote, {.certificate = "/nowhere/c.pem", .key = "k", .ca = "a"});
  EXPECT_THAT(missing, StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("/nowhere/c.pem"));

  const std::string path = testing::TempDir() + "grpc_support_test_not_pem";
  std::ofstream(path) << "hello";
  const auto wrong = MakeServerCredentials(remote, {.certificate = path, .key = path, .ca = path});
  unlink(path.c_str());
  EXPECT_THAT(wrong, StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(StatusConversionTest, KeepsCodeAndMessage) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), code == 0 ? "" : "why");
    EXPECT_EQ(static_cast<int>(ToGrpcStatus(status).error_code()), code);
    EXPECT_EQ(FromGrpcStatus(ToGrpcStatus(status)), status);
    EXPECT_TRUE(IsAnswer(ToGrpcStatus(status)));
  }
}

}  // namespace
}  // namespace fargpu
