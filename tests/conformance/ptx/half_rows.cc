// f16, bf16 and their pairs.
#include <algorithm>
#include <cmath>
#include <string>

#include "tests/conformance/ptx/tables.h"

namespace fargpu::conformance {
namespace {

template <typename T>
constexpr Format kFormat = FormatOf<T>::kFormat;

template <typename T>
T Make(uint64_t bits) {
  return FormatOf<T>::Make(bits);
}
template <typename T>
T Negative(T v) {
  return {static_cast<uint16_t>(v.bits ^ 0x8000)};
}
template <typename T>
T FlushHalf(T v) {
  const uint16_t exponent = std::is_same_v<T, Half> ? 0x7c00 : 0x7f80;
  return (v.bits & exponent) == 0 ? T{static_cast<uint16_t>(v.bits & 0x8000)} : v;
}
template <typename T>
T Relu(T v) {
  return Real(v) < 0 || v.bits == 0x8000 ? T{0} : v;
}
template <typename T>
T SaturateHalf(T v) {
  const Wide x = Real(v);
  if (!(x > 0)) return T{0};
  return x > 1 ? RoundTo<T>({1, 0}) : v;
}
template <typename T>
T Nan() {
  return {0x7fff};
}
template <typename T>
T Pick(T a, T b, bool minimum, bool nan) {
  const bool a_nan = IsNan(Real(a)), b_nan = IsNan(Real(b));
  if (nan ? a_nan || b_nan : a_nan && b_nan) return Nan<T>();
  if (a_nan) return b;
  if (b_nan) return a;
  if (Real(a) == Real(b)) return SignBit(Real(a)) == minimum ? a : b;
  return (Real(a) < Real(b)) == minimum ? a : b;
}
template <typename T>
T XorSign(T a, T b, bool minimum, bool nan) {
  T r = Pick<T>({static_cast<uint16_t>(a.bits & 0x7fff)}, {static_cast<uint16_t>(b.bits & 0x7fff)},
                minimum, nan);
  if (IsNan(Real(r))) return r;
  r.bits = static_cast<uint16_t>(r.bits | ((a.bits ^ b.bits) & 0x8000));
  return r;
}

template <typename P, typename F, typename... A>
P Both(F f, A... pairs) {
  return P{static_cast<uint32_t>(f(pairs.low()...).bits) |
           static_cast<uint32_t>(f(pairs.high()...).bits) << 16};
}

// A row for single values and one for pairs.
template <typename T, typename P, typename F>
void Unary(Table* t, const std::string& form, const std::string& type, F f) {
  t->Add(form + "." + type, "$ %d, %a;", [f](T a) { return f(a); });
  t->Add(form + "." + type + "x2", "$ %d, %a;", [f](P a) { return Both<P>(f, a); });
}
template <typename T, typename P, typename F>
void Binary(Table* t, const std::string& form, const std::string& type, F f) {
  t->Add(form + "." + type, "$ %d, %a, %b;", [f](T a, T b) { return f(a, b); });
  t->Add(form + "." + type + "x2", "$ %d, %a, %b;", [f](P a, P b) { return Both<P>(f, a, b); });
}
template <typename T, typename P, typename F>
void Ternary(Table* t, const std::string& form, const std::string& type, F f) {
  t->Add(form + "." + type, "$ %d, %a, %b, %c;", [f](T a, T b, T c) { return f(a, b, c); });
  t->Add(form + "." + type + "x2", "$ %d, %a, %b, %c;",
         [f](P a, P b, P c) { return Both<P>(f, a, b, c); });
}

template <typename T, typename P>
void AddArithmetic(Table* t, const std::string& type) {
  for (const std::string rn : {"", ".rn"}) {
    Binary<T, P>(t, "add" + rn, type, [](T a, T b) { return AddRounded(a, b); });
    Binary<T, P>(t, "sub" + rn, type, [](T a, T b) { return AddRounded(a, Negative(b)); });
    Binary<T, P>(t, "mul" + rn, type, [](T a, T b) { return MulRounded(a, b); });
  }
  Ternary<T, P>(t, "fma.rn", type, [](T a, T b, T c) { return FmaRounded(a, b, c); });
  Ternary<T, P>(t, "fma.rn.relu", type, [](T a, T b, T c) { return Relu(FmaRounded(a, b, c)); });
  Unary<T, P>(t, "neg", type, [](T a) { return Negative(a); });
  Unary<T, P>(t, "abs", type, [](T a) { return T{static_cast<uint16_t>(a.bits & 0x7fff)}; });
  for (const bool minimum : {true, false}) {
    const std::string op = minimum ? "min" : "max";
    Binary<T, P>(t, op, type, [=](T a, T b) { return Pick(a, b, minimum, false); });
    Binary<T, P>(t, op + ".NaN", type, [=](T a, T b) { return Pick(a, b, minimum, true); });
    Binary<T, P>(t, op + ".xorsign.abs", type,
                 [=](T a, T b) { return XorSign(a, b, minimum, false); });
    Binary<T, P>(t, op + ".NaN.xorsign.abs", type,
                 [=](T a, T b) { return XorSign(a, b, minimum, true); });
  }
}

template <typename T>
Near<T> NearTo(double value, double absolute, double relative) {
  return {value, absolute, relative};
}

}  // namespace

void AddHalfRows(Table* t) {
  AddArithmetic<Half, Half2>(t, "f16");
  AddArithmetic<BHalf, BHalf2>(t, "bf16");
  // Only f16 flushes and saturates.
  for (const std::string rn : {"", ".rn"}) {
    Binary<Half, Half2>(t, "add" + rn + ".sat", "f16",
                        [](Half a, Half b) { return SaturateHalf(AddRounded(a, b)); });
    Binary<Half, Half2>(t, "sub" + rn + ".sat", "f16",
                        [](Half a, Half b) { return SaturateHalf(AddRounded(a, Negative(b))); });
    Binary<Half, Half2>(t, "mul" + rn + ".sat", "f16",
                        [](Half a, Half b) { return SaturateHalf(MulRounded(a, b)); });
    Binary<Half, Half2>(t, "add" + rn + ".ftz", "f16", [](Half a, Half b) {
      return FlushHalf(AddRounded(FlushHalf(a), FlushHalf(b)));
    });
    Binary<Half, Half2>(t, "mul" + rn + ".ftz", "f16", [](Half a, Half b) {
      return FlushHalf(MulRounded(FlushHalf(a), FlushHalf(b)));
    });
  }
  Ternary<Half, Half2>(t, "fma.rn.sat", "f16",
                       [](Half a, Half b, Half c) { return SaturateHalf(FmaRounded(a, b, c)); });
  Ternary<Half, Half2>(t, "fma.rn.ftz", "f16", [](Half a, Half b, Half c) {
    return FlushHalf(FmaRounded(FlushHalf(a), FlushHalf(b), FlushHalf(c)));
  });
  Ternary<Half, Half2>(t, "fma.rn.ftz.relu", "f16", [](Half a, Half b, Half c) {
    return Relu(FlushHalf(FmaRounded(FlushHalf(a), FlushHalf(b), FlushHalf(c))));
  });
  Unary<Half, Half2>(t, "neg.ftz", "f16", [](Half a) { return Negative(FlushHalf(a)); });
  Unary<Half, Half2>(t, "abs.ftz", "f16", [](Half a) {
    return Half{static_cast<uint16_t>(FlushHalf(a).bits & 0x7fff)};
  });
  Binary<Half, Half2>(t, "min.ftz", "f16",
                      [](Half a, Half b) { return Pick(FlushHalf(a), FlushHalf(b), true, false); });
  Binary<Half, Half2>(t, "max.ftz.NaN", "f16",
                      [](Half a, Half b) { return Pick(FlushHalf(a), FlushHalf(b), false, true); });
  // Errors as the PTX manual states them.
  t->Add("ex2.approx.f16", "$ %d, %a;", [](Half a) {
    const double e = std::exp2(static_cast<double>(Real(a)));
    if (e > 65520) return NearTo<Half>(INFINITY, 0, 0);
    return NearTo<Half>(e, 0x1p-25, 0x1p-9);
  });
  t->Add("ex2.approx.ftz.bf16", "$ %d, %a;", [](BHalf a) {
    const double e = std::exp2(static_cast<double>(Real(FlushHalf(a))));
    if (e >= 0x1.ffp127) return NearTo<BHalf>(INFINITY, 0, 0);
    return NearTo<BHalf>(e, 0x1p-126, 0x1p-7);
  });
  t->Add("tanh.approx.f16", "$ %d, %a;",
         [](Half a) { return NearTo<Half>(std::tanh(static_cast<double>(Real(a))), 0x1p-10, 0); });
  t->Add("tanh.approx.bf16", "$ %d, %a;",
         [](BHalf a) { return NearTo<BHalf>(std::tanh(static_cast<double>(Real(a))), 0x1p-8, 0); });
  // Pairs: each half as if alone.
  const auto split = [](const std::string& op, const std::string& type) {
    return ".reg .b16 %l, %u; " + op + "." + type + "x2 %x0, %a; mov.b32 {%l, %u}, %a; " + op +
           "." + type + " %l, %l; " + op + "." + type +
           " %u, %u; mov.b32 %x1, {%l, %u}; xor.b32 %d, %x0, %x1;";
  };
  const auto zero = [](uint32_t) { return 0u; };
  t->Add("ex2.approx.f16x2", split("ex2.approx", "f16"), zero, {&HalfPairs()});
  t->Add("ex2.approx.ftz.bf16x2", split("ex2.approx.ftz", "bf16"), zero, {&BHalfPairs()});
  t->Add("tanh.approx.f16x2", split("tanh.approx", "f16"), zero, {&HalfPairs()});
  t->Add("tanh.approx.bf16x2", split("tanh.approx", "bf16"), zero, {&BHalfPairs()});
}

}  // namespace fargpu::conformance
