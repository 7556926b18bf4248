// setp and set, with every comparison, both outputs and boolean combinations.
#include <cmath>
#include <string>

#include "tests/conformance/ptx/tables.h"

namespace fargpu::conformance {
namespace {

// An operator on numbers, and whether it holds beside a NaN.
struct Comparison {
  const char* name;
  bool (*holds)(int order);  // order: -1, 0, 1
  bool with_nan;
};
constexpr Comparison kOrdered[] = {
    {"eq", [](int o) { return o == 0; }, false}, {"ne", [](int o) { return o != 0; }, false},
    {"lt", [](int o) { return o < 0; }, false},  {"le", [](int o) { return o <= 0; }, false},
    {"gt", [](int o) { return o > 0; }, false},  {"ge", [](int o) { return o >= 0; }, false},
};
constexpr Comparison kUnordered[] = {
    {"equ", [](int o) { return o == 0; }, true}, {"neu", [](int o) { return o != 0; }, true},
    {"ltu", [](int o) { return o < 0; }, true},  {"leu", [](int o) { return o <= 0; }, true},
    {"gtu", [](int o) { return o > 0; }, true},  {"geu", [](int o) { return o >= 0; }, true},
    {"num", [](int) { return true; }, false},    {"nan", [](int) { return false; }, true},
};
constexpr Comparison kUnsigned[] = {
    {"lo", [](int o) { return o < 0; }, false},
    {"ls", [](int o) { return o <= 0; }, false},
    {"hi", [](int o) { return o > 0; }, false},
    {"hs", [](int o) { return o >= 0; }, false},
};

int Order(Wide a, Wide b) { return a < b ? -1 : a > b ? 1 : 0; }
template <typename T>
Wide Number(T v) {
  if constexpr (std::is_integral_v<T>) {
    return v;
  } else {
    return Real(v);
  }
}
template <typename T>
bool Holds(const Comparison& c, T a, T b) {
  const Wide x = Number(a), y = Number(b);
  if (IsNan(x) || IsNan(y)) return c.with_nan;
  return c.holds(Order(x, y));
}

template <typename T>
void AddOne(Table* t, const Comparison& c, const std::string& type) {
  t->Add("setp." + std::string(c.name) + "." + type, "$ %d, %a, %b;",
         [c](T a, T b) { return Holds(c, a, b); });
  if constexpr (std::is_same_v<T, float>) {
    t->Add("setp." + std::string(c.name) + ".ftz." + type, "$ %d, %a, %b;",
           [c](T a, T b) { return Holds(c, Flush(a), Flush(b)); });
  }
}

template <typename T>
void AddSetp(Table* t, const std::string& type, bool is_float, bool is_unsigned = false) {
  for (const Comparison& c : kOrdered) AddOne<T>(t, c, type);
  if (is_float) {
    for (const Comparison& c : kUnordered) AddOne<T>(t, c, type);
  }
  if (is_unsigned) {
    for (const Comparison& c : kUnsigned) AddOne<T>(t, c, type);
  }
}

// `to`: pattern of the result where the comparison holds.
template <typename T, typename R>
void AddSet(Table* t, const std::string& types, R one) {
  for (const Comparison& c : kOrdered) {
    t->Add("set." + std::string(c.name) + "." + types, "$ %d, %a, %b;",
           [c, one](T a, T b) { return Holds(c, a, b) ? one : R{}; });
  }
}

template <typename P>
void AddPairs(Table* t, const std::string& type, uint32_t one) {
  for (const Comparison& c : kOrdered) {
    const auto bits = [c](P a, P b, uint32_t value) {
      return (Holds(c, a.low(), b.low()) ? value : 0u) |
             (Holds(c, a.high(), b.high()) ? value << 16 : 0u);
    };
    const std::string name = "." + std::string(c.name) + ".";
    t->Add("set" + name + type + "." + type, "$ %d, %a, %b;",
           [bits, one](P a, P b) { return bits(a, b, one); });
    for (const std::string to : {"u32", "s32"}) {
      t->Add("set" + name + to + "." + type, "$ %d, %a, %b;",
             [bits](P a, P b) { return bits(a, b, 0xffff); });
    }
    t->Add("setp" + name + type,
           "$ %p|%q, %a, %b; selp.u32 %x0, 1, 0, %p; @%q or.b32 %x0, %x0, 2; mov.b32 %d, %x0;",
           [bits](P a, P b) {
             const uint32_t both = bits(a, b, 1);
             return (both & 1) | (both >> 16) << 1;
           });
  }
}

}  // namespace

void AddComparisonRows(Table* t) {
  AddSetp<int16_t>(t, "s16", false);
  AddSetp<int32_t>(t, "s32", false);
  AddSetp<int64_t>(t, "s64", false);
  AddSetp<uint16_t>(t, "u16", false, true);
  AddSetp<uint32_t>(t, "u32", false, true);
  AddSetp<uint64_t>(t, "u64", false, true);
  AddSetp<float>(t, "f32", true);
  AddSetp<double>(t, "f64", true);
  AddSetp<Half>(t, "f16", true);
  AddSetp<BHalf>(t, "bf16", true);
  for (int k = 0; k < 2; ++k) {  // bits are equal or not
    AddOne<uint16_t>(t, kOrdered[k], "b16");
    AddOne<uint32_t>(t, kOrdered[k], "b32");
    AddOne<uint64_t>(t, kOrdered[k], "b64");
  }
  AddSet<int32_t>(t, "u32.s32", ~0u);
  AddSet<int32_t>(t, "s32.s32", ~0u);
  AddSet<uint32_t>(t, "f32.u32", 1.0f);
  AddSet<float>(t, "u32.f32", ~0u);
  AddSet<float>(t, "f32.f32", 1.0f);
  AddSet<double>(t, "u32.f64", ~0u);
  AddSet<int64_t>(t, "f32.s64", 1.0f);
  AddSet<uint16_t>(t, "u32.u16", ~0u);
  AddSet<Half>(t, "f16.f16", Half{0x3c00});
  AddSet<Half>(t, "u32.f16", ~0u);
  AddSet<Half>(t, "u16.f16", static_cast<uint16_t>(0xffff));
  AddSet<BHalf>(t, "bf16.bf16", BHalf{0x3f80});
  AddPairs<Half2>(t, "f16x2", 0x3c00);
  AddPairs<BHalf2>(t, "bf16x2", 0x3f80);
  // Both outputs: the result and its opposite, each combined with the third operand.
  const std::string both =
      "setp.lt.u32 %r, %c, 100; $ %p|%q, %a, %b, %r; selp.u32 %x0, 1, 0, %p; "
      "@%q or.b32 %x0, %x0, 2; mov.b32 %d, %x0;";
  const std::string negated = "setp.lt.u32 %r, %c, 100; $ %d, %a, %b, !%r;";
  using U = uint32_t;
  t->Add("setp.ne.b32",
         "$ %p|%q, %a, %b; selp.u32 %x0, 1, 0, %p; @%q or.b32 %x0, %x0, 2; mov.b32 %d, %x0;",
         [](U a, U b) { return a != b ? 1u : 2u; });
  t->Add("setp.ne.and.b32", both, [](U a, U b, U c) { return c < 100 ? (a != b ? 1u : 2u) : 0u; });
  t->Add("setp.ge.or.s32", both, [](int32_t a, int32_t b, U c) {
    return c < 100 ? 3u : a >= b ? 1u : 2u;
  });
  t->Add("setp.lt.xor.u32", both, [](U a, U b, U c) { return (a < b) != (c < 100) ? 1u : 2u; });
  t->Add("setp.ltu.and.f32", both,
         [](float a, float b, U c) { return c < 100 ? (!(a >= b) ? 1u : 2u) : 0u; });
  t->Add("setp.gt.and.f64", negated, [](double a, double b, U c) { return a > b && !(c < 100); });
  t->Add("setp.lt.and.ftz.f32", negated,
         [](float a, float b, U c) { return Flush(a) < Flush(b) && !(c < 100); });
  t->Add("setp.eq.or.s64", negated, [](int64_t a, int64_t b, U c) { return a == b || !(c < 100); });
  t->Add("setp.gt.or.f16", negated,
         [](Half a, Half b, U c) { return Real(a) > Real(b) || !(c < 100); });
  t->Add("set.lt.and.u32.s32", negated,
         [](int32_t a, int32_t b, U c) { return a < b && !(c < 100) ? ~0u : 0u; });
  t->Add("set.ge.or.f32.f32", negated,
         [](float a, float b, U c) { return a >= b || !(c < 100) ? 1.0f : 0.0f; });
  t->Add("set.eq.xor.ftz.u32.f32", negated,
         [](float a, float b, U c) { return (Flush(a) == Flush(b)) != !(c < 100) ? ~0u : 0u; });
}

}  // namespace fargpu::conformance
