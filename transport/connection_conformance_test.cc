// What every Connection must do, run over each of them.

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/status_macros.h"
#include "common/status_matchers.h"
#include "transport/connection.h"
#include "transport/connection_test_peers.h"
#include "transport/inproc/in_process_connection.h"

namespace fargpu::transport {
namespace {

constexpr absl::Duration kLimit = absl::Seconds(30);

struct Implementation {
  std::string name;
  std::function<absl::StatusOr<ConnectionPair>()> pair;
  std::string description;
};

void PrintTo(const Implementation& implementation, std::ostream* out) {
  *out << implementation.name;
}

const std::vector<char>& Noise() {
  static const auto* const noise = [] {
    auto* bytes = new std::vector<char>(kMaxMessageBytes + 4096);
    std::mt19937_64 random(1);
    for (size_t i = 0; i + 8 <= bytes->size(); i += 8) {
      const uint64_t word = random();
      std::memcpy(bytes->data() + i, &word, 8);
    }
    return bytes;
  }();
  return *noise;
}

// The bytes of message `number`: no two begin at the same place of the noise.
absl::Span<const char> Bytes(size_t number, size_t size) {
  return {Noise().data() + (number * 7) % 4096, size};
}

// Sizes around every border there is in the implementations, then anything.
std::vector<size_t> MixedSizes(size_t count, uint64_t seed) {
  std::vector<size_t> sizes = {0,       1,
                               48,      64,
                               4096,    8000,
                               8185,    8192,
                               8300,    65536,
                               262143,  262144,
                               262145,  262144 + 48,
                               1 << 20, (1 << 20) + 48,
                               4 << 20, kMaxMessageBytes};
  std::mt19937_64 random(seed);
  while (sizes.size() < count) {
    const int bits = static_cast<int>(random() % 22);
    sizes.push_back(random() % (size_t{1} << bits));
  }
  std::shuffle(sizes.begin(), sizes.end(), random);
  return sizes;
}

class ConnectionTest : public testing::TestWithParam<Implementation> {
 protected:
  void SetUp() override {
    absl::StatusOr<ConnectionPair> pair = GetParam().pair();
    ASSERT_OK(pair);
    a_ = std::move(pair->first);
    b_ = std::move(pair->second);
  }

  // Lets both ends work until `done`; false if that takes too long or an end fails.
  bool Pump(const std::function<bool()>& done, absl::Duration limit = kLimit) {
    const absl::Time end = absl::Now() + limit;
    while (!done()) {
      if (absl::Now() > end) return false;
      for (auto& [connection, messages] :
           {std::pair(a_.get(), &at_a_), std::pair(b_.get(), &at_b_)}) {
        if (connection == nullptr) continue;
        const absl::StatusOr<bool> moved = connection->Progress(messages);
        if (!moved.ok()) {
          ADD_FAILURE() << moved.status();
          return false;
        }
      }
    }
    return true;
  }

  std::unique_ptr<Connection> a_, b_;
  std::vector<Message> at_a_, at_b_;
};

TEST_P(ConnectionTest, KeepsOrderAndBytesOfMixedSizes) {
  const std::vector<size_t> sizes = MixedSizes(400, 1);
  // Sent at once, before the two ends have found each other, and the bulk is borrowed.
  SendTicket last = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const size_t head = std::min<size_t>(sizes[i], i % 3 == 0 ? 0 : i % 3 == 1 ? 100 : 9000);
    const absl::Span<const char> bytes = Bytes(i, sizes[i]);
    ASSERT_OK_AND_ASSIGN(last, a_->Send(bytes.subspan(0, head), bytes.subspan(head)));
    EXPECT_EQ(last, i + 1);
  }
  ASSERT_TRUE(Pump([&] { return at_b_.size() == sizes.size() && a_->IsSent(last); }));
  for (size_t i = 0; i < sizes.size(); ++i) {
    ASSERT_EQ(at_b_[i].size, sizes[i]) << i;
    ASSERT_EQ(std::memcmp(at_b_[i].storage.get(), Bytes(i, sizes[i]).data(), sizes[i]), 0) << i;
  }
  EXPECT_EQ(a_->Describe(), GetParam().description);
  EXPECT_EQ(b_->Describe(), GetParam().description);
}

TEST_P(ConnectionTest, BothDirectionsAtOnce) {
  const std::vector<size_t> forth = MixedSizes(200, 2);
  const std::vector<size_t> back = MixedSizes(200, 3);
  for (size_t i = 0; i < forth.size(); ++i) {
    ASSERT_OK(a_->Send({}, Bytes(i, forth[i])));
    ASSERT_OK(b_->Send({}, Bytes(i + 1, back[i])));
  }
  ASSERT_TRUE(Pump([&] { return at_a_.size() == back.size() && at_b_.size() == forth.size(); }));
  for (size_t i = 0; i < forth.size(); ++i) {
    ASSERT_EQ(at_b_[i].bytes(), Bytes(i, forth[i])) << i;
    ASSERT_EQ(at_a_[i].bytes(), Bytes(i + 1, back[i])) << i;
  }
}

TEST_P(ConnectionTest, BorrowedMemoryMayChangeOnceItIsSent) {
  std::vector<char> buffer(3 << 20);
  for (size_t i = 0; i < 20; ++i) {
    std::memset(buffer.data(), static_cast<int>(i), buffer.size());
    ASSERT_OK_AND_ASSIGN(const SendTicket ticket, a_->Send({}, buffer));
    ASSERT_TRUE(Pump([&] { return a_->IsSent(ticket); }));
  }
  ASSERT_TRUE(Pump([&] { return at_b_.size() == 20; }));
  for (size_t i = 0; i < 20; ++i) {
    const std::vector<char> expected(buffer.size(), static_cast<char>(i));
    ASSERT_EQ(std::memcmp(at_b_[i].storage.get(), expected.data(), expected.size()), 0) << i;
  }
}

TEST_P(ConnectionTest, RefusesToSendMoreThanTheLimit) {
  EXPECT_THAT(a_->Send({}, {Noise().data(), kMaxMessageBytes + 1}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(a_->Send({Noise().data(), 1}, {Noise().data(), kMaxMessageBytes}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  ASSERT_OK(a_->Send({}, {Noise().data(), 5}));  // and lives on
  ASSERT_TRUE(Pump([&] { return at_b_.size() == 1; }));
}

TEST_P(ConnectionTest, ManyThreadsSendWhileOneReceives) {
  constexpr int kThreads = 4;
  constexpr int kMessages = 500;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kMessages; ++i) {
        const int body[2] = {t, i};
        ASSERT_OK(a_->Send({reinterpret_cast<const char*>(body), sizeof(body)}, {}));
      }
    });
  }
  EXPECT_TRUE(Pump([&] { return at_b_.size() == kThreads * kMessages; }));
  for (std::thread& thread : threads) thread.join();
  int next[kThreads] = {};
  for (const Message& message : at_b_) {
    int body[2];
    ASSERT_EQ(message.size, sizeof(body));
    std::memcpy(body, message.storage.get(), sizeof(body));
    EXPECT_EQ(body[1], next[body[0]]++);
  }
}

// Sleeps on the event descriptor for each message; nothing may get lost between Arm and poll.
TEST_P(ConnectionTest, AnArmedDescriptorBecomesReadable) {
  ASSERT_OK(a_->Send({}, Bytes(0, 8)));
  ASSERT_TRUE(Pump([&] { return at_b_.size() == 1; }));
  constexpr size_t kMessages = 200;
  std::thread receiver([&] {
    size_t count = 0;
    while (count < kMessages) {
      std::vector<Message> arrived;
      const absl::StatusOr<bool> moved = b_->Progress(&arrived);
      ASSERT_OK(moved);
      for (size_t i = 0; i < arrived.size(); ++i) ASSERT_OK(b_->Send({}, Bytes(0, 8)));
      count += arrived.size();
      if (*moved) continue;
      const absl::StatusOr<bool> armed = b_->Arm();
      ASSERT_OK(armed);
      pollfd item = {.fd = b_->event_fd(), .events = POLLIN, .revents = 0};
      if (*armed) {
        ASSERT_EQ(poll(&item, 1, 10'000), 1) << "after " << count;
      }
    }
  });
  for (size_t i = 0; i < kMessages; ++i) {
    ASSERT_OK(a_->Send({}, Bytes(i, i % 5 == 0 ? 1 << 20 : 64)));
    const absl::Time end = absl::Now() + kLimit;
    while (at_a_.size() <= i && absl::Now() < end) ASSERT_OK(a_->Progress(&at_a_));
    if (i % 10 == 0) absl::SleepFor(absl::Milliseconds(3));  // the receiver sleeps for sure
  }
  receiver.join();
}

TEST_P(ConnectionTest, ADestroyedPeerIsUnavailableForEver) {
  ASSERT_OK(b_->Send({}, Bytes(1, 100)));
  ASSERT_TRUE(Pump([&] { return at_a_.size() == 1; }));
  b_.reset();
  const absl::Time start = absl::Now();
  absl::StatusOr<bool> moved = false;
  while (moved.ok() && absl::Now() < start + absl::Seconds(5)) moved = a_->Progress(&at_a_);
  EXPECT_THAT(moved, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(a_->Send({}, Bytes(0, 10)), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(a_->Progress(&at_a_), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_P(ConnectionTest, AbortGivesBorrowedMemoryBack) {
  auto buffer = std::make_unique<std::vector<char>>(4 << 20, 'x');
  ASSERT_OK(b_->Send({}, Bytes(0, 10)));
  ASSERT_TRUE(Pump([&] { return at_a_.size() == 1; }));
  for (int i = 0; i < 4; ++i) ASSERT_OK(a_->Send({}, *buffer));
  a_->Abort();
  buffer.reset();  // under ASan, touching it now ends the test
  EXPECT_THAT(a_->Progress(&at_a_), StatusIs(absl::StatusCode::kUnavailable));
  absl::StatusOr<bool> moved = false;
  const absl::Time end = absl::Now() + absl::Seconds(5);
  while (moved.ok() && absl::Now() < end) moved = b_->Progress(&at_b_);
  EXPECT_THAT(moved, StatusIs(absl::StatusCode::kUnavailable));
  a_->Abort();
}

// The far end is another process.
class PeerDeathTest : public testing::TestWithParam<Reach> {
 protected:
  void StartPeer(const std::string& role) {
    absl::StatusOr<PeerProcess> peer = PeerProcess::Start(GetParam(), role);
    ASSERT_OK(peer);
    peer_ = std::make_unique<PeerProcess>(*std::move(peer));
    connection_ = peer_->TakeConnection();
  }

  // Polls and sleeps as a link does, until the connection fails or the time is over.
  absl::Status RunUntil(const std::function<bool()>& done, absl::Duration limit) {
    const absl::Time end = absl::Now() + limit;
    while (!done()) {
      if (absl::Now() > end) return absl::DeadlineExceededError("still going");
      RETURN_IF_ERROR(Step());
    }
    return absl::OkStatus();
  }
  absl::Status Step() {
    ASSIGN_OR_RETURN(const bool moved, connection_->Progress(&arrived_));
    if (moved) return absl::OkStatus();
    ASSIGN_OR_RETURN(const bool armed, connection_->Arm());
    pollfd item = {.fd = connection_->event_fd(), .events = POLLIN, .revents = 0};
    if (armed) poll(&item, 1, 20);
    return absl::OkStatus();
  }

  std::unique_ptr<PeerProcess> peer_;
  std::unique_ptr<Connection> connection_;
  std::vector<Message> arrived_;
};

// It takes milliseconds; the rest is for busy machines.
constexpr absl::Duration kDeathLimit = absl::Seconds(2);

TEST_P(PeerDeathTest, EchoesAcrossProcesses) {
  ASSERT_NO_FATAL_FAILURE(StartPeer("echo"));
  const std::vector<size_t> sizes = MixedSizes(200, 4);
  for (size_t i = 0; i < sizes.size(); ++i) ASSERT_OK(connection_->Send({}, Bytes(i, sizes[i])));
  ASSERT_OK(RunUntil([&] { return arrived_.size() == sizes.size(); }, kLimit));
  for (size_t i = 0; i < sizes.size(); ++i) {
    ASSERT_EQ(arrived_[i].bytes(), Bytes(i, sizes[i])) << i;
  }
  EXPECT_EQ(connection_->Describe(), GetParam() == Reach::kMachine ? "ucx/shm" : "ucx/tcp");
}

TEST_P(PeerDeathTest, AKilledIdlePeerIsNoticed) {
  ASSERT_NO_FATAL_FAILURE(StartPeer("echo"));
  ASSERT_OK(connection_->Send({}, Bytes(0, 64)));
  ASSERT_OK(RunUntil([&] { return arrived_.size() == 1; }, kLimit));
  peer_->Signal(SIGKILL);
  peer_->Reap();
  const absl::Time start = absl::Now();
  EXPECT_THAT(RunUntil([] { return false; }, absl::Seconds(10)),
              StatusIs(absl::StatusCode::kUnavailable));
  const absl::Duration took = absl::Now() - start;
  RecordProperty("microseconds", static_cast<int>(absl::ToInt64Microseconds(took)));
  EXPECT_LT(took, kDeathLimit);
}

TEST_P(PeerDeathTest, APeerKilledInTheMiddleOfBulkIsNoticedAndTheMemoryComesBack) {
  ASSERT_NO_FATAL_FAILURE(StartPeer("echo"));
  ASSERT_OK(connection_->Send({}, Bytes(0, 64)));
  ASSERT_OK(RunUntil([&] { return arrived_.size() == 1; }, kLimit));
  peer_->Signal(SIGSTOP);
  auto buffer = std::make_unique<std::vector<char>>(4 << 20, 'x');
  for (int i = 0; i < 32; ++i) ASSERT_OK(connection_->Send({}, *buffer));
  for (int i = 0; i < 500; ++i) ASSERT_OK(connection_->Send(Bytes(0, 20'000), {}));
  for (int i = 0; i < 20; ++i) ASSERT_OK(Step());
  peer_->Signal(SIGKILL);
  peer_->Reap();
  const absl::Time start = absl::Now();
  EXPECT_THAT(RunUntil([] { return false; }, absl::Seconds(10)),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_LT(absl::Now() - start, kDeathLimit);
  buffer.reset();
  EXPECT_THAT(connection_->Progress(&arrived_), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_P(PeerDeathTest, APeerThatDiesBeforeItAnswersIsNoticedOrSilent) {
  ASSERT_NO_FATAL_FAILURE(StartPeer("echo"));
  peer_->Signal(SIGKILL);
  peer_->Reap();
  for (int i = 0; i < 10; ++i) connection_->Send({}, Bytes(0, 1 << 20)).IgnoreError();
  const absl::Status status = RunUntil([] { return false; }, absl::Seconds(3));
  // Without an established endpoint UCX may say nothing; the link's heartbeat then does.
  EXPECT_FALSE(status.ok());
  connection_.reset();
}

TEST_P(PeerDeathTest, AbortReturnsSoonAlthoughThePeerIsStopped) {
  ASSERT_NO_FATAL_FAILURE(StartPeer("echo"));
  ASSERT_OK(connection_->Send({}, Bytes(0, 64)));
  ASSERT_OK(RunUntil([&] { return arrived_.size() == 1; }, kLimit));
  peer_->Signal(SIGSTOP);
  auto buffer = std::make_unique<std::vector<char>>(4 << 20, 'x');
  for (int i = 0; i < 32; ++i) ASSERT_OK(connection_->Send({}, *buffer));
  for (int i = 0; i < 20; ++i) ASSERT_OK(Step());
  const absl::Time start = absl::Now();
  connection_->Abort();
  EXPECT_LT(absl::Now() - start, absl::Seconds(2));
  buffer.reset();
  EXPECT_THAT(connection_->Progress(&arrived_), StatusIs(absl::StatusCode::kUnavailable));
}

INSTANTIATE_TEST_SUITE_P(Ucx, PeerDeathTest, testing::Values(Reach::kNetwork, Reach::kMachine),
                         [](const auto& test) {
                           return test.param == Reach::kMachine ? "shm" : "tcp";
                         });

// A hostile peer is one that sends what we would not.
class UcxLimitsTest : public testing::TestWithParam<Reach> {};

absl::Status ProgressUntilFailure(Connection* victim, Connection* peer) {
  std::vector<Message> arrived;
  const absl::Time end = absl::Now() + absl::Seconds(5);
  while (absl::Now() < end) {
    ASSIGN_OR_RETURN(const bool moved, victim->Progress(&arrived));
    if (!moved) peer->Progress(&arrived).IgnoreError();
  }
  return absl::OkStatus();
}

TEST_P(UcxLimitsTest, MessagesOverTheLimitAreRefused) {
  UcxOptions hostile = TestOptions(GetParam());
  hostile.max_message_bytes = 64 << 20;
  for (const size_t size : {kMaxMessageBytes + 1, size_t{20} << 20}) {
    ASSERT_OK_AND_ASSIGN(ConnectionPair pair, NewUcxPair(hostile, TestOptions(GetParam())));
    const std::vector<char> large(size, 'x');
    ASSERT_OK(pair.first->Send({}, large));
    const absl::Status status = ProgressUntilFailure(pair.second.get(), pair.first.get());
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("over the limit of"));
    pair.first->Abort();  // before the memory goes
  }
}

TEST_P(UcxLimitsTest, AnotherSessionIsRefused) {
  SessionId other = TestOptions(GetParam()).session;
  other.bytes[3] ^= 1;
  ASSERT_OK_AND_ASSIGN(auto one, UcxEndpoint::Create(TestOptions(GetParam())));
  ASSERT_OK_AND_ASSIGN(auto two, UcxEndpoint::Create(TestOptions(GetParam())));
  ASSERT_OK_AND_ASSIGN(auto stranger, one->Connect(two->local_address(), other));
  ASSERT_OK_AND_ASSIGN(auto victim, two->Connect(one->local_address()));
  const absl::Status status = ProgressUntilFailure(victim.get(), stranger.get());
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("names another session"));
}

INSTANTIATE_TEST_SUITE_P(Ucx, UcxLimitsTest, testing::Values(Reach::kNetwork, Reach::kMachine),
                         [](const auto& test) {
                           return test.param == Reach::kMachine ? "shm" : "tcp";
                         });

INSTANTIATE_TEST_SUITE_P(
    All, ConnectionTest,
    testing::Values(
        Implementation{"inproc", [] { return absl::StatusOr<ConnectionPair>(NewInProcessPair()); },
                       "inproc"},
        Implementation{
            "ucx_tcp",
            [] { return NewUcxPair(TestOptions(Reach::kNetwork), TestOptions(Reach::kNetwork)); },
            "ucx/tcp"},
        Implementation{
            "ucx_shm",
            [] { return NewUcxPair(TestOptions(Reach::kMachine), TestOptions(Reach::kMachine)); },
            "ucx/shm"}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace fargpu::transport

int main(int argc, char** argv) {
  if (fargpu::transport::RunAsPeer(argc, argv)) return 0;
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
