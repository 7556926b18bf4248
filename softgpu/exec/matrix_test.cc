// mma, wmma, ldmatrix and their relatives against products computed element by element. The
// fragments of mma are stated here form by form, as the PTX manual's tables do.
#include <algorithm>
#include <functional>
#include <random>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"

#include "common/status_matchers.h"
#include "softgpu/exec/testing/half_value.h"
#include "softgpu/exec/testing/ptx_runner.h"

namespace fargpu::softgpu {
namespace {

using Bits = uint64_t;

// A number format: what the bits mean, and bits for test values.
struct Format {
  const char* name;
  int bits;
  std::function<double(Bits)> value;
  std::function<Bits(int)> encode;  // of a small integer, exactly
};

double FromHalf(Bits b) { return HalfValue(static_cast<uint16_t>(b)); }
Bits ToHalf(double v) { return NearestHalf(v); }
float AsFloat(Bits b) { return absl::bit_cast<float>(static_cast<uint32_t>(b)); }
Bits OfFloat(float v) { return absl::bit_cast<uint32_t>(v); }

const Format kF16 = {"f16", 16, FromHalf, [](int v) { return ToHalf(v * 0.25); }};
const Format kBF16 = {"bf16", 16, [](Bits b) { return AsFloat(b << 16); },
                      [](int v) { return OfFloat(static_cast<float>(v) * 0.5f) >> 16; }};
// The bits below the format's are garbage that must not matter.
const Format kTF32 = {
    "tf32", 32, [](Bits b) { return AsFloat(b & 0xffffe000); },
    [](int v) { return OfFloat(static_cast<float>(v) * 0.125f) | 0x1234 % 0x1fff; }};
const Format kF32 = {"f32", 32, AsFloat, [](int v) { return OfFloat(static_cast<float>(v)); }};
const Format kF64 = {"f64", 64, [](Bits b) { return absl::bit_cast<double>(b); },
                     [](int v) { return absl::bit_cast<Bits>(v * 1.0625); }};
const Format kS8 = {"s8", 8, [](Bits b) { return static_cast<int8_t>(b); },
                    [](int v) { return static_cast<uint8_t>(v * 9); }};
const Format kU8 = {"u8", 8, [](Bits b) { return static_cast<uint8_t>(b); },
                    [](int v) { return static_cast<uint8_t>(v * 9); }};
const Format kS4 = {"s4", 4,
                    [](Bits b) { return static_cast<int>(b & 15) - ((b & 8) != 0 ? 16 : 0); },
                    [](int v) { return static_cast<Bits>(v) & 15; }};
const Format kU4 = {"u4", 4, [](Bits b) { return static_cast<int>(b & 15); },
                    [](int v) { return static_cast<Bits>(v) & 15; }};
const Format kS32 = {"s32", 32, [](Bits b) { return static_cast<int32_t>(b); },
                     [](int v) { return static_cast<uint32_t>(v * 1000); }};
// 1, 4 (e4m3) or 5 (e5m2) bits of exponent: decoded from the definition.
double Small(Bits b, int exponent_bits) {
  const int mantissa_bits = 7 - exponent_bits;
  const int e = static_cast<int>(b >> mantissa_bits & ((1u << exponent_bits) - 1));
  const double m = static_cast<double>(b & ((1u << mantissa_bits) - 1)) / (1 << mantissa_bits);
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double v = e == 0 ? std::ldexp(m, 1 - bias) : std::ldexp(1 + m, e - bias);
  return (b & 0x80) != 0 ? -v : v;
}
// Small values only, with denormals: exponents 0 to 8.
const Format kE4M3 = {
    "e4m3", 8, [](Bits b) { return Small(b, 4); },
    [](int v) { return static_cast<Bits>((v < 0 ? 0x80 : 0) | (std::abs(v) * 5 % 66)); }};
// Neither too small nor too large for exact sums of products.
const Format kE5M2 = {
    "e5m2", 8, [](Bits b) { return Small(b, 5); },
    [](int v) { return static_cast<Bits>((v < 0 ? 0x80 : 0) | (0x34 + std::abs(v) % 12)); }};

struct Place {
  int row, column;
};
// Where element i of a lane's fragment lies. g = lane / 4, t = lane % 4.
using Layout = std::function<Place(int g, int t, int i)>;

struct Mma {
  const char* name;
  int m, n, k;
  const Format &d, &a, &b, &c;
  int a_elements, b_elements, c_elements;  // of a lane
  Layout layout_a, layout_b, layout_c;
};

const Layout kC16 = [](int g, int t, int i) { return Place{i < 2 ? g : g + 8, t * 2 + (i & 1)}; };
const Layout kC8 = [](int g, int t, int i) { return Place{g, t * 2 + i}; };

// Runs `instruction` ("mma... {d}, {a}, {b}, {c};" with registers by name) on fragments given as
// words [register][lane].
std::vector<Bits> RunFragments(const std::string& instruction, int d, int a, int b, int c,
                               int d_bits, int ab_bits, int c_bits, const std::vector<Bits>& in) {
  std::string text = absl::StrCat(R"(
.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 in, .param .u64 out) {
  .reg .b64 %in, %out, %off; .reg .b32 %t;
  .reg .b)",
                                  d_bits, " %d<", d, ">; .reg .b", ab_bits, " %a<", a, ">, %b<", b,
                                  ">; .reg .b", c_bits, " %c<", c, ">;\n");
  absl::StrAppend(&text,
                  "mov.u32 %t, %tid.x; mul.wide.u32 %off, %t, 8; ld.param.u64 %in, [in];"
                  "ld.param.u64 %out, [out]; add.u64 %in, %in, %off; add.u64 %out, %out, %off;\n");
  int at = 0;
  const auto load = [&](const char* name, int count, int bits) {
    for (int r = 0; r < count; ++r) {
      absl::StrAppend(&text, "ld.global.b", bits, " ", name, r, ", [%in+", 256 * at++, "];\n");
    }
  };
  load("%a", a, ab_bits);
  load("%b", b, ab_bits);
  load("%c", c, c_bits);
  const auto list = [](const char* name, int count) {
    std::string result = "{";
    for (int r = 0; r < count; ++r) absl::StrAppend(&result, r == 0 ? "" : ", ", name, r);
    return result + "}";
  };
  absl::StrAppend(&text, instruction, " ", list("%d", d), ", ", list("%a", a), ", ", list("%b", b),
                  ", ", list("%c", c), ";\n");
  for (int r = 0; r < d; ++r) {
    absl::StrAppend(&text, "st.global.b", d_bits, " [%out+", 256 * r, "], %d", r, ";\n");
  }
  text += "ret; }\n";
  auto runner = PtxRunner::Load({text});
  EXPECT_OK(runner) << text;
  if (!runner.ok()) return {};
  DeviceBuffer<Bits> input(in), output(static_cast<size_t>(32 * d));
  EXPECT_OK((*runner)->Run("k", {1}, {32}, 0, input.address(), output.address())) << instruction;
  return output.Values();
}

void CheckMma(const Mma& f, bool clamp = false) {
  std::mt19937 random(7);
  const auto matrix = [&](int rows, int columns, const Format& format) {
    std::vector<Bits> v(static_cast<size_t>(rows * columns));
    for (Bits& x : v) x = format.encode(static_cast<int>(random() % 29) - 14);
    return v;
  };
  const auto A = matrix(f.m, f.k, f.a), B = matrix(f.k, f.n, f.b), C = matrix(f.m, f.n, f.c);
  const auto registers = [](int elements, int bits) {
    return std::max(1, elements * bits / (bits == 64 ? 64 : 32));
  };
  const int ra = registers(f.a_elements, f.a.bits), rb = registers(f.b_elements, f.b.bits),
            rc = registers(f.c_elements, f.c.bits), rd = registers(f.c_elements, f.d.bits);
  std::vector<Bits> in(static_cast<size_t>(32 * (ra + rb + rc)), 0);
  const auto put = [&](int first, const std::vector<Bits>& m, int columns, int elements, int bits,
                       const Layout& layout) {
    const int per_word = std::max(1, 32 / bits);
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < elements; ++i) {
        const Place p = layout(lane / 4, lane % 4, i);
        in[static_cast<size_t>((first + i / per_word) * 32 + lane)] |=
            m[static_cast<size_t>(p.row * columns + p.column)] << (i % per_word * bits);
      }
    }
  };
  put(0, A, f.k, f.a_elements, f.a.bits, f.layout_a);
  put(ra, B, f.n, f.b_elements, f.b.bits, f.layout_b);
  put(ra + rb, C, f.n, f.c_elements, f.c.bits, f.layout_c);
  const auto got = RunFragments(f.name, rd, ra, rb, rc, f.d.bits == 64 ? 64 : 32,
                                f.a.bits == 64 ? 64 : 32, f.c.bits == 64 ? 64 : 32, in);
  if (got.empty()) return;
  const int per_word = std::max(1, 32 / f.d.bits);
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < f.c_elements; ++i) {
      const Place p = f.layout_c(lane / 4, lane % 4, i);
      double want = f.c.value(C[static_cast<size_t>(p.row * f.n + p.column)]);
      for (int x = 0; x < f.k; ++x) {
        want += f.a.value(A[static_cast<size_t>(p.row * f.k + x)]) *
                f.b.value(B[static_cast<size_t>(x * f.n + p.column)]);
      }
      if (clamp) want = std::clamp(want, -2147483648.0, 2147483647.0);
      const Bits bits =
          got[static_cast<size_t>(i / per_word * 32 + lane)] >> (i % per_word * f.d.bits);
      const double value = f.d.value(f.d.bits == 16 ? bits & 0xffff : bits);
      // The values are chosen so that every sum is exact in the accumulator.
      ASSERT_EQ(value, f.d.bits == 16 ? FromHalf(ToHalf(want)) : want)
          << f.name << " lane " << lane << " element " << i;
    }
  }
}

TEST(MmaTest, HalfAndBFloat) {
  const Layout a8 = [](int g, int t, int i) { return Place{i < 2 ? g : g + 8, t * 2 + (i & 1)}; };
  const Layout b8 = [](int g, int t, int i) { return Place{t * 2 + i, g}; };
  const Layout a16 = [](int g, int t, int i) {
    return Place{i < 2 || (i >= 4 && i < 6) ? g : g + 8, t * 2 + (i & 1) + (i >= 4 ? 8 : 0)};
  };
  const Layout b16 = [](int g, int t, int i) {
    return Place{t * 2 + (i & 1) + (i >= 2 ? 8 : 0), g};
  };
  CheckMma({"mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32", 16, 8, 8, kF32, kF16, kF16, kF32, 4,
            2, 4, a8, b8, kC16});
  CheckMma({"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", 16, 8, 16, kF32, kF16, kF16, kF32,
            8, 4, 4, a16, b16, kC16});
  CheckMma({"mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16", 16, 8, 16, kF16, kF16, kF16, kF16,
            8, 4, 4, a16, b16, kC16});
  CheckMma({"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", 16, 8, 16, kF32, kBF16, kBF16,
            kF32, 8, 4, 4, a16, b16, kC16});
  CheckMma({"mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32", 16, 8, 8, kF32, kBF16, kBF16,
            kF32, 4, 2, 4, a8, b8, kC16});
}

TEST(MmaTest, TF32AndDouble) {
  const Layout a4 = [](int g, int t, int i) { return Place{i == 0 ? g : g + 8, t}; };
  const Layout b4 = [](int g, int t, int i) { return Place{t, g}; };
  const Layout a8 = [](int g, int t, int i) {
    return Place{i % 2 == 0 ? g : g + 8, i < 2 ? t : t + 4};
  };
  const Layout b8 = [](int g, int t, int i) { return Place{i == 0 ? t : t + 4, g}; };
  CheckMma({"mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32", 16, 8, 4, kF32, kTF32, kTF32,
            kF32, 2, 1, 4, a4, b4, kC16});
  CheckMma({"mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", 16, 8, 8, kF32, kTF32, kTF32,
            kF32, 4, 2, 4, a8, b8, kC16});
  CheckMma({"mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64", 8, 8, 4, kF64, kF64, kF64, kF64, 1,
            1, 2,
            [](int g, int t, int) {
              return Place{g, t};
            },
            b4, kC8});
  CheckMma({"mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64", 16, 8, 8, kF64, kF64, kF64, kF64, 4,
            2, 4, a8, b8, kC16});
  CheckMma({"mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64", 16, 8, 16, kF64, kF64, kF64, kF64,
            8, 4, 4,
            [](int g, int t, int i) {
              return i % 2 == 0 ? Place{g, i * 2 + t} : Place{g + 8, i * 2 - 2 + t};
            },
            [](int g, int t, int i) {
              return Place{t + i * 4, g};
            },
            kC16});
}

TEST(MmaTest, Bytes) {
  const Layout a = [](int g, int t, int i) {
    return Place{i < 4 || (i >= 8 && i < 12) ? g : g + 8, t * 4 + (i & 3) + (i >= 8 ? 16 : 0)};
  };
  const Layout b = [](int g, int t, int i) {
    return Place{t * 4 + (i & 3) + (i >= 4 ? 16 : 0), g};
  };
  for (const auto& [fa, fb] : {std::pair{&kS8, &kS8}, {&kU8, &kS8}, {&kS8, &kU8}, {&kU8, &kU8}}) {
    const std::string name =
        absl::StrCat("mma.sync.aligned.m16n8k32.row.col.s32.", fa->name, ".", fb->name, ".s32");
    CheckMma({name.c_str(), 16, 8, 32, kS32, *fa, *fb, kS32, 16, 8, 4, a, b, kC16});
  }
  for (const auto& [fa, fb] :
       {std::pair{&kE4M3, &kE4M3}, {&kE4M3, &kE5M2}, {&kE5M2, &kE4M3}, {&kE5M2, &kE5M2}}) {
    const std::string name =
        absl::StrCat("mma.sync.aligned.m16n8k32.row.col.f32.", fa->name, ".", fb->name, ".f32");
    CheckMma({name.c_str(), 16, 8, 32, kF32, *fa, *fb, kF32, 16, 8, 4, a, b, kC16});
  }
  CheckMma({"mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32", 16, 8, 16, kS32, kS8, kS8, kS32, 8,
            4, 4,
            [](int g, int t, int i) {
              return Place{i < 4 ? g : g + 8, t * 4 + (i & 3)};
            },
            [](int g, int t, int i) {
              return Place{t * 4 + i, g};
            },
            kC16});
  CheckMma({"mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32", 8, 8, 16, kS32, kS8, kS8, kS32, 4, 4,
            2,
            [](int g, int t, int i) {
              return Place{g, t * 4 + i};
            },
            [](int g, int t, int i) {
              return Place{t * 4 + i, g};
            },
            kC8});
  Format huge = kS32;
  huge.encode = [](int v) { return static_cast<Bits>(v < 0 ? 0x80000001u : 0x7ffffffeu); };
  CheckMma({"mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32", 16, 8, 32, kS32, kS8, kS8,
            huge, 16, 8, 4, a, b, kC16},
           true);
}

TEST(MmaTest, Nibbles) {
  CheckMma({"mma.sync.aligned.m8n8k32.row.col.s32.s4.u4.s32", 8, 8, 32, kS32, kS4, kU4, kS32, 8, 8,
            2,
            [](int g, int t, int i) {
              return Place{g, t * 8 + i};
            },
            [](int g, int t, int i) {
              return Place{t * 8 + i, g};
            },
            kC8});
  CheckMma({"mma.sync.aligned.m16n8k64.row.col.s32.u4.s4.s32", 16, 8, 64, kS32, kU4, kS4, kS32, 32,
            16, 4,
            [](int g, int t, int i) {
              return Place{i < 8 || (i >= 16 && i < 24) ? g : g + 8,
                           t * 8 + (i & 7) + (i >= 16 ? 32 : 0)};
            },
            [](int g, int t, int i) {
              return Place{t * 8 + (i & 7) + (i >= 8 ? 32 : 0), g};
            },
            kC16});
}

TEST(MmaTest, SingleBits) {
  std::mt19937 random(3);
  std::vector<Bits> in(32 * 4);
  for (Bits& x : in) x = random();
  for (const bool conjunction : {false, true}) {
    const auto got = RunFragments(absl::StrCat("mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32.",
                                               conjunction ? "and" : "xor", ".popc"),
                                  2, 1, 1, 2, 32, 32, 32, in);
    ASSERT_FALSE(got.empty());
    for (size_t lane = 0; lane < 32; ++lane) {
      for (size_t i = 0; i < 2; ++i) {
        const size_t row = lane / 4, column = lane % 4 * 2 + i;
        uint32_t want = static_cast<uint32_t>(in[(2 + i) * 32 + lane]);
        for (size_t w = 0; w < 4; ++w) {
          const Bits x = in[row * 4 + w], y = in[32 + column * 4 + w];
          want += static_cast<uint32_t>(__builtin_popcountll(conjunction ? x & y : x ^ y));
        }
        ASSERT_EQ(static_cast<uint32_t>(got[i * 32 + lane]), want);
      }
    }
  }
}

TEST(MmaTest, QuadPairsOfHalves) {
  // Four products of 8 x 4 by 4 x 8, by the manual's tables for m8n8k4.
  for (const bool a_row : {true, false}) {
    for (const bool b_row : {true, false}) {
      std::vector<Bits> in(32 * (2 + 2 + 8), 0);
      double A[4][8][4], B[4][4][8], C[4][8][8];
      for (int lane = 0; lane < 32; ++lane) {
        const int q = lane % 16 / 4, t = lane % 4, up = lane >= 16 ? 4 : 0;
        for (int i = 0; i < 4; ++i) {
          const double x = (lane * 3 + i * 5) % 17 - 8, y = (lane * 7 + i) % 13 - 6;
          in[static_cast<size_t>(i / 2 * 32 + lane)] |= ToHalf(x) << (i % 2 * 16);
          in[static_cast<size_t>((2 + i / 2) * 32 + lane)] |= ToHalf(y) << (i % 2 * 16);
          (a_row ? A[q][t + up][i] : A[q][i + up][t]) = x;
          (b_row ? B[q][t][i + up] : B[q][i][t + up]) = y;
        }
        for (int i = 0; i < 8; ++i) {
          const int row = (lane & 1) + (i & 2) + up, column = (i & 4) + (lane & 2) + (i & 1);
          C[q][row][column] = lane - i;
          in[static_cast<size_t>((4 + i) * 32 + lane)] = OfFloat(static_cast<float>(lane - i));
        }
      }
      const auto got =
          RunFragments(absl::StrCat("mma.sync.aligned.m8n8k4.", a_row ? "row." : "col.",
                                    b_row ? "row" : "col", ".f32.f16.f16.f32"),
                       8, 2, 2, 8, 32, 32, 32, in);
      ASSERT_FALSE(got.empty());
      for (int lane = 0; lane < 32; ++lane) {
        const int q = lane % 16 / 4, up = lane >= 16 ? 4 : 0;
        for (int i = 0; i < 8; ++i) {
          const int row = (lane & 1) + (i & 2) + up, column = (i & 4) + (lane & 2) + (i & 1);
          double want = C[q][row][column];
          for (int x = 0; x < 4; ++x) want += A[q][row][x] * B[q][x][column];
          ASSERT_EQ(AsFloat(got[static_cast<size_t>(i * 32 + lane)]), want) << lane << " " << i;
        }
      }
    }
  }
}

// wmma: load, multiply and store, with matrices anywhere in memory.
void CheckWmma(int m, int n, int k, const Format& a, const Format& c, bool a_row, bool b_row,
               bool d_row, const std::string& space, int a_registers, int b_registers,
               int c_registers) {
  SCOPED_TRACE(absl::StrCat("m", m, "n", n, "k", k, " ", a.name, " ", c.name, " ", space));
  const bool wide = a.bits == 64;
  const auto list = [](const char* name, int count) {
    std::string result = "{";
    for (int r = 0; r < count; ++r) absl::StrAppend(&result, r == 0 ? "" : ", ", name, r);
    return result + "}";
  };
  const int lda = (a_row ? k : m) + 8, ldb = (b_row ? n : k) + 16, ldc = (d_row ? n : m) + 4;
  const std::string shape = absl::StrCat("m", m, "n", n, "k", k);
  const std::string types =
      a.bits == 16 && a.name == std::string("f16")
          ? absl::StrCat(c.name, ".", c.name)
          : absl::StrCat(c.name, ".", a.name, ".", a.name, ".", c.name, wide ? ".rn" : "");
  const std::string text = absl::StrReplaceAll(
      R"(
.version 8.7
.target sm_90
.address_size 64
.extern .shared .align 16 .b8 s[];
.visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc) {
  .reg .b64 %pa, %pb, %pc, %from; .reg .bW %a<NA>, %b<NB>, %c<NC>; .reg .b32 %x, %at, %value;
  ld.param.u64 %pa, [pa]; ld.param.u64 %pb, [pb]; ld.param.u64 %pc, [pc];
  COPY
  wmma.load.a.sync.aligned.AL.SHAPESPACE.TYPE LA, [%pa], LDA;
  wmma.load.b.sync.aligned.BL.SHAPESPACE.TYPE LB, [%pb], LDB;
  wmma.load.c.sync.aligned.DL.SHAPE.global.CTYPE LC, [%pc], LDC;
  wmma.mma.sync.aligned.AL.BL.SHAPE.TYPES LC, LA, LB, LC;
  wmma.store.d.sync.aligned.DL.SHAPE.global.CTYPE [%pc], LC, LDC;
  ret; })",
      {{"COPY", space == "shared" ? R"(
  mov.u32 %x, %tid.x; shl.b32 %at, %x, 2; 
L: cvt.u64.u32 %from, %at; add.u64 %from, %from, %pa; ld.global.u32 %value, [%from]; mov.u32 %x, s; add.u32 %x, %x, %at;
  st.shared.u32 [%x], %value; add.u32 %at, %at, 128; .reg .pred %more; setp.lt.u32 %more, %at, 16384; @%more bra L;
  bar.sync 0; sub.u64 %pb, %pb, %pa; mov.u32 %x, s; cvt.u64.u32 %pa, %x; add.u64 %pb, %pb, %pa;)"
                                  : ""},
       {"SHAPESPACE", shape + (space.empty() ? "" : "." + space)},
       {"SHAPE", shape},
       {"TYPES", types},
       {"CTYPE", c.name},
       {"TYPE", a.name},
       {"AL", a_row ? "row" : "col"},
       {"BL", b_row ? "row" : "col"},
       {"DL", d_row ? "row" : "col"},
       {"LDA", std::to_string(lda)},
       {"LDB", std::to_string(ldb)},
       {"LDC", std::to_string(ldc)},
       {"LA", list("%a", a_registers)},
       {"LB", list("%b", b_registers)},
       {"LC", list("%c", c_registers)},
       {"NA", std::to_string(a_registers)},
       {"NB", std::to_string(b_registers)},
       {"NC", std::to_string(c_registers)},
       {"bW", wide ? "b64" : "b32"}});
  auto runner = PtxRunner::Load({text});
  ASSERT_OK(runner) << text;
  DeviceBuffer<uint8_t> memory(16384, 0);
  DeviceBuffer<uint8_t> accumulators(16384, 0);
  std::mt19937 random(5);
  const auto place = [](int row, int column, int ld, bool by_rows) {
    return static_cast<size_t>(by_rows ? row * ld + column : column * ld + row);
  };
  const auto put = [](uint8_t* at, size_t element, const Format& f, Bits bits) {
    std::memcpy(at + element * static_cast<size_t>(f.bits) / 8, &bits,
                static_cast<size_t>(f.bits) / 8);
  };
  std::vector<double> A(static_cast<size_t>(m * k)), B(static_cast<size_t>(k * n)),
      C(static_cast<size_t>(m * n));
  for (int x = 0; x < m * k; ++x) {
    const Bits bits = a.encode(static_cast<int>(random() % 21) - 10);
    A[static_cast<size_t>(x)] = a.value(bits);
    put(&memory[0], place(x / k, x % k, lda, a_row), a, bits);
  }
  for (int x = 0; x < k * n; ++x) {
    const Bits bits = a.encode(static_cast<int>(random() % 21) - 10);
    B[static_cast<size_t>(x)] = a.value(bits);
    put(&memory[8192], place(x / n, x % n, ldb, b_row), a, bits);
  }
  for (int x = 0; x < m * n; ++x) {
    const Bits bits = c.encode(static_cast<int>(random() % 21) - 10);
    C[static_cast<size_t>(x)] = c.value(bits);
    put(&accumulators[0], place(x / n, x % n, ldc, d_row), c, bits);
  }
  ASSERT_OK((*runner)->Run("k", {1}, {32}, 16384, memory.address(), memory.address() + 8192,
                           accumulators.address()));
  for (int row = 0; row < m; ++row) {
    for (int column = 0; column < n; ++column) {
      double want = C[static_cast<size_t>(row * n + column)];
      for (int x = 0; x < k; ++x) {
        want += A[static_cast<size_t>(row * k + x)] * B[static_cast<size_t>(x * n + column)];
      }
      Bits bits = 0;
      std::memcpy(&bits,
                  &accumulators[place(row, column, ldc, d_row) * static_cast<size_t>(c.bits) / 8],
                  static_cast<size_t>(c.bits) / 8);
      ASSERT_EQ(c.value(bits), c.bits == 16 ? FromHalf(ToHalf(want)) : want)
          << row << ", " << column;
    }
  }
}

TEST(WmmaTest, EveryTypeAndShape) {
  struct Shape {
    int m, n, k;
  };
  for (const Shape& s : {Shape{16, 16, 16}, Shape{32, 8, 16}, Shape{8, 32, 16}}) {
    for (int layouts = 0; layouts < 8; ++layouts) {
      const bool a = (layouts & 1) != 0, b = (layouts & 2) != 0, d = (layouts & 4) != 0;
      CheckWmma(s.m, s.n, s.k, kF16, kF32, a, b, d, layouts % 2 == 0 ? "global" : "shared", 8, 8,
                8);
    }
    CheckWmma(s.m, s.n, s.k, kF16, kF16, true, false, true, "", 8, 8, 4);
    CheckWmma(s.m, s.n, s.k, kBF16, kF32, true, false, true, "", s.m / 4, s.n / 4, 8);
    CheckWmma(s.m, s.n, s.k, kS8, kS32, true, false, true, "shared", s.m / 8, s.n / 8, 8);
    CheckWmma(s.m, s.n, s.k, kU8, kS32, false, true, false, "global", s.m / 8, s.n / 8, 8);
  }
  CheckWmma(16, 16, 8, kTF32, kF32, true, false, true, "", 4, 4, 8);
  CheckWmma(16, 16, 8, kTF32, kF32, false, true, true, "shared", 4, 4, 8);
  CheckWmma(8, 8, 4, kF64, kF64, true, false, true, "", 1, 1, 2);
  CheckWmma(8, 8, 4, kF64, kF64, false, true, false, "global", 1, 1, 2);
}

// ldmatrix and stmatrix: `code` works on a tile area s of 16-bit elements 0, 1, 2, ...; %row is the
// address of the row of 8 elements with the lane's number.
std::vector<uint32_t> RunTiles(const std::string& code, std::vector<uint16_t>* memory,
                               absl::Status* status = nullptr) {
  auto runner = PtxRunner::Load({absl::StrCat(R"(
.version 8.7
.target sm_90
.address_size 64
.shared .align 16 .b8 s[512];
.visible .entry k(.param .u64 pm, .param .u64 out) {
  .reg .b32 %t, %row, %d<4>, %x; .reg .b64 %m, %o, %w; .reg .pred %p;
  mov.u32 %t, %tid.x; ld.param.u64 %m, [pm]; mul.wide.u32 %w, %t, 16; add.u64 %m, %m, %w;
  shl.b32 %row, %t, 4; mov.u32 %x, s; add.u32 %row, %row, %x;
  mov.u32 %d0, 0; mov.u32 %d1, 0; mov.u32 %d2, 0; mov.u32 %d3, 0;
  .reg .b32 %v<4>; ld.global.v4.u32 {%v0, %v1, %v2, %v3}, [%m]; st.shared.v4.u32 [%row], {%v0, %v1, %v2, %v3};
  bar.sync 0; )",
                                              code, R"(
  bar.sync 0; shl.b32 %x, %t, 4; mov.u32 %v0, s; add.u32 %x, %x, %v0; ld.shared.v4.u32 {%v0, %v1, %v2, %v3}, [%x];
  st.global.v4.u32 [%m], {%v0, %v1, %v2, %v3};
  ld.param.u64 %o, [out]; add.u64 %o, %o, %w; st.global.v4.u32 [%o], {%d0, %d1, %d2, %d3}; ret; })")});
  EXPECT_OK(runner);
  if (!runner.ok()) return {};
  DeviceBuffer<uint16_t> m(*memory);
  DeviceBuffer<uint32_t> out(128);
  const absl::Status result = (*runner)->Run("k", {1}, {32}, 0, m.address(), out.address());
  if (status != nullptr) {
    *status = result;
  } else {
    EXPECT_OK(result);
  }
  *memory = m.Values();
  return out.Values();
}

std::vector<uint16_t> Counted() {
  std::vector<uint16_t> memory(256);
  for (size_t k = 0; k < memory.size(); ++k) memory[k] = static_cast<uint16_t>(k);
  return memory;
}

TEST(TileTest, LoadsStoresAndTransposes) {
  auto memory = Counted();
  for (const int count : {1, 2, 4}) {
    for (const bool transposed : {false, true}) {
      const auto got = RunTiles(absl::StrCat("ldmatrix.sync.aligned.m8n8.x", count,
                                             transposed ? ".trans" : "", ".shared.b16 {",
                                             count == 1   ? "%d0"
                                             : count == 2 ? "%d0, %d1"
                                                          : "%d0, %d1, %d2, %d3",
                                             "}, [%row];"),
                                &memory);
      for (int lane = 0; lane < 32; ++lane) {
        for (int tile = 0; tile < count; ++tile) {
          const int row = lane / 4, column = lane % 4 * 2;
          const auto at = [&](int r, int c) {
            return static_cast<uint32_t>(tile * 64 + r * 8 + c);
          };
          const uint32_t want = transposed ? at(column, row) | at(column + 1, row) << 16
                                           : at(row, column) | at(row, column + 1) << 16;
          ASSERT_EQ(got[static_cast<size_t>(lane * 4 + tile)], want) << count << transposed << lane;
        }
      }
    }
  }
  // Addresses of lanes that name no row do not matter.
  RunTiles(
      "setp.gt.u32 %p, %t, 7; @%p mov.u32 %row, 0x7ffffff1; "
      "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%d0}, [%row];",
      &memory);
  EXPECT_EQ(memory, Counted());
  // A tile goes back transposed; generic addresses too.
  RunTiles(
      "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%d0, %d1}, [%row]; .reg .b64 %g; cvt.u64.u32 %g, "
      "%row; cvta.shared.u64 %g, %g; movmatrix.sync.aligned.m8n8.trans.b16 %d1, %d1; "
      "stmatrix.sync.aligned.m8n8.x2.trans.b16 [%g], {%d0, %d1};",
      &memory);
  for (int k = 0; k < 64; ++k) {
    ASSERT_EQ(memory[static_cast<size_t>(k)], k % 8 * 8 + k / 8);
    ASSERT_EQ(memory[static_cast<size_t>(64 + k)], 64 + k);
  }
  absl::Status status;
  RunTiles("add.u32 %row, %row, 8; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%d0}, [%row];",
           &memory, &status);
  EXPECT_THAT(status, IsCudaError(CUDA_ERROR_MISALIGNED_ADDRESS));
  RunTiles(
      "add.u32 %row, %row, 4096; ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%d0, %d1, %d2, %d3}, "
      "[%row];",
      &memory, &status);
  EXPECT_THAT(status, IsCudaError(CUDA_ERROR_ILLEGAL_ADDRESS));
}

}  // namespace
}  // namespace fargpu::softgpu
