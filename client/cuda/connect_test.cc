// Finding a lease and opening a session, over real control sockets and UCX, with a worker double
// behind them.
#include "client/cuda/connect.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "client/cuda/edge.h"
#include "client/cuda/fake_worker.h"
#include "common/status_matchers.h"
#include "transport/control/control_channel.h"
#include "transport/control/endpoint.h"
#include "transport/ucx/ucx_endpoint.h"

namespace fargpu::client {
namespace {

using testing::HasSubstr;

// One session of a server, on a thread of its own.
class FakeServer {
 public:
  explicit FakeServer(const std::string& endpoint) {
    lease_.lease = RandomId<LeaseId>();
    FillRandom(absl::MakeSpan(lease_.secret.bytes));
    absl::StatusOr<std::unique_ptr<transport::Listener>> listener =
        transport::Listener::Listen(endpoint);
    EXPECT_OK(listener);
    listener_ = std::move(*listener);
    lease_.endpoints = {listener_->endpoint()};
  }
  ~FakeServer() {
    if (thread_.joinable()) thread_.join();
  }

  const LeaseFile& lease() const { return lease_; }
  void Start(absl::Status refusal = absl::OkStatus()) {
    thread_ = std::thread([this, refusal] { status_ = Serve(refusal); });
  }
  absl::Status Join() {
    thread_.join();
    return status_;
  }
  FakeWorker* worker() { return worker_.get(); }

 private:
  absl::Status Serve(const absl::Status& refusal) {
    const absl::Time deadline = absl::Now() + absl::Seconds(10);
    ASSIGN_OR_RETURN(UniqueFd socket, listener_->Accept(deadline));
    const auto lookup = [this](const LeaseId& lease) -> absl::StatusOr<LeaseSecret> {
      if (lease != lease_.lease) return absl::NotFoundError("no such lease");
      return lease_.secret;
    };
    ASSIGN_OR_RETURN(channel_, transport::AcceptChannel(std::move(socket), lookup, deadline));
    ASSIGN_OR_RETURN(const std::string text, channel_->Receive(deadline));
    Hello hello;
    RETURN_IF_ERROR(wire::DecodeMessage(absl::MakeConstSpan(text.data(), text.size()), &hello));
    Welcome welcome = FakeWorker::MakeWelcome();
    if (!refusal.ok()) welcome = RefusingWelcome(refusal);
    if (refusal.ok()) {
      ASSIGN_OR_RETURN(std::unique_ptr<transport::UcxEndpoint> ucx,
                       transport::UcxEndpoint::Create({}));
      welcome.address = ucx->local_address();
      ASSIGN_OR_RETURN(std::unique_ptr<transport::Connection> connection,
                       ucx->Connect(hello.address));
      worker_ = std::make_unique<FakeWorker>(std::move(connection));
    }
    std::vector<char> bytes;
    wire::EncodeMessage(welcome, &bytes);
    return channel_->Send(absl::string_view(bytes.data(), bytes.size()), deadline);
  }

  LeaseFile lease_;
  std::unique_ptr<transport::Listener> listener_;
  std::unique_ptr<transport::ControlChannel> channel_;
  std::unique_ptr<FakeWorker> worker_;
  absl::Status status_;
  std::thread thread_;
};

class ConnectTest : public testing::Test {
 protected:
  ConnectTest() {
    char name[] = "/tmp/fargpu-connect-XXXXXX";
    folder = mkdtemp(name);
    unsetenv("FARGPU_LEASE");
    unsetenv("FARGPU_BROKER");
  }
  ~ConnectTest() override {
    ResetProcessForTest();
    SetConnectorForTest(&ConnectFromEnvironment);
    [[maybe_unused]] const int removed = system(("rm -rf " + folder).c_str());
  }
  static absl::Time Soon() { return absl::Now() + absl::Seconds(10); }
  std::string WriteLease(const LeaseFile& lease) {
    const std::string path = folder + "/lease";
    EXPECT_OK(WriteLeaseFile(path, lease));
    return path;
  }
  // A helper program of this text.
  std::string WriteHelper(const std::string& text) {
    const std::string path = folder + "/helper";
    std::ofstream(path) << text;
    EXPECT_EQ(chmod(path.c_str(), 0700), 0);
    return path;
  }
  void UseSession() {
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    CUcontext context = nullptr;
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    CUdeviceptr device = 0;
    constexpr size_t kBytes = (2 << 20) + 1;
    ASSERT_EQ(cuMemAlloc_v2(&device, kBytes), CUDA_SUCCESS);
    std::vector<char> input(kBytes, 'x'), output(kBytes);
    input[kBytes - 1] = 'y';
    ASSERT_EQ(cuMemcpyHtoD_v2(device, input.data(), kBytes), CUDA_SUCCESS);
    ASSERT_EQ(cuMemcpyDtoH_v2(output.data(), device, kBytes), CUDA_SUCCESS);
    EXPECT_EQ(output, input);
    EXPECT_EQ(cuMemFree_v2(device), CUDA_SUCCESS);
  }
  std::string folder;
};

TEST_F(ConnectTest, UnixSocket) {
  FakeServer server(absl::StrCat("unix:", folder, "/socket"));
  server.Start();
  setenv("FARGPU_LEASE", WriteLease(server.lease()).c_str(), 1);
  UseSession();
  EXPECT_OK(server.Join());
}

TEST_F(ConnectTest, TcpSocket) {
  FakeServer server("tcp:127.0.0.1:0");
  server.Start();
  setenv("FARGPU_LEASE", WriteLease(server.lease()).c_str(), 1);
  UseSession();
  EXPECT_OK(server.Join());
}

TEST_F(ConnectTest, EndpointsAreTriedInOrder) {
  FakeServer server("tcp:127.0.0.1:0");
  server.Start();
  LeaseFile lease = server.lease();
  lease.endpoints.insert(lease.endpoints.begin(), {"unix:/no/such/socket", "tcp:127.0.0.1:1"});
  setenv("FARGPU_LEASE", WriteLease(lease).c_str(), 1);
  UseSession();
  EXPECT_OK(server.Join());
}

TEST_F(ConnectTest, WrongSecretIsRefused) {
  for (const char* endpoint : {"tcp:127.0.0.1:0", "unix"}) {
    FakeServer server(std::string(endpoint) == "unix" ? absl::StrCat("unix:", folder, "/s")
                                                      : endpoint);
    server.Start();
    LeaseFile lease = server.lease();
    lease.secret.bytes[0] ^= 1;
    const auto parts = ConnectToLease(lease, Soon());
    EXPECT_FALSE(parts.ok());
    EXPECT_EQ(server.worker(), nullptr);
    EXPECT_FALSE(server.Join().ok());
  }
}

TEST_F(ConnectTest, RefusalTellsWhy) {
  FakeServer server(absl::StrCat("unix:", folder, "/socket"));
  server.Start(absl::ResourceExhaustedError("the lease has 64 sessions already"));
  const auto parts = ConnectToLease(server.lease(), Soon());
  EXPECT_FALSE(parts.ok());
  EXPECT_THAT(std::string(parts.status().message()), HasSubstr("64 sessions already"));
  EXPECT_OK(server.Join());
}

TEST_F(ConnectTest, SilentServerIsGivenUp) {
  absl::StatusOr<std::unique_ptr<transport::Listener>> listener =
      transport::Listener::Listen("tcp:127.0.0.1:0");
  ASSERT_OK(listener);
  LeaseFile lease;
  lease.endpoints = {(*listener)->endpoint()};
  const absl::Time start = absl::Now();
  EXPECT_FALSE(ConnectToLease(lease, start + absl::Milliseconds(300)).ok());
  EXPECT_LT(absl::Now() - start, absl::Seconds(3));
}

TEST_F(ConnectTest, NothingConfigured) {
  const auto parts = ConnectFromEnvironment();
  EXPECT_THAT(parts, StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(std::string(parts.status().message()), HasSubstr("FARGPU_LEASE"));
  EXPECT_EQ(cuInit(0), CUDA_ERROR_NO_DEVICE);
}

TEST_F(ConnectTest, LeaseFileThatIsMissing) {
  setenv("FARGPU_LEASE", "/no/such/lease", 1);
  EXPECT_THAT(ConnectFromEnvironment(), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(cuInit(0), CUDA_ERROR_NO_DEVICE);
}

TEST_F(ConnectTest, HelperGivesALeaseAndEndsWithUs) {
  FakeServer server(absl::StrCat("unix:", folder, "/socket"));
  server.Start();
  const std::string helper =
      WriteHelper(absl::StrCat("#!/bin/sh\ncat ", WriteLease(server.lease()), "\necho\ncat\n"));
  setenv("FARGPU_BROKER", "127.0.0.1:1", 1);
  setenv("FARGPU_LEASE_HELPER", helper.c_str(), 1);
  UseSession();
  EXPECT_OK(server.Join());
}

TEST_F(ConnectTest, HelperThatFails) {
  setenv("FARGPU_BROKER", "127.0.0.1:1", 1);
  setenv("FARGPU_LEASE_HELPER", WriteHelper("#!/bin/sh\nexit 3\n").c_str(), 1);
  const auto parts = ConnectFromEnvironment();
  EXPECT_FALSE(parts.ok());
  EXPECT_THAT(std::string(parts.status().message()), HasSubstr("exit status 3"));
  setenv("FARGPU_LEASE_HELPER", "/no/such/helper", 1);
  EXPECT_THAT(ConnectFromEnvironment(), StatusIs(absl::StatusCode::kNotFound));
}

// A program built by nvcc, on the library itself: the runtime's start-up and its questions about
// devices. FARGPU_TEST_PROGRAM names the program, FARGPU_TEST_LIBRARY the folder of libcuda.so.1.
TEST_F(ConnectTest, UnmodifiedProgramFindsItsDevices) {
  const char* program = std::getenv("FARGPU_TEST_PROGRAM");
  const char* library = std::getenv("FARGPU_TEST_LIBRARY");
  if (program == nullptr || library == nullptr || access(program, X_OK) != 0) {
    GTEST_SKIP() << "FARGPU_TEST_PROGRAM names no program";
  }
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the program would need the sanitizer's library";
#endif
  FakeServer server(absl::StrCat("unix:", folder, "/socket"));
  server.Start();
  setenv("FARGPU_LEASE", WriteLease(server.lease()).c_str(), 1);
  EXPECT_EQ(system(absl::StrCat("LD_LIBRARY_PATH=", library, " ", program).c_str()), 0);
  EXPECT_OK(server.Join());
}

}  // namespace
}  // namespace fargpu::client
