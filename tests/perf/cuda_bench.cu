// What a CUDA program sees of its card: the time of calls that wait, launches per second, and the
// bandwidth of copies. The same binary runs on a driver directly and through FarGPU.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <string>
#include <vector>

#include "measure.h"

#define CHECK_CUDA(call)                                                                   \
  do {                                                                                     \
    const cudaError_t check_result = (call);                                               \
    if (check_result != cudaSuccess) {                                                     \
      std::fprintf(stderr, "cuda_bench: %s: %s\n", #call, cudaGetErrorName(check_result)); \
      std::exit(EXIT_FAILURE);                                                             \
    }                                                                                      \
  } while (0)

namespace {

// Calls per round; --quick makes all of it small, to see only that it works.
int g_calls = 2000;
int g_launches = 20000;
size_t g_largest_copy = size_t{256} << 20;

__global__ void Nothing(int value, int* out) {
  if (value < 0) *out = value;
}

template <typename Call>
void MeasureCall(const char* name, const Call& call) {
  perf::Measure(name, "us", [&] {
    return perf::Seconds([&] {
             for (int i = 0; i < g_calls; ++i) call();
           }) /
           g_calls * 1e6;
  });
}

void MeasureCopies(char* device, char* host, const std::string& suffix) {
  for (const size_t bytes : perf::CopySizes()) {
    if (bytes > g_largest_copy) break;
    const int repeats = perf::CopyRepeats(bytes);
    for (const cudaMemcpyKind kind : {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost}) {
      const bool up = kind == cudaMemcpyHostToDevice;
      char* const to = up ? device : host;
      char* const from = up ? host : device;
      perf::Measure((up ? "h2d" : "d2h") + suffix + "_" + perf::SizeName(bytes), "GB/s", [&] {
        const double seconds = perf::Seconds([&] {
          for (int i = 0; i < repeats; ++i) CHECK_CUDA(cudaMemcpy(to, from, bytes, kind));
          // A copy from pageable memory may return before the card has all of it.
          CHECK_CUDA(cudaDeviceSynchronize());
        });
        return static_cast<double>(bytes) * repeats / seconds / 1e9;
      });
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--quick") == 0) {
    g_calls = 20;
    g_launches = 100;
    g_largest_copy = size_t{1} << 20;
  }
  char* device = nullptr;
  perf::Report("first_call", {perf::Seconds([&] { CHECK_CUDA(cudaFree(nullptr)); }) * 1e3}, "ms");
  CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&device), g_largest_copy));
  int* const out = reinterpret_cast<int*>(device);
  CHECK_CUDA(cudaMemset(device, 0, g_largest_copy));
  CHECK_CUDA(cudaDeviceSynchronize());

  int value = 0;
  MeasureCall("copy_4_bytes_back", [&] {
    CHECK_CUDA(cudaMemcpy(&value, device, sizeof(value), cudaMemcpyDeviceToHost));
  });
  MeasureCall("synchronize_idle", [&] { CHECK_CUDA(cudaDeviceSynchronize()); });
  MeasureCall("launch_and_synchronize", [&] {
    Nothing<<<1, 32>>>(0, out);
    CHECK_CUDA(cudaDeviceSynchronize());
  });
  perf::Measure("launches", "1/s", [&] {
    const double seconds = perf::Seconds([&] {
      for (int i = 0; i < g_launches; ++i) Nothing<<<1, 32>>>(i, out);
      CHECK_CUDA(cudaDeviceSynchronize());
    });
    return g_launches / seconds;
  });
  CHECK_CUDA(cudaGetLastError());

  std::vector<char> pageable(g_largest_copy, 1);
  MeasureCopies(device, pageable.data(), "");
  char* pinned = nullptr;
  CHECK_CUDA(cudaMallocHost(reinterpret_cast<void**>(&pinned), g_largest_copy));
  std::memset(pinned, 1, g_largest_copy);
  MeasureCopies(device, pinned, "_pinned");
  CHECK_CUDA(cudaFreeHost(pinned));
  CHECK_CUDA(cudaFree(device));
  return EXIT_SUCCESS;
}
