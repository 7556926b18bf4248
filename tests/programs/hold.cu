// hold MIB SECONDS: holds MIB of device memory and runs kernels until SIGTERM or until SECONDS have
// passed. Prints "ready" once the memory is there and a kernel has run, "done" at the end. If CUDA
// gives an error it prints the error's name and ends with status 3.
#include <signal.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "check.h"

namespace {

volatile sig_atomic_t stop = 0;

__global__ void Increment(int* values, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] += 1;
}

void ExitOnError(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::printf("%s\n", cudaGetErrorName(error));
  std::fflush(stdout);
  std::exit(3);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: hold MIB SECONDS\n");
    return 2;
  }
  const size_t bytes = std::strtoull(argv[1], nullptr, 10) << 20;
  const auto end = std::chrono::steady_clock::now() +
                   std::chrono::milliseconds(static_cast<int64_t>(1000 * std::atof(argv[2])));
  signal(SIGTERM, [](int) { stop = 1; });

  constexpr int kCount = 1024;
  int* values = nullptr;
  void* memory = nullptr;
  ExitOnError(cudaMalloc(&values, kCount * sizeof(int)));
  ExitOnError(cudaMemset(values, 0, kCount * sizeof(int)));
  if (bytes != 0) ExitOnError(cudaMalloc(&memory, bytes));
  int last = 0;
  for (int round = 1; stop == 0 && std::chrono::steady_clock::now() < end; ++round) {
    Increment<<<kCount / 128, 128>>>(values, kCount);
    ExitOnError(cudaGetLastError());
    ExitOnError(cudaMemcpy(&last, values + kCount - 1, sizeof(last), cudaMemcpyDeviceToHost));
    EXPECT(last == round);
    if (round == 1) {
      std::printf("ready\n");
      std::fflush(stdout);
    }
    // Holding, not hogging: tests run several of these side by side.
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (memory != nullptr) ExitOnError(cudaFree(memory));
  ExitOnError(cudaFree(values));
  std::printf("done\n");
  return 0;
}
