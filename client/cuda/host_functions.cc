#include "client/cuda/host_functions.h"

#include <pthread.h>
#include <signal.h>

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "client/cuda/thread_state.h"
#include "protocol/wire/frame.h"

namespace fargpu::client {

HostFunctions::HostFunctions(Done done, Send send)
    : done_(std::move(done)), send_(std::move(send)) {}

void HostFunctions::Stop() {
  if (changed_ == nullptr) return;  // after a fork
  std::unique_ptr<std::thread> threads[2];
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_->SignalAll();
    threads[0] = std::move(calls_.thread);
    threads[1] = std::move(pulls_.thread);
  }
  for (auto& thread : threads) {
    if (thread != nullptr) thread->join();
  }
}

uint64_t HostFunctions::Add(CUhostFn function, void* data) {
  pending_.fetch_add(1);
  Function added;
  added.host = function;
  added.data = data;
  return Insert(std::move(added));
}

uint64_t HostFunctions::Add(Callback callback, void* data) {
  pending_.fetch_add(1);
  Function added;
  added.callback = callback;
  added.data = data;
  return Insert(std::move(added));
}

uint64_t HostFunctions::AddRepeated(std::function<void()> function) {
  Function added;
  added.repeated = std::make_shared<const std::function<void()>>(std::move(function));
  return Insert(std::move(added));
}

uint64_t HostFunctions::AddSource(const HostBox& source, Fetched fetched) {
  Function added;
  added.source = std::make_shared<const HostBox>(source);
  added.due = fetched == Fetched::kOnce ? 1 : 0;
  return Insert(std::move(added));
}

bool HostFunctions::Reads(const void* memory, size_t bytes) {
  MutexLock lock(&mutex_);
  for (const auto& [token, function] : functions_) {
    if (function.source != nullptr && function.due > 0 &&
        function.source->Overlaps(memory, bytes)) {
      return true;
    }
  }
  return false;
}

void HostFunctions::GiveUp(const void* memory, size_t bytes) {
  MutexLock lock(&mutex_);
  for (auto& [token, function] : functions_) {
    if (function.source == nullptr || !function.source->Overlaps(memory, bytes)) continue;
    HostBox nothing = *function.source;
    nothing.address = nullptr;
    function.source = std::make_shared<const HostBox>(nothing);
    function.due = 0;
  }
}

void HostFunctions::EndDue(uint64_t token) {
  MutexLock lock(&mutex_);
  const auto found = functions_.find(token);
  if (found == functions_.end() || found->second.due == 0) return;
  --found->second.due;
  if (found->second.source == nullptr) pending_.fetch_sub(1);
}

void HostFunctions::StartThread(Queue* queue, const char* name) {
  if (queue->thread != nullptr || stopping_) return;
  // The program's signal handlers must not run on a thread that it does not know. What its
  // functions do wrong is its business, and faults in managed memory are ours.
  sigset_t all, before;
  sigfillset(&all);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigdelset(&all, fault);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  queue->thread = std::make_unique<std::thread>([this, queue] { RunThread(queue); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_setname_np(queue->thread->native_handle(), name);
}

uint64_t HostFunctions::Insert(Function function) {
  MutexLock lock(&mutex_);
  if (function.source != nullptr) {
    StartThread(&pulls_, "fargpu-host-mem");
  } else {
    StartThread(&calls_, "fargpu-host-fn");
  }
  const uint64_t token = ++last_token_ | kTokenBit;
  functions_[token] = std::move(function);
  return token;
}

void HostFunctions::Expect(uint64_t token) {
  MutexLock lock(&mutex_);
  const auto found = functions_.find(token);
  if (found == functions_.end()) return;
  ++found->second.due;
  // A source is only read.
  if (found->second.source == nullptr) pending_.fetch_add(1);
}

void HostFunctions::Gone(uint64_t token) {
  MutexLock lock(&mutex_);
  const auto found = functions_.find(token);
  if (found == functions_.end()) return;
  const Function& function = found->second;
  if (function.source == nullptr) {
    pending_.fetch_sub(static_cast<int>(function.repeated == nullptr ? 1 : function.due));
  }
  functions_.erase(found);
}

absl::Status HostFunctions::Start(const wire::HostFunctionRun& run) {
  if (run.kind == static_cast<uint32_t>(wire::HostRunKind::kGone)) {
    Gone(run.token);
    return absl::OkStatus();
  }
  MutexLock lock(&mutex_);
  const auto found = functions_.find(run.token);
  const bool pull = run.kind == static_cast<uint32_t>(wire::HostRunKind::kPull);
  if (found == functions_.end() || pull != (found->second.source != nullptr)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a stream has come to host function ", run.token, ", which nobody queued"));
  }
  Queue& queue = pull ? pulls_ : calls_;
  queue.due.push_back({.run = run.run,
                       .token = run.token,
                       .function = found->second,
                       .result = static_cast<CUresult>(run.result)});
  if (found->second.repeated == nullptr && !pull) functions_.erase(found);
  changed_->SignalAll();
  return absl::OkStatus();
}

void HostFunctions::End(CUresult why) {
  MutexLock lock(&mutex_);
  for (const auto& [token, function] : functions_) {
    if (function.callback.function != nullptr) {
      calls_.due.push_back({.run = 0, .token = token, .function = function, .result = why});
    } else if (function.host != nullptr) {
      pending_.fetch_sub(1);
    } else if (function.repeated != nullptr) {
      pending_.fetch_sub(static_cast<int>(function.due));
    }
  }
  functions_.clear();
  changed_->SignalAll();
}

void HostFunctions::AbandonAfterFork() {
  // The lock may be held by a thread that is not here; nobody else is.
  [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    calls_.thread.release();
    pulls_.thread.release();
  }();
  changed_.release();  // destroying it would wait for waiters that do not exist here
}

void HostFunctions::RunThread(Queue* queue) {
  MutexLock lock(&mutex_);
  while (!stopping_) {
    if (queue->due.empty()) {
      changed_->WaitFor(&mutex_, std::chrono::seconds(60));
      continue;
    }
    const Run run = std::move(queue->due.front());
    queue->due.pop_front();
    mutex_.Unlock();
    if (run.function.source != nullptr) {
      SendSource(run);
    } else {
      RunFunction(run);
    }
    mutex_.Lock();
  }
}

void HostFunctions::RunFunction(const Run& run) {
  if (before_ != nullptr) before_();
  CurrentThread().in_host_function = true;
  if (run.function.repeated != nullptr) {
    if (run.result == CUDA_SUCCESS) (*run.function.repeated)();
  } else if (run.function.host == nullptr) {
    run.function.callback.function(run.function.callback.stream, run.result, run.function.data);
  } else if (run.result == CUDA_SUCCESS) {
    run.function.host(run.function.data);
  }
  CurrentThread().in_host_function = false;
  if (after_ != nullptr) after_();
  if (run.run != 0) done_(run.run);
  if (run.function.repeated == nullptr) {
    pending_.fetch_sub(1);
  } else {
    EndDue(run.token);
  }
}

void HostFunctions::SendSource(const Run& run) {
  const HostBox& box = *run.function.source;
  std::vector<char> gathered;
  for (uint64_t offset = 0; offset < box.bytes(); offset += wire::kMaxBulkBytes) {
    const uint64_t size = std::min<uint64_t>(wire::kMaxBulkBytes, box.bytes() - offset);
    if (box.address == nullptr) {
      gathered.assign(size, 0);
      send_(run.run, offset, gathered);
      continue;
    }
    if (box.is_close()) {
      send_(run.run, offset, absl::MakeConstSpan(box.address + offset, size));
      continue;
    }
    gathered.resize(size);
    box.ForEachRun(offset, size, [&](const char* memory, uint64_t at, uint64_t bytes) {
      std::memcpy(gathered.data() + (at - offset), memory, bytes);
    });
    send_(run.run, offset, gathered);
  }
  EndDue(run.token);
}

}  // namespace fargpu::client
