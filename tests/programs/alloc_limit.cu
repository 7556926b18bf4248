// Allocates until the memory that cudaMemGetInfo promises is gone, expects the refusal, gives all
// back and goes on.
#include <vector>

#include "check.h"

__global__ void Mark(int* values, int count, int value) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] = value + i;
}

void Use(int* memory) {
  constexpr int kCount = 1000;
  Mark<<<(kCount + 127) / 128, 128>>>(memory, kCount, 7);
  CHECK_CUDA(cudaGetLastError());
  std::vector<int> values(kCount), expected(kCount);
  for (int i = 0; i < kCount; ++i) expected[i] = 7 + i;
  CHECK_CUDA(cudaMemcpy(values.data(), memory, kCount * sizeof(int), cudaMemcpyDeviceToHost));
  ExpectEqual("memory", values.data(), expected.data(), kCount);
}

int main() {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  CHECK_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
  EXPECT(free_bytes <= total_bytes);
  void* memory = nullptr;
  EXPECT_CUDA_ERROR(cudaMalloc(&memory, total_bytes + (1 << 20)), cudaErrorMemoryAllocation);
  EXPECT_CUDA_ERROR(cudaGetLastError(), cudaErrorMemoryAllocation);
  CHECK_CUDA(cudaGetLastError());
  std::printf("one allocation beyond the limit: refused\n");

  // In pieces: the refusal comes at the limit, not later, and costs nothing that is there already.
  const size_t piece_bytes = total_bytes / 8;
  std::vector<void*> pieces;
  cudaError_t error = cudaSuccess;
  while (pieces.size() < 9 && (error = cudaMalloc(&memory, piece_bytes)) == cudaSuccess) {
    pieces.push_back(memory);
  }
  EXPECT(error == cudaErrorMemoryAllocation);
  EXPECT(pieces.size() >= 2);
  EXPECT_CUDA_ERROR(cudaGetLastError(), cudaErrorMemoryAllocation);
  std::printf("pieces beyond the limit: refused\n");
  Use(static_cast<int*>(pieces.back()));

  for (void* piece : pieces) CHECK_CUDA(cudaFree(piece));
  size_t free_again = 0;
  CHECK_CUDA(cudaMemGetInfo(&free_again, &total_bytes));
  EXPECT(free_again + piece_bytes > free_bytes);
  CHECK_CUDA(cudaMalloc(&memory, total_bytes / 2));
  Use(static_cast<int*>(memory));
  CHECK_CUDA(cudaFree(memory));
  std::printf("after freeing: goes on\n");
  return 0;
}
