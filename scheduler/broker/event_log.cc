#include "scheduler/broker/event_log.h"

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace fargpu::scheduler {

void EventLog::Load(std::string store_id, std::vector<EventRecord> events) {
  MutexLock lock(&mutex_);
  store_id_ = std::move(store_id);
  if (!events.empty()) next_sequence_ = events.back().sequence + 1;
  events_.assign(std::make_move_iterator(events.begin()), std::make_move_iterator(events.end()));
  for (EventRecord& record : events_) {
    record.event.set_resume_token(absl::StrCat(store_id_, "-", record.sequence));
  }
  while (events_.size() > capacity_) events_.pop_front();
}

uint64_t EventLog::next_sequence() const {
  MutexLock lock(&mutex_);
  return next_sequence_;
}

uint64_t EventLog::first_sequence() const {
  MutexLock lock(&mutex_);
  return events_.empty() ? next_sequence_ : events_.front().sequence;
}

void EventLog::Publish(std::vector<EventRecord> events) {
  if (events.empty()) return;
  {
    MutexLock lock(&mutex_);
    for (EventRecord& record : events) {
      next_sequence_ = record.sequence + 1;
      record.event.set_resume_token(absl::StrCat(store_id_, "-", record.sequence));
      events_.push_back(std::move(record));
      if (events_.size() > capacity_) events_.pop_front();
    }
  }
  NotifyAll();
}

void EventLog::Close() {
  {
    MutexLock lock(&mutex_);
    closed_ = true;
  }
  NotifyAll();
}

absl::StatusOr<uint64_t> EventLog::CursorAfter(absl::string_view resume_token) const {
  MutexLock lock(&mutex_);
  if (resume_token.empty()) return next_sequence_;
  const size_t dash = resume_token.find('-');
  uint64_t sequence = 0;
  if (dash == absl::string_view::npos ||
      !absl::SimpleAtoi(resume_token.substr(dash + 1), &sequence)) {
    return absl::InvalidArgumentError("resume_token is not one that Watch gave");
  }
  if (resume_token.substr(0, dash) != store_id_) {
    return absl::OutOfRangeError(
        "resume_token is of another broker's store; list the leases and watch anew");
  }
  if (sequence >= next_sequence_) {
    return absl::InvalidArgumentError("resume_token is not one that Watch gave");
  }
  const uint64_t first = events_.empty() ? next_sequence_ : events_.front().sequence;
  if (sequence + 1 < first) {
    return absl::OutOfRangeError(
        absl::StrCat("events after resume_token are gone, the oldest kept is number ", first,
                     "; list the leases and watch anew"));
  }
  return sequence + 1;
}

absl::StatusOr<bool> EventLog::Next(absl::string_view lease_id, uint64_t* cursor,
                                    broker::v1::Event* event) const {
  MutexLock lock(&mutex_);
  if (closed_) return absl::UnavailableError("the broker is shutting down");
  if (events_.empty() || *cursor >= next_sequence_) return false;
  const uint64_t first = events_.front().sequence;
  if (*cursor < first) {
    return absl::OutOfRangeError(
        "the watcher is too slow, events were dropped; list the leases and watch anew");
  }
  // Numbers have no gaps, so they index the deque.
  for (size_t i = *cursor - first; i < events_.size(); ++i) {
    *cursor = events_[i].sequence + 1;
    if (lease_id.empty() || events_[i].event.lease().id() == lease_id) {
      *event = events_[i].event;
      return true;
    }
  }
  return false;
}

uint64_t EventLog::Subscribe(Notify notify) {
  MutexLock lock(&subscribers_mutex_);
  const uint64_t id = next_subscriber_++;
  subscribers_.emplace(id, std::move(notify));
  return id;
}

void EventLog::Unsubscribe(uint64_t id) {
  MutexLock lock(&subscribers_mutex_);
  subscribers_.erase(id);
}

void EventLog::NotifyAll() {
  MutexLock lock(&subscribers_mutex_);
  for (const auto& [id, notify] : subscribers_) notify();
}

}  // namespace fargpu::scheduler
