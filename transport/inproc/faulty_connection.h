#pragma once

#include <deque>
#include <functional>
#include <memory>

#include "absl/time/time.h"

#include "common/mutex.h"
#include "transport/connection.h"

namespace fargpu::transport {

// Decorates a connection with faults that a test asks for. All of them concern what this end
// receives, so a test can hurt either direction by wrapping the end that listens. Faults may be
// set from any thread at any time.
class FaultyConnection final : public Connection {
 public:
  explicit FaultyConnection(std::unique_ptr<Connection> inner) : inner_(std::move(inner)) {}

  // The next `count` messages vanish.
  void DropNext(int count);
  // Like a cut wire: from now on nothing arrives and nothing leaves, and nobody is told.
  void Cut();
  // Like a peer whose process ended: from now on every call returns kUnavailable.
  void Reset();
  // What arrives from now on is handed out so much later.
  void Delay(absl::Duration delay);
  // Changes one byte, at `offset` or the last, of the next message.
  void CorruptNext(size_t offset);

  absl::StatusOr<SendTicket> Send(absl::Span<const char> head,
                                  absl::Span<const char> bulk) override;
  bool IsSent(SendTicket ticket) override;
  absl::StatusOr<bool> Progress(std::vector<Message>* arrived) override;
  int event_fd() const override { return inner_->event_fd(); }
  absl::StatusOr<bool> Arm() override;
  void Abort() override { inner_->Abort(); }
  void AbandonAfterFork() override { inner_->AbandonAfterFork(); }
  bool IsOpen() override { return inner_->IsOpen(); }
  std::string Describe() const override { return "faulty " + inner_->Describe(); }

 private:
  struct Delayed {
    absl::Time due;
    Message message;
  };

  const std::unique_ptr<Connection> inner_;
  Mutex mutex_;
  int drop_ ABSL_GUARDED_BY(mutex_) = 0;
  bool cut_ ABSL_GUARDED_BY(mutex_) = false;
  bool reset_ ABSL_GUARDED_BY(mutex_) = false;
  bool corrupt_ ABSL_GUARDED_BY(mutex_) = false;
  size_t corrupt_offset_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Duration delay_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();
  std::deque<Delayed> delayed_ ABSL_GUARDED_BY(mutex_);
  SendTicket lost_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace fargpu::transport
