#include "client/cuda/edge.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>
#include <utility>

#include "client/cuda/connect.h"
#include "client/cuda/export_table_host.h"
#include "client/cuda/lease_helper.h"
#include "client/cuda/session.h"
#include "client/cuda/standard_descriptors.h"
#include "common/cuda_error.h"
#include "common/fd.h"
#include "common/log.h"
#include "common/mutex.h"
#include "protocol/driver_abi/local/driver_log.h"

namespace fargpu::client {
namespace {

// Both ends of a new connection have heard from each other long before.
constexpr absl::Duration kOpenLimit = absl::Seconds(10);

enum class State {
  kBeforeInit,
  kReady,
  kForked,  // the child of a fork after cuInit
  kEnded,   // our last act at the end of the process is done
};

// The one global of the library. C forces it on us: entry points have no object to be called on.
// Never destroyed, because calls come in until the process has ended.
struct Process {
  std::atomic<State> state{State::kBeforeInit};
  std::atomic<Session*> session{nullptr};
  std::atomic<Connector> connector{&ConnectFromEnvironment};
  // Held while cuInit connects. Taken before all other locks.
  Mutex init_mutex;
  bool handlers_installed ABSL_GUARDED_BY(init_mutex) = false;
  std::string* last_complaint ABSL_GUARDED_BY(init_mutex) = nullptr;  // leaked: see above
};
constinit Process process;

void BeforeFork() {
  if (process.state.load() == State::kReady) process.session.load()->PrepareFork();
}

void AfterForkInParent() {
  if (process.state.load() == State::kReady) process.session.load()->ParentAfterFork();
}

void AfterForkInChild() {
  if (process.state.load() != State::kReady) return;
  process.state.store(State::kForked);
  process.session.load()->AbandonAfterFork();
  LeaveHelperAfterFork();
}

void WriteStats(const Session& session_const) {
  auto& session = const_cast<Session&>(session_const);
  const std::string text = session.calls().stats().Format();
  FARGPU_LOG(kDebug, "statistics of the session: ", text);
  const char* path = std::getenv("FARGPU_STATS");
  if (path == nullptr || *path == '\0') return;
  UniqueFd fd(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  const absl::Status written =
      fd.valid() ? WriteFully(fd.get(), text, absl::Now() + absl::Seconds(1)) : ErrnoStatus("open");
  if (!written.ok()) {
    FARGPU_LOG(kWarning, "FARGPU_STATS=", path, ": ", std::string(written.message()));
  }
}

// Runs when the dynamic loader finishes with us: after the exit handlers of the program and of
// every copy of the runtime, whose last calls therefore still find their session.
__attribute__((destructor)) void EndProcess() {
  State ready = State::kReady;
  if (!process.state.compare_exchange_strong(ready, State::kEnded)) return;
  Session* session = process.session.load();
  WriteStats(*session);
  session->SayGoodbye();
}

absl::Status Connect() ABSL_EXCLUSIVE_LOCKS_REQUIRED(process.init_mutex) {
  const StandardDescriptorsTaken taken;  // until all descriptors of the session are open
  absl::StatusOr<SessionParts> parts = process.connector.load()();
  if (!parts.ok()) return CudaError(CUDA_ERROR_NO_DEVICE, parts.status().message());
  if (parts->welcome.devices.empty()) {
    return CudaError(CUDA_ERROR_NO_DEVICE, "the server lends no device to this lease");
  }
  absl::StatusOr<std::unique_ptr<Session>> session = Session::Create(std::move(*parts));
  if (!session.ok()) return CudaError(CUDA_ERROR_OPERATING_SYSTEM, session.status().message());
  if (taken.any()) {
    const absl::Status open = (*session)->calls().WaitOpen(absl::Now() + kOpenLimit);
    if (!open.ok()) return CudaError(CUDA_ERROR_NO_DEVICE, open.message());
  }
  FARGPU_LOG(kInfo, "connected by ", (*session)->calls().Describe(), ", ",
             (*session)->devices().count(), " device(s)");
  process.session.store(session->release());
  InstallExportTableHost();
  if (!process.handlers_installed) {
    pthread_atfork(&BeforeFork, &AfterForkInParent, &AfterForkInChild);
    std::atexit(&EndProcess);
    process.handlers_installed = true;
  }
  process.state.store(State::kReady, std::memory_order_release);
  return absl::OkStatus();
}

}  // namespace

CUresult EnterEdge(Session** session) noexcept {
  switch (process.state.load(std::memory_order_acquire)) {
    case State::kReady:
      if (CurrentThread().in_host_function) return CUDA_ERROR_NOT_PERMITTED;
      *session = process.session.load(std::memory_order_relaxed);
      return CUDA_SUCCESS;
    case State::kEnded:
      return CUDA_ERROR_DEINITIALIZED;
    default:
      return CUDA_ERROR_NOT_INITIALIZED;
  }
}

CUresult LeaveEdge(const char* name, const absl::Status& status) noexcept {
  const CUresult result = ToCuResult(status);
  // "Not ready" and the like are answers, not news.
  FARGPU_LOG(kDebug, name, ": ", status.ToString());
  if (result != CUDA_ERROR_NOT_READY) {
    driver_abi::AddToDriverLog(name, result, status.message());
  }
  return result;
}

CUresult LeaveEdgeAfterException(const char* name, CUresult result) noexcept {
  FARGPU_LOG(kError, name, ": an exception; the program gets ", static_cast<int>(result));
  return result;
}

CUresult RefuseCall(const char* name, CUresult refusal) noexcept {
  Session* session = nullptr;
  if (const CUresult result = EnterEdge(&session); result != CUDA_SUCCESS) return result;
  // Some libraries ask again and again. Names are literals: one of each call.
  static std::atomic<const char*> told[64] = {};
  for (std::atomic<const char*>& slot : told) {
    const char* seen = nullptr;
    if (slot.compare_exchange_strong(seen, name)) {
      FARGPU_LOG(kInfo, name, " is not supported");
      break;
    }
    if (seen == name) break;
  }
  return refusal;
}

CUresult InitProcess(unsigned flags) noexcept {
  const NoCancellation whole;
  try {
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    // Looked at before the lock: in the child of a fork somebody may hold it who is not there.
    switch (process.state.load(std::memory_order_acquire)) {
      case State::kReady:
        return CUDA_SUCCESS;
      case State::kForked:
        return CUDA_ERROR_NOT_INITIALIZED;
      case State::kEnded:
        return CUDA_ERROR_DEINITIALIZED;
      case State::kBeforeInit:
        break;
    }
    MutexLock lock(&process.init_mutex);
    if (process.state.load() == State::kReady) return CUDA_SUCCESS;
    const absl::Status connected = Connect();
    if (connected.ok()) return CUDA_SUCCESS;
    const CUresult result = ToCuResult(connected);
    // The runtime tries again at each of its calls; the reason is told once.
    std::string complaint(connected.message());
    if (process.last_complaint == nullptr) process.last_complaint = new std::string;
    if (complaint != *process.last_complaint) {
      FARGPU_LOG(kInfo, "cuInit: ", complaint);
      *process.last_complaint = std::move(complaint);
    }
    return result;
  } catch (const std::bad_alloc&) {
    return LeaveEdgeAfterException("cuInit", CUDA_ERROR_OUT_OF_MEMORY);
  } catch (...) {
    return LeaveEdgeAfterException("cuInit", CUDA_ERROR_UNKNOWN);
  }
}

Session* SessionOrNull() noexcept {
  return process.state.load(std::memory_order_acquire) == State::kReady
             ? process.session.load(std::memory_order_relaxed)
             : nullptr;
}

void SetConnectorForTest(Connector connector) { process.connector.store(connector); }

void ResetProcessForTest() {
  process.state.store(State::kBeforeInit);
  delete process.session.exchange(nullptr);
  CurrentThread().depth = 0;
}

}  // namespace fargpu::client
