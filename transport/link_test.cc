#include "transport/link.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/mutex.h"
#include "common/status_matchers.h"
#include "transport/inproc/faulty_connection.h"
#include "transport/inproc/in_process_connection.h"

namespace fargpu::transport {
namespace {

using wire::FrameKind;

constexpr char kText[] = "vectorAdd";

absl::Span<const char> Bytes(const std::string& text) { return {text.data(), text.size()}; }
std::string Text(absl::Span<const char> bytes) { return {bytes.data(), bytes.size()}; }

LinkOptions Quick() {
  return {.heartbeat = absl::Milliseconds(100), .dead_after = absl::Milliseconds(500)};
}

// One end of a link and what it has seen.
struct End {
  std::atomic<uint64_t> frames{0};
  std::atomic<uint64_t> last_first_call{0};
  std::atomic<int> deaths{0};
  std::function<void(IncomingFrame)> also;
  Mutex mutex;
  absl::Status cause;
  std::unique_ptr<Link> link;  // destroyed before what its handlers use

  void Start(std::unique_ptr<Connection> connection, LinkOptions options) {
    link = Link::Start(
        std::move(connection), options,
        [this](IncomingFrame frame) {
          last_first_call = frame.header.first_call;
          if (also) also(std::move(frame));
          ++frames;
        },
        [this](const absl::Status& status) {
          {
            MutexLock lock(&mutex);
            cause = status;
          }
          ++deaths;
        });
  }
  absl::Status WaitFrames(uint64_t count, absl::Duration limit = absl::Seconds(20)) {
    return link->WaitUntil([&] { return frames >= count; }, absl::Now() + limit);
  }
  absl::Status Cause() {
    MutexLock lock(&mutex);
    return cause;
  }
};

struct LinkPair {
  End client, worker;
  FaultyConnection* faults = nullptr;  // of what the client receives

  explicit LinkPair(LinkOptions options = {}) {
    auto [a, b] = NewInProcessPair();
    auto faulty = std::make_unique<FaultyConnection>(std::move(a));
    faults = faulty.get();
    worker.also = [this](IncomingFrame frame) {
      if (frame.header.kind != FrameKind::kCalls) return;
      worker.link->Send(FrameKind::kReplies, 1, frame.header.first_call, frame.body(), frame.bulk())
          .IgnoreError();
    };
    client.Start(std::move(faulty), options);
    worker.Start(std::move(b), options);
  }
};

bool Eventually(const std::function<bool()>& condition, absl::Duration limit = absl::Seconds(10)) {
  const absl::Time end = absl::Now() + limit;
  while (absl::Now() < end) {
    if (condition()) return true;
    absl::SleepFor(absl::Milliseconds(1));
  }
  return condition();
}

TEST(LinkTest, CarriesBodyBulkAndNumbers) {
  LinkPair pair;
  IncomingFrame reply;
  pair.client.also = [&](IncomingFrame frame) { reply = std::move(frame); };
  const std::string bulk(100'000, 'b');
  ASSERT_OK_AND_ASSIGN(SendTicket ticket,
                       pair.client.link->Send(FrameKind::kCalls, 3, 42, kText, Bytes(bulk)));
  ASSERT_OK(pair.client.link->WaitSent(ticket, absl::Now() + absl::Seconds(5)));
  ASSERT_OK(pair.client.WaitFrames(1));
  EXPECT_EQ(reply.header.kind, FrameKind::kReplies);
  EXPECT_EQ(reply.header.first_call, 42u);
  EXPECT_EQ(reply.header.sequence, 1u);
  EXPECT_EQ(Text(reply.body()), std::string(kText, sizeof(kText)));
  EXPECT_EQ(Text(reply.bulk()), bulk);
  EXPECT_EQ(pair.client.link->acknowledged(), 1u);
}

TEST(LinkTest, KeepsOrderOfManyFrames) {
  LinkPair pair;
  uint64_t next = 1;
  bool in_order = true;
  pair.client.also = [&](IncomingFrame frame) { in_order &= frame.header.first_call == next++; };
  for (uint64_t i = 1; i <= 20'000; ++i) {
    ASSERT_OK(pair.client.link->Send(FrameKind::kCalls, 1, i, kText, {}));
  }
  ASSERT_OK(pair.client.WaitFrames(20'000));
  EXPECT_TRUE(in_order);
}

TEST(LinkTest, FramesArriveWhileNobodyWaits) {
  LinkPair pair;
  ASSERT_OK(pair.client.link->Send(FrameKind::kCalls, 1, 7, kText, {}));
  EXPECT_TRUE(Eventually([&] { return pair.client.frames == 1; }));
  EXPECT_EQ(pair.client.last_first_call, 7u);
}

TEST(LinkTest, AcknowledgesWithoutReplies) {
  LinkPair pair;  // heartbeat 1 s: the acknowledgement must not wait for it
  pair.worker.also = nullptr;
  for (int i = 1; i <= 64; ++i) {
    ASSERT_OK(pair.client.link->Send(FrameKind::kCalls, 1, i, kText, {}));
  }
  EXPECT_TRUE(
      Eventually([&] { return pair.client.link->acknowledged() == 64; }, absl::Milliseconds(500)));
}

TEST(LinkTest, RefusesWhatIsOverTheLimitsAndLivesOn) {
  LinkPair pair;
  const std::string large(wire::kMaxBulkBytes + 1, 'x');
  EXPECT_THAT(pair.client.link->Send(FrameKind::kCalls, 1, 1, {}, Bytes(large)),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(
      pair.client.link->Send(FrameKind::kCalls, 1, 1, {large.data(), wire::kMaxBodyBytes + 1}, {}),
      StatusIs(absl::StatusCode::kInvalidArgument));
  ASSERT_OK(pair.client.link->Send(FrameKind::kCalls, 1, 1, {large.data(), wire::kMaxBodyBytes},
                                   {large.data(), wire::kMaxBulkBytes}));
  ASSERT_OK(pair.client.WaitFrames(1));
  EXPECT_OK(pair.client.link->status());
}

TEST(LinkTest, WaitsEndAtTheirDeadline) {
  LinkPair pair;
  const absl::Time start = absl::Now();
  EXPECT_THAT(pair.client.WaitFrames(1, absl::Milliseconds(50)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(50));
  EXPECT_LT(absl::Now() - start, absl::Seconds(2));
}

TEST(LinkTest, WakeMakesWaitersLookAgain) {
  LinkPair pair;
  std::atomic<bool> done{false};
  std::atomic<int> returned{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      EXPECT_OK(pair.client.link->WaitUntil([&] { return done.load(); },
                                            absl::Now() + absl::Seconds(20)));
      ++returned;
    });
  }
  absl::SleepFor(absl::Milliseconds(30));
  EXPECT_EQ(returned, 0);
  const absl::Time start = absl::Now();
  done = true;
  pair.client.link->Wake();
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(absl::Now() - start, absl::Milliseconds(900));  // not by the longest sleep
}

TEST(LinkTest, ManyThreadsWaitForTheirOwnReplies) {
  LinkPair pair;
  constexpr int kThreads = 8;
  constexpr int kCalls = 500;
  std::vector<std::atomic<bool>> answered(kThreads * kCalls);
  pair.client.also = [&](IncomingFrame frame) { answered[frame.header.first_call] = true; };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kCalls; ++i) {
        const int call = t * kCalls + i;
        ASSERT_OK(pair.client.link->Send(FrameKind::kCalls, 1, call, kText, {}));
        ASSERT_OK(pair.client.link->WaitUntil([&] { return answered[call].load(); },
                                              absl::Now() + absl::Seconds(20)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pair.client.frames, uint64_t{kThreads * kCalls});
  EXPECT_EQ(pair.client.link->acknowledged(), uint64_t{kThreads * kCalls});
}

TEST(LinkTest, HeartbeatsKeepAnIdleLinkAlive) {
  LinkPair pair(Quick());
  absl::SleepFor(absl::Seconds(1.5));
  EXPECT_OK(pair.client.link->status());
  EXPECT_OK(pair.worker.link->status());
  EXPECT_EQ(pair.client.frames, 0u);  // heartbeats do not reach the handler
}

TEST(LinkTest, ASilentPeerIsDeadForThoseWhoWaitAndThoseWhoDoNot) {
  LinkPair pair(Quick());
  ASSERT_OK(pair.client.link->Send(FrameKind::kCalls, 1, 1, kText, {}));
  ASSERT_OK(pair.client.WaitFrames(1));
  const absl::Time start = absl::Now();
  pair.faults->Cut();
  EXPECT_THAT(pair.client.WaitFrames(2), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(350));
  EXPECT_LT(absl::Now() - start, absl::Milliseconds(1500));
  EXPECT_TRUE(Eventually([&] { return pair.worker.deaths == 1; }));
  EXPECT_EQ(pair.client.deaths, 1);
  EXPECT_THAT(pair.client.Cause(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(pair.client.link->status(), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(pair.client.link->Send(FrameKind::kCalls, 1, 2, kText, {}),
              StatusIs(absl::StatusCode::kUnavailable));
}

TEST(LinkTest, APeerThatWentIsNoticedAtOnce) {
  LinkPair pair;
  const absl::Time start = absl::Now();
  std::thread closer([&] {
    absl::SleepFor(absl::Milliseconds(20));
    pair.worker.link.reset();
  });
  EXPECT_THAT(pair.client.WaitFrames(1), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_LT(absl::Now() - start, absl::Seconds(1));
  closer.join();
}

TEST(LinkTest, GoodbyeReachesTheHandlerAndEndsTheLink) {
  LinkPair pair;
  FrameKind last = FrameKind::kHeartbeat;
  pair.client.also = [&](IncomingFrame frame) { last = frame.header.kind; };
  ASSERT_OK(pair.worker.link->Send(FrameKind::kGoodbye, 0, 0, {}, {}));
  EXPECT_TRUE(Eventually([&] { return pair.client.deaths == 1; }));
  EXPECT_EQ(last, FrameKind::kGoodbye);
  EXPECT_EQ(pair.client.Cause(), absl::UnavailableError("the peer said goodbye"));
}

TEST(LinkTest, ALostFrameIsNonsense) {
  LinkPair pair;
  pair.faults->DropNext(1);
  ASSERT_OK(pair.client.link->Send(FrameKind::kCalls, 1, 1, kText, {}));
  ASSERT_OK(pair.client.link->Send(FrameKind::kCalls, 1, 2, kText, {}));
  EXPECT_THAT(pair.client.WaitFrames(2), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(std::string(pair.client.link->status().message()),
              testing::HasSubstr("frame 2 came when 1 was due"));
  EXPECT_EQ(pair.client.deaths, 1);
}

TEST(LinkTest, ACorruptHeaderIsNonsense) {
  // Every byte of the header; the fields whose every value is good are those of the layer above.
  const std::set<size_t> free_fields = {6, 7, 32, 33, 34, 35, 36, 37, 38, 39};
  for (size_t offset = 0; offset < wire::kFrameHeaderBytes; ++offset) {
    LinkPair pair;
    pair.faults->CorruptNext(offset);
    ASSERT_OK(pair.client.link->Send(FrameKind::kCalls, 1, 1, kText, {}));
    const absl::Status status = pair.client.WaitFrames(1);
    if (free_fields.contains(offset)) {
      EXPECT_OK(status) << "offset " << offset;
    } else {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument)) << "offset " << offset;
    }
  }
}

TEST(LinkTest, RawMessagesAreChecked) {
  struct Case {
    const char* name;
    wire::FrameHeader header;
    size_t extra_bytes;
  };
  const Case cases[] = {
      {"heartbeat with a number", {.kind = FrameKind::kHeartbeat, .sequence = 1}, 0},
      {"heartbeat with a body", {.kind = FrameKind::kHeartbeat, .body_bytes = 4}, 4},
      {"opening frame", {.kind = FrameKind::kOpen}, 0},
      {"too long", {.kind = FrameKind::kReplies, .sequence = 1}, 1},
      {"too short", {.kind = FrameKind::kReplies, .body_bytes = 8, .sequence = 1}, 7},
      {"acknowledges what was not sent",
       {.kind = FrameKind::kReplies, .sequence = 1, .acknowledged = 1},
       0},
  };
  for (const Case& test : cases) {
    auto [a, raw] = NewInProcessPair();
    End client;
    client.Start(std::move(a), {});
    std::vector<char> bytes(wire::kFrameHeaderBytes + test.extra_bytes);
    wire::EncodeFrameHeader(test.header, absl::MakeSpan(bytes));
    ASSERT_OK(raw->Send(bytes, {}));
    EXPECT_THAT(client.WaitFrames(1), StatusIs(absl::StatusCode::kInvalidArgument)) << test.name;
    EXPECT_EQ(client.frames, 0u) << test.name;
  }
}

TEST(LinkTest, DelayedFramesStillArrive) {
  LinkPair pair;
  pair.faults->Delay(absl::Milliseconds(100));
  const absl::Time start = absl::Now();
  ASSERT_OK(pair.client.link->Send(FrameKind::kCalls, 1, 1, kText, {}));
  ASSERT_OK(pair.client.WaitFrames(1));
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(100));
}

// Threads that wait all have their turn although frames arrive all the time, and the link's thread
// takes over when they leave.
TEST(LinkTest, LeadershipPassesOn) {
  LinkPair pair;
  std::atomic<bool> stop{false};
  std::thread sender([&] {
    uint64_t call = 0;
    while (!stop) {
      ASSERT_OK(pair.client.link->Send(FrameKind::kCalls, 1, ++call, kText, {}));
      if (call % 16 == 0) absl::SleepFor(absl::Microseconds(200));
    }
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const uint64_t goal = pair.client.frames + 1 + t;
        ASSERT_OK(pair.client.WaitFrames(goal));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const uint64_t before = pair.client.frames;
  EXPECT_TRUE(Eventually([&] { return pair.client.frames > before; }));
  stop = true;
  sender.join();
}

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec +
         1e-6 * (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

TEST(LinkTest, AnIdleLinkCostsNoCpu) {
  LinkPair pair({.active_spin = absl::Milliseconds(2)});
  ASSERT_OK(pair.client.link->Send(FrameKind::kCalls, 1, 1, kText, {}));
  ASSERT_OK(pair.client.WaitFrames(1));
  absl::SleepFor(absl::Milliseconds(50));
  // The worker's dispatcher waits for calls, and so does a thread of the client.
  std::thread dispatcher([&] {
    EXPECT_THAT(pair.worker.WaitFrames(1000, absl::Seconds(3)),
                StatusIs(absl::StatusCode::kDeadlineExceeded));
  });
  const double before = CpuSeconds();
  EXPECT_THAT(pair.client.WaitFrames(1000, absl::Seconds(3)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  dispatcher.join();
  const double used = CpuSeconds() - before;
  RecordProperty("cpu_microseconds", static_cast<int>(used * 1e6));
  EXPECT_LT(used, 0.03);  // 1 % of 3 s, sanitizers included
}

// Says when it is used although it must not be.
class GuardedConnection final : public Connection {
 public:
  GuardedConnection(std::unique_ptr<Connection> inner, std::atomic<bool>* forbidden,
                    std::atomic<int>* touched)
      : inner_(std::move(inner)), forbidden_(forbidden), touched_(touched) {}
  absl::StatusOr<SendTicket> Send(absl::Span<const char> head,
                                  absl::Span<const char> bulk) override {
    Note();
    return inner_->Send(head, bulk);
  }
  bool IsSent(SendTicket ticket) override { return inner_->IsSent(ticket); }
  absl::StatusOr<bool> Progress(std::vector<Message>* arrived) override {
    Note();
    absl::StatusOr<bool> moved = inner_->Progress(arrived);
    Note();
    return moved;
  }
  int event_fd() const override { return inner_->event_fd(); }
  absl::StatusOr<bool> Arm() override {
    Note();
    return inner_->Arm();
  }
  void Abort() override {
    Note();
    inner_->Abort();
  }
  void AbandonAfterFork() override { inner_->AbandonAfterFork(); }
  bool IsOpen() override { return inner_->IsOpen(); }
  std::string Describe() const override { return inner_->Describe(); }

 private:
  void Note() {
    if (*forbidden_) ++*touched_;
  }
  const std::unique_ptr<Connection> inner_;
  std::atomic<bool>* const forbidden_;
  std::atomic<int>* const touched_;
};

TEST(LinkTest, AfterStopNobodyTouchesTheConnection) {
  for (int round = 0; round < 20; ++round) {
    std::atomic<bool> forbidden{false};
    std::atomic<int> touched{0};
    auto [a, b] = NewInProcessPair();
    End client, worker;
    worker.also = [&](IncomingFrame frame) {
      worker.link->Send(FrameKind::kReplies, 1, 1, {}, {}).IgnoreError();
    };
    worker.Start(std::move(b), {});
    client.Start(std::make_unique<GuardedConnection>(std::move(a), &forbidden, &touched), {});
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        absl::Status status;
        while (status.ok()) {
          status = client.link->Send(FrameKind::kCalls, 1, 1, kText, {}).status();
          if (status.ok()) status = client.WaitFrames(client.frames + 1);
        }
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable));
      });
    }
    absl::SleepFor(absl::Milliseconds(round));
    client.link->Stop();
    forbidden = true;
    for (std::thread& thread : threads) thread.join();
    EXPECT_THAT(client.link->Send(FrameKind::kCalls, 1, 1, kText, {}),
                StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_THAT(client.WaitFrames(1'000'000), StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_EQ(touched, 0);
    EXPECT_EQ(client.deaths, 0);
    forbidden = false;
  }
}

TEST(LinkTest, AChildOfForkGoesWithoutHarmingTheParent) {
  LinkPair pair(Quick());
  ASSERT_OK(pair.client.link->Send(FrameKind::kCalls, 1, 1, kText, {}));
  ASSERT_OK(pair.client.WaitFrames(1));
  const pid_t child = fork();
  if (child == 0) {
    pair.client.link->AbandonAfterFork();
    pair.worker.link->AbandonAfterFork();
    pair.client.link.reset();
    pair.worker.link.reset();
    _exit(7);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 7) << status;
  ASSERT_OK(pair.client.link->Send(FrameKind::kCalls, 1, 2, kText, {}));
  EXPECT_OK(pair.client.WaitFrames(2));
}

}  // namespace
}  // namespace fargpu::transport
