#pragma once

#include <memory>
#include <string>
#include <thread>

#include <grpcpp/server.h>

#include "common/fd.h"
#include "common/mutex.h"
#include "protocol/proto/grpc_support.h"
#include "scheduler/broker/broker.h"
#include "scheduler/broker/broker_service.h"
#include "scheduler/broker/node_service.h"
#include "scheduler/policies/best_fit_policy.h"

namespace fargpu::scheduler {

struct BrokerServerOptions {
  std::string listen = "127.0.0.1:4830";  // as BrokerAddress; port 0: any free one
  // Directory for the store, made if missing. Only one broker at a time uses it.
  std::string state_dir;
  TlsFiles tls;
  BrokerOptions broker;
};

// A whole broker: store, decisions, gRPC services (with health and reflection), timer.
class BrokerServer {
 public:
  // kInvalidArgument: an option is wrong. kUnavailable: the address is in use, the directory is
  // used by another broker, or the store cannot be opened.
  static absl::StatusOr<std::unique_ptr<BrokerServer>> Start(BrokerServerOptions options);
  // Ends within about a second, whatever clients do. Leases stay in the store.
  ~BrokerServer();

  // Where clients connect: "127.0.0.1:4830", with the port that was taken.
  const std::string& address() const { return address_; }

 private:
  BrokerServer(BrokerServerOptions options, UniqueFd lock, std::unique_ptr<Store> store);
  absl::Status Listen();
  void RunTimer();

  const BrokerServerOptions options_;
  const UniqueFd lock_;
  const std::unique_ptr<Store> store_;
  const Clock clock_;
  const BestFitPolicy policy_;
  Broker broker_;
  BrokerService broker_service_;
  NodeService node_service_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;

  Mutex mutex_;
  CondVar stopped_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread timer_;
};

}  // namespace fargpu::scheduler
