// Counts bytes: each block counts in shared memory by atomics, then adds its counts to the whole.
#include <vector>

#include "check.h"

constexpr int kBins = 256;

__global__ void Histogram(const unsigned char* bytes, int count, unsigned int* bins) {
  __shared__ unsigned int block_bins[kBins];
  for (int bin = threadIdx.x; bin < kBins; bin += blockDim.x) block_bins[bin] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    atomicAdd(&block_bins[bytes[i]], 1u);
  }
  __syncthreads();
  for (int bin = threadIdx.x; bin < kBins; bin += blockDim.x) {
    if (block_bins[bin] != 0) atomicAdd(&bins[bin], block_bins[bin]);
  }
}

int main() {
  constexpr int kCount = 200000;
  std::vector<unsigned char> bytes(kCount);
  std::vector<unsigned int> bins(kBins), expected(kBins);
  unsigned int state = 1;
  for (int i = 0; i < kCount; ++i) {
    state = state * 1664525u + 1013904223u;
    // Half of all bytes are one value, so that many lanes of a warp meet in one bin.
    bytes[i] = (state >> 31) != 0 ? 'x' : static_cast<unsigned char>(state >> 20);
    ++expected[bytes[i]];
  }

  unsigned char* device_bytes = nullptr;
  unsigned int* device_bins = nullptr;
  CHECK_CUDA(cudaMalloc(&device_bytes, kCount));
  CHECK_CUDA(cudaMalloc(&device_bins, kBins * sizeof(unsigned int)));
  CHECK_CUDA(cudaMemcpy(device_bytes, bytes.data(), kCount, cudaMemcpyHostToDevice));
  CHECK_CUDA(cudaMemset(device_bins, 0, kBins * sizeof(unsigned int)));
  Histogram<<<12, 192>>>(device_bytes, kCount, device_bins);
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(
      cudaMemcpy(bins.data(), device_bins, kBins * sizeof(unsigned int), cudaMemcpyDeviceToHost));
  CHECK_CUDA(cudaFree(device_bytes));
  CHECK_CUDA(cudaFree(device_bins));

  ExpectEqual("histogram", bins.data(), expected.data(), kBins);
  return 0;
}
