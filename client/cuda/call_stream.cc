#include "client/cuda/call_stream.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <time.h>

#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/cuda_error.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "protocol/wire/opcodes.h"

namespace fargpu::client {
namespace {

// A message of up to 8064 bytes is one segment of UCX's TCP transport; just over it, rates fall by
// a third (measured).
constexpr size_t kFullFrameBytes = 8064 - wire::kFrameHeaderBytes;
constexpr int64_t kFrameAgeNanos = 30'000;
// Copies that have not left yet; over this the sender waits for the oldest.
constexpr size_t kMaxCopiedBytes = 16 << 20;

int64_t Now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

}  // namespace

CallStream::CallStream(std::unique_ptr<transport::Connection> connection,
                       transport::LinkOptions options,
                       std::function<void(wire::PrintStream, absl::Span<const char>)> print)
    : print_(std::move(print)),
      host_functions_([this](uint64_t run) { EndHostFunction(run); },
                      [this](uint64_t run, uint64_t offset, absl::Span<const char> bytes) {
                        SendHostBytes(run, offset, bytes);
                      }) {
  body_.reserve(2 * kFullFrameBytes);
  link_ = transport::Link::Start(
      std::move(connection), options, [this](transport::IncomingFrame frame) { Handle(frame); },
      [this](const absl::Status& cause) { Die(cause); });
  // The program's signal handlers must not run on a thread that it does not know.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  flusher_ = std::make_unique<std::thread>([this] { RunFlusher(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(flusher_->native_handle(), "fargpu-flush");
}

CallStream::~CallStream() {
  if (flusher_ == nullptr) {
    // Abandoned: destroying a condition variable waits for waiters that do not exist here.
    flusher_wake_.release();
    return;
  }
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    flusher_wake_->SignalAll();
  }
  flusher_->join();
  host_functions_.Stop();
  link_.reset();  // before what its handler uses
}

absl::Status CallStream::status() const {
  if (!dead_.load(std::memory_order_acquire)) return absl::OkStatus();
  MutexLock lock(&death_mutex_);
  return death_;
}

void CallStream::Die(const absl::Status& cause) {
  {
    MutexLock lock(&death_mutex_);
    if (!death_.ok()) return;
    // Whatever ended it, to the program the device is gone.
    death_ = leaving_.load()
                 ? CudaError(CUDA_ERROR_DEINITIALIZED, "the process is about to end")
                 : absl::UnavailableError(absl::StrCat("the session is over: ", cause.message()));
    // Under the lock: who finds the cause there already must not see the stream alive afterwards.
    dead_.store(true, std::memory_order_release);
  }
  if (leaving_.load()) return;
  FARGPU_LOG(kError, "the session is over: ", std::string(cause.message()));
  host_functions_.End(ToCuResult(status()));
}

void CallStream::Distrust(const absl::Status& why) {
  Die(why);
  // So that the worker does not keep the session's memory for us.
  link_->Send(wire::FrameKind::kGoodbye, 0, 0, {}, {}).IgnoreError();
  link_->Wake();
}

absl::Status CallStream::Appended(size_t start, PendingReply* pending) {
  if (body_.size() - start > wire::kMaxBodyBytes) {
    body_.resize(start);
    return absl::InvalidArgumentError(
        absl::StrCat("a call takes more than the limit of ", wire::kMaxBodyBytes, " bytes"));
  }
  if (start > 0 && body_.size() > kFullFrameBytes) {
    // What was there before leaves first, so that both parts stay small.
    const absl::StatusOr<transport::SendTicket> sent =
        SendFrame(records_, absl::MakeConstSpan(body_.data(), start), {});
    if (!sent.ok()) return sent.status();
    body_.erase(body_.begin(), body_.begin() + static_cast<ptrdiff_t>(start));
  }
  if (records_ == 0) {
    opened_at_ = Now();
    if (flusher_idle_) flusher_wake_->Signal();
  }
  ++records_;
  ++next_call_;
  stats_.calls.fetch_add(1, std::memory_order_relaxed);
  if (pending != nullptr) {
    MutexLock lock(&pending_mutex_);
    pending_[pending->call] = pending;
  }
  return absl::OkStatus();
}

absl::StatusOr<transport::SendTicket> CallStream::SendFrame(uint16_t records,
                                                            absl::Span<const char> body,
                                                            absl::Span<const char> bulk) {
  absl::StatusOr<transport::SendTicket> ticket =
      link_->Send(wire::FrameKind::kCalls, records, next_call_ - records, body, bulk);
  if (!ticket.ok()) {
    // The calls in it are lost, so their numbers would no longer be one by one.
    Die(ticket.status());
    return status();
  }
  stats_.frames.fetch_add(1, std::memory_order_relaxed);
  stats_.bulk_bytes_sent.fetch_add(bulk.size(), std::memory_order_relaxed);
  records_ = 0;
  return ticket;
}

absl::Status CallStream::FlushLocked() {
  if (dead_.load(std::memory_order_acquire)) return status();
  if (records_ == 0) return absl::OkStatus();
  const absl::StatusOr<transport::SendTicket> sent = SendFrame(records_, body_, {});
  body_.clear();
  return sent.status();
}

absl::Status CallStream::FlushIfFull() {
  if (body_.size() < kFullFrameBytes && records_ < std::numeric_limits<uint16_t>::max()) {
    return absl::OkStatus();
  }
  return FlushLocked();
}

absl::Status CallStream::Flush() {
  MutexLock lock(&mutex_);
  return FlushLocked();
}

absl::StatusOr<transport::SendTicket> CallStream::FlushWithBulk(absl::Span<const char> bytes,
                                                                Bulk how) {
  if (how == Bulk::kBorrowed) {
    absl::StatusOr<transport::SendTicket> ticket = SendFrame(records_, body_, bytes);
    body_.clear();
    return ticket;
  }
  DropSentCopies();
  std::vector<char> copy(bytes.begin(), bytes.end());
  absl::StatusOr<transport::SendTicket> ticket = SendFrame(records_, body_, copy);
  body_.clear();
  if (!ticket.ok()) return ticket;
  copied_bytes_ += copy.size();
  copies_.push_back({*ticket, std::move(copy)});
  return ticket;
}

void CallStream::DropSentCopies() {
  while (!copies_.empty()) {
    // Only a look, unless too much has gathered. Nothing that this thread may have to handle
    // meanwhile takes mutex_.
    const absl::Time deadline =
        copied_bytes_ > kMaxCopiedBytes ? absl::InfiniteFuture() : absl::InfinitePast();
    const absl::Status sent = link_->WaitSent(copies_.front().ticket, deadline);
    if (absl::IsDeadlineExceeded(sent)) return;
    copied_bytes_ -= copies_.front().bytes.size();
    copies_.pop_front();
  }
}

absl::Status CallStream::WaitSent(transport::SendTicket ticket) {
  const absl::Status sent = link_->WaitSent(ticket, absl::InfiniteFuture());
  if (sent.ok()) return sent;
  Die(sent);
  return status();
}

absl::Status CallStream::Wait(PendingReply* pending) {
  absl::Status waited;
  if (!pending->done.load(std::memory_order_acquire)) {
    waited = Flush();
    if (waited.ok()) {
      waited = link_->WaitUntil(
          [this, pending] {
            return pending->done.load(std::memory_order_acquire) ||
                   dead_.load(std::memory_order_acquire);
          },
          absl::InfiniteFuture());
      if (!waited.ok()) Die(waited);
    }
  }
  if (pending->done.load(std::memory_order_acquire)) return absl::OkStatus();
  Forget(pending);
  return status();
}

void CallStream::Forget(PendingReply* pending) {
  MutexLock lock(&pending_mutex_);
  const auto it = pending_.find(pending->call);
  if (it != pending_.end() && it->second == pending) pending_.erase(it);
}

void CallStream::Abandon(std::unique_ptr<PendingReply> pending) {
  MutexLock lock(&pending_mutex_);
  std::erase_if(abandoned_, [](const auto& old) { return old->done.load(); });
  if (!pending->done.load()) abandoned_.push_back(std::move(pending));
}

void CallStream::Handle(const transport::IncomingFrame& frame) {
  if (dead_.load(std::memory_order_acquire)) return;
  absl::Status handled;
  switch (frame.header.kind) {
    case wire::FrameKind::kReplies:
      handled = HandleReplies(frame);
      break;
    case wire::FrameKind::kDelivery:
      handled = HandleDelivery(frame);
      break;
    case wire::FrameKind::kHostFunction:
      handled = HandleHostFunction(frame);
      break;
    case wire::FrameKind::kGoodbye:
      return;  // the link ends by itself
    default:
      handled = absl::InvalidArgumentError(
          absl::StrCat("the worker sent a frame of kind ", static_cast<int>(frame.header.kind)));
  }
  if (!handled.ok()) Distrust(handled);
}

absl::Status CallStream::HandleReplies(const transport::IncomingFrame& frame) {
  absl::Span<const char> rest = frame.body();
  for (int i = 0; i < frame.header.record_count; ++i) {
    wire::ReplyRecord record;
    RETURN_IF_ERROR(wire::NextRecord(&rest, &record));
    const bool last = i + 1 == frame.header.record_count;
    const absl::Span<const char> bulk = last ? frame.bulk() : absl::Span<const char>();
    if (record.header.deferred != CUDA_SUCCESS) {
      int none = CUDA_SUCCESS;
      deferred_.compare_exchange_strong(none, record.header.deferred);
    }
    MutexLock lock(&pending_mutex_);
    const auto it = pending_.find(record.header.call);
    // Nobody forgets a call while the session lives, so an unknown number is a lie.
    if (it == pending_.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a reply answers call ", record.header.call, ", which expects none"));
    }
    PendingReply& pending = *it->second;
    if (record.header.op != pending.op) {
      return absl::InvalidArgumentError(absl::StrCat("the reply to call ", record.header.call,
                                                     " is one to op ", record.header.op,
                                                     " instead of ", pending.op));
    }
    const size_t expected = record.header.result == CUDA_SUCCESS ? pending.bulk.size() : 0;
    if (bulk.size() != expected) {
      return absl::InvalidArgumentError(absl::StrCat("the reply to ", wire::OpName(pending.op),
                                                     " brings ", bulk.size(), " bytes instead of ",
                                                     expected));
    }
    if (!bulk.empty()) std::memcpy(pending.bulk.data(), bulk.data(), bulk.size());
    stats_.bulk_bytes_received.fetch_add(bulk.size(), std::memory_order_relaxed);
    pending.result = static_cast<CUresult>(record.header.result);
    pending.payload.assign(record.payload.begin(), record.payload.end());
    pending_.erase(it);
    // The waiting thread may destroy it from here on.
    pending.done.store(true, std::memory_order_release);
  }
  if (!rest.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a frame has ", rest.size(), " bytes after its last record"));
  }
  return absl::OkStatus();
}

absl::Status CallStream::HandleDelivery(const transport::IncomingFrame& frame) {
  uint64_t where[2] = {};
  if (frame.body().size() != sizeof(where)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a delivery has a body of ", frame.body().size(), " bytes instead of 16"));
  }
  std::memcpy(where, frame.body().data(), sizeof(where));
  stats_.bulk_bytes_received.fetch_add(frame.bulk().size(), std::memory_order_relaxed);
  if (where[0] == 0) {
    if (where[1] > static_cast<uint64_t>(wire::PrintStream::kError)) {
      return absl::InvalidArgumentError(
          absl::StrCat("text for output ", where[1], "; there are stdout, 0, and stderr, 1"));
    }
    print_(static_cast<wire::PrintStream>(where[1]), frame.bulk());
    return absl::OkStatus();
  }
  return deliveries_.Apply(where[0], where[1], frame.bulk());
}

absl::Status CallStream::HandleHostFunction(const transport::IncomingFrame& frame) {
  wire::HostFunctionRun run;
  RETURN_IF_ERROR(wire::DecodeFrameBody(frame.body(), &run));
  if (run.kind == static_cast<uint32_t>(wire::HostRunKind::kGone) &&
      !HostFunctions::IsToken(run.token)) {
    deliveries_.Gone(run.token);
    return absl::OkStatus();
  }
  return host_functions_.Start(run);
}

void CallStream::SendHostBytes(uint64_t run, uint64_t offset, absl::Span<const char> bytes) {
  const wire::HostFunctionDone done = {.run = run, .offset = offset};
  const absl::StatusOr<transport::SendTicket> ticket =
      link_->Send(wire::FrameKind::kHostFunctionDone, 0, 0, wire::FrameBodyOf(done), bytes);
  stats_.bulk_bytes_sent.fetch_add(bytes.size(), std::memory_order_relaxed);
  if (ticket.ok()) WaitSent(*ticket).IgnoreError();  // a link that has died has said so
}

void CallStream::EndHostFunction(uint64_t run) {
  const wire::HostFunctionDone done = {.run = run};
  link_->Send(wire::FrameKind::kHostFunctionDone, 0, 0, wire::FrameBodyOf(done), {})
      .IgnoreError();  // a link that has died has said so
}

void CallStream::RunFlusher() {
  // Otherwise the kernel adds 50 us to each of our short sleeps.
  prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
  while (true) {
    int64_t due = 0;
    {
      MutexLock lock(&mutex_);
      while (records_ == 0 && !stopping_) {
        flusher_idle_ = true;
        flusher_wake_->WaitFor(&mutex_, std::chrono::seconds(60));
        flusher_idle_ = false;
      }
      if (stopping_) return;
      due = opened_at_ + kFrameAgeNanos;
      if (Now() >= due) {
        FlushLocked().IgnoreError();  // sticky: the next call says so
        if (dead_.load(std::memory_order_acquire)) records_ = 0;
        continue;
      }
    }
    const timespec until = {.tv_sec = due / 1'000'000'000, .tv_nsec = due % 1'000'000'000};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
  }
}

void CallStream::SayGoodbye(absl::Duration limit) {
  const absl::Time deadline = absl::Now() + limit;
  leaving_.store(true);
  if (Flush().ok()) {
    const absl::StatusOr<transport::SendTicket> ticket =
        link_->Send(wire::FrameKind::kGoodbye, 0, 0, {}, {});
    if (ticket.ok()) link_->WaitSent(*ticket, deadline).IgnoreError();
  }
  Die(absl::CancelledError());
  link_->Stop();
}

void CallStream::AbandonAfterFork() {
  link_->AbandonAfterFork();
  flusher_.release();  // the thread is the parent's
  host_functions_.AbandonAfterFork();
}

}  // namespace fargpu::client
