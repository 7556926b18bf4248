// cuRAND's host interface: each generator on the device gives what the same generator on the CPU
// gives, bit for bit for uniform values.
#include <curand.h>

#include "library_test.h"

using namespace library_test;  // NOLINT: a test program

int main(int argc, char** argv) {
  ParseArguments(argc, argv);
  void* const library = OpenLibrary({"libcurand.so.10"});
  int version = 0;
  LIBRARY_SYMBOL(library, curandGetVersion)(&version);
  PrintVersion("cuRAND " + DottedVersion(version, 1000, 100));
  const auto create = LIBRARY_SYMBOL(library, curandCreateGenerator);
  const auto create_host = LIBRARY_SYMBOL(library, curandCreateGeneratorHost);
  const auto seed = LIBRARY_SYMBOL(library, curandSetPseudoRandomGeneratorSeed);
  const auto dimensions = LIBRARY_SYMBOL(library, curandSetQuasiRandomGeneratorDimensions);
  const auto uniform = LIBRARY_SYMBOL(library, curandGenerateUniform);
  const auto normal = LIBRARY_SYMBOL(library, curandGenerateNormal);
  const auto uniform_double = LIBRARY_SYMBOL(library, curandGenerateUniformDouble);
  const auto poisson = LIBRARY_SYMBOL(library, curandGeneratePoisson);
  const auto bits = LIBRARY_SYMBOL(library, curandGenerate);
  const auto long_bits = LIBRARY_SYMBOL(library, curandGenerateLongLong);
  const auto destroy = LIBRARY_SYMBOL(library, curandDestroyGenerator);
  const std::pair<const char*, curandRngType_t> types[] = {
      {"xorwow", CURAND_RNG_PSEUDO_XORWOW},
      {"philox", CURAND_RNG_PSEUDO_PHILOX4_32_10},
      {"mrg32k3a", CURAND_RNG_PSEUDO_MRG32K3A},
      {"mtgp32", CURAND_RNG_PSEUDO_MTGP32},
      {"mt19937", CURAND_RNG_PSEUDO_MT19937},
      {"sobol32", CURAND_RNG_QUASI_SOBOL32},
      {"scrambled_sobol32", CURAND_RNG_QUASI_SCRAMBLED_SOBOL32},
      {"sobol64", CURAND_RNG_QUASI_SOBOL64},
      {"scrambled_sobol64", CURAND_RNG_QUASI_SCRAMBLED_SOBOL64},
  };
  constexpr size_t kCount = 40000;
  for (const auto& [name, type] : types) {
    if (!Wanted(name)) continue;
    const auto fresh = [&, type = type](bool host) {
      curandGenerator_t generator = nullptr;
      const int status = host ? create_host(&generator, type) : create(&generator, type);
      if (status != 0) std::printf("  create: %d\n", status);
      if (type < CURAND_RNG_QUASI_DEFAULT) {
        seed(generator, 1234);
      } else {
        dimensions(generator, 4);
      }
      return generator;
    };
    // What `generate(generator, where)` writes on the device and on the CPU.
    const auto check = [&, name = name](const char* what, double tolerance, auto example,
                                        const auto& generate) {
      using T = decltype(example);
      const Device<T> device(kCount);
      std::vector<T> expected(kCount);
      curandGenerator_t generator = fresh(false);
      curandGenerator_t host = fresh(true);
      const int status = generate(generator, device.get());
      const int host_status = generate(host, expected.data());
      if (status == 0 && host_status != 0) std::printf("  on the CPU: %d\n", host_status);
      const std::vector<T> got = device.Read();
      double error = tolerance == 0 && got != expected ? INFINITY : 0;
      if (tolerance != 0) {
        error = Error(std::vector<double>(got.begin(), got.end()),
                      std::vector<double>(expected.begin(), expected.end()));
      }
      Check(std::string(name) + what, status, error, tolerance);
      destroy(generator);
      destroy(host);
    };
    const bool wide =
        type == CURAND_RNG_QUASI_SOBOL64 || type == CURAND_RNG_QUASI_SCRAMBLED_SOBOL64;
    check("_uniform", 0, 0.0f, [&](auto g, float* to) { return uniform(g, to, kCount); });
    check("_normal", 1e-5, 0.0f, [&](auto g, float* to) { return normal(g, to, kCount, 0, 1); });
    check("_uniform_double", 0, 0.0,
          [&](auto g, double* to) { return uniform_double(g, to, kCount); });
    if (wide) {
      check("_bits", 0, 0ull,
            [&](auto g, unsigned long long* to) { return long_bits(g, to, kCount); });
    } else {
      check("_bits", 0, 0u, [&](auto g, unsigned* to) { return bits(g, to, kCount); });
      check("_poisson", 0, 0u, [&](auto g, unsigned* to) { return poisson(g, to, kCount, 10); });
    }
  }
  return Finish();
}
