#include "scheduler/broker/broker_service.h"

#include <utility>

#include "protocol/proto/grpc_support.h"

namespace fargpu::scheduler {

namespace pb = broker::v1;

namespace {

// One Allocate call. Deletes itself when gRPC is done with it.
class AllocateCall : public grpc::ServerUnaryReactor {
 public:
  AllocateCall(Broker* broker, const pb::AllocateRequest& request, pb::AllocateResponse* response)
      : broker_(broker), ticket_(broker->NewTicket()) {
    broker->Allocate(request, ticket_,
                     [this, response](absl::StatusOr<pb::AllocateResponse> answer) {
                       if (answer.ok()) *response = *std::move(answer);
                       Finish(ToGrpcStatus(answer.status()));
                     });
  }
  // Also when the call's deadline has passed.
  void OnCancel() override { broker_->CancelAllocate(ticket_); }
  void OnDone() override { delete this; }

 private:
  Broker* const broker_;
  const uint64_t ticket_;
};

// One Watch call. Deletes itself when gRPC is done with it.
class WatchCall : public grpc::ServerWriteReactor<pb::Event> {
 public:
  WatchCall(EventLog* events, const pb::WatchRequest& request)
      : events_(events), lease_id_(request.lease_id()) {
    absl::Status status;
    if (!lease_id_.empty()) status = CheckLeaseId("lease_id", lease_id_).status();
    if (status.ok()) {
      absl::StatusOr<uint64_t> cursor = events_->CursorAfter(request.resume_token());
      status = cursor.status();
      if (cursor.ok()) cursor_ = *cursor;
    }
    if (!status.ok()) {
      MutexLock lock(&mutex_);
      End(status);
      return;
    }
    // The caller learns that it misses nothing from here on, before there is an event.
    StartSendInitialMetadata();
  }

  void OnSendInitialMetadataDone(bool ok) override {
    subscription_ = events_->Subscribe([this] { Pump(); });
    Pump();
  }
  void OnWriteDone(bool ok) override {
    {
      MutexLock lock(&mutex_);
      writing_ = false;
      if (!ok) End(absl::CancelledError("the watcher has gone away"));
    }
    Pump();
  }
  void OnCancel() override {
    MutexLock lock(&mutex_);
    End(absl::CancelledError("the watcher has gone away"));
  }
  void OnDone() override {
    if (subscription_ != 0) events_->Unsubscribe(subscription_);
    delete this;
  }

 private:
  // Starts the next write unless one is on its way.
  void Pump() {
    MutexLock lock(&mutex_);
    if (writing_ || finished_) return;
    if (end_status_.has_value()) return End(*end_status_);
    const absl::StatusOr<bool> found = events_->Next(lease_id_, &cursor_, &event_);
    if (!found.ok()) return End(found.status());
    if (!*found) return;
    writing_ = true;
    StartWrite(&event_);
  }
  // Finishes now, or when the write that is on its way is done.
  void End(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!end_status_.has_value()) end_status_ = status;
    if (writing_ || finished_) return;
    finished_ = true;
    Finish(ToGrpcStatus(*end_status_));
  }

  EventLog* const events_;
  const std::string lease_id_;
  uint64_t subscription_ = 0;
  Mutex mutex_;
  uint64_t cursor_ ABSL_GUARDED_BY(mutex_) = 0;
  pb::Event event_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> end_status_ ABSL_GUARDED_BY(mutex_);
};

grpc::ServerUnaryReactor* Finish(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

template <typename T>
grpc::ServerUnaryReactor* Finish(grpc::CallbackServerContext* context, absl::StatusOr<T> answer,
                                 T* response) {
  if (answer.ok()) *response = *std::move(answer);
  return Finish(context, answer.status());
}

}  // namespace

grpc::ServerUnaryReactor* BrokerService::Allocate(grpc::CallbackServerContext* context,
                                                  const pb::AllocateRequest* request,
                                                  pb::AllocateResponse* response) {
  return new AllocateCall(broker_, *request, response);
}

grpc::ServerUnaryReactor* BrokerService::Get(grpc::CallbackServerContext* context,
                                             const pb::GetRequest* request, pb::Lease* response) {
  return Finish(context, broker_->Get(*request), response);
}

grpc::ServerUnaryReactor* BrokerService::List(grpc::CallbackServerContext* context,
                                              const pb::ListRequest* request,
                                              pb::ListResponse* response) {
  return Finish(context, broker_->List(*request), response);
}

grpc::ServerUnaryReactor* BrokerService::Release(grpc::CallbackServerContext* context,
                                                 const pb::ReleaseRequest* request,
                                                 pb::ReleaseResponse* response) {
  return Finish(context, broker_->Release(*request));
}

grpc::ServerUnaryReactor* BrokerService::Renew(grpc::CallbackServerContext* context,
                                               const pb::RenewRequest* request,
                                               pb::Lease* response) {
  return Finish(context, broker_->Renew(*request), response);
}

grpc::ServerWriteReactor<pb::Event>* BrokerService::Watch(grpc::CallbackServerContext* context,
                                                          const pb::WatchRequest* request) {
  return new WatchCall(&broker_->events(), *request);
}

grpc::ServerUnaryReactor* BrokerService::ListNodes(grpc::CallbackServerContext* context,
                                                   const pb::ListNodesRequest* request,
                                                   pb::ListNodesResponse* response) {
  *response = broker_->ListNodes();
  return Finish(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* BrokerService::GetBrokerInfo(grpc::CallbackServerContext* context,
                                                       const pb::GetBrokerInfoRequest* request,
                                                       pb::BrokerInfo* response) {
  *response = broker_->Info();
  return Finish(context, absl::OkStatus());
}

}  // namespace fargpu::scheduler
