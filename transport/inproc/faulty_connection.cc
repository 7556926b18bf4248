#include "transport/inproc/faulty_connection.h"

#include <algorithm>

#include "absl/time/clock.h"

#include "common/status_macros.h"

namespace fargpu::transport {
namespace {

// A ticket of a message that was lost on purpose; counts down from the top, away from real ones.
constexpr SendTicket kFirstLostTicket = ~SendTicket{0};

absl::Status WasReset() { return absl::UnavailableError("connection reset by a test"); }

}  // namespace

void FaultyConnection::DropNext(int count) {
  MutexLock lock(&mutex_);
  drop_ = count;
}
void FaultyConnection::Cut() {
  MutexLock lock(&mutex_);
  cut_ = true;
}
void FaultyConnection::Reset() {
  MutexLock lock(&mutex_);
  reset_ = true;
}
void FaultyConnection::Delay(absl::Duration delay) {
  MutexLock lock(&mutex_);
  delay_ = delay;
}
void FaultyConnection::CorruptNext(size_t offset) {
  MutexLock lock(&mutex_);
  corrupt_ = true;
  corrupt_offset_ = offset;
}

absl::StatusOr<SendTicket> FaultyConnection::Send(absl::Span<const char> head,
                                                  absl::Span<const char> bulk) {
  {
    MutexLock lock(&mutex_);
    if (reset_) return WasReset();
    if (cut_) return kFirstLostTicket - lost_++;
  }
  return inner_->Send(head, bulk);
}

bool FaultyConnection::IsSent(SendTicket ticket) {
  // A lost message is never known to be sent, as on a real wire that was cut.
  if (ticket > kFirstLostTicket / 2) return false;
  return inner_->IsSent(ticket);
}

absl::StatusOr<bool> FaultyConnection::Progress(std::vector<Message>* arrived) {
  std::vector<Message> fresh;
  absl::StatusOr<bool> moved = inner_->Progress(&fresh);
  MutexLock lock(&mutex_);
  if (reset_) return WasReset();
  if (cut_) return false;
  const absl::Time now = absl::Now();
  for (Message& message : fresh) {
    if (drop_ > 0) {
      --drop_;
      continue;
    }
    if (corrupt_ && message.size > 0) {
      message.storage[std::min(corrupt_offset_, message.size - 1)] ^= 0x5a;
      corrupt_ = false;
    }
    delayed_.push_back({.due = now + delay_, .message = std::move(message)});
  }
  const size_t before = arrived->size();
  while (!delayed_.empty() && delayed_.front().due <= now) {
    arrived->push_back(std::move(delayed_.front().message));
    delayed_.pop_front();
  }
  if (!moved.ok()) return moved;
  return arrived->size() > before;
}

absl::StatusOr<bool> FaultyConnection::Arm() {
  {
    MutexLock lock(&mutex_);
    if (reset_) return WasReset();
    // There is no descriptor that becomes readable when a delay is over; whoever waits then polls.
    if (!delayed_.empty()) return false;
  }
  return inner_->Arm();
}

}  // namespace fargpu::transport
