#include "softgpu/driver/context.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "softgpu/driver/handle_table.h"

namespace fargpu::softgpu {
namespace {

// Trivially destructible on purpose: calls come in while the thread, and the process, end.
thread_local uint64_t thread_number = 0;
thread_local int host_function_depth = 0;

// The defaults of NVIDIA's driver on current cards.
constexpr size_t kDefaultStackBytes = 1024;
constexpr size_t kDefaultPrintfBytes = size_t{1} << 20;
constexpr size_t kDefaultHeapBytes = size_t{8} << 20;
constexpr size_t kLargestStackBytes = size_t{512} << 10;

}  // namespace

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

uint64_t ThreadNumber() {
  static std::atomic<uint64_t> next{1};
  if (thread_number == 0) thread_number = next.fetch_add(1, std::memory_order_relaxed);
  return thread_number;
}

bool InHostFunction() { return host_function_depth > 0; }
HostFunctionScope::HostFunctionScope() { ++host_function_depth; }
HostFunctionScope::~HostFunctionScope() { --host_function_depth; }

void PrintfBuffer::Append(absl::string_view text, size_t limit) {
  MutexLock lock(&mutex_);
  texts_.emplace_back(text);
  bytes_ += text.size();
  while (bytes_ > limit && texts_.size() > 1) {
    bytes_ -= texts_.front().size();
    texts_.pop_front();
  }
}

void PrintfBuffer::Flush() {
  // Written under the lock, so that two threads that synchronise do not swap their parts.
  MutexLock lock(&mutex_);
  if (texts_.empty()) return;
  for (const std::string& text : texts_) std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
  texts_.clear();
  bytes_ = 0;
}

Context::Context(CUcontext context_handle, int context_device, unsigned context_flags,
                 bool is_primary)
    : handle(context_handle),
      id(NewHandleValue()),
      device(context_device),
      primary(is_primary),
      flags(context_flags),
      legacy_(std::make_shared<Stream>()) {
  legacy_->id = NewHandleValue();
  legacy_->legacy = true;
  limits_.fill(0);
  limits_[CU_LIMIT_STACK_SIZE] = kDefaultStackBytes;
  limits_[CU_LIMIT_PRINTF_FIFO_SIZE] = kDefaultPrintfBytes;
  limits_[CU_LIMIT_MALLOC_HEAP_SIZE] = kDefaultHeapBytes;
  limits_[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
  limits_[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
  limits_[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64;
}

absl::Status Context::error() const {
  const CUresult result = error_.load(std::memory_order_acquire);
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return CudaError(result, "an earlier error of the context");
}

void Context::Fail(const absl::Status& status) {
  CUresult none = CUDA_SUCCESS;
  if (error_.compare_exchange_strong(none, ToCuResult(status))) {
    FARGPU_LOG(kError, "softgpu: device ", device, ": ", status.ToString(),
               "; the context fails until it is reset");
  }
}

void Context::RunWork(const StreamWork& work) {
  if (skips_work()) return;
  if (absl::Status status = work(); !status.ok()) Fail(status);
}

std::vector<WorkQueue::Dependency> Context::ImplicitDependencies(const Stream& stream) {
  std::vector<WorkQueue::Dependency> dependencies;
  if (stream.legacy) {
    for (const auto& other : streams_) {
      if ((other->flags & CU_STREAM_NON_BLOCKING) == 0 && !other->queue->idle()) {
        dependencies.push_back({other->queue, other->queue->submitted()});
      }
    }
  } else if ((stream.flags & CU_STREAM_NON_BLOCKING) == 0 && !legacy_->queue->idle()) {
    dependencies.push_back({legacy_->queue, legacy_->queue->submitted()});
  }
  return dependencies;
}

absl::StatusOr<uint64_t> Context::Enqueue(Stream& stream, StreamWork work, RunOn run_on, Wake wake,
                                          Eager eager, std::vector<WorkQueue::Dependency> after) {
  if (run_on == RunOn::kWorker && WorkersStopped()) {
    return CudaError(CUDA_ERROR_DEINITIALIZED, "the process is ending");
  }
  MutexLock lock(&mutex_);
  std::vector<WorkQueue::Dependency> dependencies = ImplicitDependencies(stream);
  for (WorkQueue::Dependency& dependency : after) {
    if (!dependency.queue->Completed(dependency.position)) {
      dependencies.push_back(std::move(dependency));
    }
  }
  if (eager == Eager::kYes && dependencies.empty() && stream.queue->idle()) {
    if (work) RunWork(work);
    return stream.queue->submitted();
  }
  std::function<void()> item;
  if (work) {
    item = [self = shared_from_this(), work = std::move(work)] { self->RunWork(work); };
  }
  return stream.queue->Submit(std::move(item), std::move(dependencies), run_on, wake);
}

absl::Status Context::EnqueueAlways(Stream& stream, std::function<void()> work, RunOn run_on) {
  if (run_on == RunOn::kWorker && WorkersStopped())
    return CudaError(CUDA_ERROR_DEINITIALIZED, "the process is ending");
  MutexLock lock(&mutex_);
  stream.queue->Submit([self = shared_from_this(), work = std::move(work)] { work(); },
                       ImplicitDependencies(stream), run_on, Wake::kYes);
  return absl::OkStatus();
}

absl::Status Context::RunAndWait(Stream& stream, StreamWork work, Eager eager) {
  ASSIGN_OR_RETURN(const uint64_t position,
                   Enqueue(stream, std::move(work), RunOn::kAnyThread, Wake::kNo, eager));
  stream.queue->Wait(position);
  if (!stream.queue->Completed(position)) {
    return CudaError(CUDA_ERROR_DEINITIALIZED, "the process is ending");
  }
  printf_buffer.Flush();
  return error();
}

absl::Status Context::Synchronize(Stream& stream) {
  // A marker, not just a wait: on the legacy stream it also waits for the blocking streams.
  return RunAndWait(stream, nullptr, Eager::kYes);
}

absl::Status Context::SynchronizeAll() {
  std::vector<std::shared_ptr<WorkQueue>> queues = {legacy_->queue};
  {
    MutexLock lock(&mutex_);
    for (const auto& stream : streams_) queues.push_back(stream->queue);
  }
  for (const auto& queue : queues) queue->WaitIdle();
  printf_buffer.Flush();
  return error();
}

bool Context::SynchronizeAllFor(std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  std::vector<std::shared_ptr<WorkQueue>> queues = {legacy_->queue};
  {
    MutexLock lock(&mutex_);
    for (const auto& stream : streams_) queues.push_back(stream->queue);
  }
  for (const auto& queue : queues) {
    if (!queue->WaitUntil(queue->submitted(), deadline)) return false;
  }
  return true;
}

bool Context::Idle(const Stream& stream) {
  MutexLock lock(&mutex_);
  return stream.queue->idle() && ImplicitDependencies(stream).empty();
}

std::shared_ptr<Stream> Context::PerThreadStream() {
  MutexLock lock(&mutex_);
  std::shared_ptr<Stream>& stream = per_thread_[ThreadNumber()];
  if (stream == nullptr) {
    stream = std::make_shared<Stream>();
    stream->id = NewHandleValue();
    stream->context = weak_from_this();
    streams_.push_back(stream);
  }
  return stream;
}

std::vector<std::shared_ptr<Stream>> Context::Streams() {
  MutexLock lock(&mutex_);
  return streams_;
}

std::shared_ptr<Stream> Context::CreateStream(unsigned stream_flags, int priority,
                                              CUgreenCtx green) {
  auto stream = std::make_shared<Stream>();
  stream->id = NewHandleValue();
  stream->context = weak_from_this();
  stream->flags = stream_flags;
  stream->priority = priority;
  stream->green = green;
  MutexLock lock(&mutex_);
  streams_.push_back(stream);
  return stream;
}

void Context::ForgetStream(const std::shared_ptr<Stream>& stream) {
  MutexLock lock(&mutex_);
  stream->destroyed = true;
  DropDeadStreams();
}

void Context::ForgetThread(uint64_t thread) {
  MutexLock lock(&mutex_);
  const auto found = per_thread_.find(thread);
  if (found == per_thread_.end()) return;
  found->second->destroyed = true;
  per_thread_.erase(found);
  DropDeadStreams();
}

void Context::DropDeadStreams() {
  streams_.erase(std::remove_if(streams_.begin(), streams_.end(),
                                [](const std::shared_ptr<Stream>& stream) {
                                  return stream->destroyed && stream->queue->idle();
                                }),
                 streams_.end());
}

absl::Status Context::SetLimit(CUlimit limit, size_t value) {
  if (limit < 0 || limit >= CU_LIMIT_MAX) {
    return CudaError(CUDA_ERROR_INVALID_VALUE, absl::StrCat("limit ", static_cast<int>(limit)));
  }
  if (limit == CU_LIMIT_STACK_SIZE && value > kLargestStackBytes) {
    return CudaError(CUDA_ERROR_INVALID_VALUE,
                     absl::StrCat("stack of ", value, " bytes; at most ", kLargestStackBytes));
  }
  if (limit == CU_LIMIT_SHMEM_SIZE || limit == CU_LIMIT_CIG_ENABLED ||
      limit == CU_LIMIT_CIG_SHMEM_FALLBACK_ENABLED) {
    return CudaError(CUDA_ERROR_UNSUPPORTED_LIMIT,
                     absl::StrCat("limit ", static_cast<int>(limit), " cannot be set"));
  }
  MutexLock lock(&settings_mutex_);
  limits_[limit] = value;
  return absl::OkStatus();
}

absl::StatusOr<size_t> Context::GetLimit(CUlimit limit) const {
  if (limit < 0 || limit >= CU_LIMIT_MAX) {
    return CudaError(CUDA_ERROR_INVALID_VALUE, absl::StrCat("limit ", static_cast<int>(limit)));
  }
  MutexLock lock(&settings_mutex_);
  return limits_[limit];
}

absl::Status Context::EnablePeer(uint64_t peer) {
  MutexLock lock(&settings_mutex_);
  if (peers_.insert(peer).second) return absl::OkStatus();
  return CudaError(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is enabled already");
}

absl::Status Context::DisablePeer(uint64_t peer) {
  MutexLock lock(&settings_mutex_);
  if (peers_.erase(peer) > 0) return absl::OkStatus();
  return CudaError(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access is not enabled");
}

}  // namespace fargpu::softgpu
