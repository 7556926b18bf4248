#pragma once

#include <cuda.h>
#include <vector>

#include "protocol/driver_abi/proc_address.h"

// cuda.h has no prototypes of the per-thread twins.
extern "C" {
decltype(cuLaunchKernel) cuLaunchKernel_ptsz;
decltype(cuLaunchKernelEx) cuLaunchKernelEx_ptsz;
decltype(cuLaunchCooperativeKernel) cuLaunchCooperativeKernel_ptsz;
}

// Launches whose grid or block no card could run are CUDA_ERROR_INVALID_VALUE to users of the
// driver API, but "invalid configuration argument" (cudaErrorInvalidConfiguration) to users of the
// runtime, which passes on what the driver says. So the runtime is given launch functions of its
// own.
namespace fargpu::driver_abi {

// cudaErrorInvalidConfiguration, which CUresult has no name for.
inline constexpr CUresult kInvalidConfiguration = static_cast<CUresult>(9);

// The limits of every card of compute capability 3.0 and above.
inline bool IsLaunchable(unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                         unsigned block_y, unsigned block_z) {
  const auto in = [](unsigned value, unsigned most) { return value >= 1 && value <= most; };
  return in(grid_x, 0x7fffffff) && in(grid_y, 65535) && in(grid_z, 65535) && in(block_x, 1024) &&
         in(block_y, 1024) && in(block_z, 64) && block_x * block_y * block_z <= 1024;
}

inline CUresult ForRuntime(CUresult result, bool is_launchable) {
  return result == CUDA_ERROR_INVALID_VALUE && !is_launchable ? kInvalidConfiguration : result;
}

template <auto kLaunch>
struct RuntimeLaunch;

// cuLaunchKernel, cuLaunchCooperativeKernel.
template <typename... Rest, CUresult (*kLaunch)(CUfunction, unsigned, unsigned, unsigned, unsigned,
                                                unsigned, unsigned, Rest...)>
struct RuntimeLaunch<kLaunch> {
  static CUresult Call(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                       unsigned block_x, unsigned block_y, unsigned block_z, Rest... rest) {
    return ForRuntime(kLaunch(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, rest...),
                      IsLaunchable(grid_x, grid_y, grid_z, block_x, block_y, block_z));
  }
};

// cuLaunchKernelEx.
template <CUresult (*kLaunch)(const CUlaunchConfig*, CUfunction, void**, void**)>
struct RuntimeLaunch<kLaunch> {
  static CUresult Call(const CUlaunchConfig* config, CUfunction function, void** params,
                       void** extra) {
    const bool is_launchable =
        config == nullptr || IsLaunchable(config->gridDimX, config->gridDimY, config->gridDimZ,
                                          config->blockDimX, config->blockDimY, config->blockDimZ);
    return ForRuntime(kLaunch(config, function, params, extra), is_launchable);
  }
};

template <auto kLaunch>
ProcReplacement ReplaceLaunch() {
  return {reinterpret_cast<void*>(kLaunch), reinterpret_cast<void*>(&RuntimeLaunch<kLaunch>::Call)};
}

inline std::vector<ProcReplacement> LaunchesForRuntime() {
  return {ReplaceLaunch<&cuLaunchKernel>(),
          ReplaceLaunch<&cuLaunchKernel_ptsz>(),
          ReplaceLaunch<&cuLaunchKernelEx>(),
          ReplaceLaunch<&cuLaunchKernelEx_ptsz>(),
          ReplaceLaunch<&cuLaunchCooperativeKernel>(),
          ReplaceLaunch<&cuLaunchCooperativeKernel_ptsz>()};
}

}  // namespace fargpu::driver_abi
