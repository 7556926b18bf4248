// Managed memory: one pointer for host and device, whose bytes each sees as the other left them
// when work starts and when it has been waited for.
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "check.h"

__managed__ int counter = 5;
__managed__ double table[3000] = {0.5, 1.5};

struct Node {
  int value;
  Node* next;
};

__global__ void SumList(const Node* node, int* sum) {
  *sum = 0;
  for (; node != nullptr; node = node->next) *sum += node->value;
}

__global__ void DoubleList(Node* node) {
  for (; node != nullptr; node = node->next) node->value *= 2;
}

__global__ void Increment(int* values, size_t count, int by) {
  const size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
  if (i < count) values[i] += by;
}

__global__ void Count(int by) {
  counter += by;
  table[2999] = table[0] + table[1];
}

void WalkLists() {
  int* sum = nullptr;
  CHECK_CUDA(cudaMallocManaged(&sum, sizeof(int)));
  Node* first = nullptr;
  int expected = 0;
  for (int i = 0; i < 1000; ++i) {
    Node* node = nullptr;
    CHECK_CUDA(cudaMallocManaged(&node, sizeof(Node)));
    node->value = i;
    node->next = first;
    first = node;
    expected += i;
  }
  SumList<<<1, 1>>>(first, sum);
  CHECK_CUDA(cudaDeviceSynchronize());
  EXPECT(*sum == expected);
  DoubleList<<<1, 1>>>(first);
  CHECK_CUDA(cudaDeviceSynchronize());
  int doubled = 0;
  for (const Node* node = first; node != nullptr; node = node->next) doubled += node->value;
  EXPECT(doubled == 2 * expected);
  while (first != nullptr) {
    Node* const next = first->next;
    CHECK_CUDA(cudaFree(first));
    first = next;
  }
  CHECK_CUDA(cudaFree(sum));
  std::printf("list of 1000 nodes: sum %d, doubled %d\n", expected, doubled);
}

void Alternate(size_t bytes, int rounds) {
  int* page = nullptr;
  CHECK_CUDA(cudaMallocManaged(&page, bytes));
  page[0] = 0;
  page[7] = 100;
  for (int i = 0; i < rounds; ++i) {
    Increment<<<1, 32>>>(page, 4, 1);
    CHECK_CUDA(cudaDeviceSynchronize());
    EXPECT(page[0] == 2 * i + 1);
    EXPECT(page[7] == 100 + i);
    ++page[0];
    ++page[7];
  }
  CHECK_CUDA(cudaFree(page));
  std::printf("host and kernel in turns on one page of %zu bytes: %d rounds\n", bytes, rounds);
}

void Variables() {
  EXPECT(counter == 5);
  EXPECT(table[1] == 1.5 && table[2] == 0);
  Count<<<1, 1>>>(3);
  CHECK_CUDA(cudaDeviceSynchronize());
  EXPECT(counter == 8 && table[2999] == 2);
  counter = 20;
  table[0] = 40;
  Count<<<1, 1>>>(1);
  CHECK_CUDA(cudaDeviceSynchronize());
  EXPECT(counter == 21 && table[2999] == 41.5);
  int copied = 0;
  CHECK_CUDA(cudaMemcpyFromSymbol(&copied, counter, sizeof(int)));
  EXPECT(copied == 21);
  const int put = 99;
  CHECK_CUDA(cudaMemcpyToSymbol(counter, &put, sizeof(int)));
  EXPECT(counter == 99);
  std::printf("managed variables\n");
}

// A region of which both sides touch everything.
void Large() {
  constexpr size_t kCount = 3 << 20;  // 12 MiB
  int* values = nullptr;
  CHECK_CUDA(cudaMallocManaged(&values, kCount * sizeof(int)));
  std::vector<int> expected(kCount);
  for (size_t i = 0; i < kCount; ++i) values[i] = expected[i] = static_cast<int>(i * 7);
  Increment<<<kCount / 256, 256>>>(values, kCount, 1);
  CHECK_CUDA(cudaDeviceSynchronize());
  for (int& value : expected) value += 1;
  ExpectEqual("written by a kernel", values, expected.data(), kCount);
  for (size_t i = 0; i < kCount; i += 1000) values[i] = expected[i] = -static_cast<int>(i);
  Increment<<<kCount / 256, 256>>>(values, kCount, 5);
  Increment<<<kCount / 256, 256>>>(values, kCount, 5);
  // A copy out waits for the kernels.
  std::vector<int> copy(kCount);
  CHECK_CUDA(cudaMemcpy(copy.data(), values, kCount * sizeof(int), cudaMemcpyDefault));
  for (int& value : expected) value += 10;
  ExpectEqual("copied out", copy.data(), expected.data(), kCount);
  ExpectEqual("seen by the host", values, expected.data(), kCount);
  CHECK_CUDA(cudaMemset(values, 0, 4096));
  EXPECT(values[0] == 0 && values[1023] == 0 && values[1024] == expected[1024]);
  CHECK_CUDA(cudaMemcpy(values + 1, copy.data(), 4000, cudaMemcpyHostToDevice));
  EXPECT(values[1] == copy[0]);
  // Managed memory as the host's side of a copy.
  int* device = nullptr;
  CHECK_CUDA(cudaMalloc(&device, 8000));
  values[2000] = 77;
  CHECK_CUDA(cudaMemcpy(device, values + 2000, 8000, cudaMemcpyHostToDevice));
  CHECK_CUDA(cudaMemcpy(values, device, 8000, cudaMemcpyDeviceToHost));
  EXPECT(values[0] == 77 && values[1] == expected[2001]);
  CHECK_CUDA(cudaFree(device));
  CHECK_CUDA(cudaFree(values));
}

// Each way of waiting shows what was written before.
void WaysOfWaiting() {
  int* value = nullptr;
  CHECK_CUDA(cudaMallocManaged(&value, 4 << 20));
  cudaStream_t stream;
  cudaEvent_t event;
  CHECK_CUDA(cudaStreamCreate(&stream));
  CHECK_CUDA(cudaEventCreate(&event));
  *value = 0;
  Increment<<<1, 1, 0, stream>>>(value, 1, 1);
  CHECK_CUDA(cudaStreamSynchronize(stream));
  EXPECT(*value == 1);
  Increment<<<1, 1, 0, stream>>>(value, 1, 1);
  CHECK_CUDA(cudaEventRecord(event, stream));
  CHECK_CUDA(cudaEventSynchronize(event));
  EXPECT(*value == 2);
  Increment<<<1, 1, 0, stream>>>(value, 1, 1);
  while (cudaStreamQuery(stream) == cudaErrorNotReady) {
  }
  EXPECT(*value == 3);
  Increment<<<1, 1, 0, stream>>>(value, 1, 1);
  CHECK_CUDA(cudaEventRecord(event, stream));
  while (cudaEventQuery(event) == cudaErrorNotReady) {
  }
  EXPECT(*value == 4);
  static int seen = 0;
  Increment<<<1, 1, 0, stream>>>(value, 1, 1);
  CHECK_CUDA(cudaLaunchHostFunc(
      stream,
      [](void* data) {
        seen = *static_cast<int*>(data);
        *static_cast<int*>(data) = 50;
      },
      value));
  Increment<<<1, 1, 0, stream>>>(value, 1, 1);
  CHECK_CUDA(cudaStreamSynchronize(stream));
  EXPECT(seen == 5 && *value == 51);
  CHECK_CUDA(cudaStreamDestroy(stream));
  CHECK_CUDA(cudaEventDestroy(event));
  CHECK_CUDA(cudaFree(value));
  std::printf("stream, event, queries, host function\n");
}

// System calls read and write managed memory like any other: small memory always, large memory that
// was not touched since a kernel ran after a prefetch.
void SystemCalls(size_t bytes) {
  int* values = nullptr;
  CHECK_CUDA(cudaMallocManaged(&values, bytes));
  const size_t count = bytes / sizeof(int);
  int pipes[2];
  EXPECT(pipe(pipes) == 0);
  const int sent[3] = {10, 20, 30};
  EXPECT(write(pipes[1], sent, sizeof(sent)) == sizeof(sent));
  EXPECT(read(pipes[0], values, sizeof(sent)) == sizeof(sent));
  Increment<<<static_cast<unsigned>(count / 256), 256>>>(values, count, 1);
  CHECK_CUDA(cudaMemPrefetchAsync(values, bytes, cudaMemLocation{cudaMemLocationTypeHost, 0}, 0));
  CHECK_CUDA(cudaDeviceSynchronize());
  EXPECT(write(pipes[1], values, 4096) == 4096);
  int received[1024] = {};
  EXPECT(read(pipes[0], received, 4096) == 4096);
  EXPECT(received[0] == 11 && received[2] == 31 && received[3] == 1);
  close(pipes[0]);
  close(pipes[1]);
  CHECK_CUDA(cudaFree(values));
  std::printf("system calls on %zu bytes\n", bytes);
}

void Attributes() {
  int* value = nullptr;
  CHECK_CUDA(cudaMallocManaged(&value, 1 << 20));
  cudaPointerAttributes attributes;
  CHECK_CUDA(cudaPointerGetAttributes(&attributes, value + 3));
  EXPECT(attributes.type == cudaMemoryTypeManaged);
  EXPECT(attributes.devicePointer == value + 3 && attributes.hostPointer == value + 3);
  const cudaMemLocation device = {cudaMemLocationTypeDevice, 0};
  CHECK_CUDA(cudaMemAdvise(value, 1 << 20, cudaMemAdviseSetReadMostly, device));
  CHECK_CUDA(cudaMemAdvise(value, 1 << 19, cudaMemAdviseSetPreferredLocation, device));
  int is = 0;
  CHECK_CUDA(
      cudaMemRangeGetAttribute(&is, sizeof(is), cudaMemRangeAttributeReadMostly, value, 1 << 20));
  EXPECT(is == 1);
  CHECK_CUDA(cudaMemRangeGetAttribute(&is, sizeof(is), cudaMemRangeAttributePreferredLocation,
                                      value, 1 << 19));
  EXPECT(is == 0);
  CHECK_CUDA(cudaMemPrefetchAsync(value, 1 << 20, device, 0));
  CHECK_CUDA(cudaStreamAttachMemAsync(nullptr, value, 0, cudaMemAttachGlobal));
  CHECK_CUDA(cudaDeviceSynchronize());
  CHECK_CUDA(cudaMemRangeGetAttribute(&is, sizeof(is), cudaMemRangeAttributeLastPrefetchLocation,
                                      value, 4096));
  EXPECT(is == 0);
  EXPECT_CUDA_ERROR(cudaMallocManaged(&value, 100, 7), cudaErrorInvalidValue);
  int local = 0;
  EXPECT_CUDA_ERROR(cudaMemAdvise(&local, 4, cudaMemAdviseSetReadMostly, device),
                    cudaErrorInvalidValue);
  (void)cudaGetLastError();
  CHECK_CUDA(cudaFree(value));
  std::printf("attributes and advice\n");
}

int main() {
  Variables();
  WalkLists();
  Alternate(4096, 1000);
  Alternate(8 << 20, 100);
  Large();
  WaysOfWaiting();
  SystemCalls(64 << 10);
  SystemCalls(8 << 20);
  Attributes();
  return 0;
}
