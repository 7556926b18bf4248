#include "client/cuda/page_faults.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "common/log.h"

namespace fargpu::client {
namespace {

// Bit of the page fault error code that x86-64 gives in REG_ERR.
constexpr long kWriteFault = 2;
constexpr timespec kLook = {.tv_sec = 1, .tv_nsec = 0};

enum : uint32_t { kWaiting = 0, kResolved = 1, kRefused = 2 };

// Lies on the stack of the thread that has faulted.
struct Fault {
  uintptr_t address = 0;
  PageFaults::Access access = PageFaults::Access::kRead;
  std::atomic<uint32_t> state{kWaiting};
  Fault* next = nullptr;
};

// What the handler needs; it can have no object of its own.
struct Shared {
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};  // 0: nobody resolves faults
  std::atomic<Fault*> faults{nullptr};
  std::atomic<uint32_t> news{0};  // grows with each fault, for the thread to sleep on
};
constinit Shared shared;

// A program that installs its handler after us keeps ours as the one before its own, and may call
// it. So each time that we take the signal over it is with another function, which knows who had
// the signal before just this one.
constexpr int kMaxTakeOvers = 4;
struct Before {
  struct sigaction action;
  std::atomic<bool> known{false};
};
constinit std::array<Before, kMaxTakeOvers> before = {};
std::atomic<int> taken_over{0};

void Sleep(std::atomic<uint32_t>* word, uint32_t while_it_is) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT_PRIVATE, while_it_is, &kLook,
          nullptr, 0);
}

void Wake(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

bool ResolveElsewhere(uintptr_t address, PageFaults::Access access) {
  Fault fault;
  fault.address = address;
  fault.access = access;
  fault.next = shared.faults.load();
  while (!shared.faults.compare_exchange_weak(fault.next, &fault)) {
  }
  shared.news.fetch_add(1);
  Wake(&shared.news);
  // Ends: the thread answers every fault that it takes, and takes all before it goes.
  while (fault.state.load() == kWaiting) Sleep(&fault.state, kWaiting);
  return fault.state.load() == kResolved;
}

void PassOn(const Before& whom, int number, siginfo_t* info, void* context) {
  struct sigaction action = {};
  if (whom.known.load()) action = whom.action;
  const bool plain = (action.sa_flags & SA_SIGINFO) == 0;
  if (plain && (action.sa_handler == SIG_DFL || action.sa_handler == SIG_IGN)) {
    // A fault cannot be ignored. Without us it ends the process, where it happened.
    action = {};
    action.sa_handler = SIG_DFL;
    sigaction(number, &action, nullptr);
    if (info->si_code <= 0) raise(number);  // somebody sent it: it will not come again by itself
    return;
  }
  sigset_t mask = action.sa_mask;
  if ((action.sa_flags & SA_NODEFER) == 0) sigaddset(&mask, number);
  sigset_t now;
  pthread_sigmask(SIG_BLOCK, &mask, &now);
  if ((action.sa_flags & SA_NODEFER) != 0) {
    sigset_t self;
    sigemptyset(&self);
    sigaddset(&self, number);
    pthread_sigmask(SIG_UNBLOCK, &self, nullptr);
  }
  if (plain) {
    action.sa_handler(number);
  } else {
    action.sa_sigaction(number, info, context);
  }
  pthread_sigmask(SIG_SETMASK, &now, nullptr);
}

template <int kIndex>
void HandleSignal(int number, siginfo_t* info, void* context) {
  const int error = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (info->si_code == SEGV_ACCERR && address >= shared.begin.load() &&
      address < shared.end.load()) {
    const long code = static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR];
    const auto access =
        (code & kWriteFault) != 0 ? PageFaults::Access::kWrite : PageFaults::Access::kRead;
    if (ResolveElsewhere(address, access)) {
      errno = error;
      return;
    }
  }
  errno = error;
  PassOn(before[kIndex], number, info, context);
}

using Handler = void (*)(int, siginfo_t*, void*);
constexpr std::array<Handler, kMaxTakeOvers> kHandlers = {&HandleSignal<0>, &HandleSignal<1>,
                                                          &HandleSignal<2>, &HandleSignal<3>};

}  // namespace

void PageFaults::TakeOver() {
  struct sigaction now = {};
  if (sigaction(SIGSEGV, nullptr, &now) != 0) return;
  const int count = taken_over.load();
  if (count > 0 && (now.sa_flags & SA_SIGINFO) != 0 &&
      now.sa_sigaction == kHandlers[static_cast<size_t>(count - 1)]) {
    return;
  }
  if (count == kMaxTakeOvers) return;
  Before& mine = before[static_cast<size_t>(count)];
  mine.action = now;
  mine.known.store(true);
  struct sigaction action = {};
  action.sa_sigaction = kHandlers[static_cast<size_t>(count)];
  // On the program's own signal stack if it has one: some programs have no other that is large
  // enough. Other signals may come meanwhile, as they may during any access.
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  taken_over.store(count + 1);
  sigaction(SIGSEGV, &action, nullptr);
  if (count + 1 == kMaxTakeOvers) {
    FARGPU_LOG(kWarning, "the program has taken SIGSEGV ", kMaxTakeOvers - 1,
               " times; the next time managed memory may fault");
  }
}

void PageFaults::TakeOverIfUsed() {
  if (shared.end.load(std::memory_order_relaxed) != 0) TakeOver();
}

PageFaults::PageFaults(uintptr_t begin, uintptr_t end, Resolver resolver)
    : resolver_(std::move(resolver)) {
  // The program's signal handlers must not run on a thread that it does not know.
  sigset_t all, was;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &was);
  thread_ = std::make_unique<std::thread>([this] { RunThread(); });
  pthread_sigmask(SIG_SETMASK, &was, nullptr);
  pthread_setname_np(thread_->native_handle(), "fargpu-pages");
  shared.begin.store(begin);
  shared.end.store(end);
  TakeOver();
}

PageFaults::~PageFaults() {
  shared.end.store(0);
  stopping_.store(true);
  shared.news.fetch_add(1);
  Wake(&shared.news);
  if (thread_ != nullptr) thread_->join();
}

void PageFaults::AbandonAfterFork() {
  shared.end.store(0);
  shared.faults.store(nullptr);
  thread_.release();
}

void PageFaults::RunThread() {
  while (true) {
    const uint32_t news = shared.news.load();
    Fault* fault = shared.faults.exchange(nullptr);
    if (fault == nullptr) {
      if (stopping_.load()) return;
      Sleep(&shared.news, news);
      continue;
    }
    while (fault != nullptr) {
      Fault* const next = fault->next;
      const bool resolved = !stopping_.load() && resolver_(fault->address, fault->access);
      std::atomic<uint32_t>* const state = &fault->state;
      state->store(resolved ? kResolved : kRefused);
      // The fault may be gone by now, its address is still somebody's stack.
      Wake(state);
      fault = next;
    }
  }
}

}  // namespace fargpu::client
