#pragma once

#include <cstddef>

// The same work as the kernels of softgpu_bench.cu, as a CPU programmer would write it first: loops
// for clang++ -O3 -march=native -fopenmp (and -fno-math-errno, without which no loop with a root is
// vectorised). The yardstick of the software device.
namespace baseline {

const char* Compiler();  // that built these, with its options

void Saxpy(size_t count, float a, const float* x, float* y);
void BlackScholes(size_t count, const float* price, const float* strike, const float* years,
                  float rate, float volatility, float* call, float* put);
float Sum(size_t count, const float* values);

struct Body {
  float x, y, z, mass;
};
void BodyForces(int count, const Body* bodies, float softening, Body* accelerations);

}  // namespace baseline
