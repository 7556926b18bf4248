#include "scheduler/broker/node_service.h"

#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/log.h"
#include "protocol/proto/grpc_support.h"

namespace fargpu::scheduler {
namespace {

using node::v1::BrokerMessage;
using node::v1::NodeMessage;

// A daemon that takes no messages while it sends heartbeats is broken; this many end its stream.
constexpr size_t kMaxQueued = 100'000;

// From the start of a stream to its hello.
constexpr absl::Duration kHelloTimeout = absl::Seconds(10);

}  // namespace

class NodeStream;

namespace {

// What the broker holds of a stream. It may outlive the stream.
class StreamChannel : public NodeChannel {
 public:
  explicit StreamChannel(NodeStream* stream) : stream_(stream) {}
  void Send(BrokerMessage message) override;
  void Close(absl::Status why) override;
  // The stream is about to go.
  void Detach() {
    MutexLock lock(&mutex_);
    stream_ = nullptr;
  }

 private:
  Mutex mutex_;  // taken before the stream's
  NodeStream* stream_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

// One RegisterNode call. Deletes itself when gRPC is done with it.
class NodeStream : public grpc::ServerBidiReactor<NodeMessage, BrokerMessage> {
 public:
  NodeStream(NodeService* service, Broker* broker, grpc::CallbackServerContext* context)
      : service_(service),
        broker_(broker),
        context_(context),
        channel_(std::make_shared<StreamChannel>(this)) {
    service_->AddNameless(channel_);
    StartRead(&incoming_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      if (registration_ != 0) broker_->NodeStreamEnded(registration_);
      MutexLock lock(&mutex_);
      return End(absl::OkStatus());
    }
    absl::Status status = HandleIncoming();
    if (!status.ok()) {
      FARGPU_LOG(kWarning, "node at ", context_->peer(), ": ", status.message());
      if (registration_ != 0) broker_->NodeStreamEnded(registration_);
      MutexLock lock(&mutex_);
      return End(std::move(status));
    }
    StartRead(&incoming_);
  }
  void OnWriteDone(bool ok) override {
    MutexLock lock(&mutex_);
    writing_ = false;
    queue_.pop_front();
    if (!ok) End(absl::UnavailableError("the node has gone away"));
    Pump();
  }
  void OnDone() override {
    service_->RemoveNameless(channel_.get());
    channel_->Detach();
    delete this;
  }

  void Send(BrokerMessage message) {
    MutexLock lock(&mutex_);
    if (finished_ || end_status_.has_value()) return;
    if (queue_.size() >= kMaxQueued) {
      context_->TryCancel();
      return;
    }
    queue_.push_back(std::move(message));
    Pump();
  }
  void Close(absl::Status why) {
    MutexLock lock(&mutex_);
    // A write that is on its way may never be taken; then only cancelling ends the call.
    if (writing_) context_->TryCancel();
    End(std::move(why));
  }

 private:
  absl::Status HandleIncoming() {
    if (registration_ != 0) return broker_->HandleNodeMessage(registration_, incoming_);
    if (!incoming_.has_hello()) {
      return absl::InvalidArgumentError("the first message on a stream must be hello");
    }
    absl::StatusOr<uint64_t> registration = broker_->RegisterNode(incoming_.hello(), channel_);
    if (registration.ok()) {
      registration_ = *registration;
      service_->RemoveNameless(channel_.get());
    }
    return registration.status();
  }
  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_) return;
    if (end_status_.has_value()) return End(*end_status_);
    if (queue_.empty()) return;
    writing_ = true;
    StartWrite(&queue_.front());
  }
  // Finishes now, or when the write that is on its way is done. The first reason counts.
  void End(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!end_status_.has_value()) end_status_ = std::move(status);
    if (writing_ || finished_) return;
    finished_ = true;
    Finish(ToGrpcStatus(*end_status_));
  }

  NodeService* const service_;
  Broker* const broker_;
  grpc::CallbackServerContext* const context_;
  const std::shared_ptr<StreamChannel> channel_;
  // Of the reading side, which runs one call at a time.
  NodeMessage incoming_;
  uint64_t registration_ = 0;

  Mutex mutex_;
  std::deque<BrokerMessage> queue_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> end_status_ ABSL_GUARDED_BY(mutex_);
};

void StreamChannel::Send(BrokerMessage message) {
  MutexLock lock(&mutex_);
  if (stream_ != nullptr) stream_->Send(std::move(message));
}

void StreamChannel::Close(absl::Status why) {
  MutexLock lock(&mutex_);
  if (stream_ != nullptr) stream_->Close(std::move(why));
}

void NodeService::AddNameless(std::shared_ptr<NodeChannel> channel) {
  MutexLock lock(&mutex_);
  const NodeChannel* const key = channel.get();
  nameless_[key] = {.channel = std::move(channel), .end = absl::Now() + kHelloTimeout};
}

void NodeService::RemoveNameless(const NodeChannel* channel) {
  MutexLock lock(&mutex_);
  nameless_.erase(channel);
}

void NodeService::EndNamelessStreams() {
  std::vector<std::shared_ptr<NodeChannel>> late;
  {
    MutexLock lock(&mutex_);
    for (const auto& [key, stream] : nameless_) {
      if (absl::Now() >= stream.end) late.push_back(stream.channel);
    }
  }
  for (const auto& channel : late) {
    channel->Close(absl::DeadlineExceededError(
        absl::StrCat("no hello within ", absl::FormatDuration(kHelloTimeout))));
  }
}

grpc::ServerBidiReactor<NodeMessage, BrokerMessage>* NodeService::RegisterNode(
    grpc::CallbackServerContext* context) {
  return new NodeStream(this, broker_, context);
}

}  // namespace fargpu::scheduler
