// Host memory that kernels read and write: pinned memory under its own address, registered memory
// under the one that cudaHostGetDevicePointer gives.
#include <vector>

#include "check.h"

__global__ void Add(int* values, int count, int by) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) values[i] += by;
}

__global__ void Chase(int** pointers, int count) {
  for (int i = 0; i < count; ++i) *pointers[i] += i + 1;
}

void Check(const char* what, int* host, int* device, int count) {
  for (int i = 0; i < count; ++i) host[i] = i;
  Add<<<(count + 255) / 256, 256>>>(device, count, 10);
  CHECK_CUDA(cudaDeviceSynchronize());
  for (int i = 0; i < count; ++i) EXPECT(host[i] == i + 10);
  cudaStream_t stream;
  CHECK_CUDA(cudaStreamCreate(&stream));
  host[count - 1] = -10;
  Add<<<(count + 255) / 256, 256, 0, stream>>>(device, count, 10);
  CHECK_CUDA(cudaStreamSynchronize(stream));
  EXPECT(host[count - 1] == 0 && host[0] == 20);
  cudaEvent_t event;
  CHECK_CUDA(cudaEventCreate(&event));
  host[0] = 5;
  Add<<<(count + 255) / 256, 256, 0, stream>>>(device, count, 1);
  CHECK_CUDA(cudaEventRecord(event, stream));
  CHECK_CUDA(cudaEventSynchronize(event));
  EXPECT(host[0] == 6 && host[count - 1] == 1);
  // A copy into the memory, then a kernel on it.
  std::vector<int> values(static_cast<size_t>(count), 7);
  int* copy = nullptr;
  CHECK_CUDA(cudaMalloc(&copy, sizeof(int) * values.size()));
  CHECK_CUDA(cudaMemcpy(copy, values.data(), sizeof(int) * values.size(), cudaMemcpyHostToDevice));
  CHECK_CUDA(
      cudaMemcpyAsync(host, copy, sizeof(int) * values.size(), cudaMemcpyDeviceToHost, stream));
  CHECK_CUDA(cudaStreamSynchronize(stream));
  Add<<<(count + 255) / 256, 256, 0, stream>>>(device, count, 1);
  CHECK_CUDA(cudaStreamSynchronize(stream));
  for (int i = 0; i < count; ++i) EXPECT(host[i] == 8);
  // In the order of the stream, without waiting: kernel, copy out of the memory, copy into it,
  // kernel.
  Add<<<(count + 255) / 256, 256, 0, stream>>>(device, count, 4);
  CHECK_CUDA(
      cudaMemcpyAsync(copy, host, sizeof(int) * values.size(), cudaMemcpyHostToDevice, stream));
  Add<<<(count + 255) / 256, 256, 0, stream>>>(copy, count, 20);
  CHECK_CUDA(
      cudaMemcpyAsync(host, copy, sizeof(int) * values.size(), cudaMemcpyDeviceToHost, stream));
  Add<<<(count + 255) / 256, 256, 0, stream>>>(device, count, 100);
  CHECK_CUDA(cudaStreamSynchronize(stream));
  for (int i = 0; i < count; ++i) EXPECT(host[i] == 132);
  CHECK_CUDA(cudaFree(copy));
  CHECK_CUDA(cudaEventDestroy(event));
  CHECK_CUDA(cudaStreamDestroy(stream));
  std::printf("%s: %d values\n", what, count);
}

int main() {
  for (const int count : {3, 100000, 1 << 20}) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(int);
    int* host = nullptr;
    int* device = nullptr;
    CHECK_CUDA(cudaHostAlloc(&host, bytes, cudaHostAllocMapped));
    CHECK_CUDA(cudaHostGetDevicePointer(&device, host, 0));
    Check("mapped", host, device, count);
    CHECK_CUDA(cudaFreeHost(host));

    // Unified addressing: no other address is needed.
    CHECK_CUDA(cudaMallocHost(&host, bytes));
    Check("pinned", host, host, count);
    CHECK_CUDA(cudaMemset(host, 0, sizeof(int)));
    EXPECT(host[0] == 0);
    CHECK_CUDA(cudaFreeHost(host));

    std::vector<int> memory(static_cast<size_t>(count) + 5);
    memory.back() = 1234;
    CHECK_CUDA(cudaHostRegister(memory.data() + 1, bytes, cudaHostRegisterMapped));
    CHECK_CUDA(cudaHostGetDevicePointer(&device, memory.data() + 1, 0));
    Check("registered", memory.data() + 1, device, count);
    EXPECT(memory.back() == 1234 && memory[0] == 0);
    CHECK_CUDA(cudaHostUnregister(memory.data() + 1));
  }

  // Pointers to mapped memory that a kernel finds in mapped memory.
  int** pointers = nullptr;
  int* numbers = nullptr;
  CHECK_CUDA(cudaHostAlloc(&pointers, 4 * sizeof(int*), cudaHostAllocMapped));
  CHECK_CUDA(cudaHostAlloc(&numbers, 4 * sizeof(int), cudaHostAllocMapped));
  for (int i = 0; i < 4; ++i) {
    numbers[i] = 100 * i;
    pointers[i] = numbers + 3 - i;
  }
  Chase<<<1, 1>>>(pointers, 4);
  CHECK_CUDA(cudaDeviceSynchronize());
  EXPECT(numbers[3] == 301 && numbers[0] == 4);
  unsigned flags = 0;
  CHECK_CUDA(cudaHostGetFlags(&flags, numbers));
  EXPECT((flags & cudaHostAllocMapped) != 0);
  cudaPointerAttributes attributes;
  CHECK_CUDA(cudaPointerGetAttributes(&attributes, numbers + 1));
  EXPECT(attributes.type == cudaMemoryTypeHost && attributes.hostPointer == numbers + 1);
  EXPECT(attributes.devicePointer == numbers + 1);
  int local = 0;
  int* none = nullptr;
  EXPECT_CUDA_ERROR(cudaHostGetDevicePointer(&none, &local, 0), cudaErrorInvalidValue);
  EXPECT_CUDA_ERROR(cudaHostUnregister(&local), cudaErrorHostMemoryNotRegistered);
  CHECK_CUDA(cudaFreeHost(pointers));
  CHECK_CUDA(cudaFreeHost(numbers));
  std::printf("pointers and flags\n");
  return 0;
}
