#include "transport/inproc/in_process_connection.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <deque>

#include "absl/strings/str_cat.h"

#include "common/fd.h"
#include "common/mutex.h"

namespace fargpu::transport {
namespace {

absl::Status Closed() { return absl::UnavailableError("the peer closed the connection"); }

// One direction: what was sent and not yet taken.
struct Direction {
  Mutex mutex;
  std::deque<Message> queue ABSL_GUARDED_BY(mutex);
  bool closed ABSL_GUARDED_BY(mutex) = false;
  UniqueFd event{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};

  void Signal() {
    const uint64_t one = 1;
    if (write(event.get(), &one, sizeof(one)) < 0) std::abort();
  }
  void Close() {
    {
      MutexLock lock(&mutex);
      closed = true;
    }
    Signal();
  }
};

class InProcessConnection final : public Connection {
 public:
  // Shared because either end may be destroyed first.
  InProcessConnection(std::shared_ptr<Direction> in, std::shared_ptr<Direction> out)
      : in_(std::move(in)), out_(std::move(out)) {}
  ~InProcessConnection() override { Abort(); }

  absl::StatusOr<SendTicket> Send(absl::Span<const char> head,
                                  absl::Span<const char> bulk) override {
    if (head.size() + bulk.size() > kMaxMessageBytes) {
      return absl::InvalidArgumentError(absl::StrCat("message of ", head.size() + bulk.size(),
                                                     " bytes is over the limit of ",
                                                     kMaxMessageBytes));
    }
    Message message = NewMessage(head.size() + bulk.size());
    if (!head.empty()) std::memcpy(message.storage.get(), head.data(), head.size());
    if (!bulk.empty()) std::memcpy(message.storage.get() + head.size(), bulk.data(), bulk.size());
    SendTicket ticket = 0;
    {
      MutexLock lock(&out_->mutex);
      if (out_->closed) return Closed();
      out_->queue.push_back(std::move(message));
      ticket = ++sent_;
    }
    out_->Signal();
    return ticket;
  }

  bool IsSent(SendTicket ticket) override { return true; }

  absl::StatusOr<bool> Progress(std::vector<Message>* arrived) override {
    MutexLock lock(&in_->mutex);
    uint64_t ignored = 0;
    [[maybe_unused]] const ssize_t count = read(in_->event.get(), &ignored, sizeof(ignored));
    if (in_->queue.empty()) {
      if (in_->closed) return Closed();
      return false;
    }
    for (Message& message : in_->queue) arrived->push_back(std::move(message));
    in_->queue.clear();
    if (in_->closed) in_->Signal();  // the next call has something to say
    return true;
  }

  int event_fd() const override { return in_->event.get(); }

  absl::StatusOr<bool> Arm() override {
    MutexLock lock(&in_->mutex);
    return in_->queue.empty() && !in_->closed;
  }

  void Abort() override {
    in_->Close();
    out_->Close();
  }

  void AbandonAfterFork() override {
    in_->event.reset();
    out_->event.reset();
  }

  bool IsOpen() override { return true; }
  std::string Describe() const override { return "inproc"; }

 private:
  const std::shared_ptr<Direction> in_;
  const std::shared_ptr<Direction> out_;
  SendTicket sent_ ABSL_GUARDED_BY(out_->mutex) = 0;
};

}  // namespace

std::pair<std::unique_ptr<Connection>, std::unique_ptr<Connection>> NewInProcessPair() {
  auto forth = std::make_shared<Direction>();
  auto back = std::make_shared<Direction>();
  return {std::make_unique<InProcessConnection>(back, forth),
          std::make_unique<InProcessConnection>(forth, back)};
}

}  // namespace fargpu::transport
