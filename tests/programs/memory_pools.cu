// Stream-ordered allocation: memory is allocated, used and freed in the order of streams, from the
// default pool and from one of the program's own.
#include <vector>

#include "check.h"

namespace {

constexpr int kCount = 10000;
constexpr size_t kBytes = kCount * sizeof(int);

__global__ void Fill(int* values, int count, int first) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] = first + i;
}

__global__ void AddTo(int* sums, const int* values, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) sums[i] += values[i];
}

uint64_t Used(cudaMemPool_t pool) {
  uint64_t bytes = 0;
  CHECK_CUDA(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &bytes));
  return bytes;
}

}  // namespace

int main() {
  int supported = 0;
  CHECK_CUDA(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, 0));
  EXPECT(supported == 1);
  cudaMemPool_t pool = nullptr, current = nullptr;
  CHECK_CUDA(cudaDeviceGetDefaultMemPool(&pool, 0));
  CHECK_CUDA(cudaDeviceGetMemPool(&current, 0));
  EXPECT(pool == current);

  cudaStream_t streams[2];
  for (cudaStream_t& stream : streams) CHECK_CUDA(cudaStreamCreate(&stream));
  const dim3 block(128), grid((kCount + 127) / 128);
  std::vector<int> expected(kCount);
  int* sums[2] = {};
  for (int s = 0; s < 2; ++s) {
    CHECK_CUDA(cudaMallocAsync(&sums[s], kBytes, streams[s]));
    CHECK_CUDA(cudaMemsetAsync(sums[s], 0, kBytes, streams[s]));
  }
  EXPECT(Used(pool) == 2 * kBytes);
  for (int round = 0; round < 50; ++round) {
    for (int s = 0; s < 2; ++s) {
      int* values = nullptr;
      CHECK_CUDA(cudaMallocAsync(&values, kBytes, streams[s]));
      Fill<<<grid, block, 0, streams[s]>>>(values, kCount, round * 10);
      AddTo<<<grid, block, 0, streams[s]>>>(sums[s], values, kCount);
      CHECK_CUDA(cudaFreeAsync(values, streams[s]));
    }
    for (int i = 0; i < kCount; ++i) expected[i] += round * 10 + i;
  }
  for (int s = 0; s < 2; ++s) {
    std::vector<int> result(kCount);
    CHECK_CUDA(cudaMemcpyAsync(result.data(), sums[s], kBytes, cudaMemcpyDeviceToHost, streams[s]));
    CHECK_CUDA(cudaStreamSynchronize(streams[s]));
    ExpectEqual("sums", result.data(), expected.data(), kCount);
    CHECK_CUDA(cudaFreeAsync(sums[s], streams[s]));
  }
  CHECK_CUDA(cudaDeviceSynchronize());
  EXPECT(Used(pool) == 0);

  // One of our own, which becomes the device's.
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, 0};
  cudaMemPool_t own = nullptr;
  CHECK_CUDA(cudaMemPoolCreate(&own, &properties));
  uint64_t threshold = 1 << 20;
  CHECK_CUDA(cudaMemPoolSetAttribute(own, cudaMemPoolAttrReleaseThreshold, &threshold));
  threshold = 0;
  CHECK_CUDA(cudaMemPoolGetAttribute(own, cudaMemPoolAttrReleaseThreshold, &threshold));
  EXPECT(threshold == 1 << 20);
  int* values = nullptr;
  CHECK_CUDA(cudaMallocFromPoolAsync(&values, kBytes, own, streams[0]));
  EXPECT(Used(own) == kBytes && Used(pool) == 0);
  CHECK_CUDA(cudaDeviceSetMemPool(0, own));
  int* more = nullptr;
  CHECK_CUDA(cudaMallocAsync(&more, kBytes, streams[0]));
  EXPECT(Used(own) == 2 * kBytes);
  CHECK_CUDA(cudaFreeAsync(more, streams[0]));
  CHECK_CUDA(cudaStreamSynchronize(streams[0]));
  CHECK_CUDA(cudaFree(values));  // a plain free will do as well
  CHECK_CUDA(cudaMemPoolTrimTo(own, 0));
  CHECK_CUDA(cudaMemPoolDestroy(own));
  CHECK_CUDA(cudaDeviceGetMemPool(&current, 0));
  EXPECT(current == pool);
  std::printf("pools count what is used\n");

  EXPECT_CUDA_ERROR(cudaFreeAsync(values, streams[0]), cudaErrorInvalidValue);
  void* too_much = nullptr;
  EXPECT_CUDA_ERROR(cudaMallocAsync(&too_much, size_t{1} << 40, streams[0]),
                    cudaErrorMemoryAllocation);
  std::printf("errors are right\n");
  return 0;
}
