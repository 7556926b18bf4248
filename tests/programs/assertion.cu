// An assertion that fails in a kernel: its text comes on stderr, its error at the next
// synchronisation and from then on.
#include <unistd.h>

#include <cassert>
#include <cstring>
#include <string>

#include "check.h"

__global__ void ExpectSmall(const int* values) { assert(values[threadIdx.x] < 100); }

// What `call` writes to stderr.
template <typename Function>
std::string Capture(Function call) {
  const int saved = dup(STDERR_FILENO);
  FILE* const file = std::tmpfile();
  EXPECT(saved >= 0 && file != nullptr && dup2(fileno(file), STDERR_FILENO) >= 0);
  call();
  EXPECT(dup2(saved, STDERR_FILENO) >= 0);
  close(saved);
  std::rewind(file);
  std::string text;
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) text += static_cast<char>(c);
  std::fclose(file);
  return text;
}

int main() {
  int values[32] = {};
  int* device_values = nullptr;
  CHECK_CUDA(cudaMalloc(&device_values, sizeof(values)));
  CHECK_CUDA(cudaMemcpy(device_values, values, sizeof(values), cudaMemcpyHostToDevice));
  const std::string quiet = Capture([=] {
    ExpectSmall<<<1, 32>>>(device_values);
    CHECK_CUDA(cudaDeviceSynchronize());
  });
  EXPECT(quiet.empty());
  values[3] = values[30] = 100;
  CHECK_CUDA(cudaMemcpy(device_values, values, sizeof(values), cudaMemcpyHostToDevice));
  cudaError_t error = cudaSuccess;
  const std::string text = Capture([&] {
    ExpectSmall<<<1, 32>>>(device_values);
    error = cudaDeviceSynchronize();
  });
  std::printf("%s\n", cudaGetErrorName(error));
  EXPECT_CUDA_ERROR(cudaDeviceSynchronize(), cudaErrorAssert);
  EXPECT_CUDA_ERROR(cudaMemset(device_values, 0, 4), cudaErrorAssert);
  // Each line begins with the path of this file, wherever it was built.
  size_t begin = 0;
  for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    const std::string line = text.substr(begin, end - begin);
    const size_t name = line.find("assertion.cu:");
    std::printf("%s\n", name == std::string::npos ? line.c_str() : line.c_str() + name);
    begin = end + 1;
  }
  EXPECT(begin == text.size() && text.find("thread: [3,0,0]") != std::string::npos &&
         text.find("thread: [30,0,0]") != std::string::npos);
  return 0;
}
