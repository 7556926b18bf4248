#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

namespace fargpu::client {

// Turns faults in a range of addresses into calls of a function on a thread of ours: the handler of
// SIGSEGV hands the address over and waits, so that it needs little stack and nothing that a signal
// handler may not do. All other faults go to whoever had the signal before. A program that installs
// a handler of its own later is put behind ours again by TakeOver(). At most one at a time.
class PageFaults {
 public:
  enum class Access { kRead, kWrite };
  // True: the access may be tried again. False: it is a fault of the program's.
  using Resolver = std::function<bool(uintptr_t address, Access access)>;

  PageFaults(uintptr_t begin, uintptr_t end, Resolver resolver);
  // Faults are the program's again. No resolver runs when this returns.
  ~PageFaults();

  // Makes sure that the signal is ours if there is an object of this class. Cheap.
  static void TakeOverIfUsed();

  // In the child of a fork: the thread is the parent's.
  void AbandonAfterFork();

 private:
  static void TakeOver();
  void RunThread();

  const Resolver resolver_;
  std::atomic<bool> stopping_{false};
  std::unique_ptr<std::thread> thread_;
};

}  // namespace fargpu::client
