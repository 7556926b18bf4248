#include "protocol/lease_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "common/status_macros.h"
#include "common/status_matchers.h"

namespace fargpu {
namespace {

LeaseFile SomeLease() {
  LeaseFile lease;
  lease.lease = RandomId<LeaseId>();
  FillRandom(absl::MakeSpan(lease.secret.bytes));
  lease.endpoints = {"unix:/run/fargpu/fargpud.sock", "tcp:10.0.0.7:4833"};
  lease.memory_bytes = 4ull << 30;
  lease.cores_percent = 30;
  return lease;
}

TEST(LeaseFileTest, RoundTripThroughAPrivateFile) {
  const std::string path = absl::StrCat(testing::TempDir(), "/lease_", getpid());
  unlink(path.c_str());
  const LeaseFile lease = SomeLease();
  ASSERT_OK(WriteLeaseFile(path, lease));
  struct stat info = {};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_THAT(WriteLeaseFile(path, lease), StatusIs(absl::StatusCode::kAlreadyExists));
  ASSERT_OK_AND_ASSIGN(const LeaseFile read, ReadLeaseFile(path));
  EXPECT_EQ(read.lease, lease.lease);
  EXPECT_EQ(read.secret.bytes, lease.secret.bytes);
  EXPECT_EQ(read.endpoints, lease.endpoints);
  EXPECT_EQ(read.memory_bytes, lease.memory_bytes);
  EXPECT_EQ(read.cores_percent, lease.cores_percent);
  unlink(path.c_str());
}

TEST(LeaseFileTest, AFifoDoesNotHang) {
  const std::string path = absl::StrCat(testing::TempDir(), "/lease_fifo_", getpid());
  unlink(path.c_str());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(ReadLeaseFile(path), StatusIs(absl::StatusCode::kInvalidArgument));
  unlink(path.c_str());
}

TEST(LeaseFileTest, SkipsWhatItDoesNotKnow) {
  const std::string text =
      absl::StrCat("# comment\n\nfuture thing\n", FormatLeaseFile(SomeLease()));
  EXPECT_OK(ParseLeaseFile(text));
}

TEST(LeaseFileTest, NamesTheBadLineButNotTheSecret) {
  const auto bad = ParseLeaseFile("lease 00112233445566778899aabbccddeeff\nsecret abcdefgh\n");
  EXPECT_THAT(bad, StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(
      std::string(bad.status().message()),
      testing::AllOf(testing::HasSubstr("line 2"), testing::Not(testing::HasSubstr("abcdefgh"))));
  EXPECT_THAT(ParseLeaseFile(""), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ReadLeaseFile("/nowhere/lease"), StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace fargpu
