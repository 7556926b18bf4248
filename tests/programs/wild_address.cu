// A kernel writes where nothing is allocated. The error comes with the next synchronisation and
// stays: the context is lost, as on a real card.
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
  return 0;
}
