// cvt between all types, with every rounding, saturation and packing.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "tests/conformance/ptx/tables.h"

namespace fargpu::conformance {
namespace {

using I128 = __int128;

// Registers have at least 16 bits.
template <typename T>
using RegisterOf =
    std::conditional_t<sizeof(T) == 1, std::conditional_t<std::is_signed_v<T>, int16_t, uint16_t>,
                       T>;

template <typename T>
std::string NameOf() {
  if constexpr (std::is_integral_v<T>) {
    return (std::is_signed_v<T> ? "s" : "u") + std::to_string(8 * sizeof(T));
  } else {
    return std::is_same_v<T, Half>    ? "f16"
           : std::is_same_v<T, BHalf> ? "bf16"
           : std::is_same_v<T, float> ? "f32"
                                      : "f64";
  }
}

template <typename T>
T Clamp(I128 v) {
  return static_cast<T>(
      std::clamp<I128>(v, std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
}

// ---- integers to integers

template <typename To, typename From>
void AddIntegers(Table* t) {
  using R = RegisterOf<To>;
  using A = RegisterOf<From>;
  const std::string types = NameOf<To>() + "." + NameOf<From>();
  t->Add("cvt." + types, "$ %d, %a;",
         [](A a) { return static_cast<R>(static_cast<To>(static_cast<From>(a))); });
  t->Add("cvt.sat." + types, "$ %d, %a;",
         [](A a) { return static_cast<R>(Clamp<To>(static_cast<From>(a))); });
}
template <typename To>
void AddIntegersTo(Table* t) {
  AddIntegers<To, uint8_t>(t);
  AddIntegers<To, int8_t>(t);
  AddIntegers<To, uint16_t>(t);
  AddIntegers<To, int16_t>(t);
  AddIntegers<To, uint32_t>(t);
  AddIntegers<To, int32_t>(t);
  AddIntegers<To, uint64_t>(t);
  AddIntegers<To, int64_t>(t);
}

// ---- floating point to integers

constexpr std::pair<const char*, Round> kWhole[] = {{".rni", Round::kNearestEven},
                                                    {".rzi", Round::kZero},
                                                    {".rmi", Round::kDown},
                                                    {".rpi", Round::kUp}};
constexpr std::pair<const char*, Round> kRoundings[] = {{".rn", Round::kNearestEven},
                                                        {".rz", Round::kZero},
                                                        {".rm", Round::kDown},
                                                        {".rp", Round::kUp}};

// To a whole number; |v| below 2^100.
Wide RoundWhole(Wide v, Round mode) {
  const I128 truncated = static_cast<I128>(v);
  const Wide rest = v - static_cast<Wide>(truncated);
  I128 r = truncated;
  const Wide half = 0.5;
  switch (mode) {
    case Round::kZero:
      break;
    case Round::kDown:
      r -= rest < 0;
      break;
    case Round::kUp:
      r += rest > 0;
      break;
    default:
      if (rest > half || (rest == half && truncated % 2 != 0)) ++r;
      if (rest < -half || (rest == -half && truncated % 2 != 0)) --r;
  }
  return static_cast<Wide>(r);
}

template <typename To>
To ToInteger(Wide v, Round mode, bool nan_is_top_bit) {
  if (IsNan(v)) {
    return nan_is_top_bit ? static_cast<To>(uint64_t{1} << (8 * sizeof(To) - 1)) : To{0};
  }
  const Wide limit = 0x1p100;
  return Clamp<To>(static_cast<I128>(RoundWhole(v > limit    ? limit
                                                : v < -limit ? -limit
                                                             : v,
                                                mode)));
}

template <typename To, typename From>
void AddToInteger(Table* t) {
  using R = RegisterOf<To>;
  const std::string types = NameOf<To>() + "." + NameOf<From>();
  const bool top = sizeof(To) == 8 || std::is_same_v<From, double>;
  for (const auto& [suffix, rounding] : kWhole) {
    const Round mode = rounding;
    const auto convert = [mode, top](From a) {
      return static_cast<R>(ToInteger<To>(Real(a), mode, top));
    };
    t->Add("cvt" + (suffix + ("." + types)), "$ %d, %a;", convert);
    t->Add("cvt" + (suffix + (".sat." + types)), "$ %d, %a;", convert);
    if constexpr (std::is_same_v<From, float>) {
      t->Add("cvt" + (suffix + (".ftz." + types)), "$ %d, %a;",
             [mode, top](float a) { return static_cast<R>(ToInteger<To>(Flush(a), mode, top)); });
    }
  }
}
template <typename From>
void AddToIntegers(Table* t) {
  AddToInteger<uint8_t, From>(t);
  AddToInteger<int8_t, From>(t);
  AddToInteger<uint16_t, From>(t);
  AddToInteger<int16_t, From>(t);
  AddToInteger<uint32_t, From>(t);
  AddToInteger<int32_t, From>(t);
  AddToInteger<uint64_t, From>(t);
  AddToInteger<int64_t, From>(t);
}

// ---- integers to floating point

template <typename To, typename From>
void AddFromInteger(Table* t) {
  using A = RegisterOf<From>;
  const std::string types = NameOf<To>() + "." + NameOf<From>();
  for (const auto& [suffix, rounding] : kRoundings) {
    const Round mode = rounding;
    t->Add("cvt" + (suffix + ("." + types)), "$ %d, %a;", [mode](A a) {
      return RoundTo<To>({static_cast<Wide>(static_cast<From>(a)), 0}, mode);
    });
  }
}
template <typename To>
void AddFromIntegers(Table* t) {
  AddFromInteger<To, uint8_t>(t);
  AddFromInteger<To, int8_t>(t);
  AddFromInteger<To, uint16_t>(t);
  AddFromInteger<To, int16_t>(t);
  AddFromInteger<To, uint32_t>(t);
  AddFromInteger<To, int32_t>(t);
  AddFromInteger<To, uint64_t>(t);
  AddFromInteger<To, int64_t>(t);
}

// ---- floating point to floating point

template <typename To, typename From>
void AddWidening(Table* t) {
  t->Add("cvt." + NameOf<To>() + "." + NameOf<From>(), "$ %d, %a;", [](From a) {
    return RoundTo<To>({Real(a), 0});
  });
}

template <typename T>
T ReluOf(T v) {
  const Wide x = Real(v);
  return x < 0 || (x == 0 && SignBit(x)) ? RoundTo<T>({0, 0}) : v;
}

template <typename To, typename From>
void AddNarrowing(Table* t) {
  const std::string types = NameOf<To>() + "." + NameOf<From>();
  for (const auto& [suffix, rounding] : kRoundings) {
    const Round mode = rounding;
    t->Add("cvt" + (suffix + ("." + types)), "$ %d, %a;", [mode](From a) {
      return RoundTo<To>({Real(a), 0}, mode);
    });
    if (sizeof(To) != 2 || !std::is_same_v<From, float> || mode == Round::kDown ||
        mode == Round::kUp) {
      continue;
    }
    t->Add("cvt" + (suffix + (".relu." + types)), "$ %d, %a;", [mode](From a) {
      return ReluOf(RoundTo<To>({Real(a), 0}, mode));
    });
  }
}

// To a whole number of the same type.
template <typename T>
void AddWhole(Table* t) {
  const std::string types = NameOf<T>() + "." + NameOf<T>();
  for (const auto& [suffix, rounding] : kWhole) {
    const Round mode = rounding;
    const auto whole = [mode](T a) {
      const Wide x = Real(a);
      if (IsNan(x) || IsInfinite(x) || x > Wide{0x1p100} || x < -Wide{0x1p100}) return a;
      Wide r = RoundWhole(x, mode);
      if (r == 0 && SignBit(x)) r = -static_cast<Wide>(0);
      return RoundTo<T>({r, 0});
    };
    t->Add("cvt" + (suffix + ("." + types)), "$ %d, %a;", whole);
    if constexpr (std::is_same_v<T, float>) {
      t->Add("cvt" + (suffix + (".ftz." + types)), "$ %d, %a;",
             [whole](float a) { return whole(Flush(a)); });
    }
  }
}

// ---- packed and narrow formats

// `v` in an 8-bit format, never infinite; a NaN is 0x7f.
uint32_t Narrow8(const Format& format, Wide v) {
  if (IsNan(v)) return 0x7f;
  uint32_t bits = static_cast<uint32_t>(Encode(format, {v, 0}));
  const uint32_t infinity = format.has_infinity ? 0x7c : 0x7f;
  if ((bits & 0x7f) >= infinity) bits = (bits & 0x80) | (infinity - 1);
  return bits;
}
Wide ReluWide(Wide v) { return v < 0 || (v == 0 && SignBit(v)) ? Wide{0} : v; }

void AddNarrow(Table* t, const std::string& name, const Format& format) {
  using U16 = uint16_t;
  const auto from_f32 = [format](float a, float b) {
    return static_cast<U16>(Narrow8(format, a) << 8 | Narrow8(format, b));
  };
  const auto from_f32_relu = [format](float a, float b) {
    return static_cast<U16>(Narrow8(format, ReluWide(a)) << 8 | Narrow8(format, ReluWide(b)));
  };
  t->Add("cvt.rn.satfinite." + name + ".f32", "$ %d, %a, %b;", from_f32);
  t->Add("cvt.rn.satfinite.relu." + name + ".f32", "$ %d, %a, %b;", from_f32_relu);
  t->Add("cvt.rn.satfinite." + name + ".f16x2", "$ %d, %a;", [format](Half2 a) {
    return static_cast<U16>(Narrow8(format, Real(a.high())) << 8 | Narrow8(format, Real(a.low())));
  });
  t->Add("cvt.rn.satfinite.relu." + name + ".f16x2", "$ %d, %a;", [format](Half2 a) {
    return static_cast<U16>(Narrow8(format, ReluWide(Real(a.high()))) << 8 |
                            Narrow8(format, ReluWide(Real(a.low()))));
  });
  static const Values& all = *new Values([] {
    Values v;
    for (uint64_t k = 0; k < 256; ++k) v.push_back(k | ((k * 37 + 11) & 255) << 8);
    return v;
  }());
  const auto widen = [format](U16 a, bool relu) {
    uint32_t r = 0;
    for (int k = 0; k < 2; ++k) {
      Wide v = Decode(format, a >> (8 * k) & 255);
      if (relu) v = ReluWide(v);
      r |= static_cast<uint32_t>(Encode(kF16, {v, 0})) << (16 * k);
    }
    return Half2{r};
  };
  t->Add("cvt.rn.f16x2." + name, "$ %d, %a;", [widen](U16 a) { return widen(a, false); }, {&all});
  t->Add("cvt.rn.relu.f16x2." + name, "$ %d, %a;", [widen](U16 a) { return widen(a, true); },
         {&all});
}

// Formats of 4 and 6 bits, which have numbers only: their values by pattern, without the sign.
struct Tiny {
  std::string name;
  int exponent_bits;
  int fraction_bits;
  int bits() const { return 1 + exponent_bits + fraction_bits; }
  double ValueOf(uint32_t pattern) const {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = static_cast<int>(pattern >> fraction_bits);
    const double fraction = pattern & ((1u << fraction_bits) - 1);
    const double unit = std::ldexp(1.0, std::max(exponent, 1) - bias - fraction_bits);
    return (exponent == 0 ? fraction : fraction + (1 << fraction_bits)) * unit;
  }
  // The nearest; of two that are as near the one whose pattern is even.
  uint32_t Nearest(Wide v) const {
    const uint32_t sign = 1u << (bits() - 1);
    if (IsNan(v)) return sign - 1;
    const Wide magnitude = SignBit(v) ? -v : v;
    uint32_t best = 0;
    for (uint32_t p = 1; p < sign; ++p) {
      const Wide distance = magnitude - Wide{ValueOf(p)};
      const Wide least = magnitude - Wide{ValueOf(best)};
      const Wide d = distance < 0 ? -distance : distance;
      const Wide l = least < 0 ? -least : least;
      if (d < l || (d == l && p % 2 == 0)) best = p;
    }
    // Also where the distances to all are the same in our arithmetic.
    if (magnitude >= Wide{ValueOf(sign - 1)}) best = sign - 1;
    return best | (SignBit(v) ? sign : 0);
  }
};

void AddTiny(Table* t, const Tiny& tiny) {
  // Two values side by side, in 8 or in 16 bits; what has 8 is shown twice.
  const int step = tiny.bits() == 4 ? 4 : 8;
  const auto join = [step](uint32_t high, uint32_t low) {
    const uint32_t both = high << step | low;
    return static_cast<uint16_t>(step == 4 ? both | both << 8 : both);
  };
  const std::string into =
      step == 4 ? "{ .reg .b8 n; $ n, %a, %b; mov.b16 %d, {n, n}; }" : "$ %d, %a, %b;";
  t->Add("cvt.rn.satfinite." + tiny.name + ".f32", into,
         [tiny, join](float a, float b) { return join(tiny.Nearest(a), tiny.Nearest(b)); });
  t->Add("cvt.rn.satfinite.relu." + tiny.name + ".f32", into, [tiny, join](float a, float b) {
    return join(tiny.Nearest(ReluWide(a)), tiny.Nearest(ReluWide(b)));
  });
  static const Values& all = *new Values([] {
    Values v;
    for (uint64_t k = 0; k < 256; ++k) v.push_back(k | ((k * 37 + 11) & 255) << 8);
    return v;
  }());
  const std::string from =
      step == 4 ? "{ .reg .b8 n, m; mov.b16 {n, m}, %a; $ %d, n; }" : "$ %d, %a;";
  t->Add("cvt.rn.f16x2." + tiny.name, from,
         [tiny, step](uint16_t a) {
           uint32_t r = 0;
           for (int k = 0; k < 2; ++k) {
             const uint32_t sign = 1u << (tiny.bits() - 1);
             const uint32_t p = static_cast<uint32_t>(a >> (step * k)) & (2 * sign - 1);
             const Wide v = tiny.ValueOf(p & (sign - 1));
             r |= static_cast<uint32_t>(Encode(kF16, {(p & sign) != 0 ? -v : v, 0})) << (16 * k);
           }
           return Half2{r};
         },
         {&all});
}

template <typename T, typename P>
void AddPacked(Table* t, const std::string& type) {
  for (const Round mode : {Round::kNearestEven, Round::kZero}) {
    const std::string rounding = mode == Round::kZero ? ".rz" : ".rn";
    const auto pack = [](T high, T low) {
      return P{uint32_t{low.bits} | uint32_t{high.bits} << 16};
    };
    t->Add("cvt" + rounding + "." + type + ".f32", "$ %d, %a, %b;", [mode, pack](float a, float b) {
      return pack(RoundTo<T>({a, 0}, mode), RoundTo<T>({b, 0}, mode));
    });
    t->Add("cvt" + rounding + ".relu." + type + ".f32", "$ %d, %a, %b;",
           [mode, pack](float a, float b) {
             return pack(ReluOf(RoundTo<T>({a, 0}, mode)), ReluOf(RoundTo<T>({b, 0}, mode)));
           });
  }
}

void AddTf32(Table* t) {
  const auto round = [](float a, Round mode) { return F32(Encode(kTF32, {a, 0}, mode) << 13); };
  t->Add("cvt.rna.tf32.f32", "$ %d, %a;",
         [round](float a) { return round(a, Round::kNearestAway); });
  t->Add("cvt.rn.tf32.f32", "$ %d, %a;",
         [round](float a) { return round(a, Round::kNearestEven); });
  t->Add("cvt.rz.tf32.f32", "$ %d, %a;", [round](float a) { return round(a, Round::kZero); });
  t->Add("cvt.rn.relu.tf32.f32", "$ %d, %a;",
         [round](float a) { return ReluOf(round(a, Round::kNearestEven)); });
  t->Add("cvt.rz.relu.tf32.f32", "$ %d, %a;",
         [round](float a) { return ReluOf(round(a, Round::kZero)); });
}

template <typename T>
void AddPack16(Table* t) {
  t->Add("cvt.pack.sat." + NameOf<T>() + ".s32", "$ %d, %a, %b;", [](int32_t a, int32_t b) {
    return static_cast<uint32_t>(static_cast<uint16_t>(Clamp<T>(a))) << 16 |
           static_cast<uint16_t>(Clamp<T>(b));
  });
}
void AddPackNarrow(Table* t, const std::string& name, int bits, bool is_signed) {
  t->Add("cvt.pack.sat." + name + ".s32.b32", "$ %d, %a, %b, %c;",
         [bits, is_signed](int32_t a, int32_t b, uint32_t c) {
           const int64_t low = is_signed ? -(int64_t{1} << (bits - 1)) : 0;
           const int64_t high = (int64_t{1} << (is_signed ? bits - 1 : bits)) - 1;
           const uint32_t mask = (1u << bits) - 1;
           const uint32_t x = static_cast<uint32_t>(std::clamp<int64_t>(a, low, high)) & mask;
           const uint32_t y = static_cast<uint32_t>(std::clamp<int64_t>(b, low, high)) & mask;
           return c << (2 * bits) | x << bits | y;
         });
}

}  // namespace

void AddConversionRows(Table* t) {
  AddIntegersTo<uint8_t>(t);
  AddIntegersTo<int8_t>(t);
  AddIntegersTo<uint16_t>(t);
  AddIntegersTo<int16_t>(t);
  AddIntegersTo<uint32_t>(t);
  AddIntegersTo<int32_t>(t);
  AddIntegersTo<uint64_t>(t);
  AddIntegersTo<int64_t>(t);
  AddToIntegers<Half>(t);
  AddToIntegers<BHalf>(t);
  AddToIntegers<float>(t);
  AddToIntegers<double>(t);
  AddFromIntegers<Half>(t);
  AddFromIntegers<BHalf>(t);
  AddFromIntegers<float>(t);
  AddFromIntegers<double>(t);
  AddWidening<float, Half>(t);
  AddWidening<float, BHalf>(t);
  AddWidening<double, Half>(t);
  AddWidening<double, BHalf>(t);
  AddWidening<double, float>(t);
  AddWidening<float, float>(t);
  AddWidening<double, double>(t);
  AddWidening<Half, Half>(t);
  AddNarrowing<Half, float>(t);
  AddNarrowing<Half, double>(t);
  AddNarrowing<BHalf, float>(t);
  AddNarrowing<BHalf, double>(t);
  AddNarrowing<BHalf, Half>(t);
  AddNarrowing<Half, BHalf>(t);
  AddNarrowing<float, double>(t);
  AddWhole<Half>(t);
  AddWhole<BHalf>(t);
  AddWhole<float>(t);
  AddWhole<double>(t);
  t->Add("cvt.ftz.f64.f32", "$ %d, %a;", [](float a) { return double{Flush(a)}; });
  t->Add("cvt.rn.ftz.f32.f64", "$ %d, %a;", [](double a) { return Flush(RoundTo<float>({a, 0})); });
  t->Add("cvt.ftz.f32.f16", "$ %d, %a;", [](Half a) { return RoundTo<float>({Real(a), 0}); });
  t->Add("cvt.rn.ftz.f16.f32", "$ %d, %a;", [](float a) { return RoundTo<Half>({Flush(a), 0}); });
  t->Add("cvt.sat.f32.f32", "$ %d, %a;", [](float a) { return a > 0 ? std::min(a, 1.0f) : 0.0f; });
  t->Add("cvt.ftz.sat.f32.f32", "$ %d, %a;",
         [](float a) { return Flush(a) > 0 ? std::min(a, 1.0f) : 0.0f; });
  t->Add("cvt.sat.f64.f64", "$ %d, %a;", [](double a) { return a > 0 ? std::min(a, 1.0) : 0.0; });
  t->Add("cvt.rn.sat.f16.f32", "$ %d, %a;", [](float a) {
    return RoundTo<Half>({a > 0 ? std::min(a, 1.0f) : 0.0f, 0});
  });
  t->Add("cvt.rn.sat.f32.s32", "$ %d, %a;", [](int32_t a) { return a > 0 ? 1.0f : 0.0f; });
  AddPacked<Half, Half2>(t, "f16x2");
  AddPacked<BHalf, BHalf2>(t, "bf16x2");
  AddTiny(t, {"e2m1x2", 2, 1});
  AddTiny(t, {"e2m3x2", 2, 3});
  AddTiny(t, {"e3m2x2", 3, 2});
  AddNarrow(t, "e4m3x2", kE4M3);
  AddNarrow(t, "e5m2x2", kE5M2);
  AddTf32(t);
  AddPack16<int16_t>(t);
  AddPack16<uint16_t>(t);
  AddPackNarrow(t, "s8", 8, true);
  AddPackNarrow(t, "u8", 8, false);
  AddPackNarrow(t, "s4", 4, true);
  AddPackNarrow(t, "u4", 4, false);
  AddPackNarrow(t, "s2", 2, true);
  AddPackNarrow(t, "u2", 2, false);
}

}  // namespace fargpu::conformance
