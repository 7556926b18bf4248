#pragma once

#include <string>
#include <vector>

#include "common/mutex.h"
#include "softgpu/driver/module.h"

namespace fargpu::softgpu {

// A link in progress (CUlinkState).
struct LinkState {
  JitOptions options;  // of cuLinkCreate: they say where the logs go

  Mutex mutex;
  std::vector<std::string> texts ABSL_GUARDED_BY(mutex);
  // What cuLinkComplete gave; empty before, and after something was added.
  std::string image ABSL_GUARDED_BY(mutex);
};

}  // namespace fargpu::softgpu
