#pragma once

#include <pthread.h>

namespace fargpu {

// While it lives the calling thread cannot be cancelled. Entry points that the program calls hold
// one: a cancelled thread unwinds by an exception that nobody may stop, and would leave locks
// behind.
class NoCancellation {
 public:
  NoCancellation() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~NoCancellation() { pthread_setcancelstate(before_, nullptr); }
  NoCancellation(const NoCancellation&) = delete;
  NoCancellation& operator=(const NoCancellation&) = delete;

 private:
  int before_ = 0;
};

}  // namespace fargpu
