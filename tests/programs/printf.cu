// printf in a kernel: what the device prints is compared with what the same lines print on the
// host. One thread prints at a time, or the lanes of one warp in their order, so that the output is
// always the same.
#include <unistd.h>

#include <string>

#include "check.h"

__host__ __device__ void PrintFormats(const char* text) {
  printf("integers: %d %i %u %x %X %o %c %%\n", -1, 42, 4000000000u, 0xbeefu, 0xCAFEu, 8u, 'c');
  printf("wide: %lld %llu %llx\n", -1234567890123LL, 12345678901234567890ULL, 0x123456789abcdefULL);
  printf("floats: %f %.3f %8.2f|%-8.2f| %e %g\n", 1.5, 3.14159, 2.5, 2.5, 123456.789, 0.0001);
  printf("widths: [%5d] [%-5d] [%05d] [%+d]\n", 42, 42, 42, 42);
  printf("strings: %s, %s\n", "literal", text);
  printf("no arguments\n");
}

__host__ __device__ void PrintLane(unsigned int lane) {
  if (lane % 2 == 1) printf("lane %u is odd\n", lane);
}

__global__ void PrintFormatsKernel(const char* text) { PrintFormats(text); }
__global__ void PrintLanesKernel() { PrintLane(threadIdx.x); }

// What `print` writes to standard output, by whatever means.
template <typename Function>
std::string Capture(Function print) {
  std::fflush(stdout);
  const int saved = dup(STDOUT_FILENO);
  FILE* file = std::tmpfile();
  EXPECT(saved >= 0 && file != nullptr);
  EXPECT(dup2(fileno(file), STDOUT_FILENO) >= 0);
  print();
  std::fflush(stdout);
  EXPECT(dup2(saved, STDOUT_FILENO) >= 0);
  close(saved);
  std::rewind(file);
  std::string text;
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) text += static_cast<char>(c);
  std::fclose(file);
  return text;
}

void ExpectSameText(const std::string& device, const std::string& host) {
  std::fputs(device.c_str(), stdout);
  if (device == host) return;
  std::fprintf(stderr, "the device printed\n%s\nbut the host prints\n%s\n", device.c_str(),
               host.c_str());
  std::exit(1);
}

int main() {
  const char text[] = "from memory";
  char* device_text = nullptr;
  CHECK_CUDA(cudaMalloc(&device_text, sizeof(text)));
  CHECK_CUDA(cudaMemcpy(device_text, text, sizeof(text), cudaMemcpyHostToDevice));
  const std::string formats = Capture([=] {
    PrintFormatsKernel<<<1, 1>>>(device_text);
    CHECK_CUDA(cudaGetLastError());
    CHECK_CUDA(cudaDeviceSynchronize());
  });
  ExpectSameText(formats, Capture([&] { PrintFormats(text); }));

  // Output of a kernel has arrived when the host has synchronised with it, not later.
  for (int round = 0; round < 2; ++round) {
    const std::string lanes = Capture([] {
      PrintLanesKernel<<<1, 8>>>();
      CHECK_CUDA(cudaGetLastError());
      CHECK_CUDA(cudaDeviceSynchronize());
    });
    ExpectSameText(lanes, Capture([] {
                     for (unsigned int lane = 0; lane < 8; ++lane) PrintLane(lane);
                   }));
  }
  CHECK_CUDA(cudaFree(device_text));
  std::printf("printf: the device prints what the host prints\n");
  return 0;
}
