#include "softgpu_baselines.h"

#include <cmath>

namespace baseline {

const char* Compiler() {
  return "clang++ " __clang_version__ " -O3 -march=native -fno-math-errno -fopenmp";
}

void Saxpy(size_t count, float a, const float* x, float* y) {
#pragma omp parallel for
  for (size_t i = 0; i < count; ++i) y[i] = a * x[i] + y[i];
}

namespace {

// The polynomial of NVIDIA's sample: cumulative normal distribution.
inline float Normal(float d) {
  const float k = 1.0f / (1.0f + 0.2316419f * std::fabs(d));
  float value =
      0.39894228040143267794f * std::exp(-0.5f * d * d) *
      (k * (0.31938153f +
            k * (-0.356563782f + k * (1.781477937f + k * (-1.821255978f + k * 1.330274429f)))));
  return d > 0 ? 1.0f - value : value;
}

}  // namespace

void BlackScholes(size_t count, const float* price, const float* strike, const float* years,
                  float rate, float volatility, float* call, float* put) {
#pragma omp parallel for
  for (size_t i = 0; i < count; ++i) {
    const float root = std::sqrt(years[i]);
    const float d1 =
        (std::log(price[i] / strike[i]) + (rate + 0.5f * volatility * volatility) * years[i]) /
        (volatility * root);
    const float d2 = d1 - volatility * root;
    const float n1 = Normal(d1);
    const float n2 = Normal(d2);
    const float discount = std::exp(-rate * years[i]);
    call[i] = price[i] * n1 - strike[i] * discount * n2;
    put[i] = strike[i] * discount * (1.0f - n2) - price[i] * (1.0f - n1);
  }
}

float Sum(size_t count, const float* values) {
  float sum = 0;
#pragma omp parallel for simd reduction(+ : sum)
  for (size_t i = 0; i < count; ++i) sum += values[i];
  return sum;
}

void BodyForces(int count, const Body* bodies, float softening, Body* accelerations) {
#pragma omp parallel for
  for (int i = 0; i < count; ++i) {
    float ax = 0, ay = 0, az = 0;
#pragma omp simd reduction(+ : ax, ay, az)
    for (int j = 0; j < count; ++j) {
      const float dx = bodies[j].x - bodies[i].x;
      const float dy = bodies[j].y - bodies[i].y;
      const float dz = bodies[j].z - bodies[i].z;
      const float inverse = 1.0f / std::sqrt(dx * dx + dy * dy + dz * dz + softening);
      const float scale = bodies[j].mass * inverse * inverse * inverse;
      ax += dx * scale;
      ay += dy * scale;
      az += dz * scale;
    }
    accelerations[i] = {ax, ay, az, 0};
  }
}

}  // namespace baseline
