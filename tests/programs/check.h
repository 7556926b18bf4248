#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

// What the test programs share: every CUDA call is checked, results are compared with a CPU's, and
// what is printed is the same in every run (no addresses, no times).

// Ends the program with status 1, saying why on stderr, if the call fails.
#define CHECK_CUDA(call) CheckCuda((call), #call, __FILE__, __LINE__)

// The call must fail with this very error.
#define EXPECT_CUDA_ERROR(call, expected) \
  ExpectCudaError((call), (expected), #call, __FILE__, __LINE__)

// Ends the program with status 1 if a result is wrong.
#define EXPECT(condition)                                                            \
  do {                                                                               \
    if (!(condition)) {                                                              \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                  \
    }                                                                                \
  } while (false)

inline void CheckCuda(cudaError_t error, const char* call, const char* file, int line) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s:%d: %s: %s (%s)\n", file, line, call, cudaGetErrorName(error),
               cudaGetErrorString(error));
  std::exit(1);
}

inline void ExpectCudaError(cudaError_t error, cudaError_t expected, const char* call,
                            const char* file, int line) {
  if (error == expected) return;
  std::fprintf(stderr, "%s:%d: %s: %s, expected %s\n", file, line, call, cudaGetErrorName(error),
               cudaGetErrorName(expected));
  std::exit(1);
}

// FNV-1a over the bytes of an array, so that one line of output stands for a whole result.
template <typename T>
uint64_t Checksum(const T* values, size_t count) {
  const unsigned char* bytes = reinterpret_cast<const unsigned char*>(values);
  uint64_t hash = 14695981039346656037u;
  for (size_t i = 0; i < count * sizeof(T); ++i) hash = (hash ^ bytes[i]) * 1099511628211u;
  return hash;
}

// Compares element by element, naming the first difference, and prints the checksum.
template <typename T>
void ExpectEqual(const char* what, const T* actual, const T* expected, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (actual[i] == expected[i]) continue;
    std::fprintf(stderr, "%s: element %zu is %.17g, expected %.17g\n", what, i,
                 static_cast<double>(actual[i]), static_cast<double>(expected[i]));
    std::exit(1);
  }
  std::printf("%s: %zu values are right, checksum %016llx\n", what, count,
              static_cast<unsigned long long>(Checksum(actual, count)));
}
