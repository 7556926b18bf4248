#include "protocol/driver_abi/local/edge.h"

namespace fargpu::driver_abi::local {

CUresult CheckInitialised() {
  int count = 0;
  return ::cuDeviceGetCount(&count);
}

CUresult CheckContext() { return ::cuCtxGetStreamPriorityRange(nullptr, nullptr); }

}  // namespace fargpu::driver_abi::local
