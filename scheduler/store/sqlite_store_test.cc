#include "scheduler/store/sqlite_store.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/status_matchers.h"

namespace fargpu::scheduler {
namespace {

using ::testing::HasSubstr;

class SqliteStoreTest : public testing::Test {
 protected:
  SqliteStoreTest() {
    std::string pattern = testing::TempDir() + "sqlite_store_XXXXXX";
    directory_ = mkdtemp(pattern.data());
    path_ = directory_ + "/broker.db";
  }
  ~SqliteStoreTest() override { std::filesystem::remove_all(directory_); }

  static LeaseRecord Lease(int number, const std::string& request_id = "") {
    LeaseRecord record;
    record.id = RandomId<LeaseId>();
    FillRandom(absl::MakeSpan(record.secret.bytes));
    record.request_id = request_id;
    record.fingerprint = std::string("fingerprint\0x", 13);
    record.lease.set_id(ToString(record.id));
    record.lease.set_tenant("default");
    record.lease.set_create_time_ms(number);
    record.lease.set_state(broker::v1::LEASE_STATE_ACTIVE);
    return record;
  }

  std::string directory_;
  std::string path_;
};

TEST_F(SqliteStoreTest, KeepsWhatWasCommitted) {
  const LeaseRecord first = Lease(1, "request-1");
  LeaseRecord second = Lease(2);
  NodeRecord node;
  node.hello.set_node_name("gpu-1");
  node.hello.add_endpoints("tcp:127.0.0.1:5000");
  node.last_heard_ms = 77;
  EventRecord event;
  event.sequence = 5;
  event.event.set_message("granted");
  std::string store_id;
  {
    ASSERT_OK_AND_ASSIGN(auto store, SqliteStore::Open(path_));
    ASSERT_OK_AND_ASSIGN(const StoreContents empty, store->Load());
    EXPECT_TRUE(empty.leases.empty());
    store_id = empty.store_id;
    EXPECT_EQ(store_id.size(), 16u);
    StoreChange change;
    change.put_leases = {second, first};
    change.put_nodes = {node};
    change.append_events = {event};
    ASSERT_OK(store->Commit(change));

    second.end_cause = EndCause::kExpired;
    second.lease.set_end_reason("no session");
    StoreChange end;
    end.put_leases = {second};
    ASSERT_OK(store->Commit(end));
  }
  ASSERT_OK_AND_ASSIGN(auto store, SqliteStore::Open(path_));
  ASSERT_OK_AND_ASSIGN(const StoreContents contents, store->Load());
  EXPECT_EQ(contents.store_id, store_id);
  ASSERT_EQ(contents.leases.size(), 2u);
  EXPECT_EQ(contents.leases[0].id, first.id);  // by creation
  EXPECT_EQ(contents.leases[0].secret.bytes, first.secret.bytes);
  EXPECT_EQ(contents.leases[0].request_id, "request-1");
  EXPECT_EQ(contents.leases[0].fingerprint, first.fingerprint);
  EXPECT_EQ(contents.leases[0].end_cause, EndCause::kNone);
  EXPECT_EQ(contents.leases[1].id, second.id);
  EXPECT_EQ(contents.leases[1].end_cause, EndCause::kExpired);
  EXPECT_EQ(contents.leases[1].lease.end_reason(), "no session");
  ASSERT_EQ(contents.nodes.size(), 1u);
  EXPECT_EQ(contents.nodes[0].hello.endpoints(0), "tcp:127.0.0.1:5000");
  EXPECT_EQ(contents.nodes[0].last_heard_ms, 77);
  ASSERT_EQ(contents.events.size(), 1u);
  EXPECT_EQ(contents.events[0].sequence, 5u);
  EXPECT_EQ(contents.events[0].event.message(), "granted");
}

TEST_F(SqliteStoreTest, DeletesLeasesAndOldEvents) {
  ASSERT_OK_AND_ASSIGN(auto store, SqliteStore::Open(path_));
  const LeaseRecord lease = Lease(1);
  StoreChange change;
  change.put_leases = {lease};
  for (uint64_t sequence = 1; sequence <= 10; ++sequence) {
    change.append_events.push_back({sequence, {}});
  }
  ASSERT_OK(store->Commit(change));
  StoreChange removal;
  removal.delete_leases = {lease.id};
  removal.delete_events_before = 8;
  ASSERT_OK(store->Commit(removal));
  ASSERT_OK_AND_ASSIGN(const StoreContents contents, store->Load());
  EXPECT_TRUE(contents.leases.empty());
  ASSERT_EQ(contents.events.size(), 3u);
  EXPECT_EQ(contents.events[0].sequence, 8u);
}

TEST_F(SqliteStoreTest, AChangeThatFailsLeavesNothing) {
  ASSERT_OK_AND_ASSIGN(auto store, SqliteStore::Open(path_));
  StoreChange first;
  first.put_leases = {Lease(1, "same")};
  ASSERT_OK(store->Commit(first));
  StoreChange second;
  second.put_leases = {Lease(2), Lease(3, "same")};  // two leases for one request: never
  EXPECT_THAT(store->Commit(second), StatusIs(absl::StatusCode::kUnavailable));
  ASSERT_OK_AND_ASSIGN(const StoreContents contents, store->Load());
  EXPECT_EQ(contents.leases.size(), 1u);
  StoreChange third;
  third.put_leases = {Lease(4)};
  EXPECT_OK(store->Commit(third));
}

TEST_F(SqliteStoreTest, FilesAreForTheOwnerOnly) {
  ASSERT_OK_AND_ASSIGN(auto store, SqliteStore::Open(path_));
  StoreChange change;
  change.put_leases = {Lease(1)};
  ASSERT_OK(store->Commit(change));
  for (const char* suffix : {"", "-wal", "-shm"}) {
    struct stat info;
    ASSERT_EQ(stat((path_ + suffix).c_str(), &info), 0) << suffix;
    EXPECT_EQ(info.st_mode & 0777, 0600u) << suffix;
  }
}

TEST_F(SqliteStoreTest, RefusesForeignNewerAndDamagedFiles) {
  std::ofstream(path_) << std::string(4096, 'x');
  EXPECT_FALSE(SqliteStore::Open(path_).ok());

  const std::string newer = directory_ + "/newer.db";
  ASSERT_OK(SqliteStore::Open(newer));
  ASSERT_EQ(system(("sqlite3 " + newer + " 'PRAGMA user_version=999'").c_str()), 0);
  const auto opened = SqliteStore::Open(newer);
  EXPECT_THAT(opened, StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(std::string(opened.status().message()), HasSubstr("999"));

  const std::string foreign = directory_ + "/foreign.db";
  ASSERT_EQ(system(("sqlite3 " + foreign + " 'CREATE TABLE t(x)'").c_str()), 0);
  EXPECT_THAT(SqliteStore::Open(foreign), StatusIs(absl::StatusCode::kFailedPrecondition));

  EXPECT_FALSE(SqliteStore::Open(directory_ + "/missing/broker.db").ok());
}

// A process writes leases and says after each commit which one it wrote; it is killed in the midst
// of that. Every lease of which it said so must be there.
TEST_F(SqliteStoreTest, SurvivesKill9OfTheWriter) {
  std::set<std::string> told;
  for (int round = 0; round < 5; ++round) {
    int pipe_fds[2];
    ASSERT_EQ(pipe(pipe_fds), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      close(pipe_fds[0]);
      auto store = SqliteStore::Open(path_);
      if (!store.ok()) _exit(2);
      for (int i = 0;; ++i) {
        StoreChange change;
        change.put_leases = {Lease(i), Lease(i)};
        if (!(*store)->Commit(change).ok()) _exit(3);
        const std::string ids =
            ToString(change.put_leases[0].id) + ToString(change.put_leases[1].id);
        if (write(pipe_fds[1], ids.data(), ids.size()) != 64) _exit(4);
      }
    }
    close(pipe_fds[1]);
    for (int i = 0; i < 20 + round * 7; ++i) {
      char ids[64];
      ASSERT_EQ(read(pipe_fds[0], ids, sizeof(ids)), 64);
      told.emplace(ids, 32);
      told.emplace(ids + 32, 32);
    }
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status));
    close(pipe_fds[0]);

    ASSERT_OK_AND_ASSIGN(auto store, SqliteStore::Open(path_));
    ASSERT_OK_AND_ASSIGN(const StoreContents contents, store->Load());
    EXPECT_EQ(contents.leases.size() % 2, 0u);  // both of a change or none
    std::set<std::string> found;
    for (const LeaseRecord& record : contents.leases) found.insert(ToString(record.id));
    for (const std::string& id : told) EXPECT_EQ(found.count(id), 1u) << id;
  }
}

}  // namespace
}  // namespace fargpu::scheduler
