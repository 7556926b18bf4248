#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "common/mutex.h"
#include "scheduler/store/store.h"

namespace fargpu::scheduler {

// The last events, in memory, for those who watch. Any thread.
class EventLog {
 public:
  // Called without an argument whenever there may be something new; must be quick and must not call
  // Subscribe or Unsubscribe.
  using Notify = std::function<void()>;

  explicit EventLog(size_t capacity) : capacity_(capacity) {}

  // Before anything else: what the store kept.
  void Load(std::string store_id, std::vector<EventRecord> events);

  // Sequence number of the event that comes next, and of the oldest that is kept.
  uint64_t next_sequence() const;
  uint64_t first_sequence() const;

  // Appends events that were committed; their numbers go on from next_sequence().
  void Publish(std::vector<EventRecord> events);

  // No more events: every Next() fails from now on.
  void Close();

  // "Everything after now", or after the event that has this token. kInvalidArgument: not a token
  // of ours. kOutOfRange: what follows it is gone, or it belongs to another store.
  absl::StatusOr<uint64_t> CursorAfter(absl::string_view resume_token) const;

  // Copies the first event at or after `*cursor` that is about `lease_id` (empty: any) and moves
  // the cursor behind it. False: there is none yet. kOutOfRange: the reader was too slow.
  // kUnavailable: closed.
  absl::StatusOr<bool> Next(absl::string_view lease_id, uint64_t* cursor,
                            broker::v1::Event* event) const;

  uint64_t Subscribe(Notify notify);
  // When it returns, `notify` is not running and will not run again.
  void Unsubscribe(uint64_t id);

 private:
  void NotifyAll();

  const size_t capacity_;
  // Lock order: subscribers_mutex_, then a subscriber's own lock, then mutex_.
  mutable Mutex mutex_;
  std::string store_id_ ABSL_GUARDED_BY(mutex_);
  std::deque<EventRecord> events_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_sequence_ ABSL_GUARDED_BY(mutex_) = 1;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  Mutex subscribers_mutex_;
  std::map<uint64_t, Notify> subscribers_ ABSL_GUARDED_BY(subscribers_mutex_);
  uint64_t next_subscriber_ ABSL_GUARDED_BY(subscribers_mutex_) = 1;
};

}  // namespace fargpu::scheduler
