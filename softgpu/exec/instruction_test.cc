// Every instruction family against values computed in C++.
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"

#include "common/status_matchers.h"
#include "softgpu/exec/testing/half_value.h"
#include "softgpu/exec/testing/ptx_runner.h"

namespace fargpu::softgpu {
namespace {

constexpr int kThreads = 64;

uint32_t Bits(float f) { return absl::bit_cast<uint32_t>(f); }
uint64_t Bits(double d) { return absl::bit_cast<uint64_t>(d); }
float F(uint32_t b) { return absl::bit_cast<float>(b); }
double D(uint64_t b) { return absl::bit_cast<double>(b); }

// d = op(a, b, c) in one register width; `code` uses %a %b %c %d (and %p, %q, %x<8> of 32, %y<8>
// of 64 bits, %h<8> of 16 bits).
template <typename T>
std::vector<T> RunOp(const std::string& code, const std::vector<T>& a, const std::vector<T>& b,
                     const std::vector<T>& c) {
  const std::string w = sizeof(T) == 8 ? "64" : "32";
  const std::string shift = sizeof(T) == 8 ? "3" : "2";
  const std::string text =
      absl::StrReplaceAll(R"(
.version 8.7
.target sm_90
.address_size 64
.visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pd) {
  .reg .b$W %a, %b, %c, %d;
  .reg .pred %p<4>;
  .reg .b32 %x<8>;
  .reg .b64 %y<8>, %addr<8>;
  .reg .b16 %h<8>;
  .reg .b32 %linear;
  mov.u32 %linear, %tid.x;
  mul.wide.u32 %addr0, %linear, $B;
  ld.param.u64 %addr1, [pa];
  add.u64 %addr1, %addr1, %addr0;
  ld.global.b$W %a, [%addr1];
  ld.param.u64 %addr2, [pb];
  add.u64 %addr2, %addr2, %addr0;
  ld.global.b$W %b, [%addr2];
  ld.param.u64 %addr3, [pc];
  add.u64 %addr3, %addr3, %addr0;
  ld.global.b$W %c, [%addr3];
  $CODE
  ld.param.u64 %addr4, [pd];
  add.u64 %addr4, %addr4, %addr0;
  st.global.b$W [%addr4], %d;
  ret;
})",
                          {{"$W", w}, {"$B", std::to_string(sizeof(T))}, {"$CODE", code}});
  auto runner = PtxRunner::Load({text});
  EXPECT_OK(runner) << code;
  if (!runner.ok()) return {};
  const auto fill = [](std::vector<T> v) {
    const size_t n = v.size();
    v.resize(kThreads);
    for (size_t i = n; i < v.size(); ++i) v[i] = v[i % n];
    return v;
  };
  DeviceBuffer<T> da(fill(a)), db(fill(b)), dc(fill(c)), dd(kThreads, T{0x55});
  EXPECT_OK((*runner)->Run("k", {1}, {kThreads}, 0, da.address(), db.address(), dc.address(),
                           dd.address()))
      << code;
  return dd.Values();
}

template <typename T>
void Check(const std::string& code, const std::vector<T>& a, const std::vector<T>& b,
           const std::vector<T>& c, const std::function<T(T, T, T)>& expected) {
  const std::vector<T> got = RunOp<T>(code, a, b, c);
  for (size_t i = 0; i < got.size(); ++i) {
    const T x = a[i % a.size()], y = b[i % b.size()], z = c[i % c.size()];
    ASSERT_EQ(got[i], expected(x, y, z))
        << code << " lane " << i << " of " << std::hex << x << ", " << y << ", " << z;
  }
}
using U = uint32_t;
using S = int32_t;
using UL = uint64_t;
const std::vector<U> kInts = {0,          1,          2,          31,         32,         33, 255,
                              0x7fffffff, 0x80000000, 0xffffffff, 0x12345678, 0xdeadbeef, 7};
const std::vector<U> kMore = {3, 0xffffffff, 0, 5, 0x80000000, 17, 1, 64, 100000, 2, 0x0f0f0f0f};
const std::vector<U> kThird = {0, 4, 8, 31, 0x3210, 40, 0xffffffff};
const std::vector<UL> kLongs = {
    0, 1, 63, 64, 65, 0x7fffffffffffffff, 0x8000000000000000, ~UL{0}, 0x123456789abcdef0, 12345};
const std::vector<UL> kMoreLongs = {1, ~UL{0}, 0, 3, 0x8000000000000000, 0xffffffff, 1000000007};
void Check32(const std::string& code, const std::function<U(U, U, U)>& e) {
  Check<U>(code, kInts, kMore, kThird, e);
}
void Check64(const std::string& code, const std::function<UL(UL, UL, UL)>& e) {
  Check<UL>(code, kLongs, kMoreLongs, {5, 0, 64, 70}, e);
}

TEST(InstructionTest, IntegerArithmetic) {
  Check32("add.s32 %d, %a, %b;", [](U a, U b, U) { return a + b; });
  Check32("sub.s32 %d, %a, %b;", [](U a, U b, U) { return a - b; });
  Check32("mul.lo.s32 %d, %a, %b;", [](U a, U b, U) { return a * b; });
  Check32("mul.hi.u32 %d, %a, %b;", [](U a, U b, U) { return static_cast<U>(UL{a} * b >> 32); });
  Check32("mul.hi.s32 %d, %a, %b;",
          [](U a, U b, U) { return static_cast<U>(int64_t{S(a)} * S(b) >> 32); });
  Check32("mad.lo.s32 %d, %a, %b, %c;", [](U a, U b, U c) { return a * b + c; });
  Check32("cvt.u16.u32 %h1, %a; cvt.u16.u32 %h2, %b; mul.wide.u16 %d, %h1, %h2;",
          [](U a, U b, U) { return (a & 0xffff) * (b & 0xffff); });
  Check32("abs.s32 %d, %a;", [](U a, U, U) { return S(a) < 0 ? 0 - a : a; });
  Check32("neg.s32 %d, %a;", [](U a, U, U) { return 0 - a; });
  Check32("min.s32 %d, %a, %b;", [](U a, U b, U) { return U(std::min(S(a), S(b))); });
  Check32("max.u32 %d, %a, %b;", [](U a, U b, U) { return std::max(a, b); });
  Check32("add.sat.s32 %d, %a, %b;", [](U a, U b, U) {
    return U(std::clamp<int64_t>(int64_t{S(a)} + S(b), INT32_MIN, INT32_MAX));
  });
  Check32("sad.u32 %d, %a, %b, %c;", [](U a, U b, U c) { return c + (a < b ? b - a : a - b); });
  Check64("add.u64 %d, %a, %b;", [](UL a, UL b, UL) { return a + b; });
  Check64("mul.lo.u64 %d, %a, %b;", [](UL a, UL b, UL) { return a * b; });
  Check64("mul.hi.u64 %d, %a, %b;", [](UL a, UL b, UL) {
    return static_cast<UL>(static_cast<unsigned __int128>(a) * b >> 64);
  });
  Check64("cvt.u32.u64 %x1, %a; cvt.u32.u64 %x2, %b; mul.wide.s32 %d, %x1, %x2;",
          [](UL a, UL b, UL) { return UL(int64_t{S(U(a))} * S(U(b))); });
  Check64("cvt.u32.u64 %x1, %a; cvt.u32.u64 %x2, %b; mad.wide.u32 %d, %x1, %x2, %c;",
          [](UL a, UL b, UL c) { return UL{U(a)} * U(b) + c; });
}

TEST(InstructionTest, DivisionNeverTraps) {
  Check32("div.u32 %d, %a, %b;", [](U a, U b, U) { return b == 0 ? ~0u : a / b; });
  Check32("rem.u32 %d, %a, %b;", [](U a, U b, U) { return b == 0 ? a : a % b; });
  Check32("div.s32 %d, %a, %b;", [](U a, U b, U) {
    return b == 0 ? ~0u : b == ~0u ? 0 - a : U(S(a) / S(b));
  });
  Check32("rem.s32 %d, %a, %b;", [](U a, U b, U) {
    return b == 0 ? a : b == ~0u ? 0 : U(S(a) % S(b));
  });
  Check32("div.u32 %d, %a, 7;", [](U a, U, U) { return a / 7; });
  Check64("div.u64 %d, %a, %b;", [](UL a, UL b, UL) { return b == 0 ? ~UL{0} : a / b; });
  Check64("rem.s64 %d, %a, %b;", [](UL a, UL b, UL) {
    return b == 0 ? a : b == ~UL{0} ? 0 : UL(int64_t(a) % int64_t(b));
  });
}

TEST(InstructionTest, LogicAndShifts) {
  Check32("and.b32 %d, %a, %b;", [](U a, U b, U) { return a & b; });
  Check32("xor.b32 %d, %a, %b;", [](U a, U b, U) { return a ^ b; });
  Check32("not.b32 %d, %a;", [](U a, U, U) { return ~a; });
  Check32("cnot.b32 %d, %a;", [](U a, U, U) { return U(a == 0); });
  Check32("shl.b32 %d, %b, %a;", [](U a, U b, U) { return a > 31 ? 0 : b << a; });
  Check32("shr.u32 %d, %b, %a;", [](U a, U b, U) { return a > 31 ? 0 : b >> a; });
  Check32("shr.s32 %d, %b, %a;", [](U a, U b, U) { return U(S(b) >> (a > 31 ? 31 : a)); });
  Check32("shr.s32 %d, %b, 40;", [](U, U b, U) { return U(S(b) >> 31); });
  Check32("shf.l.wrap.b32 %d, %a, %b, %c;", [](U a, U b, U c) {
    c &= 31;
    return c == 0 ? b : b << c | a >> (32 - c);
  });
  Check32("shf.r.clamp.b32 %d, %a, %b, %c;", [](U a, U b, U c) {
    c = std::min(c, 32u);
    return c == 32 ? b : c == 0 ? a : a >> c | b << (32 - c);
  });
  Check32("lop3.b32 %d, %a, %b, %c, 0xE2;", [](U a, U b, U c) { return (a & b) | (~b & c); });
  Check32("popc.b32 %d, %a;", [](U a, U, U) { return U(__builtin_popcount(a)); });
  Check32("clz.b32 %d, %a;", [](U a, U, U) { return a == 0 ? 32u : U(__builtin_clz(a)); });
  Check32("bfind.u32 %d, %a;", [](U a, U, U) { return a == 0 ? ~0u : 31u - U(__builtin_clz(a)); });
  Check32("bfind.shiftamt.s32 %d, %a;", [](U a, U, U) {
    if (S(a) < 0) a = ~a;
    return a == 0 ? ~0u : U(__builtin_clz(a));
  });
  Check32("brev.b32 %d, %a;", [](U a, U, U) {
    U r = 0;
    for (int k = 0; k < 32; ++k) r |= (a >> k & 1) << (31 - k);
    return r;
  });
  Check32("prmt.b32 %d, %a, %b, %c;", [](U a, U b, U c) {
    const UL both = UL{b} << 32 | a;
    U r = 0;
    for (int k = 0; k < 4; ++k) {
      const U s = c >> (4 * k) & 15;
      U byte = both >> (8 * (s & 7)) & 255;
      if (s & 8) byte = byte & 128 ? 255 : 0;
      r |= byte << (8 * k);
    }
    return r;
  });
  Check64("shl.b64 %d, %a, 4;", [](UL a, UL, UL) { return a << 4; });
  Check64("cvt.u32.u64 %x1, %c; shr.u64 %d, %a, %x1;",
          [](UL a, UL, UL c) { return U(c) > 63 ? 0 : a >> c; });
}

TEST(InstructionTest, BitFields) {
  const auto bfe = [](U a, U pos, U len, bool sign) {
    pos &= 255;
    len &= 255;
    const U msb = 31;
    U result = 0;
    const U s = sign && len != 0 ? a >> std::min(pos + len - 1, msb) & 1 : 0;
    for (U k = 0; k <= msb; ++k)
      result |= (k < len && pos + k <= msb ? a >> (pos + k) & 1 : s) << k;
    return result;
  };
  Check32("bfe.u32 %d, %a, %b, %c;", [&](U a, U b, U c) { return bfe(a, b, c, false); });
  Check32("bfe.s32 %d, %a, %b, %c;", [&](U a, U b, U c) { return bfe(a, b, c, true); });
  Check32("bfi.b32 %d, %a, %b, %c, 8;", [](U a, U b, U c) {
    c &= 255;
    U r = b;
    for (U k = 0; k < 8 && c + k <= 31; ++k) r = (r & ~(1u << (c + k))) | (a >> k & 1) << (c + k);
    return r;
  });
}

TEST(InstructionTest, CarryChains) {
  Check64(R"(cvt.u32.u64 %x1, %a; shr.u64 %y1, %a, 32; cvt.u32.u64 %x2, %y1;
             cvt.u32.u64 %x3, %b; shr.u64 %y1, %b, 32; cvt.u32.u64 %x4, %y1;
             add.cc.u32 %x5, %x1, %x3; addc.u32 %x6, %x2, %x4; mov.b64 %d, {%x5, %x6};)",
          [](UL a, UL b, UL) { return a + b; });
  Check64(R"(mov.b64 {%x1, %x2}, %a; mov.b64 {%x3, %x4}, %b;
             sub.cc.u32 %x5, %x1, %x3; subc.u32 %x6, %x2, %x4; mov.b64 %d, {%x5, %x6};)",
          [](UL a, UL b, UL) { return a - b; });
  // What subtraction leaves in the flag is the carry of a + ~b + 1: set if nothing was borrowed.
  Check64(R"(mov.b64 {%x1, %x2}, %a; mov.b64 {%x3, %x4}, %b; sub.cc.u32 %x5, %x1, %x3;
             subc.cc.u32 %x5, %x2, %x4; addc.u32 %x6, 0, 0; cvt.u64.u32 %d, %x6;)",
          [](UL a, UL b, UL) { return UL{a >= b}; });
  Check64("sub.cc.u64 %y1, %a, %b; subc.u64 %d, 0, 0;",
          [](UL a, UL b, UL) { return a < b ? ~UL{0} : UL{0}; });
  Check64(R"(mov.b64 {%x1, %x2}, %a; mov.b64 {%x3, %x4}, %b;
             mul.lo.u32 %x5, %x1, %x3; mul.hi.u32 %x6, %x1, %x3; mad.lo.u32 %x6, %x1, %x4, %x6; mad.lo.u32 %x6, %x2, %x3, %x6;
             mov.b64 %y1, {%x5, %x6}; mov.b64 {%x1, %x2}, %c; mad.lo.cc.u32 %x5, %x5, 1, %x1; madc.hi.u32 %x6, %x5, 0, %x6;
             mov.b64 %d, {%x5, %x6};)",
          [](UL a, UL b, UL c) { return a * b + U(c); });
}

TEST(InstructionTest, SelectionAndComparison) {
  Check32("setp.lt.s32 %p1, %a, %b; selp.b32 %d, %a, %b, %p1;",
          [](U a, U b, U) { return S(a) < S(b) ? a : b; });
  Check32("setp.hi.u32 %p1|%p2, %a, %b; selp.b32 %d, 1, 2, %p2;",
          [](U a, U b, U) { return a > b ? 2u : 1u; });
  Check32("setp.eq.s32 %p1, %b, 3; setp.ge.and.u32 %p2, %a, 32, !%p1; selp.u32 %d, 1, 0, %p2;",
          [](U a, U b, U) { return U(a >= 32 && b != 3); });
  Check32("set.eq.u32.u32 %d, %a, %b;", [](U a, U b, U) { return a == b ? ~0u : 0u; });
  Check32("setp.ne.s32 %p1, %a, 0; mov.u32 %d, 9; @%p1 add.u32 %d, %d, %b;",
          [](U a, U b, U) { return a != 0 ? 9 + b : 9u; });
  Check32(
      "setp.gt.u32 %p1, %a, 40; setp.lt.u32 %p2, %b, 40; xor.pred %p3, %p1, %p2; not.pred %p3, "
      "%p3; selp.b32 %d, 5, 6, %p3;",
      [](U a, U b, U) { return (a > 40) == (b < 40) ? 5u : 6u; });
}

const std::vector<U> kFloats = {Bits(0.0f),          Bits(-0.0f),  Bits(1.0f),  Bits(-1.5f),
                                Bits(3.1415927f),    Bits(1e-40f), Bits(1e38f), 0x7f800000,
                                0xff800000,          0x7fc00000,   Bits(0.1f),  Bits(-123456.789f),
                                Bits(2147483648.0f), Bits(-3e9f),  Bits(0.5f),  Bits(2.5f)};
const std::vector<U> kMoreFloats = {Bits(2.0f), Bits(0.3f), Bits(-7.25f), Bits(1e-3f),
                                    Bits(0.0f), 0x7fc00000, Bits(-0.0f)};
void CheckF(const std::string& code, const std::function<U(float, float, float)>& e) {
  const std::vector<U> got = RunOp<U>(code, kFloats, kMoreFloats, {Bits(0.7f), Bits(-1e-3f)});
  for (size_t i = 0; i < got.size(); ++i) {
    const float x = F(kFloats[i % kFloats.size()]), y = F(kMoreFloats[i % kMoreFloats.size()]),
                z = i % 2 == 0 ? 0.7f : -1e-3f;
    const U want = e(x, y, z);
    if (std::isnan(F(want)) && std::isnan(F(got[i]))) continue;
    ASSERT_EQ(got[i], want) << code << " of " << x << ", " << y << ", " << z << ": " << F(got[i])
                            << " not " << F(want);
  }
}

TEST(InstructionTest, SinglePrecision) {
  CheckF("add.f32 %d, %a, %b;", [](float a, float b, float) { return Bits(a + b); });
  CheckF("sub.rn.f32 %d, %a, %b;", [](float a, float b, float) { return Bits(a - b); });
  CheckF("mul.f32 %d, %a, %b;", [](float a, float b, float) { return Bits(a * b); });
  CheckF("mul.f32 %x1, %a, %b; add.f32 %d, %x1, %c;", [](float a, float b, float c) {
    volatile float p = a * b;
    return Bits(p + c);
  });
  CheckF("fma.rn.f32 %d, %a, %b, %c;",
         [](float a, float b, float c) { return Bits(std::fma(a, b, c)); });
  CheckF("div.rn.f32 %d, %a, %b;", [](float a, float b, float) { return Bits(a / b); });
  CheckF("rcp.rn.f32 %d, %a;", [](float a, float, float) { return Bits(1 / a); });
  CheckF("sqrt.rn.f32 %d, %a;", [](float a, float, float) { return Bits(std::sqrt(a)); });
  CheckF("abs.f32 %d, %a;", [](float a, float, float) { return Bits(std::fabs(a)); });
  CheckF("neg.f32 %d, %a;", [](float a, float, float) { return Bits(a) ^ 0x80000000; });
  CheckF("copysign.f32 %d, %b, %a;",
         [](float a, float b, float) { return Bits(std::copysign(a, b)); });
  CheckF("min.f32 %d, %a, %b;", [](float a, float b, float) {
    if (a == 0 && b == 0) return Bits(a) | Bits(b);
    return Bits(std::fmin(a, b));
  });
  CheckF("max.f32 %d, %a, %b;", [](float a, float b, float) {
    if (a == 0 && b == 0) return Bits(a) & Bits(b);
    return Bits(std::fmax(a, b));
  });
  CheckF("min.NaN.f32 %d, %a, %b;", [](float a, float b, float) {
    if (std::isnan(a) || std::isnan(b)) return 0x7fffffffu;
    if (a == 0 && b == 0) return Bits(a) | Bits(b);
    return Bits(std::fmin(a, b));
  });
  CheckF("mul.ftz.f32 %d, %a, %b;", [](float a, float b, float) {
    const auto flush = [](float x) {
      return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x;
    };
    return Bits(flush(flush(a) * flush(b)));
  });
  CheckF("add.sat.f32 %d, %a, %b;", [](float a, float b, float) {
    const float s = a + b;
    return Bits(s > 0 ? std::min(s, 1.0f) : 0.0f);
  });
  CheckF("setp.ltu.f32 %p1, %a, %b; selp.b32 %d, 1, 0, %p1;",
         [](float a, float b, float) { return U(!(a >= b)); });
  CheckF("setp.ne.f32 %p1, %a, %b; selp.b32 %d, 1, 0, %p1;",
         [](float a, float b, float) { return U(a < b || a > b); });
  CheckF("setp.nan.f32 %p1, %a, %b; selp.b32 %d, 1, 0, %p1;",
         [](float a, float b, float) { return U(std::isnan(a) || std::isnan(b)); });
  CheckF("testp.subnormal.f32 %p1, %a; selp.b32 %d, 1, 0, %p1;",
         [](float a, float, float) { return U(std::fpclassify(a) == FP_SUBNORMAL); });
}

TEST(InstructionTest, DirectedRoundingRoundsOnce) {
  // Compared with long double arithmetic, which holds these results exactly enough.
  const auto down = [](float nearest, long double exact) {
    return nearest > exact ? std::nextafter(nearest, -INFINITY) : nearest;
  };
  const auto up = [](float nearest, long double exact) {
    return nearest < exact ? std::nextafter(nearest, INFINITY) : nearest;
  };
  const std::vector<U> a = {Bits(1.0f), Bits(1.1f), Bits(-3.7f), Bits(123.456f)};
  const std::vector<U> b = {Bits(1e-9f), Bits(0.3f), Bits(7.1f)};
  const std::vector<U> c = {Bits(0.1f), Bits(-2.3f)};
  Check<U>("fma.rm.f32 %d, %a, %b, %c;", a, b, c, [&](U x, U y, U z) {
    const long double e = static_cast<long double>(F(x)) * F(y) + F(z);
    return Bits(down(static_cast<float>(e), e));
  });
  Check<U>("add.rp.f32 %d, %a, %b;", a, b, c, [&](U x, U y, U) {
    const long double e = static_cast<long double>(F(x)) + F(y);
    return Bits(up(static_cast<float>(e), e));
  });
  Check<U>("mul.rz.f32 %d, %a, %b;", a, b, c, [&](U x, U y, U) {
    const long double e = static_cast<long double>(F(x)) * F(y);
    const float n = static_cast<float>(e);
    return Bits(e > 0 ? down(n, e) : up(n, e));
  });
  Check<U>("cvt.rp.f32.s32 %d, %a;", {16777217, 0x7fffffff, 5, 0x80000001}, {0}, {0},
           [&](U x, U, U) { return Bits(up(static_cast<float>(S(x)), S(x))); });
}

void CheckD(const std::string& code, const std::function<UL(double, double)>& e) {
  const std::vector<UL> a = {Bits(1.0),          Bits(-2.75), Bits(1e300), Bits(0.1), Bits(5e-324),
                             0x7ff8000000000000, Bits(-0.0),  Bits(3e9),   Bits(1e-5)};
  const std::vector<UL> b = {Bits(3.0), Bits(-1e-3), Bits(7.5), Bits(1e10)};
  const std::vector<UL> got = RunOp<UL>(code, a, b, {0});
  for (size_t i = 0; i < got.size(); ++i) {
    const double x = D(a[i % a.size()]), y = D(b[i % b.size()]);
    const UL want = e(x, y);
    if (std::isnan(D(want)) && std::isnan(D(got[i]))) continue;
    ASSERT_EQ(got[i], want) << code << " of " << x << ", " << y;
  }
}

TEST(InstructionTest, DoublePrecision) {
  CheckD("add.f64 %d, %a, %b;", [](double a, double b) { return Bits(a + b); });
  CheckD("fma.rn.f64 %d, %a, %b, %b;", [](double a, double b) { return Bits(std::fma(a, b, b)); });
  CheckD("div.rn.f64 %d, %a, %b;", [](double a, double b) { return Bits(a / b); });
  CheckD("sqrt.rn.f64 %d, %b;", [](double, double b) { return Bits(std::sqrt(b)); });
  CheckD("cvt.rzi.s64.f64 %d, %a;", [](double a, double) {
    if (std::isnan(a)) return UL{1} << 63;
    return a >= 0x1p63 ? UL{0x7fffffffffffffff} : UL(int64_t(a));
  });
  CheckD("cvt.rmi.f64.f64 %d, %a;", [](double a, double) { return Bits(std::floor(a)); });
  CheckD("cvt.rn.f32.f64 %x1, %a; cvt.f64.f32 %d, %x1;",
         [](double a, double) { return Bits(double(float(a))); });
  CheckD("rcp.approx.ftz.f64 %d, %b;",
         [](double, double b) { return Bits(1 / b) & 0xffffffff00000000; });
}

TEST(InstructionTest, Conversions) {
  CheckF("cvt.rzi.s32.f32 %d, %a;", [](float a, float, float) {
    return std::isnan(a)        ? 0u
           : a >= 2147483648.0f ? 0x7fffffffu
           : a < -2147483648.0f ? 0x80000000u
                                : U(S(a));
  });
  CheckF("cvt.rni.u32.f32 %d, %a;", [](float a, float, float) {
    const float r = std::nearbyint(a);
    return !(r > 0) ? 0u : r >= 4294967296.0f ? ~0u : U(r);
  });
  CheckF("cvt.rpi.f32.f32 %d, %a;", [](float a, float, float) { return Bits(std::ceil(a)); });
  CheckF("cvt.sat.f32.f32 %d, %a;",
         [](float a, float, float) { return Bits(a > 0 ? std::min(a, 1.0f) : 0.0f); });
  Check32("cvt.rn.f32.u32 %d, %a;", [](U a, U, U) { return Bits(float(a)); });
  Check32("cvt.rn.f32.s32 %d, %a;", [](U a, U, U) { return Bits(float(S(a))); });
  Check32("cvt.u16.u32 %h1, %a; cvt.s32.s16 %d, %h1;", [](U a, U, U) { return U(S(int16_t(a))); });
  Check32("cvt.s32.s8 %d, %a;", [](U a, U, U) { return U(S(int8_t(a))); });
  Check32("cvt.sat.u8.s32 %d, %a;", [](U a, U, U) { return U(std::clamp(S(a), 0, 255)); });
  Check64("cvt.u32.u64 %x1, %a; cvt.s64.s32 %d, %x1;",
          [](UL a, UL, UL) { return UL(int64_t{S(U(a))}); });
  CheckF("cvt.rn.f16.f32 %h1, %a; cvt.f32.f16 %d, %h1;",
         [](float a, float, float) { return Bits(float(HalfValue(NearestHalf(a)))); });
}

TEST(InstructionTest, Approximations) {
  const std::vector<U> x = {Bits(0.5f),   Bits(1.0f),  Bits(-3.3f), Bits(7.7f),
                            Bits(100.1f), Bits(1e-3f), Bits(2.0f),  Bits(-0.25f)};
  const auto near = [&](const std::string& code, double tolerance,
                        const std::function<double(double)>& f) {
    const std::vector<U> got = RunOp<U>(code, x, {0}, {0});
    for (size_t i = 0; i < got.size(); ++i) {
      const double want = f(F(x[i % x.size()]));
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(F(got[i]))) << code;
        continue;
      }
      EXPECT_NEAR(F(got[i]), want, tolerance * std::max(1.0, std::fabs(want)))
          << code << " of " << F(x[i % x.size()]);
    }
  };
  near("ex2.approx.f32 %d, %a;", 0x1p-22, [](double v) { return std::exp2(v); });
  near("lg2.approx.f32 %d, %a;", 0x1p-22, [](double v) { return std::log2(v); });
  near("sin.approx.f32 %d, %a;", 0x1p-20, [](double v) { return std::sin(v); });
  near("cos.approx.f32 %d, %a;", 0x1p-20, [](double v) { return std::cos(v); });
  near("tanh.approx.f32 %d, %a;", 0x1p-11, [](double v) { return std::tanh(v); });
  near("rsqrt.approx.f32 %d, %a;", 0x1p-22, [](double v) { return 1 / std::sqrt(v); });
  near("div.full.f32 %d, %a, 0f40400000;", 0x1p-22, [](double v) { return v / 3; });
  // Whole powers are exact; what is below the normal numbers is flushed.
  Check<U>("ex2.approx.ftz.f32 %d, %a;",
           {Bits(1.0f), Bits(-3.0f), Bits(127.0f), Bits(128.0f), Bits(-126.0f), Bits(-127.0f),
            0xff800000},
           {0}, {0}, [](U a, U, U) {
             const float r = std::exp2(F(a));
             return r < 0x1p-126f ? 0u : Bits(r);
           });
}

TEST(InstructionTest, HalfPrecision) {
  Check<U>(
      "cvt.u16.u32 %h1, %a; cvt.u16.u32 %h2, %b; fma.rn.f16 %h3, %h1, %h2, %h1; cvt.u32.u16 %d, "
      "%h3;",
      {0x3c00, 0x4248, 0x2e66}, {0x3555, 0xb800}, {0}, [](U a, U b, U) {
        return U(
            NearestHalf(HalfValue(uint16_t(a)) * HalfValue(uint16_t(b)) + HalfValue(uint16_t(a))));
      });
  Check<U>("add.f16x2 %d, %a, %b;", {0x3c004000}, {0x3c003c00}, {0},
           [](U, U, U) { return 0x40004200u; });
  Check<U>("cvt.rn.bf16.f32 %h1, %a; cvt.f32.bf16 %d, %h1;", {Bits(1.0f), Bits(3.1415927f)}, {0},
           {0}, [](U a, U, U) { return (a + 0x7fff + (a >> 16 & 1)) & 0xffff0000; });
}

// Warp instructions: `e` gets the lane.
void CheckLanes(const std::string& code, const std::function<U(U)>& e) {
  const std::vector<U> got = RunOp<U>("mov.u32 %x1, %laneid; " + code, {0}, {0}, {0});
  for (U i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], e(i % 32)) << code << " lane " << i;
}

TEST(InstructionTest, Shuffles) {
  CheckLanes("shfl.sync.down.b32 %d|%p1, %x1, 4, 31, -1; @!%p1 add.u32 %d, %d, 100;",
             [](U l) { return l + 4 <= 31 ? l + 4 : l + 100; });
  CheckLanes("shfl.sync.up.b32 %d|%p1, %x1, 3, 0, -1; @!%p1 add.u32 %d, %d, 100;",
             [](U l) { return l >= 3 ? l - 3 : l + 100; });
  CheckLanes("shfl.sync.bfly.b32 %d, %x1, 5, 31, -1;", [](U l) { return l ^ 5; });
  CheckLanes("shfl.sync.idx.b32 %d, %x1, 7, 31, -1;", [](U) { return 7u; });
  // Segments of 8 lanes: c = (32 - 8) << 8 | 31.
  CheckLanes("shfl.sync.down.b32 %d, %x1, 2, 0x181f, -1;",
             [](U l) { return l % 8 + 2 < 8 ? l + 2 : l; });
  CheckLanes("shfl.sync.up.b32 %d, %x1, 2, 0x1800, -1;",
             [](U l) { return l % 8 >= 2 ? l - 2 : l; });
  // Lanes known only at run time.
  CheckLanes("mul.lo.u32 %x2, %x1, 3; shfl.sync.idx.b32 %d, %x1, %x2, 31, -1;",
             [](U l) { return l * 3 % 32; });
  CheckLanes(
      "add.u32 %x2, %a, 1; shfl.sync.down.b32 %d|%p1, %x1, %x2, 31, -1; @!%p1 mov.u32 %d, 77;",
      [](U l) { return l < 31 ? l + 1 : 77; });
}

TEST(InstructionTest, VotesAndMatches) {
  CheckLanes("setp.lt.u32 %p1, %x1, 5; vote.sync.ballot.b32 %d, %p1, -1;", [](U) { return 31u; });
  CheckLanes("setp.lt.u32 %p1, %x1, 5; vote.sync.any.pred %p2, %p1, -1; selp.b32 %d, 1, 0, %p2;",
             [](U) { return 1u; });
  CheckLanes("setp.lt.u32 %p1, %x1, 5; vote.sync.all.pred %p2, %p1, -1; selp.b32 %d, 1, 0, %p2;",
             [](U) { return 0u; });
  CheckLanes("setp.lt.u32 %p1, %x1, 50; vote.sync.all.pred %p2, !%p1, -1; selp.b32 %d, 1, 0, %p2;",
             [](U) { return 0u; });
  CheckLanes("activemask.b32 %d;", [](U) { return ~0u; });
  CheckLanes("shr.u32 %x2, %x1, 3; match.any.sync.b32 %d, %x2, -1;",
             [](U l) { return 0xffu << (l / 8 * 8); });
  CheckLanes("match.all.sync.b32 %d|%p1, %x1, -1; @%p1 mov.u32 %d, 5;", [](U) { return 0u; });
  CheckLanes("redux.sync.add.s32 %d, %x1, -1;", [](U) { return 496u; });
  CheckLanes("redux.sync.max.u32 %d, %x1, 0xff;", [](U) { return 7u; });
  CheckLanes("mov.u32 %d, %lanemask_lt;", [](U l) { return (1u << l) - 1; });
}

}  // namespace
}  // namespace fargpu::softgpu
