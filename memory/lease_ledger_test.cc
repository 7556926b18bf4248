#include "memory/lease_ledger.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/status_matchers.h"

namespace fargpu::memory {
namespace {

using testing::HasSubstr;

constexpr uint64_t kMiB = 1 << 20;

class LeaseLedgerTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/fargpu-ledger-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    directory_ = name;
    path_ = directory_ + "/lease.ledger";
  }
  void TearDown() override {
    unlink(path_.c_str());
    rmdir(directory_.c_str());
  }
  std::unique_ptr<LeaseLedger> Create(uint64_t limit, int devices = 1) {
    auto ledger = LeaseLedger::Create(path_, devices, limit);
    EXPECT_OK(ledger.status());
    return std::move(ledger).value_or(nullptr);
  }
  std::unique_ptr<LeaseLedger> Map() {
    auto ledger = LeaseLedger::Map(UniqueFd(open(path_.c_str(), O_RDWR | O_CLOEXEC)));
    return std::move(ledger).value_or(nullptr);
  }
  // Starts a process that runs `body` and then waits to be killed.
  template <typename Body>
  pid_t StartProcess(Body body) {
    const pid_t child = fork();
    if (child == 0) {
      body();
      while (true) pause();
    }
    children_.push_back(child);
    return child;
  }
  void Kill(pid_t child) {
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status)) << "the child ended by itself, status " << status;
  }

  std::string directory_, path_;
  std::vector<pid_t> children_;
};

TEST_F(LeaseLedgerTest, ChargesAndRefunds) {
  auto ledger = Create(10 * kMiB);
  ASSERT_OK(ledger->Join());
  {
    ASSERT_OK_AND_ASSIGN(Reservation first, ledger->Reserve(0, 6 * kMiB));
    EXPECT_EQ(ledger->UsedBytes(0), 6 * kMiB);
    ASSERT_OK_AND_ASSIGN(Reservation second, ledger->Reserve(0, 4 * kMiB));
    const auto third = ledger->Reserve(0, 1);
    EXPECT_THAT(third, StatusIs(absl::StatusCode::kResourceExhausted));
    EXPECT_THAT(third, IsCudaError(CUDA_ERROR_OUT_OF_MEMORY));
    EXPECT_THAT(std::string(third.status().message()),
                HasSubstr("asked for 1 bytes with 10485760 of the lease's 10485760 in use"));
    second.Refund();
    EXPECT_EQ(ledger->UsedBytes(0), 6 * kMiB);
    Reservation moved = std::move(first);
    EXPECT_EQ(first.bytes(), 0u);
    EXPECT_EQ(moved.bytes(), 6 * kMiB);
  }
  EXPECT_EQ(ledger->UsedBytes(0), 0u);
}

TEST_F(LeaseLedgerTest, DevicesHaveLimitsOfTheirOwn) {
  auto ledger = Create(kMiB, /*devices=*/3);
  ASSERT_OK(ledger->Join());
  ASSERT_OK_AND_ASSIGN(Reservation zero, ledger->Reserve(0, kMiB));
  ASSERT_OK_AND_ASSIGN(Reservation two, ledger->Reserve(2, kMiB));
  EXPECT_FALSE(ledger->Reserve(2, 1).ok());
  EXPECT_OK(ledger->Reserve(1, 1).status());
  EXPECT_THAT(ledger->Reserve(3, 1), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(ledger->Reserve(-1, 1), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(LeaseLedgerTest, HugeRequestsDoNotWrapAround) {
  auto ledger = Create(kMiB);
  ASSERT_OK(ledger->Join());
  ASSERT_OK_AND_ASSIGN(Reservation one, ledger->Reserve(0, 1));
  EXPECT_THAT(ledger->Reserve(0, UINT64_MAX), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(ledger->UsedBytes(0), 1u);
}

TEST_F(LeaseLedgerTest, ASmallerLimitHoldsAtOnce) {
  auto ledger = Create(4 * kMiB);
  ASSERT_OK(ledger->Join());
  ASSERT_OK_AND_ASSIGN(Reservation held, ledger->Reserve(0, 3 * kMiB));
  ledger->SetLimit(2 * kMiB);
  EXPECT_FALSE(ledger->Reserve(0, 1).ok());
  ledger->SetLimit(8 * kMiB);
  EXPECT_OK(ledger->Reserve(0, 5 * kMiB).status());
}

TEST_F(LeaseLedgerTest, RefusesFilesThatAreNoLedger) {
  EXPECT_EQ(Map(), nullptr);
  std::ofstream(path_) << std::string(100000, 'x');
  EXPECT_EQ(Map(), nullptr);
  // The daemon replaces it.
  auto ledger = Create(kMiB);
  ASSERT_NE(ledger, nullptr);
  EXPECT_EQ(ledger->UsedBytes(0), 0u);
}

TEST_F(LeaseLedgerTest, ProcessesShareOneLimitAndTheDeadAreSweptWhenItIsReached) {
  auto ledger = Create(10 * kMiB);
  ASSERT_OK(ledger->Join());
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = StartProcess([&] {
    auto mine = Map();
    if (!mine->Join().ok()) _exit(1);
    auto held = mine->Reserve(0, 8 * kMiB);
    if (!held.ok() || write(ready[1], "x", 1) != 1) _exit(2);
    while (true) pause();
  });
  char byte = 0;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  EXPECT_EQ(ledger->UsedBytes(0), 8 * kMiB);
  EXPECT_FALSE(ledger->Reserve(0, 3 * kMiB).ok());
  ASSERT_EQ(ledger->Sessions().size(), 2u);
  Kill(child);
  // Without anybody sweeping: the reserve itself does.
  EXPECT_OK(ledger->Reserve(0, 10 * kMiB).status());
  EXPECT_EQ(ledger->Sessions().size(), 1u);
  close(ready[0]);
  close(ready[1]);
}

TEST_F(LeaseLedgerTest, TheDaemonSweepsAZombieAndAnotherDaemonFindsTheTruth) {
  auto daemon = Create(10 * kMiB);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  auto hold = [&](uint64_t bytes) {
    return StartProcess([&, bytes] {
      auto mine = Map();
      if (!mine->Join().ok()) _exit(1);
      auto held = mine->Reserve(0, bytes);
      if (!held.ok() || write(ready[1], "x", 1) != 1) _exit(2);
      while (true) pause();
    });
  };
  const pid_t first = hold(3 * kMiB);
  const pid_t second = hold(4 * kMiB);
  char bytes[2];
  for (int got = 0; got < 2;) got += static_cast<int>(read(ready[0], bytes, 1));

  daemon.reset();
  daemon = Create(10 * kMiB);
  EXPECT_EQ(daemon->UsedBytes(0), 7 * kMiB);

  kill(first, SIGKILL);
  siginfo_t info;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(first), &info, WEXITED | WNOWAIT), 0);  // a zombie now
  ASSERT_OK(daemon->SweepDead());
  EXPECT_EQ(daemon->UsedBytes(0), 4 * kMiB);
  Kill(first);
  Kill(second);
  ASSERT_OK(daemon->SweepDead());
  EXPECT_EQ(daemon->UsedBytes(0), 0u);
  close(ready[0]);
  close(ready[1]);
}

// Kills processes that reserve and refund as fast as they can, wherever they happen to be. The
// limit must hold at every moment and the ledger must stay usable.
TEST_F(LeaseLedgerTest, SurvivesKillAtAnyPoint) {
  auto ledger = Create(8 * kMiB);
  for (int round = 0; round < 60; ++round) {
    std::vector<pid_t> workers;
    for (int i = 0; i < 3; ++i) {
      workers.push_back(StartProcess([&] {
        while (true) {
          auto mine = Map();
          if (mine == nullptr || !mine->Join().ok()) _exit(1);
          for (int n = 0; n < 50; ++n) {
            auto a = mine->Reserve(0, 3 * kMiB);
            auto b = mine->Reserve(0, 2 * kMiB);
            if (!a.ok() && a.status().code() != absl::StatusCode::kResourceExhausted) _exit(2);
          }
        }
      }));
    }
    for (int look = 0; look < 20; ++look) {
      EXPECT_LE(ledger->UsedBytes(0), 8 * kMiB);
      usleep(static_cast<useconds_t>(50 + 13 * round));
    }
    for (pid_t worker : workers) Kill(worker);
    ASSERT_OK(ledger->SweepDead());
    ASSERT_EQ(ledger->UsedBytes(0), 0u);
  }
  ASSERT_OK(ledger->Join());
  EXPECT_OK(ledger->Reserve(0, 8 * kMiB).status());
}

TEST_F(LeaseLedgerTest, RefusesMoreSessionsThanItHasSlots) {
  auto ledger = Create(kMiB);
  std::vector<std::unique_ptr<LeaseLedger>> sessions;
  for (int i = 0; i < LeaseLedger::kSlots; ++i) {
    sessions.push_back(Map());
    ASSERT_OK(sessions.back()->Join());
  }
  auto extra = Map();
  EXPECT_THAT(extra->Join(), StatusIs(absl::StatusCode::kResourceExhausted));
  sessions.pop_back();
  EXPECT_OK(extra->Join());
}

}  // namespace
}  // namespace fargpu::memory
