// Kernels that launch kernels: recursion, streams and events of the device, tail launches, copies
// and sets from the device, what the device runtime answers, errors.
#include <vector>

#include "check.h"

namespace {

constexpr int kValues = 1 << 12;

__device__ int g_last_error;
__device__ int g_numbers[8];

// Adds up values[begin, end) by halves, each a grid of its own, to *sum.
__global__ void SumByHalves(const int* values, int begin, int end, unsigned long long* sum) {
  if (end - begin <= 256) {
    unsigned long long part = 0;
    for (int i = begin + static_cast<int>(threadIdx.x); i < end;
         i += static_cast<int>(blockDim.x)) {
      part += static_cast<unsigned>(values[i]);
    }
    atomicAdd(sum, part);
    return;
  }
  if (threadIdx.x != 0) return;
  const int middle = begin + (end - begin) / 2;
  SumByHalves<<<1, 32, 0, cudaStreamFireAndForget>>>(values, begin, middle, sum);
  SumByHalves<<<1, 32, 0, cudaStreamFireAndForget>>>(values, middle, end, sum);
}

__global__ void Append(int* log, int value) {
  if (threadIdx.x == 0) log[1 + atomicAdd(log, 1)] = value;
}

__global__ void AppendInOrder(int* log) {
  Append<<<1, 1, 0, cudaStreamTailLaunch>>>(log, 5);
  Append<<<1, 1, 0, cudaStreamTailLaunch>>>(log, 6);
  cudaStream_t first, second;
  cudaEvent_t event;
  cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking);
  cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking);
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  Append<<<1, 64, 0, first>>>(log, 1);
  Append<<<1, 64, 0, first>>>(log, 2);
  cudaEventRecord(event, first);
  cudaStreamWaitEvent(second, event, 0);
  Append<<<1, 64, 0, second>>>(log, 3);
  Append<<<1, 64, 0, second>>>(log, 4);
  cudaEventDestroy(event);
  cudaStreamDestroy(first);
  cudaStreamDestroy(second);
}

// Every thread: clears its row if that is an even one, then copies it to the row of another array.
// (Sets of the device runtime of CUDA 13.0 write zero, whatever the value.)
__global__ void ClearAndCopy(char* from, char* to, int bytes) {
  const int row = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (row % 2 == 0) cudaMemsetAsync(from + row * bytes, 0, bytes);
  cudaMemcpyAsync(to + row * bytes, from + row * bytes, bytes, cudaMemcpyDeviceToDevice);
}

__global__ void Ask() {
  cudaGetDevice(&g_numbers[0]);
  cudaGetDeviceCount(&g_numbers[1]);
  cudaDeviceGetAttribute(&g_numbers[2], cudaDevAttrWarpSize, g_numbers[0]);
  cudaFuncAttributes attributes;
  cudaFuncGetAttributes(&attributes, Append);
  g_numbers[3] = attributes.maxThreadsPerBlock;
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&g_numbers[4], Append, 128, 0);
  size_t limit = 0;
  cudaDeviceGetLimit(&limit, cudaLimitMallocHeapSize);
  g_numbers[5] = limit > 0;
}

__global__ void LaunchTooManyThreads(int* log) {
  Append<<<1, 4096>>>(log, 1);
  g_last_error = cudaGetLastError();
}

}  // namespace

template <typename T>
T* ToDevice(const std::vector<T>& values) {
  T* memory;
  CHECK_CUDA(cudaMalloc(&memory, values.size() * sizeof(T)));
  CHECK_CUDA(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return memory;
}

template <typename T>
std::vector<T> ToHost(const T* memory, size_t count) {
  std::vector<T> values(count);
  CHECK_CUDA(cudaMemcpy(values.data(), memory, count * sizeof(T), cudaMemcpyDeviceToHost));
  return values;
}

int main() {
  std::vector<int> values(kValues);
  unsigned long long expected = 0;
  for (int i = 0; i < kValues; ++i) expected += static_cast<unsigned>(values[i] = i * 7 % 1000);
  auto* const sum = ToDevice(std::vector<unsigned long long>{0});
  SumByHalves<<<1, 32>>>(ToDevice(values), 0, kValues, sum);
  CHECK_CUDA(cudaDeviceSynchronize());
  const unsigned long long found = ToHost(sum, 1)[0];
  EXPECT(found == expected);
  std::printf("sum by halves: %llu\n", found);

  int* const device_log = ToDevice(std::vector<int>(16, 0));
  AppendInOrder<<<1, 1>>>(device_log);
  CHECK_CUDA(cudaDeviceSynchronize());
  const std::vector<int> log = ToHost(device_log, 16);
  EXPECT(log[0] == 6);
  for (int i = 1; i <= 6; ++i) EXPECT(log[i] == i);
  std::printf("streams, events and tail launches keep their order\n");

  constexpr int kRows = 48;
  constexpr int kBytes = 100;
  std::vector<char> from(kRows * kBytes);
  for (int i = 0; i < kRows * kBytes; ++i) from[i] = static_cast<char>(i / kBytes + i % 7);
  char* const to = ToDevice(std::vector<char>(kRows * kBytes, 0));
  ClearAndCopy<<<3, kRows / 3>>>(ToDevice(from), to, kBytes);
  CHECK_CUDA(cudaDeviceSynchronize());
  const std::vector<char> copied = ToHost(to, kRows * kBytes);
  for (int i = 0; i < kRows * kBytes; ++i) {
    EXPECT(copied[i] == (i / kBytes % 2 == 0 ? 0 : i / kBytes + i % 7));
  }
  std::printf("sets and copies: %d bytes\n", kRows * kBytes);

  Ask<<<1, 1>>>();
  int numbers[8] = {};
  CHECK_CUDA(cudaMemcpyFromSymbol(numbers, g_numbers, sizeof(numbers)));
  int devices = 0;
  CHECK_CUDA(cudaGetDeviceCount(&devices));
  EXPECT(numbers[0] == 0 && numbers[1] == devices && numbers[2] == 32);
  EXPECT(numbers[3] == 1024 && numbers[4] >= 1 && numbers[5] == 1);
  std::printf("the device answers\n");

  LaunchTooManyThreads<<<1, 1>>>(device_log);
  int error = 0;
  CHECK_CUDA(cudaMemcpyFromSymbol(&error, g_last_error, sizeof(error)));
  std::printf("4096 threads: %s\n", cudaGetErrorName(static_cast<cudaError_t>(error)));
  EXPECT(error == cudaErrorInvalidConfiguration);
  return 0;
}
