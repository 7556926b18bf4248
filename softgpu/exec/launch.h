#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

#include "common/mutex.h"
#include "softgpu/compiler.h"
#include "softgpu/exec/device_launch.h"
#include "softgpu/llvm/jit.h"

namespace fargpu::softgpu {

// One grid on its way: what all blocks share. Lives on the stack of the thread that launches.
struct Launch {
  const LaunchConfig* config = nullptr;
  std::string kernel_name;
  WarpFunction function = nullptr;
  Extent extent = Extent::kWarp;  // of a call of it
  uint32_t blocks_at_once = 1;    // taken together by a thread
  const uint64_t* variables = nullptr;
  uint64_t params = 0;              // address in the device window
  uint64_t local_bytes = 0;         // per thread
  size_t stack_bytes = 0;           // of the stack on which a warp runs
  uint64_t shared_bytes = 0;        // all that the kernel may touch
  uint32_t total_shared_bytes = 0;  // without what is reserved for cooperative groups
  uint32_t reserved_shared_offset = 0;
  uint64_t grid_number = 0;
  uint64_t grid_workspace = 0;  // address in the device window
  uint64_t blocks = 0;
  Dim3 cluster;                 // in blocks
  uint32_t cluster_blocks = 1;  // that run together, on one thread
  bool explicit_cluster = false;

  // What its kernels may launch. Of a grid that a kernel launched, both are given.
  GridRunner* runner = nullptr;
  DeviceGrid* grid = nullptr;
  std::atomic<DeviceRuntime*> device_runtime{nullptr};
  // Makes it when the first kernel asks for it.
  DeviceRuntime& Device();
  DeviceGrid* DeviceGridOf() { return grid != nullptr ? grid : Device().root(); }

  std::atomic<uint64_t> next_block{0};
  std::atomic<bool> failed{false};

  // Keeps the first error and makes the other blocks stop.
  void Fail(absl::Status status);
  void Print(absl::string_view text);
  void PrintError(absl::string_view text);

  Mutex mutex;
  absl::Status status ABSL_GUARDED_BY(mutex);
  std::unique_ptr<DeviceRuntime> own_runtime ABSL_GUARDED_BY(mutex);
  Mutex print_mutex;
  // Managed by the pool.
  int helpers = 0;
};

// Runs all blocks of `launch` on the calling thread and the process-wide pool; returns when the
// last block has ended. Blocks start in the order of their index.
absl::Status RunGrid(Launch* launch);

}  // namespace fargpu::softgpu
