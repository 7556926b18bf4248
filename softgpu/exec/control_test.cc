// Control flow, barriers, memory spaces and the ways a launch can fail.
#include <algorithm>
#include <thread>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "common/status_matchers.h"
#include "softgpu/exec/testing/ptx_runner.h"

namespace fargpu::softgpu {
namespace {

using ::testing::HasSubstr;

constexpr char kHeader[] = ".version 8.7\n.target sm_75\n.address_size 64\n";

std::unique_ptr<PtxRunner> Load(const std::string& body) {
  auto runner = PtxRunner::Load({kHeader + body});
  EXPECT_OK(runner);
  return runner.ok() ? *std::move(runner) : nullptr;
}

// A kernel k(out) whose code leaves a 32-bit result per thread in %v; %t is the linear thread
// number in the block, %o the address of its word.
std::string PerThread(const std::string& code, const std::string& declarations = "") {
  return absl::StrCat(declarations, R"(
.visible .entry k(.param .u64 out) {
  .reg .b32 %t, %v, %r<20>, %nx, %ny;
  .reg .b64 %o, %rd<20>;
  .reg .pred %p<10>;
  mov.u32 %t, %tid.x; mov.u32 %nx, %ntid.x; mov.u32 %r1, %tid.y; mad.lo.u32 %t, %r1, %nx, %t;
  ld.param.u64 %o, [out]; mul.wide.u32 %rd1, %t, 4; add.u64 %o, %o, %rd1;
  )",
                      code, R"(
  st.global.u32 [%o], %v;
  ret;
})");
}

std::vector<uint32_t> RunPerThread(const std::string& text, Dim3 block, uint32_t shared = 0) {
  auto runner = Load(text);
  if (runner == nullptr) return {};
  DeviceBuffer<uint32_t> out(block.x * block.y * block.z, 0xabcdu);
  EXPECT_OK(runner->Run("k", {1}, block, shared, out.address()));
  return out.Values();
}

TEST(ControlTest, DivergentLoopKeepsWhatLanesLeaveWith) {
  // Collatz steps: every lane leaves at its own time.
  const auto got = RunPerThread(PerThread(R"(
  mov.u32 %v, 0; add.u32 %r2, %t, 1;
L: setp.eq.u32 %p1, %r2, 1; @%p1 bra DONE;
  and.b32 %r3, %r2, 1; setp.eq.u32 %p2, %r3, 0; @%p2 bra EVEN;
  mad.lo.u32 %r2, %r2, 3, 1; bra NEXT;
EVEN: shr.u32 %r2, %r2, 1;
NEXT: add.u32 %v, %v, 1; bra L;
DONE:)"),
                                {50});
  for (uint32_t t = 0; t < got.size(); ++t) {
    uint32_t steps = 0;
    for (uint64_t n = t + 1; n != 1; n = n % 2 == 0 ? n / 2 : 3 * n + 1) ++steps;
    ASSERT_EQ(got[t], steps) << t;
  }
}

TEST(ControlTest, NestedDivergenceAndSwappedPhis) {
  // Fibonacci by swapping registers in a loop whose length differs, inside an if that differs.
  const auto got = RunPerThread(PerThread(R"(
  mov.u32 %v, 1000; and.b32 %r1, %t, 3; setp.eq.u32 %p1, %r1, 3; @%p1 bra END;
  mov.u32 %r2, 0; mov.u32 %r3, 1; mov.u32 %r4, 0;
L: mov.u32 %r5, %r2; mov.u32 %r2, %r3; add.u32 %r3, %r3, %r5; add.u32 %r4, %r4, 1;
  setp.lt.u32 %p2, %r4, %t; @%p2 bra L;
  mov.u32 %v, %r2;
END:)"),
                                {16, 2});
  for (uint32_t t = 0; t < got.size(); ++t) {
    uint32_t a = 0, b = 1;
    for (uint32_t k = 0; k < std::max(t, 1u); ++k) {
      const uint32_t c = a + b;
      a = b;
      b = c;
    }
    ASSERT_EQ(got[t], t % 4 == 3 ? 1000 : a) << t;
  }
}

TEST(ControlTest, ContinueAndBreakInNestedLoops) {
  const auto got = RunPerThread(PerThread(R"(
  mov.u32 %v, 0; mov.u32 %r1, 0;
OUTER: add.u32 %r1, %r1, 1; setp.gt.u32 %p1, %r1, 10; @%p1 bra END;
  rem.u32 %r2, %t, %r1; setp.eq.u32 %p2, %r2, 0; @%p2 bra OUTER;
  mov.u32 %r3, 0;
INNER: add.u32 %r3, %r3, 1; add.u32 %v, %v, %r3;
  setp.eq.u32 %p3, %r3, %t; @%p3 bra END;
  setp.lt.u32 %p4, %r3, %r2; @%p4 bra INNER;
  bra OUTER;
END:)"),
                                {64});
  for (uint32_t t = 0; t < got.size(); ++t) {
    uint32_t v = 0;
    for (uint32_t i = 1; i <= 10; ++i) {
      if (t % i == 0) continue;
      uint32_t j = 0;
      bool stop = false;
      do {
        ++j;
        v += j;
        stop = j == t;
      } while (!stop && j < t % i);
      if (stop) break;
    }
    ASSERT_EQ(got[t], v) << t;
  }
}

TEST(ControlTest, IrreducibleLoopRuns) {
  const auto got = RunPerThread(PerThread(R"(
  mov.u32 %v, 0; and.b32 %r1, %t, 1; setp.eq.u32 %p1, %r1, 0; @%p1 bra B;
A: add.u32 %v, %v, 1;
B: add.u32 %v, %v, 10; setp.lt.u32 %p2, %v, 50; @%p2 bra A;)"),
                                {32});
  for (uint32_t t = 0; t < got.size(); ++t) {
    uint32_t v = t % 2 == 0 ? 0 : 1;
    for (v += 10; v < 50; v += 11) {
    }
    ASSERT_EQ(got[t], v) << t;
  }
}

TEST(ControlTest, BarriersExchangeThroughSharedMemory) {
  // Reverse the block through static shared memory, by several shapes, partial warps too.
  const std::string text = PerThread(R"(
  mov.u32 %r2, s; shl.b32 %r3, %t, 2; add.u32 %r4, %r2, %r3; st.shared.u32 [%r4], %t;
  bar.sync 0;
  mov.u32 %ny, %ntid.y; mul.lo.u32 %r5, %nx, %ny; sub.u32 %r5, %r5, 1; sub.u32 %r5, %r5, %t;
  shl.b32 %r5, %r5, 2; add.u32 %r5, %r5, %r2; ld.shared.u32 %v, [%r5];)",
                                     ".shared .align 4 .b8 s[4096];");
  for (const Dim3 block :
       {Dim3{256}, Dim3{100}, Dim3{16, 16}, Dim3{7, 9}, Dim3{1, 33}, Dim3{1024}}) {
    const auto got = RunPerThread(text, block);
    for (uint32_t t = 0; t < got.size(); ++t) ASSERT_EQ(got[t], got.size() - 1 - t) << block.x;
  }
}

TEST(ControlTest, ExitedWarpsReleaseBarriers) {
  // Warps 2 and 3 leave at once; the others meet at the barrier without them.
  const std::string text = PerThread(R"(
  mov.u32 %v, 1; setp.ge.u32 %p1, %t, 64; @%p1 exit;
  mov.u32 %r2, s; shl.b32 %r3, %t, 2; add.u32 %r4, %r2, %r3; st.shared.u32 [%r4], %t;
  bar.sync 0;
  xor.b32 %r5, %r3, 128; add.u32 %r5, %r5, %r2; ld.shared.u32 %v, [%r5];)",
                                     ".shared .align 4 .b8 s[4096];");
  const auto got = RunPerThread(text, {128});
  for (uint32_t t = 0; t < 64; ++t) EXPECT_EQ(got[t], t ^ 32);
  EXPECT_EQ(got[64], 0xabcdu);
}

TEST(ControlTest, LanesThatReturnEarlyDoNotHoldUpABarrier) {
  const std::string text = PerThread(R"(
  and.b32 %r1, %t, 1; setp.eq.u32 %p1, %r1, 1; @%p1 ret;
  mov.u32 %r2, s; shl.b32 %r3, %t, 2; add.u32 %r4, %r2, %r3; st.shared.u32 [%r4], %t;
  bar.sync 0;
  xor.b32 %r5, %r3, 128; add.u32 %r5, %r5, %r2; ld.shared.u32 %v, [%r5];)",
                                     ".shared .align 4 .b8 s[4096];");
  const auto got = RunPerThread(text, {64});
  for (uint32_t t = 0; t < 64; ++t) EXPECT_EQ(got[t], t % 2 == 1 ? 0xabcdu : t ^ 32);
}

TEST(ControlTest, BarriersInDifferentBranchesPairUp) {
  const std::string text = PerThread(R"(
  mov.u32 %r2, s; shl.b32 %r3, %t, 2; add.u32 %r4, %r2, %r3; st.shared.u32 [%r4], %t;
  and.b32 %r1, %t, 1; setp.eq.u32 %p1, %r1, 1; @%p1 bra ODD;
  bar.sync 0; bra GO;
ODD: bar.sync 0;
GO: xor.b32 %r5, %r3, 132; add.u32 %r5, %r5, %r2; ld.shared.u32 %v, [%r5];)",
                                     ".shared .align 4 .b8 s[4096];");
  const auto got = RunPerThread(text, {64});
  for (uint32_t t = 0; t < 64; ++t) EXPECT_EQ(got[t], t ^ 33);
}

TEST(ControlTest, BarrierReductions) {
  const auto got = RunPerThread(PerThread(R"(
  setp.lt.u32 %p1, %t, 40; bar.red.popc.u32 %v, 0, %p1;
  setp.eq.u32 %p2, %t, 90; bar.red.or.pred %p3, 0, %p2; @%p3 add.u32 %v, %v, 1000;
  bar.red.and.pred %p4, 0, %p2; @%p4 add.u32 %v, %v, 10000;)"),
                                {96});
  for (const uint32_t v : got) EXPECT_EQ(v, 1040u);
}

TEST(ControlTest, SpinLockBetweenLanesOfAWarpEnds) {
  // The lane that holds the lock waits, in program order, behind those that spin.
  const auto got =
      RunPerThread(PerThread(R"(
SPIN: atom.global.cas.b32 %r1, [lock], 0, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra SPIN;
  ld.volatile.global.u32 %v, [counter]; add.u32 %r2, %v, 1; st.volatile.global.u32 [counter], %r2;
  membar.gl; atom.global.exch.b32 %r3, [lock], 0;)",
                             ".global .align 4 .u32 lock = 0; .global .align 4 .u32 counter = 0;"),
                   {96});
  std::vector<uint32_t> sorted = got;
  std::sort(sorted.begin(), sorted.end());
  for (uint32_t k = 0; k < sorted.size(); ++k) EXPECT_EQ(sorted[k], k);
}

TEST(ControlTest, WarpsWaitForEachOther) {
  // Warp 0 waits for a flag that the last warp sets.
  const auto got = RunPerThread(PerThread(R"(
  mov.u32 %v, 7; setp.ge.u32 %p1, %t, 32; @%p1 bra OTHER;
WAIT: ld.volatile.global.u32 %r1, [flag]; setp.eq.u32 %p2, %r1, 0; @%p2 bra WAIT;
  mov.u32 %v, %r1; bra END;
OTHER: setp.lt.u32 %p3, %t, 96; @%p3 bra END;
  mov.u32 %r2, 42; st.volatile.global.u32 [flag], %r2;
END:)",
                                          ".global .align 4 .u32 flag = 0;"),
                                {128});
  EXPECT_EQ(got[0], 42u);
  EXPECT_EQ(got[50], 7u);
}

TEST(ControlTest, LanesWaitForLanesOfTheirWarpThatAreAhead) {
  // Lane 0 spins for what lane 1 does behind the branch, before and not behind the barrier.
  const auto got = RunPerThread(PerThread(R"(
  mov.u32 %v, 5; setp.ne.u32 %p1, %t, 0; @%p1 bra JOIN;
WAIT: ld.volatile.global.u32 %v, [flag]; setp.eq.u32 %p2, %v, 0; @%p2 bra WAIT;
JOIN: setp.eq.u32 %p3, %t, 1; @%p3 st.volatile.global.u32 [flag], 42;
  bar.sync 0;)",
                                          ".global .align 4 .u32 flag = 0;"),
                                {64});
  EXPECT_EQ(got[0], 42u);
  EXPECT_EQ(got[1], 5u);
}

TEST(ControlTest, WarpsSpinBetweenBarriers) {
  // In each round lane 0 of one warp after the other waits for the warp behind it, which is
  // through when it has slept; the rest waits at the barrier.
  const auto got = RunPerThread(PerThread(R"(
  mov.u32 %v, 0; shr.u32 %r1, %t, 5; and.b32 %r2, %t, 31; mov.u32 %r3, 0;
ROUND:
  setp.ne.u32 %p1, %r2, 0; @%p1 bra JOIN;
  setp.eq.u32 %p2, %r1, 3; @%p2 bra POST;
WAIT: ld.volatile.shared.u32 %r4, [turn]; add.u32 %r5, %r1, 1; mad.lo.u32 %r6, %r3, 4, %r5;
  nanosleep.u32 10; setp.ne.u32 %p3, %r4, %r6; @%p3 bra WAIT;
POST: mad.lo.u32 %r6, %r3, 4, %r1; st.volatile.shared.u32 [turn], %r6; add.u32 %v, %v, 1;
JOIN: bar.sync 0;
  add.u32 %r3, %r3, 1; setp.lt.u32 %p4, %r3, 5; @%p4 bra ROUND;)",
                                          ".shared .align 4 .u32 turn;"),
                                {128});
  for (uint32_t t = 0; t < 128; ++t) EXPECT_EQ(got[t], t % 32 == 0 ? 5u : 0u) << t;
}

TEST(ControlTest, CooperativeBlocksWaitForEachOther) {
  auto runner = Load(R"(
.global .align 4 .u32 arrived = 0;
.visible .entry k(.param .u64 out) {
  .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<3>;
  mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0; @%p1 bra JOIN;
  atom.global.add.u32 %r2, [arrived], 1;
L: ld.acquire.gpu.global.u32 %r3, [arrived]; mov.u32 %r4, %nctaid.x; setp.lt.u32 %p2, %r3, %r4; @%p2 bra L;
JOIN: bar.sync 0;
  ld.param.u64 %rd1, [out]; mov.u32 %r5, %ctaid.x; mul.wide.u32 %rd2, %r5, 4; add.u64 %rd1, %rd1, %rd2;
  ld.volatile.global.u32 %r6, [arrived]; st.global.u32 [%rd1], %r6; ret;
})");
  ASSERT_NE(runner, nullptr);
  runner->cooperative = true;
  DeviceBuffer<uint32_t> out(40);
  ASSERT_OK(runner->Run("k", {40}, {64}, 0, out.address()));
  for (const uint32_t v : out.Values()) EXPECT_EQ(v, 40u);
}

TEST(ControlTest, DynamicSharedMemoryLiesBehindStatic) {
  const auto got = RunPerThread(
      PerThread(R"(
  mov.u32 %r2, dyn; shl.b32 %r3, %t, 2; add.u32 %r4, %r2, %r3; st.shared.u32 [%r4], %t;
  mov.u32 %r5, 99; st.shared.u32 [fixed], %r5; bar.sync 0;
  ld.shared.u32 %v, [%r4]; mov.u32 %r6, %dynamic_smem_size; add.u32 %v, %v, %r6;)",
                ".extern .shared .align 16 .b8 dyn[]; .shared .align 4 .b8 fixed[20];"),
      {64}, 256);
  for (uint32_t t = 0; t < 64; ++t) EXPECT_EQ(got[t], t + 256);
}

TEST(ControlTest, LocalMemoryAndGenericAddresses) {
  const auto got = RunPerThread(PerThread(R"(
  .local .align 16 .b8 depot[64];
  mov.u64 %rd2, depot; cvta.local.u64 %rd3, %rd2;
  and.b32 %r1, %t, 15; mul.wide.u32 %rd4, %r1, 4; add.u64 %rd5, %rd3, %rd4;
  st.u32 [%rd5], %t; add.u64 %rd6, %rd2, %rd4; ld.local.u32 %v, [%rd6];
  st.local.v2.u32 [depot+8], {%t, %v}; ld.local.v4.u32 {%r2, %r3, %r4, %r5}, [depot];
  add.u32 %v, %r4, %r5; cvta.shared.u64 %rd7, 0; mov.u32 %r6, s; cvt.u64.u32 %rd8, %r6; add.u64 %rd7, %rd7, %rd8;
  mul.wide.u32 %rd9, %t, 4; add.u64 %rd7, %rd7, %rd9; st.u32 [%rd7], %v; ld.u32 %v, [%rd7];)",
                                          ".shared .align 4 .b8 s[1024];"),
                                {64});
  for (uint32_t t = 0; t < 64; ++t) EXPECT_EQ(got[t], 2 * t);
}

TEST(ControlTest, AddressesThatWrapAroundAreNotMistakenForPatterns) {
  // 0xfffffff0 + lane wraps to 0 in 32 bits, half way through the warp.
  const auto got = RunPerThread(PerThread(R"(
  add.u32 %r1, %t, 0xfffffff0; and.b32 %r2, %r1, 31; cvt.u64.u32 %rd2, %r1; and.b64 %rd2, %rd2, 0xff;
  shl.b64 %rd2, %rd2, 2; mov.u64 %rd3, table; add.u64 %rd3, %rd3, %rd2; ld.global.u32 %v, [%rd3];
  cvt.u64.u32 %rd4, %r1; shr.u64 %rd4, %rd4, 28; cvt.u32.u64 %r3, %rd4; shl.b32 %r3, %r3, 8; add.u32 %v, %v, %r3;)",
                                          ".global .align 4 .u32 table[256];"),
                                {32});
  for (uint32_t t = 0; t < 32; ++t) EXPECT_EQ(got[t], t < 16 ? 15u << 8 : 0u);
}

TEST(ControlTest, AtomicsOnGlobalAndShared) {
  auto runner = Load(R"(
.visible .entry k(.param .u64 out) {
  .reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<4>; .reg .f64 %d<4>; .reg .pred %p;
  .shared .align 8 .b8 s[16];
  ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x;
  atom.global.add.u32 %r2, [%rd1], 2; red.global.max.s32 [%rd1+4], %r1; atom.global.inc.u32 %r3, [%rd1+8], 9;
  mov.f32 %f1, 0f3F000000; atom.global.add.f32 %f2, [%rd1+12], %f1;
  mov.f64 %d1, 0d3FF8000000000000; red.global.add.f64 [%rd1+16], %d1;
  cvt.u64.u32 %rd2, %r1; atom.global.add.u64 %rd3, [%rd1+24], %rd2; red.global.or.b32 [%rd1+32], %r1;
  setp.eq.u32 %p, %r1, 0; @%p st.shared.u32 [s], 5; bar.sync 0;
  atom.shared.add.u32 %r4, [s], 1; bar.sync 0; ld.shared.u32 %r5, [s]; @%p st.global.u32 [%rd1+36], %r5;
  atom.global.dec.u32 %r6, [%rd1+40], 3; red.global.min.u32 [%rd1+44], %r1; ret;
})");
  ASSERT_NE(runner, nullptr);
  DeviceBuffer<uint32_t> out(16);
  out[11] = 1000;
  ASSERT_OK(runner->Run("k", {2}, {128}, 0, out.address()));
  EXPECT_EQ(out[0], 512u);
  EXPECT_EQ(out[1], 127u);
  EXPECT_EQ(out[2], 256u % 10);
  EXPECT_EQ(absl::bit_cast<float>(out[3]), 128.0f);
  EXPECT_EQ(absl::bit_cast<double>(uint64_t{out[5]} << 32 | out[4]), 384.0);
  EXPECT_EQ(out[6], 2u * 127 * 128 / 2);
  EXPECT_EQ(out[8], 127u);
  EXPECT_EQ(out[9], 133u);
  EXPECT_EQ(out[10], 0u);  // 256 steps of 0 -> 3 -> 2 -> 1 -> 0
  EXPECT_EQ(out[11], 0u);
}

TEST(ControlTest, FunctionsPassValuesAndStructures) {
  const auto got = RunPerThread(PerThread(R"(
  { .param .b32 a0; .param .align 8 .b8 a1[8]; .param .b32 ret0; .reg .b32 %x;
    st.param.b32 [a0], %t; mov.u32 %x, 3; st.param.b32 [a1+0], %x; st.param.b32 [a1+4], %t;
    call (ret0), f, (a0, a1); ld.param.b32 %v, [ret0]; }
  setp.gt.u32 %p1, %t, 5; @%p1 call (%v), g, (%v);)",
                                          R"(
.func (.param .b32 r) f(.param .b32 a, .param .align 8 .b8 b[8]) {
  .reg .b32 %r<5>; .reg .pred %p;
  ld.param.b32 %r1, [a]; ld.param.b32 %r2, [b]; ld.param.b32 %r3, [b+4];
  setp.lt.u32 %p, %r1, 3; @%p bra SMALL;
  mad.lo.u32 %r1, %r1, %r2, %r3; st.param.b32 [r], %r1; ret;
SMALL: mov.u32 %r1, 100; st.param.b32 [r], %r1; ret; }
.func (.reg .b32 y) g(.reg .b32 x) { add.u32 y, x, 1; ret; }
)"),
                                {32});
  for (uint32_t t = 0; t < 32; ++t) EXPECT_EQ(got[t], t < 3 ? 100 : t > 5 ? 4 * t + 1 : 4 * t) << t;
}

TEST(ControlTest, BranchesByIndex) {
  const auto got = RunPerThread(PerThread(R"(
  and.b32 %r1, %t, 3; setp.gt.u32 %p1, %t, 3; mov.u32 %v, 7;
LIST: .branchtargets A, B, C, B;
  @%p1 brx.idx %r1, LIST;
  add.u32 %v, %v, 1000; bra END;
A: add.u32 %v, %v, 100; bra END;
B: add.u32 %v, %v, 200; bra END;
C: add.u32 %v, %v, 300;
END: add.u32 %v, %v, %t;)"),
                                {32});
  constexpr uint32_t kAdds[] = {100, 200, 300, 200};
  for (uint32_t t = 0; t < 32; ++t) EXPECT_EQ(got[t], 7 + t + (t < 4 ? 1000 : kAdds[t & 3])) << t;
}

TEST(ControlTest, RecursionRuns) {
  const auto got = RunPerThread(PerThread(R"(
  and.b32 %r1, %t, 7;
  { .param .b32 a; .param .b32 r; st.param.b32 [a], %r1; call (r), fact, (a); ld.param.b32 %v, [r]; })",
                                          R"(
.func (.param .b32 r) fact(.param .b32 n) {
  .reg .b32 %r<5>; .reg .pred %p;
  ld.param.b32 %r1, [n]; mov.u32 %r2, 1; setp.eq.u32 %p, %r1, 0; @%p bra END;
  sub.u32 %r3, %r1, 1;
  { .param .b32 a; .param .b32 q; st.param.b32 [a], %r3; call (q), fact, (a); ld.param.b32 %r4, [q]; }
  mul.lo.u32 %r2, %r4, %r1;
END: st.param.b32 [r], %r2; ret; }
)"),
                                {32});
  const uint32_t factorial[] = {1, 1, 2, 6, 24, 120, 720, 5040};
  for (uint32_t t = 0; t < 32; ++t) EXPECT_EQ(got[t], factorial[t % 8]);
}

TEST(ControlTest, ModulesLinkByName) {
  std::string log;
  auto runner = PtxRunner::Load({absl::StrCat(kHeader, R"(
.extern .func (.param .b32 r) twice(.param .b32 n);
.extern .global .align 4 .u32 bias;
.visible .entry k(.param .u64 out) {
  .reg .b32 %r<5>; .reg .b64 %rd1;
  ld.global.u32 %r1, [bias];
  { .param .b32 a; .param .b32 r; st.param.b32 [a], %r1; call (r), twice, (a); ld.param.b32 %r2, [r]; }
  ld.param.u64 %rd1, [out]; st.global.u32 [%rd1], %r2; ret; })"),
                                 absl::StrCat(kHeader, R"(
.visible .global .align 4 .u32 bias = 21;
.visible .func (.param .b32 r) twice(.param .b32 n) {
  .reg .b32 %r<3>; ld.param.b32 %r1, [n]; add.u32 %r1, %r1, %r1; st.param.b32 [r], %r1; ret; })")});
  ASSERT_OK(runner);
  DeviceBuffer<uint32_t> out(1);
  ASSERT_OK((*runner)->Run("k", {1}, {1}, 0, out.address()));
  EXPECT_EQ(out[0], 42u);
}

// One access of `size` at `address` by `instruction`, in lane 3 only.
absl::Status Access(const std::string& instruction, uint64_t address) {
  auto runner = Load(absl::StrCat(R"(
.visible .entry k(.param .u64 p) {
  .reg .b32 %r<5>; .reg .b64 %a; .reg .pred %q; .shared .align 4 .b8 s[64]; .local .align 8 .b8 l[16];
  mov.u32 %r1, %tid.x; setp.ne.u32 %q, %r1, 3; @%q ret; ld.param.u64 %a, [p]; )",
                                  instruction, " ret; }"));
  return runner->Run("k", {1}, {32}, 0, address);
}

TEST(FaultTest, WildAddressesEndTheLaunchOnly) {
  DeviceBuffer<uint32_t> page(1024);
  EXPECT_OK(Access("st.global.u32 [%a], 1;", page.address()));
  const absl::Status null = Access("st.global.u32 [%a], 1;", 0);
  EXPECT_THAT(null, IsCudaError(CUDA_ERROR_ILLEGAL_ADDRESS));
  EXPECT_THAT(std::string(null.message()),
              HasSubstr("kernel k, block (0, 0, 0), thread (3, 0, 0)"));
  EXPECT_THAT(Access("ld.global.u32 %r2, [%a]; add.u32 %r2, %r2, 1; st.global.u32 [%a], %r2;",
                     page.address() + 4096),
              IsCudaError(CUDA_ERROR_ILLEGAL_ADDRESS));
  int host = 5;
  EXPECT_THAT(Access("st.u32 [%a], 1;", reinterpret_cast<uint64_t>(&host)),
              IsCudaError(CUDA_ERROR_ILLEGAL_ADDRESS));
  EXPECT_EQ(host, 5);
  EXPECT_THAT(Access("atom.global.add.u32 %r2, [%a], 1;", page.address() + (1 << 20)),
              IsCudaError(CUDA_ERROR_ILLEGAL_ADDRESS));
  EXPECT_THAT(Access("cvt.u32.u64 %r2, %a; st.shared.u32 [%r2], 1;", 64),
              IsCudaError(CUDA_ERROR_ILLEGAL_ADDRESS));
  EXPECT_OK(Access("cvt.u32.u64 %r2, %a; st.shared.u32 [%r2], 1;", 60));
  EXPECT_THAT(Access("st.local.u32 [%a], 1;", 16), IsCudaError(CUDA_ERROR_ILLEGAL_ADDRESS));
  EXPECT_THAT(Access("st.shared.u32 [%a], 1;", ~uint64_t{3}),
              IsCudaError(CUDA_ERROR_ILLEGAL_ADDRESS));
  // And the next launch is fine.
  EXPECT_OK(Access("st.global.u32 [%a], 1;", page.address()));
}

TEST(FaultTest, MisalignedAccesses) {
  DeviceBuffer<uint32_t> page(1024);
  EXPECT_THAT(Access("st.global.u32 [%a], 1;", page.address() + 2),
              IsCudaError(CUDA_ERROR_MISALIGNED_ADDRESS));
  EXPECT_THAT(Access("ld.global.v4.u32 {%r1,%r2,%r3,%r4}, [%a]; st.global.u32 [%a], %r4;",
                     page.address() + 8),
              IsCudaError(CUDA_ERROR_MISALIGNED_ADDRESS));
  EXPECT_THAT(Access("atom.global.add.u64 %a, [%a], 1;", page.address() + 4),
              IsCudaError(CUDA_ERROR_MISALIGNED_ADDRESS));
}

TEST(FaultTest, RegisteredMemoryIsReachedAtItsOwnAddress) {
  alignas(8) uint32_t host[4] = {1, 2, 3, 4};
  const uint64_t address = reinterpret_cast<uint64_t>(host);
  RegisterHostRange(address, 8);
  EXPECT_OK(Access("ld.global.u32 %r2, [%a+4]; add.u32 %r2, %r2, 5; st.u32 [%a], %r2;", address));
  EXPECT_EQ(host[0], 7u);
  EXPECT_OK(Access("atom.global.add.u32 %r2, [%a], 1;", address));
  EXPECT_EQ(host[0], 8u);
  EXPECT_THAT(Access("st.global.u32 [%a], 1;", address + 8),
              IsCudaError(CUDA_ERROR_ILLEGAL_ADDRESS));
  EXPECT_EQ(host[2], 3u);
  EXPECT_THAT(Access("st.global.u32 [%a], 1;", address + 2),
              IsCudaError(CUDA_ERROR_MISALIGNED_ADDRESS));
  EXPECT_THAT(Access("st.shared.u32 [%a], 1;", address), IsCudaError(CUDA_ERROR_ILLEGAL_ADDRESS));
  RegisterHostRange(0, 0);
  EXPECT_THAT(Access("st.global.u32 [%a], 1;", address), IsCudaError(CUDA_ERROR_ILLEGAL_ADDRESS));
}

TEST(FaultTest, TrapAndUnsupported) {
  EXPECT_THAT(Access("trap;", 0), IsCudaError(CUDA_ERROR_LAUNCH_FAILED));
  const absl::Status status = Access("wgmma.fence.sync.aligned;", 0);
  EXPECT_THAT(status, IsCudaError(CUDA_ERROR_NOT_SUPPORTED));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("kernel k, line 7, 'wgmma.fence.sync.aligned'"));
}

TEST(FaultTest, ManyThreadsLaunchAtOnce) {
  const std::string text = PerThread("mov.u32 %v, %t;");
  std::vector<std::thread> threads;
  for (int k = 0; k < 4; ++k) {
    threads.emplace_back([&] {
      for (int n = 0; n < 5; ++n) {
        const auto got = RunPerThread(text, {64});
        EXPECT_EQ(got[63], 63u);
        EXPECT_THAT(Access("st.global.u32 [%a], 1;", 8), IsCudaError(CUDA_ERROR_ILLEGAL_ADDRESS));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(PrintfTest, FormatsArguments) {
  auto runner = Load(R"(
.extern .func (.param .b32 r) vprintf (.param .b64 f, .param .b64 a);
.global .align 1 .b8 fmt[32] = {37,100,32,37,53,46,50,102,32,37,115,32,37,108,108,120,37,37,10,0};
.global .align 1 .b8 str[4] = {97,98,99,0};
.visible .entry k() {
  .reg .b32 %r<5>; .reg .b64 %rd<9>; .reg .f64 %d1; .local .align 8 .b8 buf[32];
  mov.u64 %rd1, buf; cvta.local.u64 %rd2, %rd1; mov.u32 %r1, %tid.x;
  st.local.u32 [buf], %r1; mov.f64 %d1, 0d400921FB54442D18; st.local.f64 [buf+8], %d1;
  mov.u64 %rd3, str; cvta.global.u64 %rd4, %rd3; st.local.u64 [buf+16], %rd4; mov.u64 %rd5, 0x123456789ab; st.local.u64 [buf+24], %rd5;
  mov.u64 %rd6, fmt;
  { .param .b64 p0; .param .b64 p1; .param .b32 q; st.param.b64 [p0], %rd6; st.param.b64 [p1], %rd2;
    call.uni (q), vprintf, (p0, p1); ld.param.b32 %r2, [q]; }
  ret; })");
  ASSERT_NE(runner, nullptr);
  ASSERT_OK(runner->Run("k", {1}, {2}, 0));
  EXPECT_EQ(runner->printed, "0  3.14 abc 123456789ab%\n1  3.14 abc 123456789ab%\n");
}

}  // namespace
}  // namespace fargpu::softgpu
