#include "transport/link.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/fd.h"
#include "common/log.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "transport/signal_block.h"
#include "transport/spin.h"

namespace fargpu::transport {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kSecond = 1000 * kMillisecond;
// While waiting threads come and go, the link's thread looks so often whether somebody still polls.
constexpr int64_t kTick = kMillisecond;
constexpr int64_t kYieldAfter = 3'000;  // ns
// No sleep is longer, so that a lost wake-up would cost a second and not a program.
constexpr int64_t kLongestSleep = kSecond;
// The peer keeps frames until they are acknowledged; it need not wait for a heartbeat when many
// are.
constexpr uint64_t kAcknowledgeAfterFrames = 64;
constexpr uint64_t kAcknowledgeAfterBytes = 4 << 20;

class Event {
 public:
  void Set() {
    const uint64_t one = 1;
    // Fails only when the counter is full, and then it is set.
    [[maybe_unused]] const ssize_t written = write(fd_.get(), &one, sizeof(one));
  }
  void Clear() {
    uint64_t ignored = 0;
    [[maybe_unused]] const ssize_t count = read(fd_.get(), &ignored, sizeof(ignored));
  }
  int fd() const { return fd_.get(); }
  void Close() { fd_.reset(); }

 private:
  UniqueFd fd_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
};

// Sleeps until one of the descriptors is readable, or for `nanos`. -1 stands for none.
void Sleep(int first, int second, int64_t nanos) {
  pollfd items[2] = {{.fd = first, .events = POLLIN, .revents = 0},
                     {.fd = second, .events = POLLIN, .revents = 0}};
  nanos = std::clamp<int64_t>(nanos, 0, kLongestSleep);
  const timespec timeout = {.tv_sec = nanos / kSecond, .tv_nsec = nanos % kSecond};
  ppoll(items, 2, &timeout, nullptr);  // an interruption is only an early wake-up
}

// Between two looks at the connection. Both ends of a link may sit on one core, and then only
// yielding lets the other one answer; for the first microseconds the answer is not due yet.
void Pause(int64_t idle_for) {
  if (idle_for > kYieldAfter) {
    sched_yield();
    return;
  }
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

class LinkImpl final : public Link {
 public:
  LinkImpl(std::unique_ptr<Connection> connection, LinkOptions options, Handler handler,
           DeathHandler on_death)
      : connection_(std::move(connection)),
        handler_(std::move(handler)),
        on_death_(std::move(on_death)),
        heartbeat_(absl::ToInt64Nanoseconds(options.heartbeat)),
        dead_after_(absl::ToInt64Nanoseconds(options.dead_after)),
        spin_(options, UsableCores()),
        last_sent_(MonotonicNanos()),
        last_heard_(last_sent_.load()) {}

  ~LinkImpl() override {
    if (abandoned_) {
      // The parent owns what is behind these, and the thread does not exist here. Destroying a
      // condition variable waits for its waiters, who do not exist here either.
      connection_.release();  // NOLINT: leaked on purpose
      thread_.release();
      condition_.release();
      return;
    }
    JoinThread();
  }

  void StartThread() {
    const SignalBlock block;
    thread_ = std::make_unique<std::thread>([this] { Run(); });
    pthread_setname_np(thread_->native_handle(), "fargpu-link");
  }

  absl::StatusOr<SendTicket> Send(wire::FrameKind kind, uint16_t record_count, uint64_t first_call,
                                  absl::Span<const char> body,
                                  absl::Span<const char> bulk) override;
  absl::Status WaitSent(SendTicket ticket, absl::Time deadline) override;
  absl::Status WaitOpen(absl::Time deadline) override;
  absl::Status WaitUntil(absl::FunctionRef<bool()> done, absl::Time deadline) override;
  void Wake() override;

  absl::Status status() const override {
    if (!failed_.load(std::memory_order_acquire)) return absl::OkStatus();
    MutexLock lock(&status_mutex_);
    return status_;
  }
  uint64_t acknowledged() const override { return acknowledged_.load(std::memory_order_acquire); }
  std::string Describe() const override { return connection_->Describe(); }

  void Stop() override;

  void AbandonAfterFork() override {
    abandoned_ = true;
    waiter_event_.Close();
    thread_event_.Close();
    connection_->AbandonAfterFork();
  }

 private:
  // Only the leader calls these.
  bool Poll();
  absl::Status TakeFrame(Message message);
  absl::Status WaitFor(absl::FunctionRef<bool()> of_connection, absl::Time deadline);
  absl::Status Lead(absl::FunctionRef<bool()> done, int64_t deadline);
  void LeadFromThread(int64_t wake_at);

  void JoinThread() {
    stopping_.store(true);
    thread_event_.Set();
    if (thread_->joinable()) thread_->join();
  }
  void Run();
  int64_t KeepAlive();  // returns when to call it again
  void SendHeartbeat();
  void Die(const absl::Status& cause);
  void NotifyWaiters();
  // `others`: how many threads in WaitUntil, this one not counted, may lead next.
  void StopLeading(int others);

  std::unique_ptr<Connection> connection_;
  const Handler handler_;
  const DeathHandler on_death_;
  const int64_t heartbeat_;
  const int64_t dead_after_;
  bool abandoned_ = false;

  // Order of locks: send_mutex_ before those of the connection; the others are innermost.
  Mutex send_mutex_;
  uint64_t next_sequence_ ABSL_GUARDED_BY(send_mutex_) = 1;
  std::vector<char> head_ ABSL_GUARDED_BY(send_mutex_);

  // The leader is the one thread that polls the connection: one inside WaitUntil, or the link's own
  // when there is none. What only the leader touches goes from one to the next under this mutex.
  Mutex mutex_;
  std::unique_ptr<CondVar> condition_ = std::make_unique<CondVar>();
  bool led_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t terms_ ABSL_GUARDED_BY(mutex_) = 0;  // how often a waiting thread began to lead
  bool thread_rests_ ABSL_GUARDED_BY(mutex_) =
      false;  // the link's thread trusts the leader to stay
  // Grows when waiting threads should evaluate their conditions; changed under mutex_.
  std::atomic<uint64_t> events_{0};
  std::atomic<uint64_t> wakes_{0};
  std::atomic<int> waiters_{0};             // threads inside WaitUntil
  std::atomic<int> connection_waiters_{0};  // of those, who wait for something else than a frame
  std::atomic<bool> waiter_sleeps_{false};
  Event waiter_event_;  // wakes the leader that sleeps
  Event thread_event_;  // wakes the link's thread

  // Leader only.
  SpinPolicy spin_;
  std::vector<Message> arrived_;
  uint64_t unacknowledged_bytes_ = 0;

  std::atomic<uint64_t> received_{0};      // sequence of the last frame taken from the peer
  std::atomic<uint64_t> ack_sent_{0};      // the same, as last told to the peer
  std::atomic<uint64_t> sent_{0};          // sequence of the last frame given to the connection
  std::atomic<uint64_t> acknowledged_{0};  // the highest the peer told us
  std::atomic<int64_t> last_sent_;
  std::atomic<int64_t> last_heard_;
  int64_t last_keep_alive_ = 0;  // link's thread only

  mutable Mutex status_mutex_;
  absl::Status status_ ABSL_GUARDED_BY(status_mutex_);
  std::atomic<bool> dying_{false};   // somebody is inside Die()
  std::atomic<bool> failed_{false};  // status_ is set
  std::atomic<bool> dead_{false};    // and on_death_ has been told
  std::atomic<bool> stopping_{false};
  std::unique_ptr<std::thread> thread_;
};

absl::StatusOr<SendTicket> LinkImpl::Send(wire::FrameKind kind, uint16_t record_count,
                                          uint64_t first_call, absl::Span<const char> body,
                                          absl::Span<const char> bulk) {
  if (body.size() > wire::kMaxBodyBytes || bulk.size() > wire::kMaxBulkBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("frame of ", body.size(), " + ", bulk.size(), " bytes is over the limits of ",
                     wire::kMaxBodyBytes, " + ", wire::kMaxBulkBytes));
  }
  RETURN_IF_ERROR(status());
  const bool numbered = kind != wire::FrameKind::kHeartbeat;
  MutexLock lock(&send_mutex_);
  // Again: Stop() waits for this lock, and who gets it later must not touch the connection.
  RETURN_IF_ERROR(status());
  const uint64_t acknowledged = received_.load(std::memory_order_acquire);
  const wire::FrameHeader header = {.kind = kind,
                                    .record_count = record_count,
                                    .body_bytes = static_cast<uint32_t>(body.size()),
                                    .bulk_bytes = static_cast<uint32_t>(bulk.size()),
                                    .sequence = numbered ? next_sequence_ : 0,
                                    .acknowledged = acknowledged,
                                    .first_call = first_call};
  head_.resize(wire::kFrameHeaderBytes + body.size());
  wire::EncodeFrameHeader(header, absl::MakeSpan(head_.data(), wire::kFrameHeaderBytes));
  if (!body.empty()) {
    std::memcpy(head_.data() + wire::kFrameHeaderBytes, body.data(), body.size());
  }
  // Before the connection has it: the peer may acknowledge faster than this thread goes on.
  if (numbered) sent_.store(next_sequence_, std::memory_order_release);
  absl::StatusOr<SendTicket> ticket = connection_->Send(head_, bulk);
  if (!ticket.ok()) {
    // The caller may hold locks that on_death takes, so death is declared elsewhere: the connection
    // says the same again to the link's thread.
    thread_event_.Set();
    return ticket.status();
  }
  if (numbered) ++next_sequence_;
  ack_sent_.store(acknowledged, std::memory_order_relaxed);
  last_sent_.store(MonotonicNanos(), std::memory_order_relaxed);
  return ticket;
}

absl::Status LinkImpl::WaitSent(SendTicket ticket, absl::Time deadline) {
  return WaitFor([this, ticket] { return connection_->IsSent(ticket); }, deadline);
}

absl::Status LinkImpl::WaitOpen(absl::Time deadline) {
  return WaitFor([this] { return connection_->IsOpen(); }, deadline);
}

absl::Status LinkImpl::WaitFor(absl::FunctionRef<bool()> of_connection, absl::Time deadline) {
  if (of_connection()) return absl::OkStatus();
  connection_waiters_.fetch_add(1);
  const absl::Status status = WaitUntil(of_connection, deadline);
  connection_waiters_.fetch_sub(1);
  return status;
}

absl::Status LinkImpl::WaitUntil(absl::FunctionRef<bool()> done, absl::Time deadline) {
  // Counted before the condition is first evaluated: who changes it afterwards sees the count.
  waiters_.fetch_add(1);
  const absl::Duration left = std::min(deadline - absl::Now(), absl::Hours(24 * 365));
  const int64_t end = MonotonicNanos() + absl::ToInt64Nanoseconds(left);
  absl::Status status;
  while (true) {
    const uint64_t seen = events_.load();
    if (done()) break;
    if (dead_.load(std::memory_order_acquire)) {
      status = this->status();
      break;
    }
    const int64_t now = MonotonicNanos();
    if (now >= end) {
      status = absl::DeadlineExceededError("the peer did not answer before the deadline");
      break;
    }
    {
      MutexLock lock(&mutex_);
      if (led_) {
        if (events_.load() == seen) {
          condition_->WaitFor(&mutex_,
                              std::chrono::nanoseconds(std::min(end - now, kLongestSleep)));
        }
        continue;
      }
      led_ = true;
      ++terms_;
    }
    status = Lead(done, end);
    StopLeading(waiters_.load() - 1);
    break;
  }
  waiters_.fetch_sub(1);
  return status;
}

// Returns as WaitUntil does.
absl::Status LinkImpl::Lead(absl::FunctionRef<bool()> done, int64_t deadline) {
  int64_t idle_since = MonotonicNanos();
  bool slept = false;
  uint64_t wakes = wakes_.load();
  // Whatever happened between the caller's last look and now.
  if (done()) return absl::OkStatus();
  while (true) {
    const bool moved = Poll();
    const uint64_t wakes_now = wakes_.load();
    if (moved || wakes_now != wakes) {
      wakes = wakes_now;
      if (done()) {
        if (slept && moved) spin_.Learn(idle_since, MonotonicNanos());
        return absl::OkStatus();
      }
    }
    // Only when the handler of death has run: it may be what makes `done` true.
    if (dead_.load(std::memory_order_acquire)) return done() ? absl::OkStatus() : status();
    const int64_t now = MonotonicNanos();
    if (now >= deadline) {
      return absl::DeadlineExceededError("the peer did not answer before the deadline");
    }
    if (moved) {
      if (slept) spin_.Learn(idle_since, now);
      slept = false;
      idle_since = now;
      continue;
    }
    if (spin_.ShouldSpin(idle_since, now)) {
      Pause(now - idle_since);
      continue;
    }
    waiter_sleeps_.store(true);
    absl::StatusOr<bool> armed = failed_.load() ? absl::StatusOr<bool>(true) : connection_->Arm();
    // An error of Arm() comes again from Progress(), which knows what to do.
    if (armed.ok() && *armed && wakes_.load() == wakes && !dead_.load()) {
      Sleep(failed_.load() ? -1 : connection_->event_fd(), waiter_event_.fd(), deadline - now);
      slept = true;
    }
    waiter_sleeps_.store(false);
    waiter_event_.Clear();
  }
}

void LinkImpl::StopLeading(int others) {
  bool wake_thread = false;
  {
    MutexLock lock(&mutex_);
    led_ = false;
    if (others > 0) {
      events_.fetch_add(1);
      condition_->SignalAll();
    }
    wake_thread = std::exchange(thread_rests_, false);
  }
  if (wake_thread) thread_event_.Set();
}

void LinkImpl::NotifyWaiters() {
  MutexLock lock(&mutex_);
  events_.fetch_add(1);
  condition_->SignalAll();
}

void LinkImpl::Wake() {
  wakes_.fetch_add(1);
  if (waiters_.load() > 0) NotifyWaiters();
  if (waiter_sleeps_.load()) waiter_event_.Set();
}

bool LinkImpl::Poll() {
  if (failed_.load(std::memory_order_acquire)) return false;
  arrived_.clear();
  const absl::StatusOr<bool> moved = connection_->Progress(&arrived_);
  for (Message& message : arrived_) {
    last_heard_.store(MonotonicNanos(), std::memory_order_relaxed);
    unacknowledged_bytes_ += message.size;
    const absl::Status taken = TakeFrame(std::move(message));
    if (!taken.ok()) {
      Die(taken);
      return true;
    }
  }
  if (!moved.ok()) {
    Die(moved.status());
    return true;
  }
  if (!arrived_.empty()) {
    const uint64_t unacknowledged = received_.load() - ack_sent_.load();
    if (unacknowledged >= kAcknowledgeAfterFrames ||
        (unacknowledged > 0 && unacknowledged_bytes_ >= kAcknowledgeAfterBytes)) {
      SendHeartbeat();
    }
    if (received_.load() == ack_sent_.load()) unacknowledged_bytes_ = 0;
  }
  // A leader from WaitUntil is itself counted among the waiters, and evaluates without being told.
  if (waiters_.load() > 0 && (!arrived_.empty() || (*moved && connection_waiters_.load() > 0))) {
    NotifyWaiters();
  }
  return *moved;
}

absl::Status LinkImpl::TakeFrame(Message message) {
  IncomingFrame frame;
  RETURN_IF_ERROR(wire::DecodeFrameHeader(message.bytes(), &frame.header));
  const wire::FrameHeader& header = frame.header;
  const size_t expected = wire::kFrameHeaderBytes + header.body_bytes + header.bulk_bytes;
  if (message.size != expected) {
    return absl::InvalidArgumentError(
        absl::StrCat("message of ", message.size, " bytes holds a frame of ", expected));
  }
  if (header.acknowledged > sent_.load(std::memory_order_acquire) ||
      header.acknowledged < acknowledged_.load()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the peer acknowledges frame ", header.acknowledged, " after ",
                     acknowledged_.load(), ", of ", sent_.load(), " sent"));
  }
  acknowledged_.store(header.acknowledged, std::memory_order_release);
  if (header.kind == wire::FrameKind::kHeartbeat) {
    if (header.sequence != 0 || message.size != wire::kFrameHeaderBytes) {
      return absl::InvalidArgumentError("a heartbeat carries a sequence number or bytes");
    }
    return absl::OkStatus();
  }
  if (header.kind == wire::FrameKind::kOpen) {
    return absl::InvalidArgumentError("an opening frame came on an open connection");
  }
  const uint64_t due = received_.load() + 1;
  if (header.sequence != due) {
    return absl::InvalidArgumentError(
        absl::StrCat("frame ", header.sequence, " came when ", due, " was due"));
  }
  received_.store(due, std::memory_order_release);
  const bool goodbye = header.kind == wire::FrameKind::kGoodbye;
  frame.message = std::move(message);
  handler_(std::move(frame));
  if (goodbye) return absl::UnavailableError("the peer said goodbye");
  return absl::OkStatus();
}

void LinkImpl::SendHeartbeat() {
  // A failure shows up in the next Progress().
  Send(wire::FrameKind::kHeartbeat, 0, 0, {}, {}).IgnoreError();
}

void LinkImpl::Die(const absl::Status& cause) {
  if (dying_.exchange(true)) return;
  // First, because a WaitSent() that returns tells its caller that the memory is theirs again.
  connection_->Abort();
  {
    MutexLock lock(&status_mutex_);
    status_ = cause;
  }
  failed_.store(true, std::memory_order_release);
  on_death_(cause);
  dead_.store(true, std::memory_order_release);
  Wake();
}

void LinkImpl::Stop() {
  {
    MutexLock lock(&status_mutex_);
    if (status_.ok()) status_ = absl::UnavailableError("the link was stopped");
  }
  failed_.store(true, std::memory_order_release);
  dead_.store(true, std::memory_order_release);
  Wake();
  JoinThread();
  // Who was sending before is done when the lock is free.
  { MutexLock lock(&send_mutex_); }
  // A leader that began to poll before it could see that all is over finishes first; a later one
  // touches nothing.
  const int64_t end = MonotonicNanos() + kSecond;
  MutexLock lock(&mutex_);
  while (led_ && MonotonicNanos() < end) {
    condition_->WaitFor(&mutex_, std::chrono::nanoseconds(kTick));
  }
}

int64_t LinkImpl::KeepAlive() {
  const int64_t now = MonotonicNanos();
  // This process was stopped, or starved: the peer's heartbeats wait to be read, so give them time.
  if (last_keep_alive_ != 0 && now - last_keep_alive_ > heartbeat_ + kSecond / 2) {
    last_heard_.store(std::max(last_heard_.load(), now - dead_after_ + heartbeat_));
  }
  last_keep_alive_ = now;
  if (failed_.load()) return now + kLongestSleep;
  const int64_t dies_at = last_heard_.load() + dead_after_;
  if (now >= dies_at) {
    Die(absl::UnavailableError(absl::StrCat("nothing heard from the peer for ",
                                            (now - last_heard_.load()) / kMillisecond, " ms")));
    return now + kLongestSleep;
  }
  int64_t beats_at = last_sent_.load() + heartbeat_;
  if (now >= beats_at) {
    SendHeartbeat();
    beats_at = now + heartbeat_;
  }
  // last_heard_ and last_sent_ only grow, so looking at the earliest time is early enough.
  return std::min({dies_at, beats_at, now + kLongestSleep});
}

void LinkImpl::Run() {
  uint64_t terms_seen = 0;
  while (!stopping_.load()) {
    const int64_t wake_at = KeepAlive();
    if (failed_.load()) {
      Sleep(-1, thread_event_.fd(), kLongestSleep);
      thread_event_.Clear();
      continue;
    }
    bool lead = false;
    bool rest = false;
    {
      MutexLock lock(&mutex_);
      // Leading costs the threads that wait a switch, so it is taken only when none led for a tick.
      if (terms_ == terms_seen) {
        if (led_) {
          rest = thread_rests_ = true;
        } else if (waiters_.load() == 0) {
          lead = led_ = true;
        }
      }
      terms_seen = terms_;
    }
    if (lead) {
      LeadFromThread(wake_at);
      continue;
    }
    const int64_t left = wake_at - MonotonicNanos();
    Sleep(-1, thread_event_.fd(), rest ? left : std::min(left, kTick));
    thread_event_.Clear();
    if (rest) {
      MutexLock lock(&mutex_);
      thread_rests_ = false;
    }
  }
}

// Leads while frames come, then sleeps without leading.
void LinkImpl::LeadFromThread(int64_t wake_at) {
  int64_t idle_since = MonotonicNanos();
  bool armed = false;
  while (!stopping_.load() && !failed_.load()) {
    const bool moved = Poll();
    // A thread that waits polls for itself.
    if (waiters_.load() > 0) break;
    const int64_t now = MonotonicNanos();
    if (now >= wake_at) break;
    if (moved) {
      idle_since = now;
      continue;
    }
    if (spin_.ShouldSpin(idle_since, now)) {
      Pause(now - idle_since);
      continue;
    }
    const absl::StatusOr<bool> ready = connection_->Arm();
    armed = ready.ok() && *ready;
    if (armed) break;
  }
  const int64_t slept_from = MonotonicNanos();
  StopLeading(waiters_.load());
  if (!armed || stopping_.load()) return;
  Sleep(connection_->event_fd(), thread_event_.fd(), wake_at - slept_from);
  thread_event_.Clear();
}

}  // namespace

std::unique_ptr<Link> Link::Start(std::unique_ptr<Connection> connection, LinkOptions options,
                                  Handler handler, DeathHandler on_death) {
  auto link = std::make_unique<LinkImpl>(std::move(connection), options, std::move(handler),
                                         std::move(on_death));
  link->StartThread();
  return link;
}

}  // namespace fargpu::transport
