#pragma once

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

 private:
  Broker* const broker_;
};

}  // namespace fargpu::scheduler
