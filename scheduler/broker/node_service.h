#pragma once

#include <map>
#include <memory>

#include "common/mutex.h"
#include "protocol/proto/node.grpc.pb.h"
#include "scheduler/broker/broker.h"

namespace fargpu::scheduler {

// The gRPC face of a Broker towards daemons.
class NodeService : public node::v1::NodeRegistry::CallbackService {
 public:
  // `broker` must outlive the service.
  explicit NodeService(Broker* broker) : broker_(broker) {}

  grpc::ServerBidiReactor<node::v1::NodeMessage, node::v1::BrokerMessage>* RegisterNode(
      grpc::CallbackServerContext* context) override;

  // Ends streams that have not said hello for ten seconds. Call it now and then.
  void EndNamelessStreams();

 private:
  friend class NodeStream;
  void AddNameless(std::shared_ptr<NodeChannel> channel);
  void RemoveNameless(const NodeChannel* channel);

  Broker* const broker_;
  struct Nameless {
    std::shared_ptr<NodeChannel> channel;
    absl::Time end;
  };
  Mutex mutex_;  // taken before the channels' locks
  std::map<const NodeChannel*, Nameless> nameless_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fargpu::scheduler
