#include "server/worker/host_functions.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"

namespace fargpu::server {
namespace {

// Waits are looked at again so often, so that a lost signal would cost a second.
constexpr std::chrono::seconds kLook{1};

}  // namespace

HostWork::HostWork(HostFunctions* owner, Kind kind, uint64_t token, size_t bytes,
                   const Buffer& pinned)
    : owner_(owner),
      kind_(kind),
      token_(token),
      // What the driver copies from may not be what our memory held before.
      bytes_(bytes > 0 && pinned.memory == nullptr ? std::make_unique<char[]>(bytes) : nullptr),
      pinned_(pinned),
      size_(bytes) {}

HostWork::~HostWork() { owner_->Gone(this); }

void CUDA_CB HostWork::Entry(void* work) {
  auto* const self = static_cast<HostWork*>(work);
  self->owner_->RunWork(self);
}

void HostFunctions::Stop() {
  End();
  if (thread_.joinable()) thread_.join();
  MutexLock lock(&mutex_);
  while (waiting_ > 0) changed_.WaitFor(&mutex_, kLook);
}

absl::Status HostFunctions::Launch(CUstream stream, uint64_t token) {
  Queued* const queued = Add(token);
  const CUresult result = driver_->cuLaunchHostFunc(
      stream,
      [](void* data) {
        auto* const function = static_cast<Queued*>(data);
        function->owner->Run(function, CUDA_SUCCESS);
      },
      queued);
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  Forget(queued);
  return CudaError(result, "cuLaunchHostFunc");
}

absl::Status HostFunctions::AddCallback(CUstream stream, uint64_t token) {
  Queued* const queued = Add(token);
  const CUresult result = driver_->cuStreamAddCallback(
      stream,
      [](CUstream, CUresult status, void* data) {
        auto* const function = static_cast<Queued*>(data);
        function->owner->Run(function, status);
      },
      queued, 0);
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  // The program waits for its callback, and has been told that it is on its way.
  Forget(queued);
  MutexLock lock(&mutex_);
  to_send_.push_back(
      {.run = {.run = 0, .token = token, .result = static_cast<int32_t>(result)}, .push = nullptr});
  changed_.SignalAll();
  return CudaError(result, "cuStreamAddCallback");
}

absl::Status HostFunctions::Reserve(uint64_t bytes) {
  MutexLock lock(&mutex_);
  if (bytes > kMaxBytes - bytes_) {
    return CudaError(
        CUDA_ERROR_OUT_OF_MEMORY,
        absl::StrCat("copies with the program's memory hold ", bytes_, " bytes here and want ",
                     bytes, " more; the limit is ", kMaxBytes));
  }
  bytes_ += bytes;
  StartThread();
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<HostWork>> HostFunctions::NewWork(HostWork::Kind kind,
                                                                 uint64_t token, uint64_t bytes) {
  RETURN_IF_ERROR(Reserve(bytes));
  return std::make_shared<HostWork>(this, kind, token, bytes, HostWork::Buffer());
}

absl::StatusOr<std::shared_ptr<HostWork>> HostFunctions::NewPinnedPull(uint64_t token,
                                                                       uint64_t bytes,
                                                                       wire::ContextId context) {
  RETURN_IF_ERROR(Reserve(bytes));
  absl::StatusOr<HostWork::Buffer> buffer = TakePinned(bytes, context);
  if (!buffer.ok()) {
    MutexLock lock(&mutex_);
    bytes_ -= bytes;
    return buffer.status();
  }
  std::memset(buffer->memory, 0, bytes);
  return std::make_shared<HostWork>(this, HostWork::Kind::kPull, token, bytes, *buffer);
}

// Buffers stay: giving pinned memory back makes drivers wait for the card.
absl::StatusOr<HostWork::Buffer> HostFunctions::TakePinned(uint64_t bytes,
                                                           wire::ContextId context) {
  {
    MutexLock lock(&mutex_);
    for (auto buffer = idle_buffers_.begin(); buffer != idle_buffers_.end(); ++buffer) {
      if (buffer->context != context || buffer->bytes < bytes || buffer->bytes / 4 > bytes)
        continue;
      const HostWork::Buffer found = *buffer;
      idle_buffers_.erase(buffer);
      return found;
    }
  }
  HostWork::Buffer made = {.memory = nullptr, .bytes = 4096, .context = context};
  while (made.bytes < bytes) made.bytes *= 2;
  void* memory = nullptr;
  RETURN_IF_CUDA_ERROR(driver_->cuMemHostAlloc(&memory, made.bytes, 0));
  made.memory = static_cast<char*>(memory);
  return made;
}

void HostFunctions::ForgetContext(wire::ContextId context) {
  MutexLock lock(&mutex_);
  std::erase_if(idle_buffers_,
                [context](const HostWork::Buffer& buffer) { return buffer.context == context; });
}

void HostFunctions::StartThread() {
  if (!thread_.joinable() && !ended_) thread_ = std::thread([this] { RunThread(); });
}

HostFunctions::Queued* HostFunctions::Add(uint64_t token) {
  auto queued = std::make_unique<Queued>(Queued{.owner = this, .token = token});
  Queued* const raw = queued.get();
  MutexLock lock(&mutex_);
  queued_[raw] = std::move(queued);
  StartThread();
  return raw;
}

void HostFunctions::Forget(Queued* queued) {
  MutexLock lock(&mutex_);
  queued_.erase(queued);
}

void HostFunctions::WaitForRun(uint64_t run) {
  changed_.SignalAll();
  ++waiting_;
  while (running_.contains(run) && !ended_) changed_.WaitFor(&mutex_, kLook);
  // Nothing is written into a work that has been given up.
  running_.erase(run);
  --waiting_;
  changed_.SignalAll();
}

void HostFunctions::Run(Queued* queued, CUresult result) {
  MutexLock lock(&mutex_);
  const uint64_t run = ++last_run_;
  to_send_.push_back(
      {.run = {.run = run, .token = queued->token, .result = static_cast<int32_t>(result)},
       .push = nullptr});
  queued_.erase(queued);
  running_[run] = {};
  WaitForRun(run);
}

void HostFunctions::RunWork(HostWork* work) {
  MutexLock lock(&mutex_);
  const uint64_t run = ++last_run_;
  if (work->kind_ == HostWork::Kind::kPush) {
    to_send_.push_back({.run = {.run = run}, .push = work});
    running_[run] = {};
  } else {
    const bool pull = work->kind_ == HostWork::Kind::kPull;
    to_send_.push_back({.run = {.run = run,
                                .token = work->token_,
                                .kind = static_cast<uint32_t>(pull ? wire::HostRunKind::kPull
                                                                   : wire::HostRunKind::kFunction)},
                        .push = nullptr});
    running_[run] = {.pull = pull ? work : nullptr, .missing = work->size_};
  }
  WaitForRun(run);
}

void HostFunctions::Gone(HostWork* work) {
  MutexLock lock(&mutex_);
  bytes_ -= work->size_;
  if (work->pinned_.memory != nullptr) idle_buffers_.push_back(work->pinned_);
  if (ended_) return;
  to_send_.push_back(
      {.run = {.token = work->token_, .kind = static_cast<uint32_t>(wire::HostRunKind::kGone)},
       .push = nullptr});
  changed_.SignalAll();
}

void HostFunctions::RunThread() {
  MutexLock lock(&mutex_);
  while (!ended_) {
    if (to_send_.empty()) {
      changed_.WaitFor(&mutex_, kLook);
      continue;
    }
    const Message message = to_send_.front();
    to_send_.pop_front();
    mutex_.Unlock();
    if (message.push != nullptr) {
      send_bytes_(message.push->token_, {message.push->bytes(), message.push->size()});
    } else {
      send_(message.run);
    }
    mutex_.Lock();
    if (message.push != nullptr) {
      // They are on their way: whatever tells the client of this work comes behind them.
      running_.erase(message.run.run);
      changed_.SignalAll();
    }
  }
}

absl::Status HostFunctions::Done(const wire::HostFunctionDone& done, absl::Span<const char> bytes) {
  MutexLock lock(&mutex_);
  const auto run = running_.find(done.run);
  if (run == running_.end()) {
    // The driver's thread may have given up, which only the end of the session makes it do.
    if (ended_) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("run ", done.run, " of a host function is not on"));
  }
  HostWork* const pull = run->second.pull;
  const uint64_t room = pull != nullptr ? pull->size_ : 0;
  if (done.offset > room || bytes.size() > room - done.offset ||
      bytes.size() > run->second.missing || (pull != nullptr && bytes.empty())) {
    return absl::InvalidArgumentError(absl::StrCat("run ", done.run, " is sent ", bytes.size(),
                                                   " bytes at ", done.offset, " of ", room, ", ",
                                                   run->second.missing, " of them missing"));
  }
  if (!bytes.empty()) std::memcpy(pull->bytes() + done.offset, bytes.data(), bytes.size());
  run->second.missing -= bytes.size();
  if (pull != nullptr && run->second.missing > 0) return absl::OkStatus();
  running_.erase(run);
  changed_.SignalAll();
  return absl::OkStatus();
}

void HostFunctions::End() {
  MutexLock lock(&mutex_);
  ended_ = true;
  changed_.SignalAll();
}

}  // namespace fargpu::server
