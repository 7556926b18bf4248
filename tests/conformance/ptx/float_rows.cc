// f32 and f64: arithmetic with every rounding, minima, tests, approximations.
#include <cmath>
#include <string>
#include <utility>

#include "tests/conformance/ptx/tables.h"

namespace fargpu::conformance {
namespace {

constexpr std::pair<const char*, Round> kRoundings[] = {{".rn", Round::kNearestEven},
                                                        {".rz", Round::kZero},
                                                        {".rm", Round::kDown},
                                                        {".rp", Round::kUp}};

float Saturate(float v) { return v > 0 ? std::fmin(v, 1.0f) : 0.0f; }

template <typename T>
void AddArithmetic(Table* t, const std::string& type) {
  for (const auto& [suffix, mode] : kRoundings) {
    const std::string form = suffix + ("." + type);
    const Round m = mode;
    t->Add("add" + form, "$ %d, %a, %b;", [m](T a, T b) { return AddRounded(a, b, m); });
    t->Add("sub" + form, "$ %d, %a, %b;", [m](T a, T b) { return AddRounded(a, -b, m); });
    t->Add("mul" + form, "$ %d, %a, %b;", [m](T a, T b) { return MulRounded(a, b, m); });
    t->Add("div" + form, "$ %d, %a, %b;", [m](T a, T b) { return DivRounded(a, b, m); });
    t->Add("rcp" + form, "$ %d, %a;", [m](T a) { return DivRounded<T>(1, a, m); });
    t->Add("sqrt" + form, "$ %d, %a;", [m](T a) { return SqrtRounded(a, m); });
    t->Add("fma" + form, "$ %d, %a, %b, %c;",
           [m](T a, T b, T c) { return FmaRounded(a, b, c, m); });
    t->Add("mad" + form, "$ %d, %a, %b, %c;",
           [m](T a, T b, T c) { return FmaRounded(a, b, c, m); });
  }
  t->Add("add." + type, "$ %d, %a, %b;", [](T a, T b) { return AddRounded(a, b); });
  t->Add("sub." + type, "$ %d, %a, %b;", [](T a, T b) { return AddRounded(a, -b); });
  t->Add("mul." + type, "$ %d, %a, %b;", [](T a, T b) { return MulRounded(a, b); });
  t->Add("abs." + type, "$ %d, %a;", [](T a) { return std::fabs(a); });
  t->Add("neg." + type, "$ %d, %a;", [](T a) { return -a; });
  t->Add("copysign." + type, "$ %d, %a, %b;", [](T a, T b) { return std::copysign(b, a); });
}

// .ftz on operands and result, and .sat.
void AddFlushed(Table* t) {
  for (const auto& [suffix, mode] : kRoundings) {
    const std::string form = suffix + std::string(".ftz.f32");
    const Round m = mode;
    t->Add("add" + form, "$ %d, %a, %b;",
           [m](float a, float b) { return Flush(AddRounded(Flush(a), Flush(b), m)); });
    t->Add("sub" + form, "$ %d, %a, %b;",
           [m](float a, float b) { return Flush(AddRounded(Flush(a), -Flush(b), m)); });
    t->Add("mul" + form, "$ %d, %a, %b;",
           [m](float a, float b) { return Flush(MulRounded(Flush(a), Flush(b), m)); });
    t->Add("div" + form, "$ %d, %a, %b;",
           [m](float a, float b) { return Flush(DivRounded(Flush(a), Flush(b), m)); });
    t->Add("rcp" + form, "$ %d, %a;",
           [m](float a) { return Flush(DivRounded(1.0f, Flush(a), m)); });
    t->Add("sqrt" + form, "$ %d, %a;", [m](float a) { return Flush(SqrtRounded(Flush(a), m)); });
    t->Add("fma" + form, "$ %d, %a, %b, %c;", [m](float a, float b, float c) {
      return Flush(FmaRounded(Flush(a), Flush(b), Flush(c), m));
    });
    t->Add("fma" + (suffix + std::string(".sat.f32")), "$ %d, %a, %b, %c;",
           [m](float a, float b, float c) { return Saturate(FmaRounded(a, b, c, m)); });
  }
  for (const char* form : {"add.ftz.f32", "add.f32.ftz"}) {
    t->Add(form, "$ %d, %a, %b;",
           [](float a, float b) { return Flush(AddRounded(Flush(a), Flush(b))); });
  }
  t->Add("sub.ftz.f32", "$ %d, %a, %b;",
         [](float a, float b) { return Flush(AddRounded(Flush(a), -Flush(b))); });
  t->Add("mul.ftz.f32", "$ %d, %a, %b;",
         [](float a, float b) { return Flush(MulRounded(Flush(a), Flush(b))); });
  t->Add("abs.ftz.f32", "$ %d, %a;", [](float a) { return std::fabs(Flush(a)); });
  t->Add("neg.ftz.f32", "$ %d, %a;", [](float a) { return -Flush(a); });
  t->Add("add.sat.f32", "$ %d, %a, %b;",
         [](float a, float b) { return Saturate(AddRounded(a, b)); });
  t->Add("sub.sat.f32", "$ %d, %a, %b;",
         [](float a, float b) { return Saturate(AddRounded(a, -b)); });
  t->Add("mul.sat.f32", "$ %d, %a, %b;",
         [](float a, float b) { return Saturate(MulRounded(a, b)); });
  t->Add("mul.ftz.sat.f32", "$ %d, %a, %b;",
         [](float a, float b) { return Saturate(Flush(MulRounded(Flush(a), Flush(b)))); });
}

// The smaller (larger) of two numbers; -0 is below +0.
template <typename T>
T Pick(T a, T b, bool minimum) {
  if (a == b) return std::signbit(a) == minimum ? a : b;
  return (a < b) == minimum ? a : b;
}
template <typename T>
T PickNumber(T a, T b, bool minimum) {
  if (std::isnan(a)) return b;
  return std::isnan(b) ? a : Pick(a, b, minimum);
}
template <typename T>
T PickNan(T a, T b, bool minimum) {
  return std::isnan(a) || std::isnan(b) ? T{NAN} : Pick(a, b, minimum);
}

void AddMinMax(Table* t) {
  for (const bool minimum : {true, false}) {
    const std::string op = minimum ? "min" : "max";
    const auto three = "$ %d, %a, %b, %c;";
    // The NaN that comes out is the canonical one.
    const auto bits = [](float v) { return std::isnan(v) ? 0x7fffffffu : Bits(v); };
    t->Add(op + ".f32", "$ %d, %a, %b;",
           [=](float a, float b) { return bits(PickNumber(a, b, minimum)); });
    t->Add(op + ".ftz.f32", "$ %d, %a, %b;",
           [=](float a, float b) { return bits(PickNumber(Flush(a), Flush(b), minimum)); });
    t->Add(op + ".f64", "$ %d, %a, %b;",
           [=](double a, double b) { return PickNumber(a, b, minimum); });
    t->Add(op + ".NaN.f32", "$ %d, %a, %b;",
           [=](float a, float b) { return bits(PickNan(a, b, minimum)); });
    t->Add(op + ".ftz.NaN.f32", "$ %d, %a, %b;",
           [=](float a, float b) { return bits(PickNan(Flush(a), Flush(b), minimum)); });
    const auto with_sign = [](float magnitude, float a, float b) {
      if (std::isnan(magnitude)) return 0x7fffffffu;
      return Bits(std::copysign(magnitude, std::signbit(a) != std::signbit(b) ? -1.0f : 1.0f));
    };
    t->Add(op + ".xorsign.abs.f32", "$ %d, %a, %b;", [=](float a, float b) {
      return with_sign(PickNumber(std::fabs(a), std::fabs(b), minimum), a, b);
    });
    t->Add(op + ".NaN.xorsign.abs.f32", "$ %d, %a, %b;", [=](float a, float b) {
      return with_sign(PickNan(std::fabs(a), std::fabs(b), minimum), a, b);
    });
    t->Add(op + ".f32", three, [=](float a, float b, float c) {
      return bits(PickNumber(PickNumber(a, b, minimum), c, minimum));
    });
    t->Add(op + ".abs.f32", three, [=](float a, float b, float c) {
      return bits(
          PickNumber(PickNumber(std::fabs(a), std::fabs(b), minimum), std::fabs(c), minimum));
    });
    t->Add(op + ".NaN.f32", three, [=](float a, float b, float c) {
      return bits(PickNan(PickNan(a, b, minimum), c, minimum));
    });
  }
}

template <typename T>
void AddTests(Table* t, const std::string& type) {
  t->Add("testp.finite." + type, "$ %d, %a;", [](T a) { return std::isfinite(a) != 0; });
  t->Add("testp.infinite." + type, "$ %d, %a;", [](T a) { return std::isinf(a) != 0; });
  t->Add("testp.number." + type, "$ %d, %a;", [](T a) { return !std::isnan(a); });
  t->Add("testp.notanumber." + type, "$ %d, %a;", [](T a) { return std::isnan(a) != 0; });
  t->Add("testp.normal." + type, "$ %d, %a;", [](T a) { return std::isnormal(a) != 0; });
  t->Add("testp.subnormal." + type, "$ %d, %a;",
         [](T a) { return std::fpclassify(a) == FP_SUBNORMAL; });
}

// The errors are those that the PTX manual states; `extra` is the last rounding.
using Function = double (*)(double);
void AddApproximation(Table* t, const std::string& op, Function f, double absolute,
                      double relative) {
  // What is too large for an f32 is infinite.
  const auto narrow = [](double v) { return static_cast<double>(static_cast<float>(v)); };
  const auto near = [=](float a) { return Near<float>{narrow(f(a)), absolute, relative}; };
  t->Add(op + ".approx.f32", "$ %d, %a;", near);
  const auto flushed = [=](float a) {
    const double exact = f(Flush(a));
    if (std::fabs(exact) < 0x1p-126) return Near<float>{0, 0x1p-126, 0};
    return Near<float>{narrow(exact), absolute, relative};
  };
  t->Add(op + ".approx.ftz.f32", "$ %d, %a;", flushed);
  t->Add(op + ".approx.f32.ftz", "$ %d, %a;", flushed);
}

const Values& Angles() {
  static const Values& values = *new Values([] {
    Values v;
    for (const float f : {0.0f, -0.0f, 1e-4f, 0.5f, -0.7853982f, 1.0f, 1.5707964f, -2.0f,
                          3.1415927f, -3.0f, 3.0f, 0.1f, -1e-3f, 2.3561945f}) {
      v.push_back(Bits(f));
    }
    for (const uint32_t bits : {0x7f800000u, 0xff800000u, 0x7fc00000u}) v.push_back(bits);
    return v;
  }());
  return values;
}

void AddApproximations(Table* t) {
  AddApproximation(
      t, "ex2", [](double a) { return std::exp2(a); }, 0x1p-149, 0x1p-22);
  // Near one the error is absolute.
  AddApproximation(
      t, "lg2", [](double a) { return std::log2(a); }, 0x1p-22, 0x1p-22);
  AddApproximation(
      t, "rcp", [](double a) { return 1 / a; }, 0x1p-149, 0x1p-23);
  AddApproximation(
      t, "sqrt", [](double a) { return std::sqrt(a); }, 0x1p-149, 0x1p-23);
  AddApproximation(
      t, "rsqrt", [](double a) { return 1 / std::sqrt(a); }, 0x1p-149, 0x1.4p-23);
  for (const char* form : {"sin.approx.f32", "sin.approx.ftz.f32"}) {
    t->Add(form, "$ %d, %a;",
           [](float a) {
             return Near<float>{std::sin(double{a}), 0x1p-20, 0};
           },
           {&Angles()});
  }
  for (const char* form : {"cos.approx.f32", "cos.approx.ftz.f32"}) {
    t->Add(form, "$ %d, %a;",
           [](float a) {
             return Near<float>{std::cos(double{a}), 0x1p-20, 0};
           },
           {&Angles()});
  }
  t->Add("tanh.approx.f32", "$ %d, %a;", [](float a) {
    return Near<float>{std::tanh(double{a}), 0, 0x1p-11};
  });
  for (const char* form : {"div.full.f32", "div.approx.f32"}) {
    t->Add(form, "$ %d, %a, %b;", [](float a, float b) {
      // Beyond 2^126 the divisor's reciprocal is flushed: then and only then zero is right too.
      const double q = double{a} / b;
      return Near<float>{static_cast<double>(static_cast<float>(q)), 0x1p-149, 0x1p-22};
    });
  }
  for (const char* form : {"div.full.ftz.f32", "div.approx.ftz.f32"}) {
    t->Add(form, "$ %d, %a, %b;", [](float a, float b) {
      const double q = double{Flush(a)} / Flush(b);
      if (std::fabs(q) < 0x1p-126) return Near<float>{0, 0x1p-126, 0};
      return Near<float>{static_cast<double>(static_cast<float>(q)), 0, 0x1p-22};
    });
  }
  // Seeds of Newton iterations: 20 good bits, the low word zero, denormals flushed.
  t->Add("rcp.approx.ftz.f64", "$ %d, %a;", [](double a) {
    if (std::fabs(a) < 0x1p-1022) a = std::copysign(0.0, a);
    const double r = 1 / a;
    return Near<double>{std::fabs(r) < 0x1p-1022 ? 0 : r, 0, 0x1p-20};
  });
  t->Add("rcp.approx.ftz.f64", "$ %d, %a; and.b64 %d, %d, 0xffffffff;",
         [](double a) { return std::isnan(a) ? uint64_t{0} : uint64_t{0}; });
  // No seed: CUDA's rsqrt(double) is this instruction, and off by one unit in the last place at
  // most.
  t->Add("rsqrt.approx.f64", "$ %d, %a;", [](double a) {
    return Near<double>{static_cast<double>(1 / std::sqrt(static_cast<long double>(a))), 0,
                        0x1p-52};
  });
  t->Add("rsqrt.approx.ftz.f64", "$ %d, %a;", [](double a) {
    if (std::fabs(a) < 0x1p-1022) a = std::copysign(0.0, a);
    return Near<double>{1 / std::sqrt(a), 0, 0x1p-20};
  });
}

// Two f32 in 64 bits.
void AddPairs(Table* t) {
  static const Values& pairs = *new Values([] {
    Values v;
    const Values& f = Floats();
    for (size_t k = 0; k < f.size(); ++k) v.push_back(f[k] | f[(k * 7 + 5) % f.size()] << 32);
    return v;
  }());
  const auto each = [](uint64_t a, uint64_t b, uint64_t c, auto f) {
    const uint64_t low = Bits(f(F32(a), F32(b), F32(c)));
    return low | uint64_t{Bits(f(F32(a >> 32), F32(b >> 32), F32(c >> 32)))} << 32;
  };
  // A NaN may be any: both sides are made the same one.
  const std::string unify =
      " mov.b64 {%x0, %x1}, %d; setp.nan.f32 %p, %x0, %x0; @%p mov.b32 %x0, 0x7fffffff; "
      "setp.nan.f32 %p, %x1, %x1; @%p mov.b32 %x1, 0x7fffffff; mov.b64 %d, {%x0, %x1};";
  const auto canonical = [](float v) { return std::isnan(v) ? F32(0x7fffffff) : v; };
  const Pools pools = {&pairs, &pairs, &pairs};
  for (const auto& [suffix, mode] : kRoundings) {
    const Round m = mode;
    const std::string form = suffix + std::string(".f32x2");
    t->Add(
        "add" + form, "$ %d, %a, %b;" + unify,
        [=](uint64_t a, uint64_t b) {
          return each(a, b, 0,
                      [=](float x, float y, float) { return canonical(AddRounded(x, y, m)); });
        },
        pools);
    t->Add(
        "mul" + form, "$ %d, %a, %b;" + unify,
        [=](uint64_t a, uint64_t b) {
          return each(a, b, 0,
                      [=](float x, float y, float) { return canonical(MulRounded(x, y, m)); });
        },
        pools);
    t->Add(
        "fma" + form, "$ %d, %a, %b, %c;" + unify,
        [=](uint64_t a, uint64_t b, uint64_t c) {
          return each(a, b, c,
                      [=](float x, float y, float z) { return canonical(FmaRounded(x, y, z, m)); });
        },
        pools);
  }
  t->Add(
      "sub.ftz.f32x2", "$ %d, %a, %b;" + unify,
      [=](uint64_t a, uint64_t b) {
        return each(a, b, 0, [=](float x, float y, float) {
          return canonical(Flush(AddRounded(Flush(x), -Flush(y))));
        });
      },
      pools);
}

}  // namespace

void AddFloatRows(Table* t) {
  AddArithmetic<float>(t, "f32");
  AddArithmetic<double>(t, "f64");
  AddFlushed(t);
  AddMinMax(t);
  AddTests<float>(t, "f32");
  AddTests<double>(t, "f64");
  AddApproximations(t);
  AddPairs(t);
  // A product and a sum are never made one.
  t->Add("mul.rn.f32", "$ %x0, %a, %b; add.rn.f32 %d, %x0, %c;",
         [](float a, float b, float c) { return AddRounded(MulRounded(a, b), c); });
}

}  // namespace fargpu::conformance
