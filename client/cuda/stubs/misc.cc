// Answered here: errors' names, addresses of entry points, private tables.
#include <cstring>

#include "client/cuda/edge.h"
#include "client/cuda/proc_table.h"
#include "client/cuda/session.h"
#include "client_api.h"
#include "common/cuda_error.h"
#include "protocol/driver_abi/export_tables.h"

namespace fargpu::client::api {

CUresult cuGetErrorString(CUresult error, const char** pStr) {
  if (pStr == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *pStr = CuResultDescription(error);
  return *pStr != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorName(CUresult error, const char** pStr) {
  if (pStr == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *pStr = CuResultName(error);
  return *pStr != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetProcAddress_v2(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* symbolStatus) {
  return ProcTable().Find(symbol, cudaVersion, flags, pfn, symbolStatus);
}

CUresult cuGetProcAddress(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags) {
  return ProcTable().Find(symbol, cudaVersion, flags, pfn, nullptr);
}

CUresult cuGetExportTable(const void** ppExportTable, const CUuuid* pExportTableId) {
  return driver_abi::GetExportTable(ppExportTable, pExportTableId);
}

// A profiler would have to run beside the card.
CUresult cuProfilerStart() {
  return AtCudaEdge("cuProfilerStart",
                    [](Session& session) { return session.CurrentActive().status(); });
}

CUresult cuProfilerStop() {
  return AtCudaEdge("cuProfilerStop",
                    [](Session& session) { return session.CurrentActive().status(); });
}

}  // namespace fargpu::client::api
