// Events under the names of older versions; all else is generated.
#include "client/cuda/edge.h"
#include "client_api.h"

namespace fargpu::client::api {

CUresult cuEventDestroy(CUevent hEvent) { return api::cuEventDestroy_v2(hEvent); }

CUresult cuEventElapsedTime(float* pMilliseconds, CUevent hStart, CUevent hEnd) {
  return api::cuEventElapsedTime_v2(pMilliseconds, hStart, hEnd);
}

}  // namespace fargpu::client::api
