#pragma once

#include <cstdint>
#include <vector>

#include "common/mutex.h"
#include "softgpu/compiler.h"
#include "softgpu/llvm/warp_context.h"

namespace fargpu::softgpu {

// Parameter blocks in the device window, reused from launch to launch. Any thread.
class ParamBlocks {
 public:
  // Behind the parameters lies what the blocks of a cooperative grid synchronise on.
  static constexpr uint64_t kWorkspaceBytes = 64;
  static ParamBlocks& Get() {
    static ParamBlocks* const blocks = new ParamBlocks;
    return *blocks;
  }
  // Zero without room in the window.
  uint64_t Take() {
    {
      MutexLock lock(&mutex_);
      if (!free_.empty()) {
        const uint64_t address = free_.back();
        free_.pop_back();
        return address;
      }
    }
    return ReserveWindowRange(kParamBlockBytes + kWorkspaceBytes);
  }
  void Give(uint64_t address) {
    MutexLock lock(&mutex_);
    free_.push_back(address);
  }

 private:
  Mutex mutex_;
  std::vector<uint64_t> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fargpu::softgpu
