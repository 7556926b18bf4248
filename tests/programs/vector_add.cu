// The smallest whole program: three allocations, two copies in, one launch, one copy out. Its CUDA
// calls are exactly these, because a test counts how many of them wait for the server.
#include <vector>

#include "check.h"

__global__ void Add(const float* a, const float* b, float* sum, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) sum[i] = a[i] + b[i];
}

int main() {
  constexpr int kCount = 100003;  // not a multiple of the block size
  constexpr size_t kBytes = kCount * sizeof(float);
  std::vector<float> a(kCount), b(kCount), sum(kCount), expected(kCount);
  for (int i = 0; i < kCount; ++i) {
    a[i] = 0.5f * static_cast<float>(i);
    b[i] = 1.0f / static_cast<float>(i + 1);
    expected[i] = a[i] + b[i];
  }

  float *device_a = nullptr, *device_b = nullptr, *device_sum = nullptr;
  CHECK_CUDA(cudaMalloc(&device_a, kBytes));
  CHECK_CUDA(cudaMalloc(&device_b, kBytes));
  CHECK_CUDA(cudaMalloc(&device_sum, kBytes));
  CHECK_CUDA(cudaMemcpy(device_a, a.data(), kBytes, cudaMemcpyHostToDevice));
  CHECK_CUDA(cudaMemcpy(device_b, b.data(), kBytes, cudaMemcpyHostToDevice));
  Add<<<(kCount + 255) / 256, 256>>>(device_a, device_b, device_sum, kCount);
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaMemcpy(sum.data(), device_sum, kBytes, cudaMemcpyDeviceToHost));
  CHECK_CUDA(cudaFree(device_a));
  CHECK_CUDA(cudaFree(device_b));
  CHECK_CUDA(cudaFree(device_sum));

  ExpectEqual("vector_add", sum.data(), expected.data(), kCount);
  return 0;
}
