#include "scheduler/broker/broker_server.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/server_builder.h>

#include "common/log.h"
#include "common/status_macros.h"
#include "scheduler/store/sqlite_store.h"

namespace fargpu::scheduler {
namespace {

constexpr auto kTick = std::chrono::milliseconds(100);
// What calls get to finish by themselves once the broker has answered all that waited.
constexpr auto kShutdownGrace = std::chrono::milliseconds(500);
// A Hello with the leases of a large node; clients' requests are far smaller.
constexpr int kMaxMessageBytes = 32 << 20;

absl::StatusOr<UniqueFd> LockDirectory(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("cannot make state directory ", directory, ": ", error.message()));
  }
  // It will hold secrets. Of a directory that is not ours we leave the mode alone.
  chmod(directory.c_str(), 0700);
  const std::string path = directory + "/lock";
  UniqueFd lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.valid()) return ErrnoStatus(absl::StrCat("open ", path));
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      return absl::UnavailableError(
          absl::StrCat("state directory ", directory, " is used by another fargpu-broker"));
    }
    return ErrnoStatus(absl::StrCat("flock ", path));
  }
  return lock;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BrokerServer>> BrokerServer::Start(BrokerServerOptions options) {
  if (options.state_dir.empty()) return absl::InvalidArgumentError("no state directory given");
  ASSIGN_OR_RETURN(UniqueFd lock, LockDirectory(options.state_dir));
  ASSIGN_OR_RETURN(std::unique_ptr<SqliteStore> store,
                   SqliteStore::Open(options.state_dir + "/broker.db"));
  auto server = std::unique_ptr<BrokerServer>(
      new BrokerServer(std::move(options), std::move(lock), std::move(store)));
  RETURN_IF_ERROR(server->broker_.Start());
  RETURN_IF_ERROR(server->Listen());
  server->timer_ = std::thread([raw = server.get()] { raw->RunTimer(); });
  return server;
}

BrokerServer::BrokerServer(BrokerServerOptions options, UniqueFd lock, std::unique_ptr<Store> store)
    : options_(std::move(options)),
      lock_(std::move(lock)),
      store_(std::move(store)),
      broker_(store_.get(), &policy_, &clock_, options_.broker),
      broker_service_(&broker_),
      node_service_(&broker_) {}

absl::Status BrokerServer::Listen() {
  ASSIGN_OR_RETURN(const BrokerAddress address, ParseBrokerAddress(options_.listen));
  ASSIGN_OR_RETURN(auto credentials, MakeServerCredentials(address, options_.tls));
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(address.text, std::move(credentials), &port);
  // Two brokers must not share a port, with the kernel dealing calls out between them.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  // Notices clients whose machine vanished, and lets them ask for the same.
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.RegisterService(&broker_service_);
  builder.RegisterService(&node_service_);
  server_ = builder.BuildAndStart();
  const bool is_unix = address.text.rfind("unix:", 0) == 0;
  if (server_ == nullptr || (!is_unix && port == 0)) {
    return absl::UnavailableError(absl::StrCat(
        "cannot listen on ", address.text, "; is it in use, or not an address of this machine?"));
  }
  address_ = is_unix ? address.text
                     : absl::StrCat(address.text.substr(0, address.text.rfind(':')), ":", port);
  return absl::OkStatus();
}

void BrokerServer::RunTimer() {
  MutexLock lock(&mutex_);
  while (!stop_) {
    stopped_.WaitFor(&mutex_, kTick);
    mutex_.Unlock();
    broker_.Tick();
    node_service_.EndNamelessStreams();
    mutex_.Lock();
  }
}

BrokerServer::~BrokerServer() {
  {
    MutexLock lock(&mutex_);
    stop_ = true;
  }
  stopped_.Signal();
  if (timer_.joinable()) timer_.join();
  if (server_ == nullptr) return;
  broker_.Shutdown();
  server_->Shutdown(std::chrono::system_clock::now() + kShutdownGrace);
  server_->Wait();
}

}  // namespace fargpu::scheduler
