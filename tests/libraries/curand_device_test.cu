// cuRAND's functions for kernels: each generator's sequence equals that of the same header's code
// compiled for the CPU.
#define QUALIFIERS static inline __host__ __device__  // cuRAND's own hook
#include <curand.h>
#include <curand_kernel.h>

#include "library_test.h"
#include <curand_mtgp32_host.h>
#include <curand_mtgp32dc_p_11213.h>

using namespace library_test;  // NOLINT: a test program

namespace {

constexpr int kBlocks = 4, kThreads = 64, kDraws = 12;
constexpr int kStates = kBlocks * kThreads;
constexpr unsigned long long kSeed = 20240229;

// What a thread draws; `State` and the functions are cuRAND's.
struct Draw {
  unsigned bits;
  float uniform, normal, log_normal;
  double uniform_double;
  unsigned poisson;
};

template <typename State>
__host__ __device__ Draw Next(State* state) {
  Draw draw;
  draw.bits = curand(state);
  draw.uniform = curand_uniform(state);
  draw.normal = curand_normal(state);
  draw.log_normal = curand_log_normal(state, 0.5f, 0.25f);
  draw.uniform_double = curand_uniform_double(state);
  draw.poisson = curand_poisson(state, 5.0);
  return draw;
}

// Quasirandom values become normal by the inverse of the distribution, which the header has for
// devices only.
[[maybe_unused]] float NormalOf(double uniform) {
  double low = -10, high = 10;
  for (int k = 0; k < 60; ++k) {
    const double middle = (low + high) / 2;
    (std::erfc(-middle / std::sqrt(2.0)) / 2 < uniform ? low : high) = middle;
  }
  return static_cast<float>(low);
}

__host__ __device__ Draw Next(curandStateSobol32_t* state) {
  Draw draw = {};
  draw.bits = curand(state);
  draw.uniform = curand_uniform(state);
#ifdef __CUDA_ARCH__
  draw.normal = curand_normal(state);
#else
  draw.normal = NormalOf((curand(state) + 0.5) / 4294967296.0);
#endif
  draw.uniform_double = curand_uniform_double(state);
  return draw;
}

// Every thread has a sequence of its own and begins 1000 draws in, so that skipping ahead is
// tested.
template <typename State>
__global__ void Init(State* states) {
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  curand_init(kSeed, thread, 1000, &states[thread]);
}

template <typename State>
__global__ void InitQuasi(State* states, curandDirectionVectors32_t* directions) {
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  curand_init(directions[thread % 8], thread, &states[thread]);
}

template <typename State>
__global__ void Generate(State* states, Draw* draws) {
  const int thread = blockIdx.x * blockDim.x + threadIdx.x;
  State state = states[thread];
  for (int k = 0; k < kDraws; ++k) draws[thread * kDraws + k] = Next(&state);
  states[thread] = state;
}

// 0 if whole numbers agree; how far the others are at most.
double Difference(const std::vector<Draw>& got, const std::vector<Draw>& expected) {
  if (got.size() != expected.size()) return INFINITY;
  double worst = 0;
  for (size_t k = 0; k < got.size(); ++k) {
    const Draw &a = got[k], &b = expected[k];
    if (a.bits != b.bits || a.poisson != b.poisson) {
      std::printf("  draw %zu: bits %x, expected %x; poisson %u, expected %u\n", k, a.bits, b.bits,
                  a.poisson, b.poisson);
      return INFINITY;
    }
    worst = std::max({worst, std::fabs(static_cast<double>(a.uniform) - b.uniform),
                      std::fabs(static_cast<double>(a.normal) - b.normal),
                      std::fabs(static_cast<double>(a.log_normal) - b.log_normal),
                      std::fabs(a.uniform_double - b.uniform_double)});
  }
  return worst;
}

template <typename State, typename OnDevice, typename OnHost>
void CheckSequence(const char* name, const OnDevice& init, const OnHost& init_on_host) {
  if (!Wanted(name)) return;
  const Device<State> states(kStates);
  const Device<Draw> draws(kStates * kDraws);
  init(states.get());
  Generate<<<kBlocks, kThreads>>>(states.get(), draws.get());
  const cudaError_t launched = cudaGetLastError();
  std::vector<Draw> expected;
  for (int thread = 0; thread < kStates; ++thread) {
    State state;
    init_on_host(thread, &state);
    for (int k = 0; k < kDraws; ++k) expected.push_back(Next(&state));
  }
  // The CPU's logf, sinf and expf are other ones.
  Check(name, launched, Difference(draws.Read(), expected), 1e-5);
}

template <typename State>
void CheckPseudo(const char* name) {
  CheckSequence<State>(
      name, [](State* states) { Init<<<kBlocks, kThreads>>>(states); },
      [](int thread, State* state) { curand_init(kSeed, thread, 1000, state); });
}

__global__ void GenerateMtgp(curandStateMtgp32_t* states, unsigned* bits) {
  for (int k = 0; k < kDraws; ++k) {
    bits[(blockIdx.x * kDraws + k) * blockDim.x + threadIdx.x] = curand(&states[blockIdx.x]);
  }
}

}  // namespace

int main(int argc, char** argv) {
  ParseArguments(argc, argv);
  void* const library = OpenLibrary({"libcurand.so.10"});
  int version = 0;
  LIBRARY_SYMBOL(library, curandGetVersion)(&version);
  PrintVersion("cuRAND " + DottedVersion(version, 1000, 100) + ", device functions");

  CheckPseudo<curandStatePhilox4_32_10_t>("philox");
  CheckPseudo<curandStateXORWOW_t>("xorwow");
  CheckPseudo<curandStateMRG32k3a_t>("mrg32k3a");

  curandDirectionVectors32_t* directions = nullptr;
  const int found = LIBRARY_SYMBOL(library, curandGetDirectionVectors32)(
      &directions, CURAND_DIRECTION_VECTORS_32_JOEKUO6);
  if (found != 0) {
    Check("sobol32", found, INFINITY, 0);
    return Finish();
  }
  std::vector<unsigned> copied(8 * 32);
  std::memcpy(copied.data(), directions, copied.size() * sizeof(unsigned));
  const Device<unsigned> device_directions(copied);
  CheckSequence<curandStateSobol32_t>(
      "sobol32",
      [&](curandStateSobol32_t* states) {
        InitQuasi<<<kBlocks, kThreads>>>(
            states, reinterpret_cast<curandDirectionVectors32_t*>(device_directions.get()));
      },
      [&](int thread, curandStateSobol32_t* state) {
        curand_init(directions[thread % 8], thread, state);
      });

  // MTGP32: a block shares a state. The same on every run, and spread evenly.
  if (Wanted("mtgp32")) {
    const Device<curandStateMtgp32_t> states(kBlocks);
    const Device<mtgp32_kernel_params_t> params(1);
    int status = curandMakeMTGP32Constants(mtgp32dc_params_fast_11213, params.get());
    if (status == 0) {
      status = curandMakeMTGP32KernelState(states.get(), mtgp32dc_params_fast_11213, params.get(),
                                           kBlocks, kSeed);
    }
    constexpr int kCount = kBlocks * kDraws * 256;
    const Device<unsigned> bits(kCount);
    GenerateMtgp<<<kBlocks, 256>>>(states.get(), bits.get());
    // The host interface with as many blocks and the same parameters gives the same numbers only
    // for 64 blocks; here it is the moments that count.
    double mean = 0, square = 0;
    for (const unsigned value : bits.Read()) {
      const double unit = value / 4294967296.0;
      mean += unit / kCount;
      square += unit * unit / kCount;
    }
    Check("mtgp32_moments", status, std::max(std::fabs(mean - 0.5), std::fabs(square - 1.0 / 3)),
          0.01);
  }
  return Finish();
}
