#include "softgpu/driver/entry_points.h"

#include <cudaProfiler.h>

#include "protocol/driver_abi/runtime_launch.h"
#include "softgpu/driver/edge.h"

namespace fargpu::softgpu {
namespace {

void* Pointer(auto* function) { return reinterpret_cast<void*>(function); }

// clang-format off
const driver_abi::ProcRow kRows[] = {
#define X(name, symbol, since) {name, #symbol, since, Pointer(&symbol), 0, nullptr},
#define X_TWIN(name, symbol, since, twin, twin_since) \
  {name, #symbol, since, Pointer(&symbol), twin_since, Pointer(&twin)},
#include "proc_address_rows.inc"
#undef X
#undef X_TWIN
};
// clang-format on

}  // namespace

const driver_abi::ProcAddressTable& EntryPoints() {
  // Never destroyed: libraries look functions up until the process has ended.
  static const auto* const table =
      new driver_abi::ProcAddressTable(kRows, driver_abi::LaunchesForRuntime());
  return *table;
}

}  // namespace fargpu::softgpu

// What a weak stub of a function that is not implemented returns. A caller that ignores the error
// at least leaves a line in the log.
CUresult RefuseDriverCall(const char* name, CUresult result) {
  if (fargpu::softgpu::Driver::Get() == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  FARGPU_LOG(kWarning, "softgpu: ", name, " is not supported");
  return result;
}
