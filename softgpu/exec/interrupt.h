#pragma once

#include <pthread.h>

#include "softgpu/exec/launch.h"

namespace fargpu::softgpu {

// Lets InterruptLaunches reach the calling thread, whatever signals it was created with.
void UnblockInterrupts();

// The calling thread runs code of `launch`, as InterruptLaunches must know.
class InterruptibleScope {
 public:
  explicit InterruptibleScope(Launch* launch);
  ~InterruptibleScope();
  InterruptibleScope(const InterruptibleScope&) = delete;
  InterruptibleScope& operator=(const InterruptibleScope&) = delete;

 private:
  friend void InterruptLaunches(std::atomic<bool>* flag);

  Launch* const launch_;
  const pthread_t thread_;
};

}  // namespace fargpu::softgpu
