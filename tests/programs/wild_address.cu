// A kernel writes where nothing is allocated. The error comes with the next synchronisation and
// stays: the context is lost, as on a real card, until the device is reset.
#include "check.h"

__global__ void Write(int* address) { *address = 1; }

int main() {
  int* memory = nullptr;
  CHECK_CUDA(cudaMalloc(&memory, sizeof(int)));
  Write<<<1, 1>>>(memory);
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaDeviceSynchronize());

  Write<<<1, 1>>>(reinterpret_cast<int*>(0xdead0000));
  const cudaError_t launch = cudaGetLastError();
  EXPECT(launch == cudaSuccess || launch == cudaErrorIllegalAddress);
  EXPECT_CUDA_ERROR(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
  std::printf("cudaDeviceSynchronize: cudaErrorIllegalAddress\n");
  int value = 0;
  EXPECT_CUDA_ERROR(cudaMemcpy(&value, memory, sizeof(value), cudaMemcpyDeviceToHost),
                    cudaErrorIllegalAddress);
  void* more = nullptr;
  EXPECT_CUDA_ERROR(cudaMalloc(&more, 16), cudaErrorIllegalAddress);
  std::printf("later calls: cudaErrorIllegalAddress\n");

  // Also among the addresses that allocations could have.
  for (const size_t offset : {size_t{64} << 20, size_t{1} << 30, size_t{64} << 30}) {
    CHECK_CUDA(cudaDeviceReset());
    CHECK_CUDA(cudaMalloc(&memory, sizeof(int)));
    Write<<<1, 1>>>(memory + offset / sizeof(int));
    EXPECT_CUDA_ERROR(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
    std::printf("%zu MiB beyond: cudaErrorIllegalAddress\n", offset >> 20);
  }
  CHECK_CUDA(cudaDeviceReset());
  CHECK_CUDA(cudaMalloc(&memory, sizeof(int)));
  Write<<<1, 1>>>(memory);
  CHECK_CUDA(cudaDeviceSynchronize());
  std::printf("after the reset: no error\n");
  return 0;
}
