// Two kernels on two streams run at the same time: the first waits for a flag that the second sets.
// It gives up after a while, so a device that runs one after the other fails and does not hang.
#include "check.h"

__global__ void WaitForFlag(volatile int* flag, int* seen, long long patience_clocks) {
  const long long start = clock64();
  while (*flag == 0 && clock64() - start < patience_clocks) {
  }
  *seen = *flag;
}

__global__ void SetFlag(volatile int* flag) { *flag = 1; }

int main() {
  int *flag = nullptr, *seen = nullptr;
  cudaStream_t first, second;
  CHECK_CUDA(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
  CHECK_CUDA(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  CHECK_CUDA(cudaMalloc(&flag, sizeof(int)));
  CHECK_CUDA(cudaMalloc(&seen, sizeof(int)));
  CHECK_CUDA(cudaMemset(flag, 0, sizeof(int)));
  CHECK_CUDA(cudaMemset(seen, 0, sizeof(int)));
  // Loads both kernels now: loading while another kernel runs may wait for it.
  cudaFuncAttributes attributes;
  CHECK_CUDA(cudaFuncGetAttributes(&attributes, WaitForFlag));
  CHECK_CUDA(cudaFuncGetAttributes(&attributes, SetFlag));
  CHECK_CUDA(cudaDeviceSynchronize());

  WaitForFlag<<<1, 1, 0, first>>>(flag, seen, 10'000'000'000);
  CHECK_CUDA(cudaGetLastError());
  SetFlag<<<1, 1, 0, second>>>(flag);
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaStreamSynchronize(second));
  CHECK_CUDA(cudaStreamSynchronize(first));
  int flag_seen = 0;
  CHECK_CUDA(cudaMemcpy(&flag_seen, seen, sizeof(int), cudaMemcpyDeviceToHost));
  EXPECT(flag_seen == 1);
  CHECK_CUDA(cudaFree(flag));
  CHECK_CUDA(cudaFree(seen));
  CHECK_CUDA(cudaStreamDestroy(first));
  CHECK_CUDA(cudaStreamDestroy(second));
  std::printf("two kernels ran at the same time\n");
  return 0;
}
