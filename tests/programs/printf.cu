// printf in a kernel. One thread prints at a time, or the lanes of one warp in their order, so that
// the output is always the same.
#include "check.h"

__global__ void PrintFormats(const char* text) {
  printf("integers: %d %i %u %x %X %o %c %%\n", -1, 42, 4000000000u, 0xbeefu, 0xCAFEu, 8u, 'c');
  printf("wide: %lld %llu %llx\n", -1234567890123LL, 12345678901234567890ULL, 0x123456789abcdefULL);
  printf("floats: %f %.3f %8.2f|%-8.2f| %e %g\n", 1.5, 3.14159f, 2.5, 2.5, 123456.789, 0.0001);
  printf("widths: [%5d] [%-5d] [%05d] [%+d]\n", 42, 42, 42, 42);
  printf("strings: %s, %s\n", "literal", text);
  printf("no arguments\n");
}

__global__ void PrintLanes() {
  if (threadIdx.x % 2 == 1) printf("lane %u of block %u\n", threadIdx.x, blockIdx.x);
}

int main() {
  char text[] = "from memory";
  char* device_text = nullptr;
  CHECK_CUDA(cudaMalloc(&device_text, sizeof(text)));
  CHECK_CUDA(cudaMemcpy(device_text, text, sizeof(text), cudaMemcpyHostToDevice));
  PrintFormats<<<1, 1>>>(device_text);
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaDeviceSynchronize());
  for (int round = 0; round < 2; ++round) {
    PrintLanes<<<1, 8>>>();
    CHECK_CUDA(cudaGetLastError());
    CHECK_CUDA(cudaDeviceSynchronize());
    // What kernels print comes before what the host prints after a synchronisation.
    std::printf("host: round %d\n", round);
    std::fflush(stdout);
  }
  CHECK_CUDA(cudaFree(device_text));
  return 0;
}
