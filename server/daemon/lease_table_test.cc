#include "server/daemon/lease_table.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/status_matchers.h"
#include "server/worker/device_list.h"

namespace fargpu::server {
namespace {

constexpr uint64_t kGiB = uint64_t{1} << 30;

DeviceInfo Card(uint8_t number, uint64_t bytes) {
  DeviceInfo device;
  device.uuid.fill(number);
  device.total_memory_bytes = bytes;
  return device;
}

class LeaseTableTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/fargpu-leases-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::unique_ptr<LeaseTable> Open() {
    auto table = LeaseTable::Open(directory_ + "/leases", {Card(1, 8 * kGiB), Card(2, 4 * kGiB)});
    EXPECT_OK(table);
    return std::move(table).value_or(nullptr);
  }
  Lease Ask(uint64_t bytes, std::vector<uint8_t> cards = {1}) {
    Lease lease;
    lease.id = RandomId<LeaseId>();
    FillRandom(absl::MakeSpan(lease.secret.bytes));
    lease.memory_bytes = bytes;
    lease.cores_percent = 30;
    lease.ttl_ms = 5000;
    for (uint8_t card : cards) lease.device_uuids.push_back(UuidText(Card(card, 0)));
    return lease;
  }

  std::string directory_;
};

TEST_F(LeaseTableTest, HoldsLeasesOverARestart) {
  auto table = Open();
  const Lease lease = Ask(kGiB, {2, 1});
  ASSERT_OK(table->Reserve(lease));
  ASSERT_OK(table->Reserve(lease));  // held already: changes nothing
  EXPECT_EQ(table->All().size(), 1u);
  table.reset();
  table = Open();
  const auto held = table->Find(lease.id);
  ASSERT_NE(held, nullptr);
  EXPECT_TRUE(SecretsEqual(held->secret, lease.secret));
  EXPECT_EQ(held->device_uuids, lease.device_uuids);
  EXPECT_EQ(held->memory_bytes, kGiB);
  EXPECT_EQ(held->cores_percent, 30u);
  EXPECT_EQ(held->ttl_ms, 5000u);
  EXPECT_EQ(held->ledger->limit_bytes(), kGiB);
  EXPECT_EQ(held->ledger->device_count(), 2);
  EXPECT_EQ(table->DevicesOf(*held).front().total_memory_bytes, 4 * kGiB);

  EXPECT_TRUE(table->Release(lease.id));
  EXPECT_FALSE(table->Release(lease.id));
  table.reset();
  EXPECT_TRUE(Open()->All().empty());
}

TEST_F(LeaseTableTest, FilesAreForTheDaemonOnly) {
  auto table = Open();
  ASSERT_OK(table->Reserve(Ask(kGiB)));
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory_ + "/leases")) {
    struct stat file;
    ASSERT_EQ(stat(entry.path().c_str(), &file), 0);
    EXPECT_EQ(file.st_mode & 0777, 0600u) << entry.path();
    ++files;
  }
  EXPECT_EQ(files, 2);
}

TEST_F(LeaseTableTest, LendsOnAfterItsDirectoryWasDeleted) {
  auto table = Open();
  std::filesystem::remove_all(directory_ + "/leases");
  ASSERT_OK(table->Reserve(Ask(kGiB)));
  table.reset();
  EXPECT_EQ(Open()->All().size(), 1u);
}

TEST_F(LeaseTableTest, LendsNoMoreThanThereIs) {
  auto table = Open();
  ASSERT_OK(table->Reserve(Ask(5 * kGiB)));
  EXPECT_THAT(table->Reserve(Ask(4 * kGiB)), StatusIs(absl::StatusCode::kResourceExhausted));
  ASSERT_OK(table->Reserve(Ask(3 * kGiB, {1, 2})));
  EXPECT_THAT(table->Reserve(Ask(2 * kGiB, {2})), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(table->Reserve(Ask(UINT64_MAX, {2})), StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(LeaseTableTest, RefusesNonsense) {
  auto table = Open();
  EXPECT_THAT(table->Reserve(Ask(kGiB, {9})), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(table->Reserve(Ask(kGiB, {})), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(table->Reserve(Ask(kGiB, {1, 1})), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(table->Reserve(Ask(0)), StatusIs(absl::StatusCode::kInvalidArgument));
  Lease cores = Ask(kGiB);
  cores.cores_percent = 101;
  EXPECT_THAT(table->Reserve(cores), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_TRUE(table->All().empty());
}

TEST_F(LeaseTableTest, LeavesOutFilesThatMakeNoSense) {
  auto table = Open();
  ASSERT_OK(table->Reserve(Ask(kGiB)));
  table.reset();
  std::ofstream(directory_ + "/leases/empty.lease");
  std::ofstream(directory_ + "/leases/odd.lease") << "lease zz\nsecret 5";
  std::ofstream(directory_ + "/leases/binary.lease") << std::string(100000, '\xff');
  EXPECT_EQ(Open()->All().size(), 1u);
}

}  // namespace
}  // namespace fargpu::server
