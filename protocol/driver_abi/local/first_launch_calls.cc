// Launches as CUDA 2 made them: block shape, shared memory and parameters are set one by one in the
// function and used by the next launch. And the launch on several devices of CUDA 9.

#include <cstring>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "common/mutex.h"
#include "local_calls.h"
#include "protocol/driver_abi/local/edge.h"
#include "protocol/driver_abi/local/texture_reference.h"

namespace fargpu::driver_abi::local {
namespace {

// Parameter space of a kernel has no more on any card.
constexpr unsigned kMostParameterBytes = 32764;

struct Launch {
  int x = 1, y = 1, z = 1;
  unsigned shared_bytes = 0;
  std::vector<char> parameters;  // as large as cuParamSetSize said, or as was set
};

struct Launches {
  Mutex mutex;
  absl::flat_hash_map<CUfunction, Launch> of ABSL_GUARDED_BY(mutex);
};

// Never destroyed: calls come in until the process has ended.
Launches& AllLaunches() {
  static auto* const launches = new Launches;
  return *launches;
}

CUresult CheckFunction(CUfunction function) {
  FARGPU_RETURN_IF_FAILED(CheckContext());
  int registers = 0;
  return ::cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function);
}

// Runs change(launch) on what is kept of `function`.
template <typename Change>
CUresult ChangeLaunch(CUfunction function, Change change) {
  return AtLocalEdge([&] {
    FARGPU_RETURN_IF_FAILED(CheckFunction(function));
    Launches& launches = AllLaunches();
    MutexLock lock(&launches.mutex);
    return change(launches.of[function]);
  });
}

CUresult SetParameter(CUfunction function, int offset, const void* bytes, unsigned count) {
  return ChangeLaunch(function, [&](Launch& launch) {
    if (offset < 0 || bytes == nullptr || static_cast<unsigned>(offset) > kMostParameterBytes ||
        count > kMostParameterBytes - static_cast<unsigned>(offset)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const size_t end = static_cast<unsigned>(offset) + size_t{count};
    if (launch.parameters.size() < end) launch.parameters.resize(end);
    if (count > 0) std::memcpy(launch.parameters.data() + offset, bytes, count);
    return CUDA_SUCCESS;
  });
}

CUresult Run(CUfunction function, int width, int height, CUstream stream) {
  return AtLocalEdge([&] {
    FARGPU_RETURN_IF_FAILED(CheckFunction(function));
    if (width <= 0 || height <= 0) return CUDA_ERROR_INVALID_VALUE;
    Launch launch;
    {
      Launches& launches = AllLaunches();
      MutexLock lock(&launches.mutex);
      launch = launches.of[function];
    }
    size_t bytes = launch.parameters.size();
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, launch.parameters.data(),
                     CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
    return ::cuLaunchKernel(function, static_cast<unsigned>(width), static_cast<unsigned>(height),
                            1, static_cast<unsigned>(launch.x), static_cast<unsigned>(launch.y),
                            static_cast<unsigned>(launch.z), launch.shared_bytes, stream, nullptr,
                            bytes == 0 ? nullptr : extra);
  });
}

}  // namespace

CUresult cuFuncSetBlockShape(CUfunction hfunc, int x, int y, int z) {
  return ChangeLaunch(hfunc, [&](Launch& launch) {
    if (x <= 0 || y <= 0 || z <= 0) return CUDA_ERROR_INVALID_VALUE;
    launch.x = x;
    launch.y = y;
    launch.z = z;
    return CUDA_SUCCESS;
  });
}

CUresult cuFuncSetSharedSize(CUfunction hfunc, unsigned bytes) {
  return ChangeLaunch(hfunc, [&](Launch& launch) {
    launch.shared_bytes = bytes;
    return CUDA_SUCCESS;
  });
}

CUresult cuParamSetSize(CUfunction hfunc, unsigned numbytes) {
  return ChangeLaunch(hfunc, [&](Launch& launch) {
    if (numbytes > kMostParameterBytes) return CUDA_ERROR_INVALID_VALUE;
    launch.parameters.resize(numbytes);
    return CUDA_SUCCESS;
  });
}

CUresult cuParamSeti(CUfunction hfunc, int offset, unsigned value) {
  return SetParameter(hfunc, offset, &value, sizeof value);
}

CUresult cuParamSetf(CUfunction hfunc, int offset, float value) {
  return SetParameter(hfunc, offset, &value, sizeof value);
}

CUresult cuParamSetv(CUfunction hfunc, int offset, void* ptr, unsigned numbytes) {
  return SetParameter(hfunc, offset, ptr, numbytes);
}

// What a reference is bound to is known to its module's kernels anyway.
CUresult cuParamSetTexRef(CUfunction hfunc, int texunit, CUtexref hTexRef) {
  return AtLocalEdge([&] {
    FARGPU_RETURN_IF_FAILED(CheckFunction(hfunc));
    if (texunit != CU_PARAM_TR_DEFAULT) return CUDA_ERROR_INVALID_VALUE;
    return CheckTextureReference(hTexRef);
  });
}

CUresult cuLaunch(CUfunction f) { return Run(f, 1, 1, nullptr); }

CUresult cuLaunchGrid(CUfunction f, int grid_width, int grid_height) {
  return Run(f, grid_width, grid_height, nullptr);
}

CUresult cuLaunchGridAsync(CUfunction f, int grid_width, int grid_height, CUstream hStream) {
  return Run(f, grid_width, grid_height, hStream);
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* launchParamsList,
                                              unsigned numDevices, unsigned flags) {
  return AtLocalEdge([&] {
    FARGPU_RETURN_IF_FAILED(CheckContext());
    int devices = 0;
    FARGPU_RETURN_IF_FAILED(::cuDeviceGetCount(&devices));
    constexpr unsigned kKnown = CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC |
                                CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC;
    if (launchParamsList == nullptr || numDevices == 0 ||
        numDevices > static_cast<unsigned>(devices) || (flags & ~kKnown) != 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    // One launch each, on different devices, on streams of their own.
    std::vector<CUcontext> contexts;
    std::vector<CUdevice> used;
    for (unsigned k = 0; k < numDevices; ++k) {
      const CUstream stream = launchParamsList[k].hStream;
      if (stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      CUcontext context = nullptr;
      FARGPU_RETURN_IF_FAILED(::cuStreamGetCtx(stream, &context));
      CUdevice device = 0;
      FARGPU_RETURN_IF_FAILED(::cuCtxGetDevice_v2(&device, context));
      for (const CUdevice other : used) {
        if (other == device) return CUDA_ERROR_INVALID_VALUE;
      }
      contexts.push_back(context);
      used.push_back(device);
    }
    for (unsigned k = 0; k < numDevices; ++k) {
      const CUDA_LAUNCH_PARAMS& launch = launchParamsList[k];
      FARGPU_RETURN_IF_FAILED(::cuCtxPushCurrent_v2(contexts[k]));
      const CUresult launched = ::cuLaunchCooperativeKernel(
          launch.function, launch.gridDimX, launch.gridDimY, launch.gridDimZ, launch.blockDimX,
          launch.blockDimY, launch.blockDimZ, launch.sharedMemBytes, launch.hStream,
          launch.kernelParams);
      CUcontext popped = nullptr;
      FARGPU_RETURN_IF_FAILED(::cuCtxPopCurrent_v2(&popped));
      FARGPU_RETURN_IF_FAILED(launched);
    }
    return CUDA_SUCCESS;
  });
}

}  // namespace fargpu::driver_abi::local
