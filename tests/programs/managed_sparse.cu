// 4 GiB of managed memory of which host and kernel touch 100 pages: what travels is the pages.
#include "check.h"

constexpr size_t kBytes = size_t{4} << 30;
constexpr int kPages = 100;
constexpr size_t kStride = kBytes / kPages / 4096 * 4096;

__global__ void AddToEach(char* memory, int by) {
  auto* value = reinterpret_cast<int*>(memory + blockIdx.x * kStride);
  value[0] += by;
  value[1] = static_cast<int>(blockIdx.x);
}

int main() {
  char* memory = nullptr;
  CHECK_CUDA(cudaMallocManaged(&memory, kBytes));
  const auto at = [&](int page) { return reinterpret_cast<int*>(memory + page * kStride); };
  for (int i = 0; i < kPages; ++i) at(i)[0] = i;
  AddToEach<<<kPages, 1>>>(memory, 1000);
  CHECK_CUDA(cudaDeviceSynchronize());
  for (int i = 0; i < kPages; ++i) {
    EXPECT(at(i)[0] == 1000 + i && at(i)[1] == i);
    at(i)[0] = -i;
  }
  AddToEach<<<kPages, 1>>>(memory, 7);
  CHECK_CUDA(cudaDeviceSynchronize());
  for (int i = 0; i < kPages; ++i) EXPECT(at(i)[0] == 7 - i);
  CHECK_CUDA(cudaFree(memory));
  std::printf("%d pages of 4 GiB\n", kPages);
  return 0;
}
