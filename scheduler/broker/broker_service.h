#pragma once

#include "protocol/proto/broker.grpc.pb.h"
#include "scheduler/broker/broker.h"

namespace fargpu::scheduler {

// The gRPC face of a Broker: turns calls into its methods and statuses into gRPC's. No thread waits
// while a request waits.
class BrokerService : public broker::v1::Broker::CallbackService {
 public:
  // `broker` must outlive the service.
  explicit BrokerService(Broker* broker) : broker_(broker) {}

  grpc::ServerUnaryReactor* Allocate(grpc::CallbackServerContext* context,
                                     const broker::v1::AllocateRequest* request,
                                     broker::v1::AllocateResponse* response) override;
  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context,
                                const broker::v1::GetRequest* request,
                                broker::v1::Lease* response) override;
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const broker::v1::ListRequest* request,
                                 broker::v1::ListResponse* response) override;
  grpc::ServerUnaryReactor* Release(grpc::CallbackServerContext* context,
                                    const broker::v1::ReleaseRequest* request,
                                    broker::v1::ReleaseResponse* response) override;
  grpc::ServerUnaryReactor* Renew(grpc::CallbackServerContext* context,
                                  const broker::v1::RenewRequest* request,
                                  broker::v1::Lease* response) override;
  grpc::ServerWriteReactor<broker::v1::Event>* Watch(
      grpc::CallbackServerContext* context, const broker::v1::WatchRequest* request) override;
  grpc::ServerUnaryReactor* ListNodes(grpc::CallbackServerContext* context,
                                      const broker::v1::ListNodesRequest* request,
                                      broker::v1::ListNodesResponse* response) override;
  grpc::ServerUnaryReactor* GetBrokerInfo(grpc::CallbackServerContext* context,
                                          const broker::v1::GetBrokerInfoRequest* request,
                                          broker::v1::BrokerInfo* response) override;

 private:
  Broker* const broker_;
};

}  // namespace fargpu::scheduler
