#include "tests/conformance/ptx/reference.h"

#include <cmath>
#include <cstring>

namespace fargpu::conformance {
namespace {

using U128 = unsigned __int128;

U128 BitsOf(Wide v) {
  U128 bits;
  std::memcpy(&bits, &v, sizeof bits);
  return bits;
}
Wide WideOf(U128 bits) {
  Wide v;
  std::memcpy(&v, &bits, sizeof v);
  return v;
}
Wide PowerOfTwo(int exponent) { return WideOf(static_cast<U128>(exponent + 16383) << 112); }
Wide Infinity() { return WideOf(static_cast<U128>(0x7fff) << 112); }
Wide Nan() { return WideOf(static_cast<U128>(0xffff) << 111); }

}  // namespace

bool SignBit(Wide v) { return (BitsOf(v) >> 127) != 0; }
bool IsInfinite(Wide v) { return v == Infinity() || v == -Infinity(); }

Exact Sum(Wide a, Wide b) {
  const Wide sum = a + b;
  if (IsNan(sum) || IsInfinite(sum)) return {sum, 0};
  const Wide b_part = sum - a;
  const Wide a_part = sum - b_part;
  return {sum, (a - a_part) + (b - b_part)};
}

Wide SquareRoot(Wide v) {
  if (v == 0 || IsNan(v) || v == Infinity()) return v;
  if (v < 0) return Nan();
  // Scaled by an even power of two, so that the first guess does not overflow.
  const int exponent = static_cast<int>(BitsOf(v) >> 112 & 0x7fff) - 16383;
  const int half = exponent / 2;
  const Wide scaled = v * PowerOfTwo(-2 * half);
  Wide root = std::sqrt(static_cast<double>(scaled));
  for (int i = 0; i < 3; ++i) root = (root + scaled / root) / 2;
  return root * PowerOfTwo(half);
}

Wide Decode(const Format& f, uint64_t bits) {
  const int fraction_bits = f.precision - 1;
  const uint64_t fraction = bits & ((uint64_t{1} << fraction_bits) - 1);
  const int exponent_bits = f.bits - 1 - fraction_bits;
  const uint64_t all_ones = (uint64_t{1} << exponent_bits) - 1;
  const uint64_t exponent = bits >> fraction_bits & all_ones;
  const bool negative = (bits >> (f.bits - 1) & 1) != 0;
  Wide v;
  if (exponent == all_ones && f.has_infinity) {
    v = fraction == 0 ? Infinity() : Nan();
  } else if (!f.has_infinity && exponent == all_ones &&
             fraction == (uint64_t{1} << fraction_bits) - 1) {
    v = Nan();
  } else if (exponent == 0) {
    v = static_cast<Wide>(fraction) * PowerOfTwo(f.min_exponent - fraction_bits);
  } else {
    v = static_cast<Wide>(fraction | uint64_t{1} << fraction_bits) *
        PowerOfTwo(f.min_exponent + static_cast<int>(exponent) - 1 - fraction_bits);
  }
  return negative ? -v : v;
}

uint64_t Encode(const Format& f, Exact exact, Round mode) {
  const int fraction_bits = f.precision - 1;
  const int exponent_bits = f.bits - 1 - fraction_bits;
  const uint64_t all_ones = (uint64_t{1} << exponent_bits) - 1;
  const bool negative = SignBit(exact.value);
  const uint64_t sign = negative ? uint64_t{1} << (f.bits - 1) : 0;
  const uint64_t infinity =
      f.has_infinity ? all_ones << fraction_bits : (uint64_t{1} << (f.bits - 1)) - 1;
  const uint64_t largest = infinity - 1;
  if (IsNan(exact.value)) {
    return f.has_infinity ? infinity | uint64_t{1} << (fraction_bits - 1) : infinity;
  }
  if (IsInfinite(exact.value)) return sign | infinity;
  if (exact.value == 0) return sign;
  // The magnitude as an integer times 2^scale, with two more bits that keep the side of `rest`.
  const U128 bits = BitsOf(exact.value);
  const int exponent = static_cast<int>(bits >> 112 & 0x7fff) - 16383;
  U128 magnitude = ((bits & ((static_cast<U128>(1) << 112) - 1)) | static_cast<U128>(1) << 112)
                   << 2;
  if (exact.rest != 0) magnitude += (SignBit(exact.rest) != negative) ? -1 : 1;
  const int scale = exponent - 114;
  const int unit = std::max(exponent, f.min_exponent) - fraction_bits;
  const int shift = unit - scale;
  U128 kept = shift >= 127 ? 0 : magnitude >> shift;
  const U128 lost = shift >= 127 ? magnitude : magnitude & ((static_cast<U128>(1) << shift) - 1);
  const U128 half = static_cast<U128>(1) << std::min(shift - 1, 126);
  const bool tie = shift < 127 && lost == half;
  const bool above = shift < 127 && lost > half;
  bool up = false;
  switch (mode) {
    case Round::kNearestEven:
      up = above || (tie && (kept & 1) != 0);
      break;
    case Round::kNearestAway:
      up = above || tie;
      break;
    case Round::kZero:
      break;
    case Round::kDown:
      up = negative && lost != 0;
      break;
    case Round::kUp:
      up = !negative && lost != 0;
      break;
  }
  if (up) ++kept;
  // `kept` counts units of 2^unit; a carry into the next exponent comes out right by itself.
  uint64_t result = static_cast<uint64_t>(kept);
  if (unit > f.min_exponent - fraction_bits) {
    result += static_cast<uint64_t>(unit - (f.min_exponent - fraction_bits)) << fraction_bits;
  }
  if (result >= infinity) {
    const bool toward_zero = mode == Round::kZero || (mode == Round::kDown && !negative) ||
                             (mode == Round::kUp && negative);
    result = toward_zero ? largest : infinity;
  }
  return sign | result;
}

float Flush(float f) { return std::fabs(f) < 0x1p-126f ? std::copysign(0.0f, f) : f; }

}  // namespace fargpu::conformance
