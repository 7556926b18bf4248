#pragma once

#include <cmath>
#include <cstdint>

// Half precision by its definition, for expected values: clang 14 has no _Float16 on x86-64, and
// the device's own conversions are what is tested.
namespace fargpu::softgpu {

inline double HalfValue(uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 0x3ff;
  if (exponent == 31 && mantissa != 0) return std::nan("");
  const double magnitude = exponent == 31  ? HUGE_VAL
                           : exponent == 0 ? std::ldexp(mantissa, -24)
                                           : std::ldexp(mantissa + 1024, exponent - 25);
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

// To nearest, ties to even: how nearbyint rounds by default.
inline uint16_t NearestHalf(double value) {
  if (std::isnan(value)) return 0x7fff;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  if (magnitude >= 65520) return sign | 0x7c00;  // halfway to what would come after the largest
  const int exponent = magnitude < 0x1p-14 ? -14 : std::ilogb(magnitude);
  const int mantissa = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  return static_cast<uint16_t>(sign | ((exponent + 14) * 1024 + mantissa));
}

}  // namespace fargpu::softgpu
