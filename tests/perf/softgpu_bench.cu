// How fast the software device is, beside the same work on the bare CPU. Each pair of figures comes
// from rounds that alternate, so that a busy machine hurts both sides; what counts is the ratio.
// A baseline that is not installed is said to be missing and its ratio is not printed.
#include <dlfcn.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <cuda_runtime.h>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "measure.h"
#include "softgpu_baselines.h"

#define CHECK_CUDA(call)                                                                      \
  do {                                                                                        \
    const cudaError_t check_result = (call);                                                  \
    if (check_result != cudaSuccess) {                                                        \
      std::fprintf(stderr, "softgpu_bench: %s: %s\n", #call, cudaGetErrorName(check_result)); \
      std::exit(EXIT_FAILURE);                                                                \
    }                                                                                         \
  } while (0)

extern char** environ;

namespace {

int g_rounds = 9;
bool g_quick = false;

__global__ void Nothing() {}

__global__ void SaxpyKernel(int count, float a, const float* x, float* y) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) y[i] = a * x[i] + y[i];
}

__device__ float Normal(float d) {
  const float k = 1.0f / (1.0f + 0.2316419f * fabsf(d));
  const float value =
      0.39894228040143267794f * expf(-0.5f * d * d) *
      (k * (0.31938153f +
            k * (-0.356563782f + k * (1.781477937f + k * (-1.821255978f + k * 1.330274429f)))));
  return d > 0 ? 1.0f - value : value;
}

__global__ void BlackScholesKernel(int count, const float* price, const float* strike,
                                   const float* years, float rate, float volatility, float* call,
                                   float* put) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float root = sqrtf(years[i]);
  const float d1 =
      (logf(price[i] / strike[i]) + (rate + 0.5f * volatility * volatility) * years[i]) /
      (volatility * root);
  const float d2 = d1 - volatility * root;
  const float n1 = Normal(d1);
  const float n2 = Normal(d2);
  const float discount = expf(-rate * years[i]);
  call[i] = price[i] * n1 - strike[i] * discount * n2;
  put[i] = strike[i] * discount * (1.0f - n2) - price[i] * (1.0f - n1);
}

// The textbook's product: a tile of each matrix in shared memory, an element per thread.
template <int kTile>
__global__ void MatrixProduct(int n, const float* a, const float* b, float* c) {
  __shared__ float tile_a[kTile][kTile];
  __shared__ float tile_b[kTile][kTile];
  const int row = blockIdx.y * kTile + threadIdx.y;
  const int column = blockIdx.x * kTile + threadIdx.x;
  float sum = 0;
  for (int first = 0; first < n; first += kTile) {
    tile_a[threadIdx.y][threadIdx.x] = a[row * n + first + threadIdx.x];
    tile_b[threadIdx.y][threadIdx.x] = b[(first + threadIdx.y) * n + column];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kTile; ++k) sum += tile_a[threadIdx.y][k] * tile_b[k][threadIdx.x];
    __syncthreads();
  }
  c[row * n + column] = sum;
}

// The same with 8 x 8 elements in the registers of each thread, as fast code for cards is written.
__global__ void BlockedProduct(int n, const float* a, const float* b, float* c) {
  constexpr int kSide = 128, kDepth = 8, kEach = 8;
  __shared__ float tile_a[kDepth][kSide];
  __shared__ float tile_b[kDepth][kSide];
  const int thread = threadIdx.x;
  const int tx = thread % 16, ty = thread / 16;
  const float* from_a = a + (blockIdx.y * kSide + thread / 2) * n + thread % 2 * 4;
  const float* from_b = b + thread / 32 * n + blockIdx.x * kSide + thread % 32 * 4;
  float sum[kEach][kEach] = {};
  for (int first = 0; first < n; first += kDepth) {
    const float4 va = *reinterpret_cast<const float4*>(from_a + first);
    tile_a[thread % 2 * 4 + 0][thread / 2] = va.x;
    tile_a[thread % 2 * 4 + 1][thread / 2] = va.y;
    tile_a[thread % 2 * 4 + 2][thread / 2] = va.z;
    tile_a[thread % 2 * 4 + 3][thread / 2] = va.w;
    *reinterpret_cast<float4*>(&tile_b[thread / 32][thread % 32 * 4]) =
        *reinterpret_cast<const float4*>(from_b + first * n);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      float x[kEach], y[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) x[i] = tile_a[k][ty * kEach + i];
#pragma unroll
      for (int j = 0; j < kEach; ++j) y[j] = tile_b[k][j / 4 * 64 + tx * 4 + j % 4];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) sum[i][j] += x[i] * y[j];
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      c[(blockIdx.y * kSide + ty * kEach + i) * n + blockIdx.x * kSide + j / 4 * 64 + tx * 4 +
        j % 4] = sum[i][j];
    }
  }
}

__global__ void SumKernel(int count, const float* values, float* sum) {
  __shared__ float partial[32];
  float mine = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    mine += values[i];
  }
  for (int step = 16; step > 0; step /= 2) mine += __shfl_down_sync(~0u, mine, step);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x < 32) {
    mine = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0;
    for (int step = 16; step > 0; step /= 2) mine += __shfl_down_sync(~0u, mine, step);
    if (threadIdx.x == 0) atomicAdd(sum, mine);
  }
}

__global__ void BodyForcesKernel(int count, const float4* bodies, float softening,
                                 float4* accelerations) {
  __shared__ float4 tile[256];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const float4 me = bodies[i];
  float ax = 0, ay = 0, az = 0;
  for (int first = 0; first < count; first += blockDim.x) {
    tile[threadIdx.x] = bodies[first + threadIdx.x];
    __syncthreads();
#pragma unroll 8
    for (int j = 0; j < 256; ++j) {
      const float4 other = tile[j];
      const float dx = other.x - me.x;
      const float dy = other.y - me.y;
      const float dz = other.z - me.z;
      const float inverse = rsqrtf(dx * dx + dy * dy + dz * dz + softening);
      const float scale = other.w * inverse * inverse * inverse;
      ax += dx * scale;
      ay += dy * scale;
      az += dz * scale;
    }
    __syncthreads();
  }
  accelerations[i] = make_float4(ax, ay, az, 0);
}

// About 300 PTX instructions of the kind that programs have: loops, branches, memory, math.
__global__ void MediumKernel(int count, const float* in, float* out, const int* order) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  float x = in[i];
  float sum = 0;
#pragma unroll 1
  for (int k = 0; k < 3; ++k) {
    const float y = in[order[i] + k];
    sum += sinf(y) * expf(x) + logf(fabsf(y) + 1.0f) + cosf(x + y);
    if (y > x) x = sqrtf(y * y + x);
  }
  out[i] = sum / (1.0f + x * x);
}

template <typename T>
T* ToDevice(const std::vector<T>& values) {
  T* device = nullptr;
  CHECK_CUDA(cudaMalloc(&device, values.size() * sizeof(T)));
  CHECK_CUDA(cudaMemcpy(device, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return device;
}

template <typename T>
std::vector<T> FromDevice(const T* device, size_t count) {
  std::vector<T> values(count);
  CHECK_CUDA(cudaMemcpy(values.data(), device, count * sizeof(T), cudaMemcpyDeviceToHost));
  return values;
}

std::vector<float> Numbers(size_t count, float low, float high) {
  std::vector<float> values(count);
  uint32_t state = 12345;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = low + (high - low) * static_cast<float>(state >> 8) / static_cast<float>(1 << 24);
  }
  return values;
}

void Require(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "softgpu_bench: %s: the device's result is wrong\n", what);
  std::exit(EXIT_FAILURE);
}

bool Close(const std::vector<float>& a, const std::vector<float>& b, float tolerance) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (!(std::fabs(a[i] - b[i]) <= tolerance * (1 + std::fabs(b[i])))) return false;
  }
  return true;
}

// Seconds of the clock, and of all this process's threads on CPUs. Where other programs compete for
// the cores the first says nothing about the code; the second does, but leaves out idle cores.
struct Times {
  double wall = 0;
  double cpu = 0;
};

Times TimesOf(const std::function<void()>& body) {
  timespec start, end;
  Times times;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &start);
  times.wall = perf::Seconds(body);
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
  times.cpu = static_cast<double>(end.tv_sec - start.tv_sec) +
              static_cast<double>(end.tv_nsec - start.tv_nsec) * 1e-9;
  return times;
}

// Alternates the two, reports milliseconds of each and (baseline / device), the device's speed as a
// fraction of the baseline's.
void Compare(const std::string& name, const std::function<void()>& device,
             const std::function<void()>& baseline) {
  device();
  baseline();
  std::vector<double> times[2], ratios, cpu_ratios;
  for (int round = 0; round < g_rounds; ++round) {
    // Threads of the baselines may wait for more work in a loop for a while: not on our time.
    if (!g_quick) usleep(100000);
    const Times ours = TimesOf(device);
    const Times theirs = TimesOf(baseline);
    times[0].push_back(ours.wall * 1e3);
    times[1].push_back(theirs.wall * 1e3);
    ratios.push_back(theirs.wall / ours.wall);
    cpu_ratios.push_back(theirs.cpu / ours.cpu);
  }
  perf::Report(name + "_device", times[0], "ms");
  perf::Report(name + "_baseline", times[1], "ms");
  perf::Report(name + "_ratio", ratios, "x");
  perf::Report(name + "_cpu_ratio", cpu_ratios, "x");
}

void Synchronize() {
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaDeviceSynchronize());
}

void CompareSaxpy() {
  const int count = g_quick ? 1 << 16 : 1 << 24;
  const std::vector<float> x = Numbers(count, -1, 1);
  std::vector<float> y = Numbers(count, -2, 2);
  float* const dx = ToDevice(x);
  float* const dy = ToDevice(y);
  Compare(
      "saxpy",
      [&] {
        SaxpyKernel<<<(count + 255) / 256, 256>>>(count, 0.5f, dx, dy);
        Synchronize();
      },
      [&] { baseline::Saxpy(count, 0.5f, x.data(), y.data()); });
  Require(Close(FromDevice(dy, count), y, 1e-4f), "saxpy");
  CHECK_CUDA(cudaFree(dx));
  CHECK_CUDA(cudaFree(dy));
}

void CompareBlackScholes() {
  const int count = g_quick ? 1 << 14 : 1 << 21;
  const std::vector<float> price = Numbers(count, 5, 30);
  const std::vector<float> strike = Numbers(count, 1, 100);
  const std::vector<float> years = Numbers(count, 0.25f, 10);
  std::vector<float> call(count), put(count);
  float* const dprice = ToDevice(price);
  float* const dstrike = ToDevice(strike);
  float* const dyears = ToDevice(years);
  float* const dcall = ToDevice(call);
  float* const dput = ToDevice(put);
  Compare(
      "black_scholes",
      [&] {
        BlackScholesKernel<<<(count + 127) / 128, 128>>>(count, dprice, dstrike, dyears, 0.02f,
                                                         0.30f, dcall, dput);
        Synchronize();
      },
      [&] {
        baseline::BlackScholes(count, price.data(), strike.data(), years.data(), 0.02f, 0.30f,
                               call.data(), put.data());
      });
  Require(Close(FromDevice(dcall, count), call, 1e-3f), "black_scholes");
  Require(Close(FromDevice(dput, count), put, 1e-3f), "black_scholes");
  for (float* p : {dprice, dstrike, dyears, dcall, dput}) CHECK_CUDA(cudaFree(p));
}

using Sgemm = void (*)(int, int, int, int, int, int, float, const float*, int, const float*, int,
                       float, float*, int);

// NVIDIA's library, if the loader finds it. It is no dependency of ours, hence no header either.
class CublasSgemm {
 public:
  CublasSgemm() {
    void* const library = dlopen("libcublas.so.13", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    const auto create = reinterpret_cast<int (*)(void**)>(dlsym(library, "cublasCreate_v2"));
    gemm_ = reinterpret_cast<Gemm>(dlsym(library, "cublasSgemm_v2"));
    if (create == nullptr || gemm_ == nullptr || create(&handle_) != 0) {
      std::fprintf(stderr, "softgpu_bench: libcublas.so.13 gives no handle\n");
      std::exit(EXIT_FAILURE);
    }
  }
  bool found() const { return handle_ != nullptr; }
  // c = a * b, row-major: to the library, which counts in columns, all three are transposed.
  void Multiply(int n, const float* a, const float* b, float* c) const {
    const float one = 1, zero = 0;
    if (gemm_(handle_, 0, 0, n, n, n, &one, b, n, a, n, &zero, c, n) != 0) {
      std::fprintf(stderr, "softgpu_bench: cublasSgemm failed\n");
      std::exit(EXIT_FAILURE);
    }
  }

 private:
  using Gemm = int (*)(void*, int, int, int, int, int, const float*, const float*, int,
                       const float*, int, const float*, float*, int);
  void* handle_ = nullptr;
  Gemm gemm_ = nullptr;
};

void CompareMatrixProducts() {
  // Older versions take CPUs that they do not know for one of 2004.
  if (__builtin_cpu_supports("avx512f")) setenv("OPENBLAS_CORETYPE", "SkylakeX", 0);
  void* const blas = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
  const auto sgemm =
      blas == nullptr ? nullptr : reinterpret_cast<Sgemm>(dlsym(blas, "cblas_sgemm"));
  if (sgemm != nullptr) {
    const auto core = reinterpret_cast<char* (*)()>(dlsym(blas, "openblas_get_corename"));
    std::fprintf(stderr, "softgpu_bench: OpenBLAS runs its code for %s\n",
                 core == nullptr ? "?" : core());
  }
  const int n = g_quick ? 128 : 1024;
  const size_t elements = static_cast<size_t>(n) * n;
  const std::vector<float> a = Numbers(elements, -1, 1);
  const std::vector<float> b = Numbers(elements, -2, 1);
  std::vector<float> c(elements);
  float* const da = ToDevice(a);
  float* const db = ToDevice(b);
  float* const dc = ToDevice(c);
  if (sgemm == nullptr) {
    std::fprintf(stderr, "softgpu_bench: libopenblas.so.0 is missing: no ratios of sgemm\n");
  }
  const auto compare = [&](const std::string& name, const std::function<void()>& device) {
    const auto run = [&] {
      device();
      Synchronize();
    };
    if (sgemm == nullptr) {
      perf::Measure(name + "_device", "ms", [&] { return perf::Seconds(run) * 1e3; });
      return;
    }
    // 101: row-major; 111: not transposed.
    Compare(name, run,
            [&] { sgemm(101, 111, 111, n, n, n, 1, a.data(), n, b.data(), n, 0, c.data(), n); });
    Require(Close(FromDevice(dc, elements), c, 1e-3f), name.c_str());
    CHECK_CUDA(cudaMemset(dc, 0, elements * sizeof(float)));
  };
  compare("sgemm_tile16",
          [&] { MatrixProduct<16><<<dim3(n / 16, n / 16), dim3(16, 16)>>>(n, da, db, dc); });
  compare("sgemm_tile32",
          [&] { MatrixProduct<32><<<dim3(n / 32, n / 32), dim3(32, 32)>>>(n, da, db, dc); });
  compare("sgemm_blocked", [&] { BlockedProduct<<<dim3(n / 128, n / 128), 256>>>(n, da, db, dc); });
  if (const CublasSgemm cublas; cublas.found()) {
    compare("sgemm_cublas", [&] { cublas.Multiply(n, da, db, dc); });
  } else {
    std::fprintf(stderr, "softgpu_bench: libcublas.so.13 is missing: no figures of cuBLAS\n");
  }
  for (float* p : {da, db, dc}) CHECK_CUDA(cudaFree(p));
}

void CompareSum() {
  const int count = g_quick ? 1 << 16 : 1 << 24;
  const std::vector<float> values = Numbers(count, 0, 1);
  float* const device = ToDevice(values);
  float* const sum = ToDevice(std::vector<float>(1));
  float expected = 0;
  Compare(
      "reduction",
      [&] {
        CHECK_CUDA(cudaMemsetAsync(sum, 0, sizeof(float)));
        SumKernel<<<g_quick ? 16 : 1024, 256>>>(count, device, sum);
        Synchronize();
      },
      [&] { expected = baseline::Sum(count, values.data()); });
  Require(Close(FromDevice(sum, 1), {expected}, 1e-3f), "reduction");
  CHECK_CUDA(cudaFree(device));
  CHECK_CUDA(cudaFree(sum));
}

void CompareBodies() {
  const int count = g_quick ? 512 : 8192;
  const std::vector<float> numbers = Numbers(static_cast<size_t>(count) * 4, -1, 1);
  std::vector<baseline::Body> bodies(count), accelerations(count);
  std::memcpy(bodies.data(), numbers.data(), bodies.size() * sizeof(bodies[0]));
  float* const device = ToDevice(numbers);
  float* const result = ToDevice(numbers);
  Compare(
      "nbody",
      [&] {
        BodyForcesKernel<<<count / 256, 256>>>(count, reinterpret_cast<const float4*>(device),
                                               0.01f, reinterpret_cast<float4*>(result));
        Synchronize();
      },
      [&] { baseline::BodyForces(count, bodies.data(), 0.01f, accelerations.data()); });
  std::vector<float> expected(numbers.size());
  std::memcpy(expected.data(), accelerations.data(), expected.size() * sizeof(float));
  Require(Close(FromDevice(result, numbers.size()), expected, 2e-2f), "nbody");
  CHECK_CUDA(cudaFree(device));
  CHECK_CUDA(cudaFree(result));
}

void MeasureLaunches() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  const auto launch = reinterpret_cast<decltype(&cuLaunchKernel)>(dlsym(library, "cuLaunchKernel"));
  const auto synchronize =
      reinterpret_cast<decltype(&cuCtxSynchronize)>(dlsym(library, "cuCtxSynchronize"));
  cudaFunction_t function = nullptr;
  CHECK_CUDA(cudaGetFuncBySymbol(&function, reinterpret_cast<const void*>(&Nothing)));
  const int launches = g_quick ? 100 : 20000;
  const auto one = [&] {
    if (launch(function, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr) != CUDA_SUCCESS) {
      std::exit(EXIT_FAILURE);
    }
  };
  one();
  synchronize();
  perf::Measure("empty_launch", "us", [&] {
    const double seconds = perf::Seconds([&] {
      for (int i = 0; i < launches; ++i) one();
      synchronize();
    });
    return seconds / launches * 1e6;
  });
  perf::Measure("empty_launch_and_wait", "us", [&] {
    const double seconds = perf::Seconds([&] {
      for (int i = 0; i < launches; ++i) {
        one();
        synchronize();
      }
    });
    return seconds / launches * 1e6;
  });
}

// In a process of its own: milliseconds of the first launch.
int FirstLaunch() {
  const int count = 256;
  float* const in = ToDevice(Numbers(count + 8, 0, 1));
  float* const out = ToDevice(std::vector<float>(count));
  int* const order = ToDevice(std::vector<int>(count));
  cudaFuncAttributes attributes;
  CHECK_CUDA(cudaFuncGetAttributes(&attributes, MediumKernel));  // loads the module
  const double seconds = perf::Seconds([&] {
    MediumKernel<<<2, 128>>>(count, in, out, order);
    Synchronize();
  });
  std::printf("%.4f\n", seconds * 1e3);
  return EXIT_SUCCESS;
}

double MillisecondsOfChild(const std::string& program, const std::string& cache) {
  const std::string command =
      "FARGPU_SOFTGPU_EFFORT= FARGPU_CACHE_DIR='" + cache + "' '" + program + "' --first-launch";
  FILE* const pipe = popen(command.c_str(), "r");
  double milliseconds = -1;
  if (pipe == nullptr || std::fscanf(pipe, "%lf", &milliseconds) != 1 || pclose(pipe) != 0) {
    std::fprintf(stderr, "softgpu_bench: the process that measures a first launch failed\n");
    std::exit(EXIT_FAILURE);
  }
  return milliseconds;
}

void MeasureCompilation() {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  char folder[] = "/tmp/softgpu-bench.XXXXXX";
  if (mkdtemp(folder) == nullptr) return;
  std::vector<double> first, again;
  for (int round = 0; round < (g_quick ? 1 : 5); ++round) {
    const std::string cache = std::string(folder) + "/" + std::to_string(round);
    first.push_back(MillisecondsOfChild(program, cache));
    again.push_back(MillisecondsOfChild(program, cache));
  }
  perf::Report("first_launch", first, "ms");
  perf::Report("first_launch_cached", again, "ms");
  std::filesystem::remove_all(folder);
}

}  // namespace

int main(int argc, char** argv) {
  std::string only;
  for (int k = 1; k < argc; ++k) {
    if (std::strcmp(argv[k], "--first-launch") == 0) return FirstLaunch();
    if (std::strcmp(argv[k], "--quick") == 0) {
      g_quick = true;
      g_rounds = 1;
    } else {
      only = argv[k];
    }
  }
  // Kernels as they are once they have run for a while.
  setenv("FARGPU_SOFTGPU_EFFORT", "full", 0);
  // OpenMP's threads sleep at once when they have nothing to do, as the device's do.
  setenv("KMP_BLOCKTIME", "0", 0);
  std::fprintf(stderr, "softgpu_bench: baselines by %s\n", baseline::Compiler());
  const std::pair<const char*, void (*)()> parts[] = {
      {"launch", MeasureLaunches},      {"compile", MeasureCompilation},
      {"saxpy", CompareSaxpy},          {"black_scholes", CompareBlackScholes},
      {"sgemm", CompareMatrixProducts}, {"reduction", CompareSum},
      {"nbody", CompareBodies},
  };
  for (const auto& [name, run] : parts) {
    if (only.empty() || only == name) run();
  }
  return EXIT_SUCCESS;
}
