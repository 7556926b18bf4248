// Loads and stores whose addresses differ from lane to lane: indices that only the running kernel
// knows, of both signs and any width, with and without idle lanes; strides known when compiling.
#include <algorithm>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "common/status_matchers.h"
#include "softgpu/exec/testing/ptx_runner.h"

namespace fargpu::softgpu {
namespace {

constexpr uint32_t kThreads = 64;
constexpr uint32_t kElements = 256;

// `code` finds its thread's entry of `indices` in %i and the memory's base in %b, and %v to fill;
// thread t is active if bit t % 32 of `mask` is set.
std::string Kernel(const std::string& code) {
  return absl::StrCat(R"(
.version 8.7
.target sm_90
.address_size 64
.shared .align 8 .b8 s[16384];
.visible .entry k(.param .u64 out, .param .u64 indices, .param .u64 base, .param .u32 mask) {
  .local .align 8 .b8 own[64];
  .reg .b32 %t, %l, %i, %v, %m, %s, %r<20>; .reg .b64 %o, %b, %rd<9>; .reg .pred %p<10>;
  .reg .b64 %w;
  mov.u32 %t, %tid.x; mov.u32 %l, %laneid; ld.param.u64 %o, [out]; mul.wide.u32 %rd1, %t, 4;
  add.u64 %o, %o, %rd1; ld.param.u64 %rd2, [indices]; add.u64 %rd2, %rd2, %rd1;
  ld.global.u32 %i, [%rd2]; ld.param.u64 %b, [base]; mov.u32 %v, 0; mov.u32 %s, s;
  ld.param.u32 %m, [mask]; shr.u32 %r0, %m, %l; and.b32 %r0, %r0, 1; setp.eq.u32 %p0, %r0, 0;
  @%p0 bra END;
  )",
                      code, "\nEND: st.global.u32 [%o], %v; ret; }");
}

std::vector<uint32_t> RunKernel(const std::string& code, const std::vector<uint32_t>& indices,
                                uint64_t base, uint32_t mask) {
  auto runner = PtxRunner::Load({Kernel(code)});
  EXPECT_OK(runner) << code;
  if (!runner.ok()) return {};
  DeviceBuffer<uint32_t> out(kThreads, 0xabcdu);
  DeviceBuffer<uint32_t> in(indices);
  EXPECT_OK((*runner)->Run("k", {1}, {kThreads}, 0, out.address(), in.address(), base, mask))
      << code;
  return out.Values();
}

std::vector<uint32_t> Shuffled() {
  std::vector<uint32_t> numbers(kElements);
  std::iota(numbers.begin(), numbers.end(), 0u);
  std::shuffle(numbers.begin(), numbers.end(), std::mt19937(7));
  numbers.resize(kThreads);
  return numbers;
}

class LaneAccessTest : public ::testing::TestWithParam<uint32_t> {
 protected:
  bool Active(uint32_t t) const { return (GetParam() >> (t % 32) & 1) != 0; }
};

// base + scale * index: where the index counts from decides whether it is negative, or larger than
// a positive 32-bit number.
TEST_P(LaneAccessTest, GlobalMemoryByNarrowIndices) {
  for (const bool is_signed : {false, true}) {
    for (const uint64_t scale : {4u, 8u}) {
      for (const uint32_t zero : {0u, 0x80000000u - 100, 0u - 100}) {
        if (is_signed && zero == 0x80000000u - 100) continue;  // it would jump from end to end
        DeviceBuffer<uint32_t> memory(kElements * 2);
        for (uint32_t k = 0; k < kElements * 2; ++k) memory[k] = 1000 + k;
        std::vector<uint32_t> indices = Shuffled();
        for (uint32_t& index : indices) index = zero == 0 ? index : zero + index % 99;
        const uint64_t wide = is_signed ? static_cast<uint64_t>(static_cast<int32_t>(zero)) : zero;
        const uint64_t base = memory.address() - scale * wide;
        const char* const type = is_signed ? "s32" : "u32";
        const std::string address =
            absl::StrCat("mul.wide.", type, " %rd3, %i, ", scale, "; add.u64 %rd4, %b, %rd3;\n");
        const std::vector<uint32_t> got = RunKernel(
            absl::StrCat(address, "ld.global.u32 %v, [%rd4];"), indices, base, GetParam());
        ASSERT_EQ(got.size(), kThreads);
        for (uint32_t t = 0; t < kThreads; ++t) {
          const uint64_t element = (indices[t] - zero) * scale / 4;
          EXPECT_EQ(got[t], Active(t) ? 1000 + element : 0) << address << t;
        }
        std::vector<uint32_t> want = memory.Values();
        for (uint32_t t = 0; t < kThreads; ++t) {
          if (Active(t) && zero == 0) want[(indices[t] - zero) * scale / 4] = t;
        }
        if (zero != 0) continue;  // some indices occur twice
        RunKernel(absl::StrCat(address, "st.global.u32 [%rd4], %t;"), indices, base, GetParam());
        EXPECT_EQ(memory.Values(), want) << address;
      }
    }
  }
}

TEST_P(LaneAccessTest, SharedMemoryByIndices) {
  // Idle lanes hold addresses that no memory has.
  const std::vector<uint32_t> indices = Shuffled();
  std::vector<uint32_t> given = indices;
  for (uint32_t t = 0; t < kThreads; ++t) {
    if (!Active(t)) given[t] = 0xc0000000u + t * 12345;
  }
  const std::vector<uint32_t> got = RunKernel(R"(
  shl.b32 %r1, %i, 2; add.u32 %r2, %s, %r1; add.u32 %r3, %t, 7;
  st.shared.u32 [%r2], %r3; ld.shared.u32 %v, [%r2];)",
                                              given, 0, GetParam());
  ASSERT_EQ(got.size(), kThreads);
  for (uint32_t t = 0; t < kThreads; ++t) EXPECT_EQ(got[t], Active(t) ? t + 7 : 0) << t;
}

TEST_P(LaneAccessTest, LocalMemoryByIndices) {
  std::vector<uint32_t> indices = Shuffled();
  for (uint32_t& index : indices) index %= 16;
  const std::vector<uint32_t> got = RunKernel(R"(
  mov.u64 %rd3, own; mul.wide.u32 %rd4, %i, 4; add.u64 %rd5, %rd3, %rd4;
  add.u32 %r3, %t, 9; st.local.u32 [%rd5], %r3; ld.local.u32 %v, [%rd5];)",
                                              indices, 0, GetParam());
  ASSERT_EQ(got.size(), kThreads);
  for (uint32_t t = 0; t < kThreads; ++t) EXPECT_EQ(got[t], Active(t) ? t + 9 : 0) << t;
}

// Columns of a tile: lanes that are 33 words apart, as the compiler knows; and 64-bit elements.
TEST_P(LaneAccessTest, StridesKnownWhenCompiling) {
  const std::vector<uint32_t> got = RunKernel(R"(
  mul.lo.u32 %r1, %t, 132; add.u32 %r2, %s, %r1; add.u32 %r3, %t, 3;
  st.shared.u32 [%r2], %r3; st.shared.u32 [%r2+4], 1; ld.shared.u32 %r4, [%r2];
  ld.shared.u32 %r5, [%r2+4]; add.u32 %v, %r4, %r5;)",
                                              Shuffled(), 0, GetParam());
  ASSERT_EQ(got.size(), kThreads);
  for (uint32_t t = 0; t < kThreads; ++t) EXPECT_EQ(got[t], Active(t) ? t + 4 : 0) << t;
  const std::vector<uint32_t> wide = RunKernel(R"(
  mul.lo.u32 %r1, %t, 136; add.u32 %r2, %s, %r1; mul.wide.u32 %w, %t, 0x10001;
  st.shared.b64 [%r2], %w; ld.shared.b64 %rd6, [%r2]; shr.u64 %rd6, %rd6, 16; cvt.u32.u64 %v, %rd6;)",
                                               Shuffled(), 0, GetParam());
  ASSERT_EQ(wide.size(), kThreads);
  for (uint32_t t = 0; t < kThreads; ++t) EXPECT_EQ(wide[t], Active(t) ? t : 0) << t;
}

// A loop with barriers that reads one tile after the other: what is fetched ahead must not matter,
// at the end of the memory least of all.
TEST_P(LaneAccessTest, TilesInALoopWithBarriers) {
  constexpr uint32_t kTiles = 5;
  DeviceBuffer<uint32_t> memory(kThreads * kTiles);
  for (uint32_t k = 0; k < kThreads * kTiles; ++k) memory[k] = k * 3;
  std::vector<uint32_t> indices(kThreads);
  std::iota(indices.begin(), indices.end(), 0u);
  const std::vector<uint32_t> got = RunKernel(absl::StrCat(R"(
  mov.u32 %r5, 0;
  mul.wide.u32 %rd3, %i, 4; add.u64 %rd4, %b, %rd3;
AGAIN:
  ld.global.u32 %r6, [%rd4];
  bar.sync 0;
  add.u32 %v, %v, %r6; add.u64 %rd4, %rd4, )",
                                                           kThreads * 4, R"(; add.u32 %r5, %r5, 1;
  bar.sync 0;
  setp.lt.u32 %p1, %r5, )",
                                                           kTiles, R"(;
  @%p1 bra AGAIN;)"),
                                              indices, memory.address(), ~0u);
  ASSERT_EQ(got.size(), kThreads);
  for (uint32_t t = 0; t < kThreads; ++t) {
    EXPECT_EQ(got[t], 3 * (kTiles * t + kThreads * (kTiles * (kTiles - 1) / 2))) << t;
  }
}

INSTANTIATE_TEST_SUITE_P(Masks, LaneAccessTest, ::testing::Values(~0u, 0x0f0f3001u, 1u << 31));

}  // namespace
}  // namespace fargpu::softgpu
