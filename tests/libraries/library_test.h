#pragma once

// Shared by the programs that run NVIDIA's libraries, unmodified, on the software device and
// compare with plain loops on the CPU. The libraries are opened at run time: where one is not
// installed its program says so and exits with kSkipped.
#include <dlfcn.h>

#include <chrono>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime.h>
#include <memory>
#include <string>
#include <vector>

namespace library_test {

constexpr int kSkipped = 77;
inline int g_failures = 0;
inline std::vector<std::string>
    g_only;                  // parts of names; cases that have none of them are left out
inline std::string g_after;  // nothing runs up to the case of this name
inline bool g_reached = false;
inline std::chrono::steady_clock::time_point g_begin = std::chrono::steady_clock::now();

#define REQUIRE_CUDA(call)                                                    \
  do {                                                                        \
    const cudaError_t require_result = (call);                                \
    if (require_result != cudaSuccess) {                                      \
      std::printf("FATAL %s: %s\n", #call, cudaGetErrorName(require_result)); \
      std::exit(EXIT_FAILURE);                                                \
    }                                                                         \
  } while (0)

// Opens the library by the names in turn; ends the program where none is installed.
inline void* OpenLibrary(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (void* const library = dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL)) return library;
  }
  std::printf("SKIPPED: %s is not installed (%s)\n", names[0].c_str(), dlerror());
  std::exit(kSkipped);
}

template <typename Function>
Function Symbol(void* library, const char* name) {
  void* const symbol = dlsym(library, name);
  if (symbol == nullptr) {
    std::printf("FATAL: the library has no %s\n", name);
    std::exit(EXIT_FAILURE);
  }
  return reinterpret_cast<Function>(symbol);
}
#define LIBRARY_SYMBOL(library, name) library_test::Symbol<decltype(&name)>(library, #name)

template <typename T>
class Device {
 public:
  explicit Device(size_t count) : count_(count) {
    REQUIRE_CUDA(cudaMalloc(&data_, count * sizeof(T) + 1));
    REQUIRE_CUDA(cudaMemset(data_, 0xff, count * sizeof(T) + 1));
  }
  explicit Device(const std::vector<T>& values) : Device(values.size()) {
    REQUIRE_CUDA(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  ~Device() { cudaFree(data_); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  T* get() const { return data_; }
  size_t size() const { return count_; }
  // Waits for the device; empty when it failed.
  std::vector<T> Read() const {
    std::vector<T> values(count_);
    const cudaError_t result =
        cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost);
    if (result != cudaSuccess) {
      std::printf("  cudaMemcpy: %s\n", cudaGetErrorName(result));
      values.clear();
    }
    return values;
  }

 private:
  T* data_ = nullptr;
  size_t count_ = 0;
};

class Random {
 public:
  explicit Random(uint64_t seed = 42) : state_(seed) {}
  double Next() {  // -1 .. 1
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<double>(state_ >> 33) / static_cast<double>(uint64_t{1} << 30) - 1;
  }

 private:
  uint64_t state_;
};

template <typename T>
double Distance(const T& a, const T& b) {
  return std::abs(std::complex<double>(a) - std::complex<double>(b));
}

// The largest distance, relative to the largest expected value.
template <typename T>
double Error(const std::vector<T>& got, const std::vector<T>& expected) {
  if (got.size() != expected.size()) return INFINITY;
  double worst = 0, scale = 1e-30;
  for (size_t k = 0; k < got.size(); ++k) {
    const double distance = Distance(got[k], expected[k]);
    if (!(distance <= worst)) worst = std::isnan(distance) ? INFINITY : distance;
    scale = std::max(scale, std::abs(std::complex<double>(expected[k])));
  }
  return worst / scale;
}

// PROGRAM [--after NAME] [PART...]. run.py starts a program again after the case that hung or that
// took the context with it.
inline void ParseArguments(int argc, char** argv) {
  for (int k = 1; k < argc; ++k) {
    if (std::strcmp(argv[k], "--after") == 0 && k + 1 < argc) {
      g_after = argv[++k];
    } else {
      g_only.push_back(argv[k]);
    }
  }
}

// Whether to run the case, or the cases, of this name. What is printed is for run.py, which holds
// whatever comes next against the name. Fields are separated by tabs.
inline bool Wanted(const std::string& name) {
  if (name == g_after) {
    g_reached = true;
    return false;
  }
  if (!g_after.empty() && !g_reached) return false;
  bool wanted = g_only.empty();
  for (const std::string& part : g_only) wanted = wanted || name.find(part) != std::string::npos;
  if (!wanted) return false;
  std::printf("begin\t%s\n", name.c_str());
  std::fflush(stdout);
  g_begin = std::chrono::steady_clock::now();
  return true;
}

// Says which library this is: what is printed goes into docs/compatibility.md.
inline void PrintVersion(const std::string& version) {
  std::printf("version\t%s\n", version.c_str());
  std::fflush(stdout);
}
inline std::string DottedVersion(int version, int thousands, int hundreds) {
  return std::to_string(version / thousands) + "." +
         std::to_string(version % thousands / hundreds) + "." + std::to_string(version % hundreds);
}

// One line per case. A sticky error of the context ends the program: nothing runs after it.
inline void Check(const std::string& name, int status, double error, double tolerance) {
  const cudaError_t pending = cudaDeviceSynchronize();
  const bool good = status == 0 && pending == cudaSuccess && error <= tolerance;
  if (!good) ++g_failures;
  const auto now = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(now - g_begin).count();
  g_begin = now;
  std::printf("%s\t%s\t%.2g\t%.2g\t%.2f\t", good ? "ok" : "FAIL", name.c_str(), error, tolerance,
              seconds);
  if (!good && (status != 0 || pending != cudaSuccess)) {
    std::printf("status %d, device %s", status, cudaGetErrorName(pending));
  }
  std::printf("\n");
  std::fflush(stdout);
  if (pending != cudaSuccess && cudaGetLastError() != cudaSuccess &&
      cudaDeviceSynchronize() != cudaSuccess) {
    std::printf("the context is gone\n");
    std::exit(EXIT_FAILURE);
  }
}

inline int Finish() {
  std::printf("end\n");
  return g_failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace library_test
