// Prints what a program sees where there is no device: the error, every time it asks, and nothing
// that hangs or crashes.
#include "check.h"

int main() {
  for (int attempt = 0; attempt < 2; ++attempt) {
    int count = -1;
    const cudaError_t error = cudaGetDeviceCount(&count);
    std::printf("cudaGetDeviceCount: %s\n", cudaGetErrorName(error));
    EXPECT(error == cudaErrorNoDevice);
  }
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, 16);
  std::printf("cudaMalloc: %s\n", cudaGetErrorName(error));
  EXPECT(error == cudaErrorNoDevice);
  return 0;
}
