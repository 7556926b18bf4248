#include "server/worker/host_functions.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"

namespace fargpu::server {
namespace {

// Waits are looked at again so often, so that a lost signal would cost a second.
constexpr std::chrono::seconds kLook{1};

}  // namespace

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
  to_send_.push_back({.run = 0, .token = token, .result = static_cast<int32_t>(result)});
  changed_.SignalAll();
  return CudaError(result, "cuStreamAddCallback");
}

HostFunctions::Queued* HostFunctions::Add(uint64_t token) {
  auto queued = std::make_unique<Queued>(Queued{.owner = this, .token = token});
  Queued* const raw = queued.get();
  MutexLock lock(&mutex_);
  queued_[raw] = std::move(queued);
  if (!thread_.joinable()) thread_ = std::thread([this] { RunThread(); });
  return raw;
}

void HostFunctions::Forget(Queued* queued) {
  MutexLock lock(&mutex_);
  queued_.erase(queued);
}

void HostFunctions::Run(Queued* queued, CUresult result) {
  MutexLock lock(&mutex_);
  const uint64_t run = ++last_run_;
  to_send_.push_back({.run = run, .token = queued->token, .result = static_cast<int32_t>(result)});
  queued_.erase(queued);
  running_.insert(run);
  changed_.SignalAll();
  ++waiting_;
  while (running_.count(run) != 0 && !ended_) changed_.WaitFor(&mutex_, kLook);
  --waiting_;
  changed_.SignalAll();
}

void HostFunctions::RunThread() {
  MutexLock lock(&mutex_);
  while (!ended_) {
    if (to_send_.empty()) {
      changed_.WaitFor(&mutex_, kLook);
      continue;
    }
    const wire::HostFunctionRun run = to_send_.front();
    to_send_.pop_front();
    mutex_.Unlock();
    send_(run);
    mutex_.Lock();
  }
}

absl::Status HostFunctions::Done(uint64_t run) {
  MutexLock lock(&mutex_);
  if (running_.erase(run) == 0) {
    return absl::InvalidArgumentError(absl::StrCat("run ", run, " of a host function is not on"));
  }
  changed_.SignalAll();
  return absl::OkStatus();
}

void HostFunctions::End() {
  MutexLock lock(&mutex_);
  ended_ = true;
  changed_.SignalAll();
}

}  // namespace fargpu::server
