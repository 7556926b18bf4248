// The daemon's parts with real worker processes over a driver library for tests, and clients that
// come in by the control socket and over UCX.
#include "server/daemon/worker_pool.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "server/daemon/front_door.h"
#include "server/daemon/spawn.h"
#include "server/testing/session_harness.h"
#include "server/worker/device_list.h"
#include "transport/control/endpoint.h"
#include "transport/ucx/place_info.h"
#include "transport/ucx/ucx_endpoint.h"

namespace fargpu::server {
namespace {

using Wants = WireClient::Wants;
constexpr uint64_t kMiB = 1 << 20;
constexpr unsigned kCrashes = 666;  // of fake_cuda.cc
constexpr unsigned kHangs = 667;
constexpr char kPtx[] = ".version 9.0\n.target sm_75\n.address_size 64\n";

template <typename Condition>
bool Eventually(Condition condition, absl::Duration limit = absl::Seconds(20)) {
  const absl::Time deadline = absl::Now() + limit;
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return true;
}

// A program's end of a session.
struct TestClient {
  std::unique_ptr<transport::ControlChannel> control;
  std::unique_ptr<WireClient> wire;
  Welcome welcome;
};

class WorkerPoolTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/fargpu-pool-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    run_dir_ = name;
    command_ = {.program = FARGPU_TEST_WORKER,
                .driver = FARGPU_TEST_DRIVER,
                .fresh_memory_is_zero = true,
                .run_dir = run_dir_,
                .log_level = "error"};
    ASSERT_OK_AND_ASSIGN(devices_, ProbeDriver(command_, absl::Now() + kTestLimit));
    ASSERT_EQ(devices_.size(), 2u);
    lease_.id = RandomId<LeaseId>();
    FillRandom(absl::MakeSpan(lease_.secret.bytes));
    lease_.memory_bytes = 64 * kMiB;
    lease_.device_uuids = {UuidText(devices_[1])};
    ASSERT_OK_AND_ASSIGN(leases_, LeaseTable::Open(run_dir_ + "/leases", devices_));
    ASSERT_OK(leases_->Reserve(lease_));
    StartDaemon();
  }
  void TearDown() override {
    door_.reset();
    if (pool_ != nullptr) pool_->Shutdown();
    pool_.reset();
    std::filesystem::remove_all(run_dir_);
  }

  void StartDaemon() {
    WorkerPool::Options options;
    options.command = command_;
    options.warm = 1;
    ASSERT_OK_AND_ASSIGN(pool_, WorkerPool::Start(options, leases_.get()));
    FrontDoor::Options door;
    door.listen = {"unix:" + run_dir_ + "/fargpud.sock", "tcp:127.0.0.1:0"};
    door.handshake_limit = absl::Seconds(2);
    ASSERT_OK_AND_ASSIGN(door_, FrontDoor::Open(door, leases_.get(), pool_.get()));
  }
  // Like kill -9 of the daemon: everything of it is gone, its workers are not told.
  void KillDaemon() {
    door_.reset();
    pool_.reset();
    leases_.reset();
  }
  void RestartDaemon() {
    ASSERT_OK_AND_ASSIGN(leases_, LeaseTable::Open(run_dir_ + "/leases", devices_));
    StartDaemon();
  }

  absl::StatusOr<TestClient> Connect(const LeaseSecret& secret, size_t endpoint = 0) {
    const absl::Time deadline = absl::Now() + kTestLimit;
    TestClient client;
    ASSIGN_OR_RETURN(client.control,
                     transport::Dial(door_->endpoints()[endpoint], lease_.id, secret, deadline));
    transport::UcxOptions options;
    options.net_device = "lo";
    options.reach = transport::Reach::kMachine;
    ASSIGN_OR_RETURN(auto ucx, transport::UcxEndpoint::Create(options));
    Hello hello;
    hello.pid = static_cast<uint32_t>(getpid());
    hello.program = "test";
    hello.transports = kTransportTcp | kTransportSharedMemory;
    hello.place = transport::EncodePlaceInfo(transport::PlaceInfo::Local());
    hello.address = ucx->local_address();
    std::vector<char> bytes;
    wire::EncodeMessage(hello, &bytes);
    // A daemon that refuses may have closed the socket already; its verdict can still be read.
    client.control->Send(absl::string_view(bytes.data(), bytes.size()), deadline).IgnoreError();
    ASSIGN_OR_RETURN(const std::string answer, client.control->Receive(deadline));
    RETURN_IF_ERROR(
        wire::DecodeMessage(absl::MakeConstSpan(answer.data(), answer.size()), &client.welcome));
    RETURN_IF_ERROR(RefusalOf(client.welcome));
    ASSIGN_OR_RETURN(auto connection,
                     ucx->Connect(client.welcome.address, SessionId{client.welcome.session}));
    client.wire = std::make_unique<WireClient>(std::move(connection));
    client.wire->Add(wire::DevicePrimaryCtxRetainRequest{.context = {1}, .device = 0});
    return client;
  }
  absl::StatusOr<TestClient> Connect() { return Connect(lease_.secret); }

  void Hold(TestClient& client, uint64_t bytes) {
    EXPECT_EQ(client.wire->Call(wire::MemAllocV2Request{.bytesize = bytes}).result, CUDA_SUCCESS);
  }
  void Launch(TestClient& client, unsigned grid) {
    const std::string image = kPtx;
    client.wire->Add(
        wire::SessionImageBeginRequest{.image = {9}, .kind = 5, .part_bytes = {image.size()}});
    client.wire->Add(wire::SessionImagePartRequest{.image = {9}, .part = 0, .offset = 0});
    ASSERT_OK(client.wire->Flush(image));
    client.wire->Add(
        wire::LibraryLoadDataRequest{.library = {5}, .image = {9}, .first_function = {100}});
    client.wire->Add(wire::LaunchKernelRequest{.function = {101},
                                               .gridDimX = grid,
                                               .gridDimY = 1,
                                               .gridDimZ = 1,
                                               .blockDimX = 1,
                                               .blockDimY = 1,
                                               .blockDimZ = 1});
    ASSERT_OK(client.wire->Flush());
  }
  uint64_t Used() { return leases_->Find(lease_.id)->ledger->UsedBytes(0); }
  size_t Sessions() { return leases_->Find(lease_.id)->ledger->Sessions().size(); }
  uint32_t OnlyPid() { return leases_->Find(lease_.id)->ledger->Sessions().at(0).process.pid; }
  bool Works(TestClient& client) {
    return client.wire->Call(wire::StreamQueryRequest{}).result == CUDA_SUCCESS;
  }
  bool IsDead(TestClient& client) {
    return Eventually([&] { return !client.wire->link().status().ok(); }, absl::Seconds(6));
  }

  std::string run_dir_;
  WorkerCommand command_;
  std::vector<DeviceInfo> devices_;
  Lease lease_;
  std::unique_ptr<LeaseTable> leases_;
  std::unique_ptr<WorkerPool> pool_;
  std::unique_ptr<FrontDoor> door_;
};

TEST_F(WorkerPoolTest, AClientSeesItsLeaseAndGivesAllBackWhenItGoes) {
  for (size_t endpoint = 0; endpoint < 2; ++endpoint) {
    ASSERT_OK_AND_ASSIGN(TestClient client, Connect(lease_.secret, endpoint));
    ASSERT_EQ(client.welcome.devices.size(), 1u);
    EXPECT_EQ(client.welcome.devices[0].name, "Fake Card 1");
    EXPECT_EQ(client.welcome.devices[0].total_memory_bytes, 64 * kMiB);
    EXPECT_EQ(client.welcome.devices[0].attributes[20], 201);
    EXPECT_EQ(client.welcome.devices[0].greatest_stream_priority, -5);
    EXPECT_EQ(client.welcome.driver_version, 13000);
    EXPECT_GE(client.welcome.window_bytes, uint64_t{1} << 30);
    Hold(client, 32 * kMiB);
    EXPECT_EQ(Used(), 32 * kMiB);
    const absl::Time left = absl::Now();
    client.control.reset();  // as the kernel does for a program that was killed
    EXPECT_TRUE(Eventually([&] { return Used() == 0 && Sessions() == 0; }));
    EXPECT_LT(absl::Now() - left, absl::Seconds(2));
    EXPECT_TRUE(IsDead(client));
  }
}

TEST_F(WorkerPoolTest, SessionsOfALeaseShareItsMemory) {
  ASSERT_OK_AND_ASSIGN(TestClient one, Connect());
  ASSERT_OK_AND_ASSIGN(TestClient two, Connect());
  Hold(one, 40 * kMiB);
  EXPECT_EQ(two.wire->Call(wire::MemAllocV2Request{.bytesize = 32 * kMiB}).result,
            CUDA_ERROR_OUT_OF_MEMORY);
  one.control.reset();
  EXPECT_TRUE(Eventually([&] { return Used() == 0; }));
  Hold(two, 64 * kMiB);
}

TEST_F(WorkerPoolTest, ACrashEndsOneSessionOnly) {
  ASSERT_OK_AND_ASSIGN(TestClient one, Connect());
  ASSERT_OK_AND_ASSIGN(TestClient two, Connect());
  Hold(one, 16 * kMiB);
  Hold(two, 8 * kMiB);
  Launch(one, kCrashes);
  EXPECT_TRUE(IsDead(one));
  EXPECT_TRUE(Eventually([&] { return Used() == 8 * kMiB; }));
  EXPECT_TRUE(Works(two));
  ASSERT_OK_AND_ASSIGN(TestClient three, Connect());
  EXPECT_TRUE(Works(three));
}

TEST_F(WorkerPoolTest, AHungDriverDoesNotKeepASession) {
  ASSERT_OK_AND_ASSIGN(TestClient client, Connect());
  Hold(client, 16 * kMiB);
  Launch(client, kHangs);
  absl::SleepFor(absl::Milliseconds(100));
  EXPECT_OK(client.wire->link().status());
  const absl::Time left = absl::Now();
  client.control.reset();
  EXPECT_TRUE(Eventually([&] { return Used() == 0; }));
  EXPECT_LT(absl::Now() - left, absl::Seconds(2));
}

TEST_F(WorkerPoolTest, AStoppedWorkerIsKilledWhenItsClientGoes) {
  ASSERT_OK_AND_ASSIGN(TestClient client, Connect());
  Hold(client, 16 * kMiB);
  kill(static_cast<pid_t>(OnlyPid()), SIGSTOP);
  client.control.reset();
  EXPECT_TRUE(Eventually([&] { return Used() == 0; }, absl::Seconds(3)));
}

TEST_F(WorkerPoolTest, ANewDaemonTakesSessionsOver) {
  ASSERT_OK_AND_ASSIGN(TestClient client, Connect());
  Hold(client, 16 * kMiB);
  const uint32_t pid = OnlyPid();
  KillDaemon();
  EXPECT_TRUE(Works(client));
  RestartDaemon();
  EXPECT_EQ(Used(), 16 * kMiB);
  EXPECT_TRUE(Works(client));
  // The new daemon knows the worker: it tells it to end, and sweeps what it held.
  absl::SleepFor(absl::Milliseconds(600));
  EXPECT_TRUE(Works(client));
  pool_->EndLease(*leases_->Find(lease_.id), "the test says so");
  EXPECT_TRUE(IsDead(client));
  EXPECT_TRUE(Eventually([&] { return Used() == 0; }));
  EXPECT_TRUE(Eventually([&] { return !RunsProgram(pid, command_.program); }));
}

TEST_F(WorkerPoolTest, AClientThatDiesWithoutADaemonIsNoticedByItsWorker) {
  ASSERT_OK_AND_ASSIGN(TestClient client, Connect());
  Hold(client, 16 * kMiB);
  KillDaemon();
  client.control.reset();
  client.wire.reset();
  ASSERT_OK_AND_ASSIGN(leases_, LeaseTable::Open(run_dir_ + "/leases", devices_));
  EXPECT_TRUE(Eventually(
      [&] {
        EXPECT_OK(leases_->Find(lease_.id)->ledger->SweepDead());
        return Used() == 0;
      },
      absl::Seconds(3)));
}

TEST_F(WorkerPoolTest, EndingALeaseReachesWorkersThatHaveNotAnnouncedThemselves) {
  ASSERT_OK_AND_ASSIGN(TestClient client, Connect());
  Hold(client, 16 * kMiB);
  kill(static_cast<pid_t>(OnlyPid()), SIGSTOP);  // it cannot announce itself
  KillDaemon();
  RestartDaemon();
  pool_->EndLease(*leases_->Find(lease_.id), "the test says so");
  EXPECT_TRUE(Eventually([&] {
    EXPECT_OK(leases_->Find(lease_.id)->ledger->SweepDead());
    return Used() == 0;
  }));
}

TEST_F(WorkerPoolTest, ShutdownLeavesNothing) {
  ASSERT_OK_AND_ASSIGN(TestClient client, Connect());
  const uint32_t pid = OnlyPid();
  Launch(client, kHangs);
  const absl::Time start = absl::Now();
  pool_->Shutdown();
  EXPECT_LT(absl::Now() - start, absl::Seconds(4));
  EXPECT_FALSE(RunsProgram(pid, command_.program));
}

TEST_F(WorkerPoolTest, StrangersAreTurnedAway) {
  LeaseSecret wrong = lease_.secret;
  wrong.bytes[31] ^= 1;
  for (size_t endpoint = 0; endpoint < 2; ++endpoint) {
    EXPECT_THAT(Connect(wrong, endpoint), StatusIs(absl::StatusCode::kPermissionDenied));
    for (const std::string& bytes :
         {std::string(64, '\xff'), std::string(4096, '\0'), std::string("GET / HTTP/1.1\r\n\r\n"),
          std::string("\x16\x03\x01\xff\xff"), std::string()}) {
      ASSERT_OK_AND_ASSIGN(const transport::Endpoint address,
                           transport::ParseEndpoint(door_->endpoints()[endpoint]));
      ASSERT_OK_AND_ASSIGN(UniqueFd stranger,
                           transport::ConnectSocket(address, absl::Now() + kTestLimit));
      if (!bytes.empty()) {
        ASSERT_EQ(send(stranger.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
                  static_cast<ssize_t>(bytes.size()));
      }
      pollfd item = {.fd = stranger.get(), .events = POLLRDHUP, .revents = 0};
      EXPECT_EQ(poll(&item, 1, 10000), 1) << "a stranger is not turned away";
    }
  }
  ASSERT_OK_AND_ASSIGN(TestClient client, Connect());
  EXPECT_TRUE(Works(client));
}

TEST_F(WorkerPoolTest, AClientWhoseHelloMakesNoSenseIsRefused) {
  const absl::Time deadline = absl::Now() + kTestLimit;
  ASSERT_OK_AND_ASSIGN(auto control,
                       transport::Dial(door_->endpoints()[0], lease_.id, lease_.secret, deadline));
  ASSERT_OK(control->Send("nonsense", deadline));
  EXPECT_FALSE(control->Receive(deadline).ok());
  // A damaged UCX address costs one worker and is told to the client.
  ASSERT_OK_AND_ASSIGN(control,
                       transport::Dial(door_->endpoints()[0], lease_.id, lease_.secret, deadline));
  Hello hello;
  hello.address = std::string(300, '\xff');
  std::vector<char> bytes;
  wire::EncodeMessage(hello, &bytes);
  ASSERT_OK(control->Send(absl::string_view(bytes.data(), bytes.size()), deadline));
  ASSERT_OK_AND_ASSIGN(const std::string answer, control->Receive(deadline));
  Welcome welcome;
  ASSERT_OK(wire::DecodeMessage(absl::MakeConstSpan(answer.data(), answer.size()), &welcome));
  EXPECT_NE(welcome.refusal, 0);
  ASSERT_OK_AND_ASSIGN(TestClient client, Connect());
  EXPECT_TRUE(Works(client));
}

TEST_F(WorkerPoolTest, SaysWhyADriverDoesNotWork) {
  WorkerCommand other = command_;
  other.driver = "/nowhere/libcuda.so.1";
  const auto missing = ProbeDriver(other, absl::Now() + kTestLimit);
  EXPECT_THAT(std::string(missing.status().message()), testing::HasSubstr("/nowhere/libcuda.so.1"));
  // No thread may start a worker while the environment changes.
  door_.reset();
  pool_->Shutdown();
  pool_.reset();
  setenv("FARGPU_FAKE_CUDA", "no-device", 1);
  const auto no_device = ProbeDriver(command_, absl::Now() + kTestLimit);
  EXPECT_THAT(std::string(no_device.status().message()),
              testing::HasSubstr("CUDA_ERROR_NO_DEVICE"));
  setenv("FARGPU_FAKE_CUDA", "crash", 1);
  EXPECT_THAT(ProbeDriver(command_, absl::Now() + kTestLimit),
              StatusIs(absl::StatusCode::kUnavailable));
  unsetenv("FARGPU_FAKE_CUDA");
}

}  // namespace
}  // namespace fargpu::server
