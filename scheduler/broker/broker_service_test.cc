// The broker as a process sees it: over gRPC, with a node that is a gRPC client.
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <grpcpp/create_channel.h>

#include "common/status_matchers.h"
#include "scheduler/broker/broker_server.h"

namespace fargpu::scheduler {
namespace {

namespace pb = broker::v1;
namespace nb = node::v1;
using ::testing::HasSubstr;

constexpr char kUuid[] = "GPU-00000000-0000-0000-0000-000000000001";

// Every call of a test ends by then.
std::unique_ptr<grpc::ClientContext> Deadline(std::chrono::milliseconds limit) {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + limit);
  return context;
}
std::unique_ptr<grpc::ClientContext> Soon() { return Deadline(std::chrono::seconds(20)); }

// A daemon that says yes to everything and sends a heartbeat ten times a second.
class ClientNode {
 public:
  ClientNode(const std::shared_ptr<grpc::Channel>& channel, const std::string& name)
      : stub_(nb::NodeRegistry::NewStub(channel)),
        context_(Soon()),
        stream_(stub_->RegisterNode(context_.get())) {
    nb::NodeMessage message;
    nb::Hello& hello = *message.mutable_hello();
    hello.set_node_name(name);
    hello.add_endpoints("tcp:127.0.0.1:7000");
    hello.add_devices()->set_uuid(kUuid);
    hello.mutable_devices(0)->set_memory_bytes(uint64_t{4} << 30);
    Write(message);
    nb::BrokerMessage first;
    registered_ = stream_->Read(&first) && first.has_full_state();
    full_state_ = first.full_state();
    reader_ = std::thread([this] { RunReader(); });
    heart_ = std::thread([this] { RunHeart(); });
  }
  ~ClientNode() {
    context_->TryCancel();
    Join();
  }
  // How the broker ended the stream.
  grpc::Status WaitForEnd() {
    Join();
    return status_;
  }
  bool registered() const { return registered_; }
  const nb::FullState& full_state() const { return full_state_; }
  int reserves() const { return reserves_; }

 private:
  void Join() {
    if (reader_.joinable()) reader_.join();
    if (heart_.joinable()) heart_.join();
  }
  void Write(const nb::NodeMessage& message) {
    MutexLock lock(&write_mutex_);
    stream_->Write(message);
  }
  void RunReader() {
    nb::BrokerMessage message;
    while (stream_->Read(&message)) {
      nb::NodeMessage answer;
      if (message.has_reserve()) {
        ++reserves_;
        answer.mutable_reserve_result()->set_request_id(message.reserve().request_id());
      } else if (message.has_release_lease()) {
        answer.mutable_lease_ended()->set_lease_id(message.release_lease().lease_id());
      }
      Write(answer);
    }
    status_ = stream_->Finish();
    stop_ = true;
  }
  void RunHeart() {
    nb::NodeMessage message;
    message.mutable_heartbeat();
    while (!stop_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      if (!stop_) Write(message);
    }
  }

  std::unique_ptr<nb::NodeRegistry::Stub> stub_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReaderWriter<nb::NodeMessage, nb::BrokerMessage>> stream_;
  bool registered_ = false;
  nb::FullState full_state_;
  std::atomic<int> reserves_{0};
  std::atomic<bool> stop_{false};
  grpc::Status status_;
  Mutex write_mutex_;
  std::thread reader_;
  std::thread heart_;
};

class BrokerServiceTest : public testing::Test {
 protected:
  BrokerServiceTest() {
    std::string pattern = testing::TempDir() + "broker_service_test_XXXXXX";
    directory_ = mkdtemp(pattern.data());
    StartServer("127.0.0.1:0");
  }
  ~BrokerServiceTest() override {
    server_.reset();
    std::filesystem::remove_all(directory_);
  }
  void StartServer(const std::string& listen) {
    BrokerServerOptions options;
    options.listen = listen;
    options.state_dir = directory_ + "/state";
    auto server = BrokerServer::Start(options);
    ASSERT_OK(server);
    server_ = *std::move(server);
    const auto address = ParseBrokerAddress(server_->address());
    ASSERT_OK(address);
    const auto channel = MakeBrokerChannel(*address, {});
    ASSERT_OK(channel);
    channel_ = *channel;
    stub_ = pb::Broker::NewStub(channel_);
  }
  grpc::Status Allocate(uint64_t mib, pb::AllocateResponse* response,
                        const std::string& request_id = "", uint64_t wait_ms = 0,
                        std::chrono::milliseconds limit = std::chrono::seconds(20)) {
    pb::AllocateRequest request;
    request.set_memory_mib(mib);
    request.set_cores_percent(10);
    request.set_request_id(request_id);
    request.set_wait_ms(wait_ms);
    const auto context = Deadline(limit);
    return stub_->Allocate(context.get(), request, response);
  }

  std::string directory_;
  std::unique_ptr<BrokerServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<pb::Broker::Stub> stub_;
};

TEST_F(BrokerServiceTest, AllocatesListsAndReleasesOverGrpc) {
  ClientNode node(channel_, "gpu-1");
  ASSERT_TRUE(node.registered());
  pb::AllocateResponse response;
  ASSERT_OK(FromGrpcStatus(Allocate(1024, &response)));
  EXPECT_EQ(response.secret().size(), 32u);
  EXPECT_EQ(node.reserves(), 1);

  pb::ListResponse list;
  ASSERT_OK(FromGrpcStatus(stub_->List(Soon().get(), pb::ListRequest(), &list)));
  ASSERT_EQ(list.leases_size(), 1);
  EXPECT_EQ(list.leases(0).id(), response.lease().id());
  EXPECT_EQ(list.DebugString().find(response.secret()), std::string::npos);
  EXPECT_GT(list.leases(0).expire_time_ms(), list.leases(0).create_time_ms());

  pb::AllocateResponse refused;
  const grpc::Status refusal = Allocate(4000, &refused);
  EXPECT_EQ(refusal.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refusal.error_message(), HasSubstr("largest free slice is 3072 MiB on node gpu-1"));

  pb::ReleaseRequest release;
  release.set_lease_id(response.lease().id());
  pb::ReleaseResponse released;
  ASSERT_OK(FromGrpcStatus(stub_->Release(Soon().get(), release, &released)));
  pb::ListNodesResponse nodes;
  ASSERT_OK(FromGrpcStatus(stub_->ListNodes(Soon().get(), pb::ListNodesRequest(), &nodes)));
  ASSERT_EQ(nodes.nodes_size(), 1);
  EXPECT_EQ(nodes.nodes(0).cards(0).lent_memory_bytes(), 0u);
  pb::BrokerInfo info;
  ASSERT_OK(FromGrpcStatus(stub_->GetBrokerInfo(Soon().get(), pb::GetBrokerInfoRequest(), &info)));
  EXPECT_EQ(info.fargpu_version(), FARGPU_VERSION);
}

TEST_F(BrokerServiceTest, ManyClientsAtOnceNeverGetMoreThanThereIs) {
  ClientNode node(channel_, "gpu-1");
  ASSERT_TRUE(node.registered());
  std::atomic<int> granted{0};
  std::atomic<int> refused{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&] {
      for (int round = 0; round < 4; ++round) {
        pb::AllocateResponse response;
        const grpc::Status status = Allocate(512, &response);
        if (status.ok()) ++granted;
        if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) ++refused;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(granted, 8);  // 4096 MiB / 512 MiB
  EXPECT_EQ(refused, 24);
}

TEST_F(BrokerServiceTest, ARestartedBrokerHandsTheNodeItsLeases) {
  pb::AllocateResponse before;
  const std::string address = server_->address();
  {
    ClientNode node(channel_, "gpu-1");
    ASSERT_OK(FromGrpcStatus(Allocate(1024, &before, "my-request")));
    const auto start = std::chrono::steady_clock::now();
    server_.reset();
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
    EXPECT_EQ(node.WaitForEnd().error_code(), grpc::StatusCode::UNAVAILABLE);
  }
  StartServer(address);
  ClientNode node(channel_, "gpu-1");
  ASSERT_TRUE(node.registered());
  ASSERT_EQ(node.full_state().leases_size(), 1);
  EXPECT_EQ(node.full_state().leases(0).lease_id(), before.lease().id());
  EXPECT_EQ(node.full_state().leases(0).secret(), before.secret());
  pb::AllocateResponse after;
  ASSERT_OK(FromGrpcStatus(Allocate(1024, &after, "my-request")));
  EXPECT_EQ(after.lease().id(), before.lease().id());
  EXPECT_EQ(after.secret(), before.secret());
  EXPECT_EQ(node.reserves(), 0);
}

TEST_F(BrokerServiceTest, AWaitEndsWithTheCallsDeadlineOrTheServer) {
  pb::AllocateResponse response;
  EXPECT_EQ(Allocate(1024, &response, "", 60'000, std::chrono::milliseconds(300)).error_code(),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  std::thread waiting([&] {
    pb::AllocateResponse unanswered;
    EXPECT_EQ(Allocate(1024, &unanswered, "", 60'000).error_code(), grpc::StatusCode::UNAVAILABLE);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const auto start = std::chrono::steady_clock::now();
  server_.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
  waiting.join();
}

TEST_F(BrokerServiceTest, WatchTellsWhatHappensAndResumes) {
  ClientNode node(channel_, "gpu-1");
  std::string token;
  std::string lease_id;
  {
    const auto first_context = Soon();
    const auto watch = stub_->Watch(first_context.get(), pb::WatchRequest());
    watch->WaitForInitialMetadata();  // from here on nothing is missed
    pb::AllocateResponse response;
    ASSERT_OK(FromGrpcStatus(Allocate(1024, &response)));
    lease_id = response.lease().id();
    pb::Event event;
    ASSERT_TRUE(watch->Read(&event));
    EXPECT_EQ(event.kind(), pb::EVENT_KIND_LEASE_ACTIVE);
    EXPECT_EQ(event.lease().id(), lease_id);
    token = event.resume_token();
    first_context->TryCancel();
    while (watch->Read(&event)) {
    }
    EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  pb::ReleaseRequest release;
  release.set_lease_id(lease_id);
  release.set_reason("done");
  pb::ReleaseResponse released;
  ASSERT_OK(FromGrpcStatus(stub_->Release(Soon().get(), release, &released)));

  pb::WatchRequest resume;
  resume.set_resume_token(token);
  resume.set_lease_id(lease_id);
  const auto context = Soon();
  const auto watch = stub_->Watch(context.get(), resume);
  pb::Event event;
  ASSERT_TRUE(watch->Read(&event));
  EXPECT_EQ(event.kind(), pb::EVENT_KIND_LEASE_ENDED);
  EXPECT_EQ(event.message(), "done");
  server_.reset();
  EXPECT_FALSE(watch->Read(&event));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(BrokerServiceTest, BadWatchTokensAndBadStreamsAreRefused) {
  pb::WatchRequest request;
  request.set_resume_token("nonsense");
  pb::Event event;
  auto context = Soon();
  const auto watch = stub_->Watch(context.get(), request);
  EXPECT_FALSE(watch->Read(&event));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);

  const auto nodes = nb::NodeRegistry::NewStub(channel_);
  context = Soon();
  const auto stream = nodes->RegisterNode(context.get());
  nb::NodeMessage message;
  message.mutable_heartbeat();
  stream->Write(message);
  nb::BrokerMessage answer;
  EXPECT_FALSE(stream->Read(&answer));
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("hello"));
}

TEST_F(BrokerServiceTest, ASecondStreamOfANodeReplacesTheFirst) {
  ClientNode first(channel_, "gpu-1");
  ASSERT_TRUE(first.registered());
  ClientNode second(channel_, "gpu-1");
  ASSERT_TRUE(second.registered());
  EXPECT_EQ(first.WaitForEnd().error_code(), grpc::StatusCode::ABORTED);
  pb::AllocateResponse response;
  ASSERT_OK(FromGrpcStatus(Allocate(1024, &response)));
  EXPECT_EQ(second.reserves(), 1);
}

TEST_F(BrokerServiceTest, OneBrokerPerStateDirectoryAndPort) {
  BrokerServerOptions options;
  options.listen = "127.0.0.1:0";
  options.state_dir = directory_ + "/state";
  const auto same_state = BrokerServer::Start(options);
  EXPECT_THAT(same_state, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(std::string(same_state.status().message()), HasSubstr("another fargpu-broker"));
  options.state_dir = directory_ + "/other";
  options.listen = server_->address();
  const auto same_port = BrokerServer::Start(options);
  EXPECT_THAT(same_port, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(std::string(same_port.status().message()), HasSubstr(server_->address()));
  options.listen = "0.0.0.0:0";
  EXPECT_THAT(BrokerServer::Start(options), StatusIs(absl::StatusCode::kInvalidArgument));
  struct stat info;
  ASSERT_EQ(stat((directory_ + "/state").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST_F(BrokerServiceTest, ListensOnAUnixSocket) {
  server_.reset();
  StartServer(absl::StrCat("unix:", directory_, "/b.sock"));
  pb::BrokerInfo info;
  EXPECT_OK(FromGrpcStatus(stub_->GetBrokerInfo(Soon().get(), pb::GetBrokerInfoRequest(), &info)));
}

}  // namespace
}  // namespace fargpu::scheduler
