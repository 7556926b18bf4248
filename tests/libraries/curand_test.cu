// cuRAND's host interface: each generator on the device gives what the same generator on the CPU
// gives, bit for bit for uniform values.
#include <curand.h>

#include "library_test.h"

using namespace library_test;  // NOLINT: a test program

int main(int argc, char** argv) {
  if (argc > 1) g_only = argv[1];
  void* const library = OpenLibrary({"libcurand.so.10"});
  const auto create = LIBRARY_SYMBOL(library, curandCreateGenerator);
  const auto create_host = LIBRARY_SYMBOL(library, curandCreateGeneratorHost);
  const auto seed = LIBRARY_SYMBOL(library, curandSetPseudoRandomGeneratorSeed);
  const auto dimensions = LIBRARY_SYMBOL(library, curandSetQuasiRandomGeneratorDimensions);
  const auto uniform = LIBRARY_SYMBOL(library, curandGenerateUniform);
  const auto normal = LIBRARY_SYMBOL(library, curandGenerateNormal);
  const auto bits = LIBRARY_SYMBOL(library, curandGenerate);
  const auto destroy = LIBRARY_SYMBOL(library, curandDestroyGenerator);
  const std::pair<const char*, curandRngType_t> types[] = {
      {"xorwow", CURAND_RNG_PSEUDO_XORWOW},
      {"philox", CURAND_RNG_PSEUDO_PHILOX4_32_10},
      {"mrg32k3a", CURAND_RNG_PSEUDO_MRG32K3A},
      {"mtgp32", CURAND_RNG_PSEUDO_MTGP32},
      {"mt19937", CURAND_RNG_PSEUDO_MT19937},
      {"sobol32", CURAND_RNG_QUASI_SOBOL32},
      {"scrambled_sobol32", CURAND_RNG_QUASI_SCRAMBLED_SOBOL32},
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
    for (const bool is_normal : {false, true}) {
      const Device<float> device(kCount);
      std::vector<float> expected(kCount);
      curandGenerator_t generator = fresh(false);
      curandGenerator_t host = fresh(true);
      int status = is_normal ? normal(generator, device.get(), kCount, 0, 1)
                             : uniform(generator, device.get(), kCount);
      const int host_status = is_normal ? normal(host, expected.data(), kCount, 0, 1)
                                        : uniform(host, expected.data(), kCount);
      if (status == 0 && host_status != 0) std::printf("  on the CPU: %d\n", host_status);
      Check(std::string(name) + (is_normal ? "_normal" : "_uniform"), status,
            Error(device.Read(), expected), is_normal ? 1e-5 : 0);
      destroy(generator);
      destroy(host);
    }
    const Device<unsigned> device(kCount);
    std::vector<unsigned> expected(kCount);
    curandGenerator_t generator = fresh(false);
    curandGenerator_t host = fresh(true);
    const int status = bits(generator, device.get(), kCount);
    bits(host, expected.data(), kCount);
    Check(std::string(name) + "_bits", status, device.Read() == expected ? 0 : 1, 0);
    destroy(generator);
    destroy(host);
  }
  return Finish();
}
