// A Link over UCX with its peer in another process, and how UCX behaves as a guest in ours.

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <set>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/status_macros.h"
#include "common/status_matchers.h"
#include "transport/connection_test_peers.h"
#include "transport/link.h"
#include "transport/ucx/ucx_endpoint.h"
#include "transport/ucx/ucx_library.h"
#include "transport/ucx/ucx_settings.h"

namespace fargpu::transport {
namespace {

using wire::FrameKind;

std::set<int> Descriptors() {
  std::set<int> result;
  DIR* folder = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(folder)) {
    if (entry->d_name[0] != '.' && std::atoi(entry->d_name) != dirfd(folder)) {
      result.insert(std::atoi(entry->d_name));
    }
  }
  closedir(folder);
  return result;
}

// Must run before anything loads UCX, so it is the first test of this program.
TEST(UcxLibraryTest, LoadsWithoutATrace) {
  ASSERT_EQ(dlopen("libucs.so.0", RTLD_NOLOAD | RTLD_NOW), nullptr) << "UCX was loaded before";
  setenv("UCX_HANDLE_ERRORS", "bt", 1);
  unsetenv("UCX_MEM_EVENTS");
  const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTERM, SIGUSR1};
  struct sigaction before[6], after;
  for (int i = 0; i < 6; ++i) sigaction(signals[i], nullptr, &before[i]);
  char code_before[3][16];
  const void* functions[3] = {dlsym(RTLD_DEFAULT, "mmap"), dlsym(RTLD_DEFAULT, "munmap"),
                              dlsym(RTLD_DEFAULT, "madvise")};
  for (int i = 0; i < 3; ++i) std::memcpy(code_before[i], functions[i], 16);

  ASSERT_OK(LoadUcx());
  ASSERT_OK_AND_ASSIGN(ConnectionPair pair,
                       NewUcxPair(TestOptions(Reach::kMachine), TestOptions(Reach::kMachine)));

  EXPECT_STREQ(getenv("UCX_HANDLE_ERRORS"), "bt");
  EXPECT_EQ(getenv("UCX_MEM_EVENTS"), nullptr);
  unsetenv("UCX_HANDLE_ERRORS");
  for (int i = 0; i < 6; ++i) {
    sigaction(signals[i], nullptr, &after);
    EXPECT_EQ(after.sa_handler, before[i].sa_handler) << "signal " << signals[i];
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(std::memcmp(code_before[i], functions[i], 16), 0) << i;
  EXPECT_EQ(dlsym(RTLD_DEFAULT, "ucp_init_version"), nullptr);  // nobody else sees UCX
}

TEST(UcxSettingsTest, FollowTheEnvironment) {
  const auto transports = [](const UcxOptions& options) -> std::string {
    const auto settings = UcxSettings(options);
    if (!settings.ok()) return std::string(settings.status().message());
    std::string result;
    for (const auto& [name, value] : *settings) {
      if (name == "TLS" || name == "NET_DEVICES") absl::StrAppend(&result, value, ";");
    }
    return result;
  };
  EXPECT_EQ(transports({.reach = Reach::kNetwork, .net_device = "eth7"}), "tcp;eth7;");
  EXPECT_EQ(transports({.reach = Reach::kMachine}), "tcp,sysv,cma;");
  setenv("FARGPU_TRANSPORT", "tcp", 1);
  setenv("FARGPU_NET_DEVICE", "eth9", 1);
  EXPECT_EQ(transports({.reach = Reach::kMachine, .net_device = "eth7"}), "tcp;eth9;");
  unsetenv("FARGPU_NET_DEVICE");
  setenv("FARGPU_TRANSPORT", "shm", 1);
  EXPECT_EQ(transports({.reach = Reach::kMachine}), "sysv,cma;");
  EXPECT_THAT(transports({.reach = Reach::kNetwork}), testing::HasSubstr("cannot share memory"));
  setenv("FARGPU_TRANSPORT", "pigeon", 1);
  EXPECT_THAT(transports({}), testing::HasSubstr("not one of auto, tcp, shm, rdma"));
  EXPECT_THAT(UcxEndpoint::Create({}), StatusIs(absl::StatusCode::kFailedPrecondition));
  unsetenv("FARGPU_TRANSPORT");
}

TEST(UcxSettingsTest, DescribesLanes) {
  EXPECT_EQ(DescribeLanes("# lane[0]:  0:tcp/lo.0 md[0]  -> md[0]/tcp/sysdev[255] am am_bw#0\n"),
            "ucx/tcp");
  EXPECT_EQ(DescribeLanes("# lane[0]: 2:sysv/memory.0 md[2] -> x am am_bw#0\n"
                          "# lane[1]: 3:cma/memory.0 md[3] -> x rma_bw#0\n"),
            "ucx/shm");
  EXPECT_EQ(DescribeLanes("# lane[0]: 2:posix/memory.0 md[2] -> x am am_bw#0\n"
                          "# lane[1]: 0:tcp/lo.0 md[0] -> x rma_bw#0 wireup\n"),
            "ucx/shm+tcp");
  EXPECT_EQ(DescribeLanes("# lane[0]: 5:rc_mlx5/mlx5_0:1.0 md[4] -> x rma_bw#0 am am_bw#0\n"),
            "ucx/rc");
}

TEST(PlaceInfoTest, SharedMemoryNeedsOneMachineUserAndNamespaces) {
  const PlaceInfo here = PlaceInfo::Local();
  EXPECT_NE(here.boot_id, PlaceInfo().boot_id);
  EXPECT_OK(SharedMemoryIsPossible(here, here));
  const std::string bytes = EncodePlaceInfo(here);
  EXPECT_EQ(bytes.size(), kPlaceInfoBytes);
  ASSERT_OK_AND_ASSIGN(const PlaceInfo decoded, DecodePlaceInfo(bytes));
  EXPECT_EQ(decoded, here);
  for (size_t byte : {size_t{4}, size_t{8}, size_t{24}, size_t{32}}) {
    std::string other = bytes;
    other[byte] ^= 1;
    ASSERT_OK_AND_ASSIGN(const PlaceInfo there, DecodePlaceInfo(other));
    EXPECT_THAT(SharedMemoryIsPossible(here, there),
                StatusIs(absl::StatusCode::kFailedPrecondition))
        << byte;
  }
  EXPECT_THAT(SharedMemoryIsPossible(PlaceInfo(), PlaceInfo()),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(DecodePlaceInfo(bytes.substr(1)), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(DecodePlaceInfo(std::string(kPlaceInfoBytes, '\xff')),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(UcxEndpointTest, IsUsedUpByConnect) {
  ASSERT_OK_AND_ASSIGN(auto endpoint, UcxEndpoint::Create(TestOptions(Reach::kNetwork)));
  EXPECT_GT(endpoint->local_address().size(), 10u);
  ASSERT_OK_AND_ASSIGN(auto other, UcxEndpoint::Create(TestOptions(Reach::kNetwork)));
  EXPECT_OK(endpoint->Connect(other->local_address()));
  EXPECT_THAT(endpoint->Connect(other->local_address()),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(UcxEndpointTest, RefusesADamagedAddress) {
  ASSERT_OK_AND_ASSIGN(auto endpoint, UcxEndpoint::Create(TestOptions(Reach::kNetwork)));
  ASSERT_OK_AND_ASSIGN(auto other, UcxEndpoint::Create(TestOptions(Reach::kNetwork)));
  const std::string good = other->local_address();
  for (size_t i = 0; i < good.size(); ++i) {
    std::string damaged = good;
    damaged[i] ^= 0x40;
    EXPECT_THAT(endpoint->Connect(damaged), StatusIs(absl::StatusCode::kInvalidArgument)) << i;
    EXPECT_THAT(endpoint->Connect(good.substr(0, i)), StatusIs(absl::StatusCode::kInvalidArgument))
        << i;
  }
  EXPECT_THAT(endpoint->Connect(std::string(1 << 20, 'x')),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_OK(endpoint->Connect(good));  // still usable
}

// One end allows shared memory and the other does not: they meet on tcp.
TEST(UcxEndpointTest, EndsOfUnlikeReachMeetOnTcp) {
  ASSERT_OK_AND_ASSIGN(ConnectionPair pair,
                       NewUcxPair(TestOptions(Reach::kMachine), TestOptions(Reach::kNetwork)));
  ASSERT_OK(pair.first->Send({}, "hello"));
  std::vector<Message> arrived, ignored;
  const absl::Time end = absl::Now() + absl::Seconds(10);
  while (arrived.empty() && absl::Now() < end) {
    ASSERT_OK(pair.first->Progress(&ignored));
    ASSERT_OK(pair.second->Progress(&arrived));
  }
  ASSERT_EQ(arrived.size(), 1u);
  EXPECT_EQ(pair.first->Describe(), "ucx/tcp");
}

class UcxLinkTest : public testing::TestWithParam<Reach> {
 protected:
  void StartPeer(LinkOptions options = {}) {
    absl::StatusOr<PeerProcess> peer = PeerProcess::Start(GetParam(), "link");
    ASSERT_OK(peer);
    peer_ = std::make_unique<PeerProcess>(*std::move(peer));
    link_ = Link::Start(
        peer_->TakeConnection(), options, [this](IncomingFrame) { ++replies_; },
        [this](const absl::Status&) { ++deaths_; });
  }
  absl::Status Call(absl::Span<const char> bulk = {}) {
    const uint64_t goal = replies_ + 1;
    RETURN_IF_ERROR(link_->Send(FrameKind::kCalls, 1, 1, "body", bulk).status());
    return link_->WaitUntil([&] { return replies_ >= goal; }, absl::Now() + absl::Seconds(20));
  }
  // Whether the link notices, without anybody waiting in it, and how long that takes.
  absl::Duration TimeToDeath() {
    const absl::Time start = absl::Now();
    while (deaths_ == 0 && absl::Now() < start + absl::Seconds(20)) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    return absl::Now() - start;
  }

  std::atomic<uint64_t> replies_{0};
  std::atomic<int> deaths_{0};
  std::unique_ptr<PeerProcess> peer_;
  std::unique_ptr<Link> link_;
};

TEST_P(UcxLinkTest, CallsAndReplies) {
  ASSERT_NO_FATAL_FAILURE(StartPeer());
  const std::vector<char> bulk(wire::kMaxBulkBytes, 'b');
  for (int i = 0; i < 1000; ++i) ASSERT_OK(Call());
  for (int i = 0; i < 10; ++i) ASSERT_OK(Call(bulk));
  EXPECT_EQ(link_->Describe(), GetParam() == Reach::kMachine ? "ucx/shm" : "ucx/tcp");
  EXPECT_EQ(link_->acknowledged(), 1010u);
}

// A signal of the program must not be handled by a thread that it does not know.
TEST_P(UcxLinkTest, OurThreadsBlockAllSignals) {
  ASSERT_NO_FATAL_FAILURE(StartPeer());
  ASSERT_OK(Call());
  const sigset_t* const unchanged = nullptr;
  sigset_t mine;
  pthread_sigmask(SIG_BLOCK, unchanged, &mine);
  EXPECT_FALSE(sigismember(&mine, SIGUSR1));
  int threads = 0;
  DIR* folder = opendir("/proc/self/task");
  while (const dirent* entry = readdir(folder)) {
    if (entry->d_name[0] == '.' || std::atoi(entry->d_name) == getpid()) continue;
    std::ifstream file(absl::StrCat("/proc/self/task/", entry->d_name, "/status"));
    std::string line, name;
    while (std::getline(file, line)) {
      if (line.rfind("Name:", 0) == 0) name = line;
      if (line.rfind("SigBlk:", 0) != 0) continue;
      ++threads;
      const uint64_t blocked = std::stoull(line.substr(7), nullptr, 16);
      EXPECT_TRUE(blocked & (uint64_t{1} << (SIGUSR1 - 1))) << name << " " << line;
    }
  }
  closedir(folder);
  EXPECT_GE(threads, 2);  // the link's and UCX's
}

TEST_P(UcxLinkTest, ThreadsCallAtTheSameTime) {
  ASSERT_NO_FATAL_FAILURE(StartPeer());
  const std::vector<char> bulk(1 << 20, 'b');
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        absl::Span<const char> bytes;
        if (i % 10 == t) bytes = bulk;
        ASSERT_OK_AND_ASSIGN(const SendTicket ticket,
                             link_->Send(FrameKind::kCalls, 1, 1, "body", bytes));
        ASSERT_OK(link_->WaitSent(ticket, absl::Now() + absl::Seconds(20)));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_OK(link_->WaitUntil([&] { return replies_ == 400; }, absl::Now() + absl::Seconds(20)));
}

TEST_P(UcxLinkTest, AKilledPeerIsNoticedAtOnceWhileNobodyWaits) {
  ASSERT_NO_FATAL_FAILURE(StartPeer());
  ASSERT_OK(Call());
  absl::SleepFor(absl::Milliseconds(20));
  peer_->Signal(SIGKILL);
  EXPECT_LT(TimeToDeath(), absl::Seconds(2));
  EXPECT_THAT(link_->status(), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_P(UcxLinkTest, AKilledPeerIsNoticedAtOnceByAWaitingThread) {
  ASSERT_NO_FATAL_FAILURE(StartPeer());
  ASSERT_OK(Call());
  std::thread killer([&] {
    absl::SleepFor(absl::Milliseconds(50));
    peer_->Signal(SIGKILL);
  });
  const absl::Time start = absl::Now();
  EXPECT_THAT(link_->WaitUntil([] { return false; }, absl::Now() + absl::Seconds(20)),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_LT(absl::Now() - start, absl::Seconds(2));
  killer.join();
}

TEST_P(UcxLinkTest, AStoppedPeerIsDeadAfterFiveSeconds) {
  ASSERT_NO_FATAL_FAILURE(StartPeer());
  ASSERT_OK(Call());
  absl::SleepFor(absl::Seconds(1.5));  // the last sign of life is a heartbeat
  peer_->Signal(SIGSTOP);
  const absl::Duration took = TimeToDeath();
  EXPECT_GT(took, absl::Seconds(3.8));
  EXPECT_LT(took, absl::Seconds(5.2));
}

TEST_P(UcxLinkTest, APeerStoppedForThreeSecondsLivesOn) {
  ASSERT_NO_FATAL_FAILURE(StartPeer());
  ASSERT_OK(Call());
  peer_->Signal(SIGSTOP);
  std::thread waker([&] {
    absl::SleepFor(absl::Seconds(3));
    peer_->Signal(SIGCONT);
  });
  EXPECT_OK(Call());
  waker.join();
}

TEST_P(UcxLinkTest, AnIdleLinkCostsNoCpu) {
  ASSERT_NO_FATAL_FAILURE(StartPeer({.active_spin = absl::Milliseconds(2)}));
  ASSERT_OK(Call());
  absl::SleepFor(absl::Milliseconds(100));
  rusage before, after;
  getrusage(RUSAGE_SELF, &before);
  absl::SleepFor(absl::Seconds(3));
  getrusage(RUSAGE_SELF, &after);
  const auto micros = [](const rusage& usage) {
    return 1'000'000 * (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) + usage.ru_utime.tv_usec +
           usage.ru_stime.tv_usec;
  };
  RecordProperty("cpu_microseconds", static_cast<int>(micros(after) - micros(before)));
  EXPECT_LT(micros(after) - micros(before), 30'000);  // 1 % of 3 s, sanitizers included
  EXPECT_OK(link_->status());
}

TEST_P(UcxLinkTest, AllDescriptorsAreCloseOnExecAndAChildCanCloseThem) {
  const std::set<int> before = Descriptors();
  ASSERT_NO_FATAL_FAILURE(StartPeer());
  ASSERT_OK(Call());
  const std::set<int> after = Descriptors();
  size_t ours = 0;
  for (const int fd : after) {
    if (before.contains(fd)) continue;
    ++ours;
    EXPECT_TRUE(fcntl(fd, F_GETFD) & FD_CLOEXEC) << fd;
  }
  EXPECT_GT(ours, 5u);
  const pid_t child = fork();
  if (child == 0) {
    link_->AbandonAfterFork();
    link_.reset();
    int left = 0;
    for (const int fd : Descriptors()) {
      if (!after.contains(fd) || before.contains(fd)) continue;
      struct stat info;
      if (fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode)) ++left;
    }
    _exit(left);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0) << "sockets that the child still holds";
  for (int i = 0; i < 100; ++i) ASSERT_OK(Call());  // the parent goes on
}

// A child that only got the descriptors must not hide the parent's death from the worker.
TEST_P(UcxLinkTest, AForkedChildThatLivesOnDoesNotHideADeath) {
  // The far end is here; the near end forks and dies over there.
  ASSERT_OK_AND_ASSIGN(PeerProcess peer, PeerProcess::Start(GetParam(), "link_forks"));
  link_ = Link::Start(
      peer.TakeConnection(), {}, [this](IncomingFrame) { ++replies_; },
      [this](const absl::Status&) { ++deaths_; });
  ASSERT_OK(Call());  // its answer comes after the fork
  peer.Signal(SIGKILL);
  EXPECT_LT(TimeToDeath(), absl::Seconds(2));
}

INSTANTIATE_TEST_SUITE_P(Both, UcxLinkTest, testing::Values(Reach::kNetwork, Reach::kMachine),
                         [](const auto& test) {
                           return test.param == Reach::kMachine ? "shm" : "tcp";
                         });

}  // namespace
}  // namespace fargpu::transport

int main(int argc, char** argv) {
  if (fargpu::transport::RunAsPeer(argc, argv)) return 0;
  testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
