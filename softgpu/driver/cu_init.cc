// Initialisation, versions, function and table lookup, error names, profiler control.

#include "protocol/driver_abi/export_tables.h"
#include "softgpu/driver/edge.h"
#include "softgpu/driver/entry_points.h"
#include "softgpu/driver/export_table_host.h"

using namespace fargpu;           // NOLINT: edge functions only
using namespace fargpu::softgpu;  // NOLINT: edge functions only

CU_API CUresult cuInit(unsigned int flags) {
  return AtEdge("cuInit", [&]() -> absl::Status {
    if (flags != 0) return InvalidValue(absl::StrCat("flags ", flags, ": must be 0"));
    return Driver::Init();
  });
}

CU_API CUresult cuDriverGetVersion(int* version) {
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = kDriverVersion;
  return CUDA_SUCCESS;
}

CU_API CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version,
                                    cuuint64_t flags, CUdriverProcAddressQueryResult* status) {
  return EntryPoints().Find(symbol, version, flags, function, status);
}

CU_API CUresult cuGetProcAddress(const char* symbol, void** function, int version,
                                 cuuint64_t flags) {
  return EntryPoints().Find(symbol, version, flags, function, nullptr);
}

CU_API CUresult cuGetExportTable(const void** table, const CUuuid* id) {
  InstallExportTables();
  return driver_abi::GetExportTable(table, id);
}

CU_API CUresult cuGetErrorName(CUresult error, const char** name) {
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *name = CuResultName(error);
  return *name == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CU_API CUresult cuGetErrorString(CUresult error, const char** text) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *text = CuResultDescription(error);
  return *text == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

// There is no profiler; programs that mark regions for one go on.
CU_API CUresult cuProfilerStart() {
  return WithContext("cuProfilerStart", [](Driver&, Context&) { return absl::OkStatus(); });
}

CU_API CUresult cuProfilerStop() {
  return WithContext("cuProfilerStop", [](Driver&, Context&) { return absl::OkStatus(); });
}
