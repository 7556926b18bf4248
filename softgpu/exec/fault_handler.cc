#include <signal.h>
#include <ucontext.h>

#include <mutex>

#include "common/log.h"
#include "softgpu/exec/fiber.h"
#include "softgpu/exec/worker.h"

namespace fargpu::softgpu {
namespace {

struct sigaction g_previous_segv;
struct sigaction g_previous_bus;

void Chain(int signal, siginfo_t* info, void* context) {
  const struct sigaction& previous = signal == SIGBUS ? g_previous_bus : g_previous_segv;
  if ((previous.sa_flags & SA_SIGINFO) != 0 && previous.sa_sigaction != nullptr) {
    previous.sa_sigaction(signal, info, context);
  } else if (previous.sa_handler != SIG_IGN && previous.sa_handler != SIG_DFL) {
    previous.sa_handler(signal);
  } else {
    // The default action follows when the instruction faults again.
    struct sigaction action = {};
    action.sa_handler = SIG_DFL;
    sigaction(signal, &action, nullptr);
  }
}

void OnFault(int signal, siginfo_t* info, void* raw) {
  Worker* worker = Worker::Current();
  if (worker == nullptr) {
    Chain(signal, info, raw);
    return;
  }
  worker->fault = {true, signal, info->si_addr, worker->InStackGuard(info->si_addr)};
  // Continue, when the handler returns, in the scheduler; the fiber's stack is forgotten.
  auto* context = static_cast<ucontext_t*>(raw);
  context->uc_mcontext.gregs[REG_RIP] = reinterpret_cast<greg_t>(&fargpu_fiber_abandon);
  context->uc_mcontext.gregs[REG_RDI] = reinterpret_cast<greg_t>(worker->scheduler_context());
}

}  // namespace

void InstallFaultHandler() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action = {};
    action.sa_sigaction = OnFault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGSEGV, &action, &g_previous_segv) != 0 ||
        sigaction(SIGBUS, &action, &g_previous_bus) != 0) {
      FARGPU_LOG(kError, "softgpu: cannot install the handler of illegal addresses");
    }
  });
}

}  // namespace fargpu::softgpu
