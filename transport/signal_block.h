#pragma once

#include <signal.h>

namespace fargpu::transport {

// Blocks all signals of the calling thread while it lives, so that threads started meanwhile never
// run the handlers of a program that does not know them.
class SignalBlock {
 public:
  SignalBlock() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalBlock() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalBlock(const SignalBlock&) = delete;
  SignalBlock& operator=(const SignalBlock&) = delete;

 private:
  sigset_t before_;
};

}  // namespace fargpu::transport
