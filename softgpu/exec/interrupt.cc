// Ending kernels that do not end by themselves. A signal tells the threads that run them; where it
// finds a thread in compiled code, the fiber is abandoned there. Everywhere else the thread may
// hold a lock, and is told again a little later.
#include "softgpu/exec/interrupt.h"

#include <link.h>
#include <signal.h>
#include <time.h>
#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <cuda.h>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/log.h"
#include "common/mutex.h"
#include "softgpu/exec/fiber.h"
#include "softgpu/exec/worker.h"

namespace fargpu::softgpu {
namespace {

// Ignored by default, and hardly used by anybody.
constexpr int kSignal = SIGURG;

struct Registry {
  Mutex mutex;
  std::vector<InterruptibleScope*> scopes ABSL_GUARDED_BY(mutex);
};
Registry& TheRegistry() {
  static Registry* const registry = new Registry;
  return *registry;
}

// Code of the program and its libraries, as ranges of addresses: what is none of it was compiled
// at run time. Replaced as a whole, never freed: a signal handler may be looking at it.
using CodeRanges = std::vector<std::pair<uintptr_t, uintptr_t>>;
std::atomic<const CodeRanges*> g_code{nullptr};
struct sigaction g_previous;

int AddCode(dl_phdr_info* info, size_t size, void* raw) {
  auto* ranges = static_cast<CodeRanges*>(raw);
  for (int k = 0; k < info->dlpi_phnum; ++k) {
    const ElfW(Phdr)& header = info->dlpi_phdr[k];
    if (header.p_type != PT_LOAD || (header.p_flags & PF_X) == 0) continue;
    const uintptr_t start = info->dlpi_addr + header.p_vaddr;
    ranges->emplace_back(start, start + header.p_memsz);
  }
  return 0;
}

bool IsCompiledCode(uintptr_t address) {
  const CodeRanges* ranges = g_code.load(std::memory_order_acquire);
  if (ranges == nullptr) return false;
  for (const auto& [start, end] : *ranges) {
    if (address >= start && address < end) return false;
  }
  return true;
}

void OnSignal(int signal, siginfo_t* info, void* raw) {
  Worker* worker = Worker::Current();
  if (worker != nullptr) {
    auto* context = static_cast<ucontext_t*>(raw);
    if (!worker->MustStop() ||
        !IsCompiledCode(static_cast<uintptr_t>(context->uc_mcontext.gregs[REG_RIP]))) {
      return;
    }
    worker->fault.happened = true;
    worker->fault.interrupted = true;
    context->uc_mcontext.gregs[REG_RIP] = reinterpret_cast<greg_t>(&fargpu_fiber_abandon);
    context->uc_mcontext.gregs[REG_RDI] = reinterpret_cast<greg_t>(worker->scheduler_context());
    return;
  }
  if ((g_previous.sa_flags & SA_SIGINFO) != 0 && g_previous.sa_sigaction != nullptr) {
    g_previous.sa_sigaction(signal, info, raw);
  } else if (g_previous.sa_handler != SIG_IGN && g_previous.sa_handler != SIG_DFL) {
    g_previous.sa_handler(signal);
  }
}

void InstallHandler() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action = {};
    action.sa_sigaction = OnSignal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigemptyset(&action.sa_mask);
    if (sigaction(kSignal, &action, &g_previous) != 0) {
      FARGPU_LOG(kError, "softgpu: cannot install the handler that ends kernels");
    }
  });
}

}  // namespace

void UnblockInterrupts() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, kSignal);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

InterruptibleScope::InterruptibleScope(Launch* launch) : launch_(launch), thread_(pthread_self()) {
  if (launch_->config->interrupted == nullptr) return;
  Registry& registry = TheRegistry();
  MutexLock lock(&registry.mutex);
  registry.scopes.push_back(this);
}

InterruptibleScope::~InterruptibleScope() {
  if (launch_->config->interrupted == nullptr) return;
  Registry& registry = TheRegistry();
  MutexLock lock(&registry.mutex);
  registry.scopes.erase(std::find(registry.scopes.begin(), registry.scopes.end(), this));
}

void InterruptLaunches(std::atomic<bool>* flag) {
  flag->store(true);
  InstallHandler();
  // Signals meet threads at any place: a millisecond later they are at another.
  constexpr timespec kPause = {0, 1000000};
  while (true) {
    auto ranges = std::make_unique<CodeRanges>();
    dl_iterate_phdr(&AddCode, ranges.get());
    const CodeRanges* known = g_code.load();
    if (known == nullptr || *known != *ranges) g_code.store(ranges.release());
    bool any = false;
    {
      Registry& registry = TheRegistry();
      MutexLock lock(&registry.mutex);
      for (const InterruptibleScope* scope : registry.scopes) {
        Launch* launch = scope->launch_;
        if (launch->config->interrupted != flag) continue;
        any = true;
        launch->Fail(CudaError(CUDA_ERROR_LAUNCH_FAILED,
                               absl::StrCat("kernel ", launch->kernel_name, " was interrupted")));
        pthread_kill(scope->thread_, kSignal);
      }
    }
    if (!any) return;
    nanosleep(&kPause, nullptr);
  }
}

}  // namespace fargpu::softgpu
