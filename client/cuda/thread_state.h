#pragma once

#include <cstdint>
#include <cuda.h>

namespace fargpu::client {

// What CUDA keeps for each thread of the program. Plain data without a destructor: calls arrive
// while threads and the process end.
struct ThreadState {
  static constexpr int kMaxContexts = 64;

  uint32_t number = 0;  // names the thread on the wire; from 1 up
  int depth = 0;        // contexts on the stack; the last one is current
  CUcontext stack[kMaxContexts] = {};
  bool in_host_function = false;  // called by a stream; CUDA is off limits
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

  CUcontext current() const { return depth > 0 ? stack[depth - 1] : nullptr; }
};

// The calling thread's.
ThreadState& CurrentThread();

}  // namespace fargpu::client
