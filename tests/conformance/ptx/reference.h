#pragma once

#include <bit>
#include <cstdint>

// Exact arithmetic for expected values, on its own feet: nothing of the software device is used.
namespace fargpu::conformance {

// Bit patterns of the formats that C++ lacks.
struct Half {
  uint16_t bits;
};
struct BHalf {
  uint16_t bits;
};
struct Half2 {
  uint32_t bits;
  Half low() const { return {static_cast<uint16_t>(bits)}; }
  Half high() const { return {static_cast<uint16_t>(bits >> 16)}; }
};
struct BHalf2 {
  uint32_t bits;
  BHalf low() const { return {static_cast<uint16_t>(bits)}; }
  BHalf high() const { return {static_cast<uint16_t>(bits >> 16)}; }
};

enum class Round { kNearestEven, kNearestAway, kZero, kDown, kUp };

// A binary floating point format. Infinities and NaNs use the exponent of all ones, except e4m3,
// whose only NaN is all ones and which has no infinity.
struct Format {
  int precision;  // with the hidden bit
  int min_exponent;
  int max_exponent;
  int bits;
  bool has_infinity = true;
};
inline constexpr Format kF16 = {11, -14, 15, 16};
inline constexpr Format kBF16 = {8, -126, 127, 16};
inline constexpr Format kF32 = {24, -126, 127, 32};
inline constexpr Format kF64 = {53, -1022, 1023, 64};
inline constexpr Format kTF32 = {11, -126, 127, 19};  // the upper bits of an f32
inline constexpr Format kE4M3 = {4, -6, 8, 8, false};
inline constexpr Format kE5M2 = {3, -14, 15, 8};

using Wide = __float128;

// A real number: `value` + `rest`, where `rest` is smaller than half a unit of `value`'s last
// place.
struct Exact {
  Wide value = 0;
  Wide rest = 0;
};
Exact Sum(Wide a, Wide b);

// The number that a pattern stands for. Infinities and NaNs come out as such.
Wide Decode(const Format& format, uint64_t bits);
// The pattern that is nearest in the sense of `mode`. Zero keeps the sign of `value`; a NaN becomes
// quiet and positive.
uint64_t Encode(const Format& format, Exact exact, Round mode = Round::kNearestEven);

inline bool IsNan(Wide v) { return v != v; }
bool IsInfinite(Wide v);
bool SignBit(Wide v);
// Square root, right to 110 bits.
Wide SquareRoot(Wide v);

inline uint32_t Bits(float f) { return std::bit_cast<uint32_t>(f); }
inline uint64_t Bits(double d) { return std::bit_cast<uint64_t>(d); }
inline float F32(uint64_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits)); }
inline double F64(uint64_t bits) { return std::bit_cast<double>(bits); }

inline Wide Real(float f) { return f; }
inline Wide Real(double d) { return d; }
inline Wide Real(Half h) { return Decode(kF16, h.bits); }
inline Wide Real(BHalf h) { return Decode(kBF16, h.bits); }

template <typename T>
struct FormatOf;
template <>
struct FormatOf<float> {
  static constexpr Format kFormat = kF32;
  static float Make(uint64_t bits) { return F32(bits); }
};
template <>
struct FormatOf<double> {
  static constexpr Format kFormat = kF64;
  static double Make(uint64_t bits) { return F64(bits); }
};
template <>
struct FormatOf<Half> {
  static constexpr Format kFormat = kF16;
  static Half Make(uint64_t bits) { return {static_cast<uint16_t>(bits)}; }
};
template <>
struct FormatOf<BHalf> {
  static constexpr Format kFormat = kBF16;
  static BHalf Make(uint64_t bits) { return {static_cast<uint16_t>(bits)}; }
};

// `exact` rounded once to T.
template <typename T>
T RoundTo(Exact exact, Round mode = Round::kNearestEven) {
  return FormatOf<T>::Make(Encode(FormatOf<T>::kFormat, exact, mode));
}

// Operations rounded once. Zero results have the sign that IEEE 754 gives them in that mode.
template <typename T>
T AddRounded(T a, T b, Round mode = Round::kNearestEven) {
  const Wide x = Real(a), y = Real(b);
  Exact sum = Sum(x, y);
  if (sum.value == 0 && sum.rest == 0) {
    const bool negative = SignBit(x) == SignBit(y) ? SignBit(x) : mode == Round::kDown;
    sum.value = negative ? -static_cast<Wide>(0) : static_cast<Wide>(0);
  }
  return RoundTo<T>(sum, mode);
}
template <typename T>
T MulRounded(T a, T b, Round mode = Round::kNearestEven) {
  return RoundTo<T>({Real(a) * Real(b), 0}, mode);
}
template <typename T>
T FmaRounded(T a, T b, T c, Round mode = Round::kNearestEven) {
  const Wide x = Real(a) * Real(b), y = Real(c);
  Exact sum = Sum(x, y);
  if (sum.value == 0 && sum.rest == 0) {
    const bool negative = SignBit(x) == SignBit(y) ? SignBit(x) : mode == Round::kDown;
    sum.value = negative ? -static_cast<Wide>(0) : static_cast<Wide>(0);
  }
  return RoundTo<T>(sum, mode);
}
// A quotient of numbers of at most 53 bits is never so close to a rounding boundary that the 113
// bits of Wide could not tell the side.
template <typename T>
T DivRounded(T a, T b, Round mode = Round::kNearestEven) {
  return RoundTo<T>({Real(a) / Real(b), 0}, mode);
}
template <typename T>
T SqrtRounded(T a, Round mode = Round::kNearestEven) {
  return RoundTo<T>({SquareRoot(Real(a)), 0}, mode);
}

// A denormal becomes a zero of its sign.
float Flush(float f);

}  // namespace fargpu::conformance
