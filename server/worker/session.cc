#include "server/worker/session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/cuda_error.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "protocol/wire/record.h"
#include "server/worker/call.h"
#include "server_handlers.h"

namespace fargpu::server {
namespace {

// Waits are looked at again so often, so that a lost signal would cost a second and not a session.
constexpr std::chrono::seconds kLook{1};
// How long one frame may be held up while the queue is full. The link's thread must go on sending
// heartbeats meanwhile.
constexpr std::chrono::milliseconds kHoldUp{200};

std::atomic<uint64_t> next_instance{1};

// What this thread last made current, so that a call in the same context costs nothing.
struct CurrentContext {
  uint64_t instance = 0;
  uint64_t epoch = 0;
  wire::ContextId id;
};
thread_local CurrentContext current;
thread_local bool is_dispatching = false;

}  // namespace

Session::Session(SessionResources* resources, std::unique_ptr<transport::Connection> connection,
                 Options options, std::function<PrintedText()> printed)
    : resources_(*resources),
      options_(options),
      printed_(std::move(printed)),
      instance_(next_instance.fetch_add(1)) {
  // Frames may come before this constructor is done; nobody dispatches them until there are
  // threads.
  link_ = transport::Link::Start(
      std::move(connection), options.link,
      [this](transport::IncomingFrame frame) { OnFrame(std::move(frame)); },
      [this](const absl::Status& cause) { Fail(cause); });
  replies_ = std::make_unique<ReplySender>(link_.get(), &resources_.copies);
  started_link_.store(link_.get());
  resources_.host_functions.SetSend(
      [this](const wire::HostFunctionRun& run) { replies_->SendHostFunction(run); },
      [this](uint64_t token, absl::Span<const char> bytes) {
        replies_->SendHostBytes(token, bytes);
      });
  MutexLock lock(&mutex_);
  // One dispatches, the other is there when the first one comes upon a call that waits.
  for (int i = 0; i < 2; ++i) threads_.emplace_back([this] { RunThread(); });
}

Session::~Session() {
  End();
  std::vector<std::thread> threads;
  {
    MutexLock lock(&mutex_);
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
  resources_.host_functions.Stop();
}

absl::Status Session::Wait() {
  MutexLock lock(&mutex_);
  while (!ended_.load()) changed_.WaitFor(&mutex_, kLook);
  return end_;
}

void Session::End() { Fail(absl::CancelledError("the session was ended here")); }

void Session::Fail(const absl::Status& cause) {
  {
    MutexLock lock(&mutex_);
    if (ended_.load()) return;
    end_ = cause;
    ended_.store(true);
    changed_.SignalAll();
    dispatcher_wanted_.SignalAll();
  }
  resources_.host_functions.End();
  // Before the link has started, nobody waits there.
  if (transport::Link* link = started_link_.load()) link->Wake();
}

// Called by whatever thread reads the link.
void Session::OnFrame(transport::IncomingFrame frame) {
  switch (frame.header.kind) {
    case wire::FrameKind::kCalls:
      break;
    case wire::FrameKind::kGoodbye:
      return;  // the link says so in a moment
    case wire::FrameKind::kHostFunctionDone:
      // Not through the dispatcher, which may wait for the stream that waits for this.
      if (const absl::Status status = EndHostFunction(frame); !status.ok()) Fail(status);
      return;
    default:
      Fail(absl::InvalidArgumentError(
          absl::StrCat("a client sent a frame of kind ", static_cast<int>(frame.header.kind))));
      return;
  }
  MutexLock lock(&mutex_);
  if (queued_bytes_ > options_.max_queued_bytes && !is_dispatching && !ended_.load()) {
    changed_.WaitFor(&mutex_, kHoldUp);
  }
  queued_bytes_ += frame.message.size;
  frames_.push_back(std::move(frame));
  frames_waiting_.fetch_add(1);
  if (!dispatching_) dispatcher_wanted_.Signal();
}

absl::Status Session::EndHostFunction(const transport::IncomingFrame& frame) {
  wire::HostFunctionDone done;
  RETURN_IF_ERROR(wire::DecodeFrameBody(frame.body(), &done));
  return resources_.host_functions.Done(done, frame.bulk());
}

void Session::RunThread() {
  MutexLock lock(&mutex_);
  while (!ended_.load()) {
    // While its only client thread waits for the card, a session needs no dispatcher.
    const bool needed = !dispatching_ && (!frames_.empty() || records_left_ > 0 ||
                                          many_client_threads_ || lanes_.empty());
    if (!needed) {
      ++idle_threads_;
      dispatcher_wanted_.WaitFor(&mutex_, kLook);
      --idle_threads_;
      continue;
    }
    dispatching_ = true;
    mutex_.Unlock();
    Dispatch();
    mutex_.Lock();
  }
}

// Called with dispatching_ set by this thread; returns with it no longer this thread's.
void Session::Dispatch() {
  is_dispatching = true;
  Work work;
  while (is_dispatching && NextWork(&work)) {
    if (work.row->blocking) {
      DispatchBlocking(std::move(work));
      continue;
    }
    WaitForLane(work.header.thread);
    Run(work);
  }
  if (!is_dispatching) return;
  is_dispatching = false;
  MutexLock lock(&mutex_);
  dispatching_ = false;
}

bool Session::NextWork(Work* work) {
  while (records_left_ == 0) {
    replies_->Flush();
    if (!NextFrame()) return false;
  }
  if (ended_.load()) return false;
  if (absl::Status status = ReadWork(work); !status.ok()) {
    Fail(status);
    return false;
  }
  return true;
}

bool Session::NextFrame() {
  frame_.reset();
  // Polls the link, so that the next call needs no thread switch. Ends with the link or the
  // session.
  while (frames_waiting_.load() == 0) {
    if (ended_.load()) return false;
    link_
        ->WaitUntil([this] { return frames_waiting_.load() > 0 || ended_.load(); },
                    absl::Now() + absl::Hours(1))
        .IgnoreError();
  }
  {
    MutexLock lock(&mutex_);
    if (ended_.load()) return false;
    frame_ = std::make_shared<const transport::IncomingFrame>(std::move(frames_.front()));
    frames_.pop_front();
    frames_waiting_.fetch_sub(1);
    queued_bytes_ -= frame_->message.size;
    changed_.SignalAll();
  }
  records_ = frame_->body();
  records_left_ = frame_->header.record_count;
  if (records_left_ == 0 || frame_->header.first_call != next_call_) {
    Fail(absl::InvalidArgumentError(absl::StrCat("a frame with ", records_left_, " calls from ",
                                                 frame_->header.first_call, " on came when ",
                                                 next_call_, " was due")));
    return false;
  }
  return true;
}

absl::Status Session::ReadWork(Work* work) {
  wire::CallRecord record;
  RETURN_IF_ERROR(wire::NextRecord(&records_, &record));
  --records_left_;
  *work = {.row = FindDispatchRow(record.header.op),
           .header = record.header,
           .number = next_call_++,
           .payload = record.payload,
           .bulk = {},
           .frame = frame_};
  if (work->row == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("there is no call with op ", record.header.op));
  }
  if (record.header.reserved != 0 || (record.header.flags & ~wire::kWantsReply) != 0 ||
      record.header.thread == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(work->row->name, ": the record's header holds what it may not"));
  }
  if (records_left_ == 0) {
    if (!records_.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(records_.size(), " bytes follow a frame's last record"));
    }
    work->bulk = frame_->bulk();
    if (!work->bulk.empty() && !work->row->call_bulk) {
      return absl::InvalidArgumentError(
          absl::StrCat(work->row->name, " came with bulk bytes and takes none"));
    }
  }
  if (only_client_thread_ == 0) only_client_thread_ = record.header.thread;
  if (only_client_thread_ != record.header.thread) many_client_threads_ = true;
  return absl::OkStatus();
}

void Session::WaitForLane(uint32_t client_thread) {
  {
    MutexLock lock(&mutex_);
    if (lanes_.count(client_thread) == 0) return;
  }
  replies_->Flush();
  MutexLock lock(&mutex_);
  while (lanes_.count(client_thread) != 0 && !ended_.load()) changed_.WaitFor(&mutex_, kLook);
}

void Session::StartThreadIfNoneIdle() {
  if (idle_threads_ > 0 || ended_.load()) return;
  if (static_cast<int>(threads_.size()) >= options_.max_threads) return;
  threads_.emplace_back([this] { RunThread(); });
}

void Session::DispatchBlocking(Work work) {
  const uint32_t client_thread = work.header.thread;
  {
    MutexLock lock(&mutex_);
    const auto [lane, is_new] = lanes_.try_emplace(client_thread);
    lane->second.waiting.push_back(std::move(work));
    // Another thread is at it and takes this one up when it is through.
    if (!is_new) return;
  }
  // Nothing that is ready waits behind a call that waits.
  replies_->Flush();
  {
    MutexLock lock(&mutex_);
    StartThreadIfNoneIdle();
    if (idle_threads_ > 0 || static_cast<int>(threads_.size()) < options_.max_threads) {
      dispatching_ = false;
      is_dispatching = false;
      // With one client thread nothing can come while it waits, so nobody is woken.
      if (!frames_.empty() || records_left_ > 0 || many_client_threads_) {
        dispatcher_wanted_.Signal();
      }
    }
  }
  while (true) {
    Work next;
    {
      MutexLock lock(&mutex_);
      Lane& lane = lanes_[client_thread];
      if (lane.waiting.empty()) {
        lanes_.erase(client_thread);
        changed_.SignalAll();
        if (!is_dispatching && !dispatching_ && !ended_.load()) {
          dispatching_ = true;
          is_dispatching = true;
        }
        return;
      }
      next = std::move(lane.waiting.front());
      lane.waiting.pop_front();
    }
    if (!ended_.load()) Run(next);
    replies_->Flush();
  }
}

absl::Status Session::MakeCurrent(wire::ContextId id) {
  const uint64_t epoch = resources_.context_epoch.load();
  if (current.instance == instance_ && current.epoch == epoch && current.id == id) {
    return absl::OkStatus();
  }
  Context context;
  RETURN_IF_ERROR(resources_.objects.contexts.Find(id, &context));
  RETURN_IF_CUDA_ERROR(resources_.driver->cuCtxSetCurrent(context.handle));
  current = {.instance = instance_, .epoch = epoch, .id = id};
  return absl::OkStatus();
}

void Session::Run(const Work& work) {
  const DispatchRow& row = *work.row;
  Call call(&resources_, work.header, work.frame, work.bulk);
  std::vector<char> fields;
  absl::Status malformed;
  absl::Status status;
  if (row.needs_context || work.header.context.value != 0)
    status = MakeCurrent(work.header.context);
  // A call that needs no context runs all the same in a thread whose context has gone.
  if (status.ok() || !row.needs_context) {
    status = row.run(work.payload, call, &fields, &malformed);
  }
  if (malformed.ok()) malformed = call.malformed();
  if (!malformed.ok()) {
    Fail(absl::InvalidArgumentError(
        absl::StrCat("call ", work.number, ", ", row.name, ": ", malformed.message())));
    return;
  }
  const CUresult result = ToCuResult(status);
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY) {
    FARGPU_LOG(kDebug, "call ", work.number, ", ", row.name, ": ", std::string(status.message()));
  }
  // Whatever waits for the card, or ends a context, makes a driver print.
  if (row.blocking || !row.needs_context) {
    const PrintedText text = printed_();
    replies_->SendPrinted(wire::PrintStream::kOut, text.out);
    replies_->SendPrinted(wire::PrintStream::kError, text.error);
  }
  if ((work.header.flags & wire::kWantsReply) == 0) {
    if (result != CUDA_SUCCESS) replies_->NoteDeferred(result);
    if (resources_.copies.ShouldTake()) replies_->SendDone();
    return;
  }
  if (result != CUDA_SUCCESS) fields.clear();
  replies_->Add(work.number, work.header.op, result, fields,
                result == CUDA_SUCCESS ? call.TakeReplyBulk() : transport::Message{});
}

}  // namespace fargpu::server
