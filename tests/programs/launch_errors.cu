// Launches that no card could run, and what the runtime says of them.
#include "check.h"

namespace {

__global__ void Write(int* value) { *value = 7; }

void Try(const char* what, dim3 grid, dim3 block, size_t shared_bytes, int* value) {
  Write<<<grid, block, shared_bytes>>>(value);
  const cudaError_t error = cudaGetLastError();
  std::printf("%s: %s\n", what, cudaGetErrorName(error));
}

}  // namespace

int main() {
  int* value = nullptr;
  CHECK_CUDA(cudaMalloc(&value, sizeof(int)));
  CHECK_CUDA(cudaMemset(value, 0, sizeof(int)));
  Try("2048 threads", 1, 2048, 0, value);
  Try("32 x 33 threads", 1, dim3(32, 33), 0, value);
  Try("65 threads deep", 1, dim3(1, 1, 65), 0, value);
  Try("no blocks", 0, 1, 0, value);
  Try("no threads", 1, 0, 0, value);
  Try("65536 rows of blocks", dim3(1, 65536), 1, 0, value);
  Try("too much shared memory", 1, 1, size_t{1} << 30, value);
  int result = 0;
  CHECK_CUDA(cudaMemcpy(&result, value, sizeof(int), cudaMemcpyDeviceToHost));
  EXPECT(result == 0);
  Try("one thread", 1, 1, 0, value);
  CHECK_CUDA(cudaMemcpy(&result, value, sizeof(int), cudaMemcpyDeviceToHost));
  EXPECT(result == 7);
  CHECK_CUDA(cudaFree(value));
  return 0;
}
