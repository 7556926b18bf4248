#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/mutex.h"
#include "protocol/proto/grpc_support.h"
#include "protocol/proto/node.grpc.pb.h"
#include "server/daemon/lease_table.h"
#include "server/daemon/worker_pool.h"

namespace fargpu::server {

// The daemon's stream to the broker: says what the node has and what runs, does what the broker
// asks, and connects again for as long as it lives. Nothing that runs depends on it.
class BrokerLink {
 public:
  struct Options {
    BrokerAddress address;
    TlsFiles tls;
    std::string node_name;
    std::vector<std::string> endpoints;  // where clients connect, best first
  };

  // Both must outlive the link.
  static absl::StatusOr<std::unique_ptr<BrokerLink>> Start(Options options, LeaseTable* leases,
                                                           WorkerPool* workers);
  ~BrokerLink();

 private:
  using Stream = grpc::ClientReaderWriter<node::v1::NodeMessage, node::v1::BrokerMessage>;

  BrokerLink(Options options, LeaseTable* leases, WorkerPool* workers)
      : options_(std::move(options)), leases_(leases), workers_(workers) {}
  void Run();
  // One stream from Hello to its end. Sets `*registered` once the broker has answered.
  absl::Status Talk(bool* registered);
  void Handle(const node::v1::BrokerMessage& message, Stream* stream);
  void TakeFullState(const node::v1::FullState& state, Stream* stream);
  void Release(const LeaseId& id, const std::string& why, Stream* stream);
  bool Write(Stream* stream, const node::v1::NodeMessage& message);
  node::v1::NodeMessage MakeHello();
  node::v1::NodeMessage MakeHeartbeat();

  const Options options_;
  LeaseTable* const leases_;
  WorkerPool* const workers_;
  std::shared_ptr<grpc::Channel> channel_;

  Mutex mutex_;
  CondVar stop_wanted_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;  // of the stream that is open
  Mutex write_mutex_;  // heartbeats and answers come from different threads
  std::thread thread_;
};

}  // namespace fargpu::server
