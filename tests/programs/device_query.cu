// Prints the devices that a program sees, and checks that two ways to ask agree. The output depends
// on the lease and the card, so it is not compared between runs.
#include "check.h"

int main() {
  int count = 0;
  CHECK_CUDA(cudaGetDeviceCount(&count));
  std::printf("devices: %d\n", count);
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties;
    CHECK_CUDA(cudaGetDeviceProperties(&properties, device));
    CHECK_CUDA(cudaSetDevice(device));
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    CHECK_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
    int major = 0;
    CHECK_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    EXPECT(major == properties.major);
    EXPECT(free_bytes <= total_bytes);
    std::printf("device %d: %s, %zu MiB, capability %d.%d, %d multiprocessors\n", device,
                properties.name, total_bytes >> 20, properties.major, properties.minor,
                properties.multiProcessorCount);
  }
  return 0;
}
