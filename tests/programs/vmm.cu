// The driver's virtual memory calls, used from a runtime program that is not linked with libcuda:
// reserve an address range, create physical memory, map it, let the device use it, undo it all.
#include <cuda.h>
#include <vector>

#include "check.h"

// A driver function by its name, in the ABI of this CUDA version. decltype needs no libcuda.
#define DRIVER_FUNCTION(name, since) reinterpret_cast<decltype(&name)>(DriverFunction(#name, since))

void* DriverFunction(const char* name, unsigned int version) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  CHECK_CUDA(cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found));
  EXPECT(found == cudaDriverEntryPointSuccess);
  return function;
}

#define CHECK_DRIVER(call)                                                                       \
  do {                                                                                           \
    const CUresult result_ = (call);                                                             \
    if (result_ != CUDA_SUCCESS) {                                                               \
      std::fprintf(stderr, "%s:%d: %s: CUresult %d\n", __FILE__, __LINE__, #call, (int)result_); \
      std::exit(1);                                                                              \
    }                                                                                            \
  } while (false)

__global__ void Fill(unsigned int* values, size_t count) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    values[i] = static_cast<unsigned int>(i * 2654435761u);
  }
}

int main() {
  CHECK_CUDA(cudaFree(nullptr));  // makes the primary context current
  const auto get_granularity = DRIVER_FUNCTION(cuMemGetAllocationGranularity, 10020);
  const auto reserve = DRIVER_FUNCTION(cuMemAddressReserve, 10020);
  const auto create = DRIVER_FUNCTION(cuMemCreate, 10020);
  const auto map = DRIVER_FUNCTION(cuMemMap, 10020);
  const auto set_access = DRIVER_FUNCTION(cuMemSetAccess, 10020);
  const auto unmap = DRIVER_FUNCTION(cuMemUnmap, 10020);
  const auto release = DRIVER_FUNCTION(cuMemRelease, 10020);
  const auto free_address = DRIVER_FUNCTION(cuMemAddressFree, 10020);

  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = 0;
  size_t granularity = 0;
  CHECK_DRIVER(get_granularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  EXPECT(granularity > 0 && (granularity & (granularity - 1)) == 0);

  // Two pieces of physical memory side by side in one range.
  CUdeviceptr address = 0;
  CHECK_DRIVER(reserve(&address, 2 * granularity, 0, 0, 0));
  CUmemGenericAllocationHandle pieces[2];
  for (int i = 0; i < 2; ++i) {
    CHECK_DRIVER(create(&pieces[i], granularity, &properties, 0));
    CHECK_DRIVER(map(address + i * granularity, granularity, 0, pieces[i], 0));
  }
  CUmemAccessDesc access{};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CHECK_DRIVER(set_access(address, 2 * granularity, &access, 1));

  const size_t count = 2 * granularity / sizeof(unsigned int);
  unsigned int* values = reinterpret_cast<unsigned int*>(address);
  Fill<<<32, 256>>>(values, count);
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaDeviceSynchronize());
  std::vector<unsigned int> result(count);
  CHECK_CUDA(cudaMemcpy(result.data(), values, 2 * granularity, cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < count; ++i) {
    EXPECT(result[i] == static_cast<unsigned int>(i * 2654435761u));
  }
  std::printf("a kernel wrote over two mapped pieces\n");

  // The second piece, mapped in the place of the first, keeps its contents.
  CHECK_DRIVER(unmap(address, 2 * granularity));
  CHECK_DRIVER(map(address, granularity, 0, pieces[1], 0));
  CHECK_DRIVER(set_access(address, granularity, &access, 1));
  unsigned int first = 0;
  CHECK_CUDA(cudaMemcpy(&first, values, sizeof(first), cudaMemcpyDeviceToHost));
  EXPECT(first == result[count / 2]);
  std::printf("a piece mapped elsewhere keeps its contents\n");

  CHECK_DRIVER(unmap(address, granularity));
  for (const CUmemGenericAllocationHandle piece : pieces) CHECK_DRIVER(release(piece));
  CHECK_DRIVER(free_address(address, 2 * granularity));
  return 0;
}
