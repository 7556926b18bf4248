// Instructions at which threads meet: collectives of a warp under masks, barriers of a block that
// are named, counted, reached apart, or reached by part of a warp.
#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "common/status_matchers.h"
#include "softgpu/exec/testing/ptx_runner.h"

namespace fargpu::softgpu {
namespace {

// A kernel k(out) whose code leaves a 32-bit result per thread in %v; %t is the thread, %l its
// lane, %s the address of its word in shared memory.
absl::StatusOr<std::vector<uint32_t>> RunKernel(const std::string& code, uint32_t threads) {
  auto runner = PtxRunner::Load({absl::StrCat(R"(
.version 8.7
.target sm_90
.address_size 64
.shared .align 4 .b8 s[4096];
.global .align 4 .u32 counter = 0;
.visible .entry k(.param .u64 out) {
  .reg .b32 %t, %l, %s, %v, %r<20>; .reg .b64 %o, %rd<5>; .reg .pred %p<10>;
  mov.u32 %t, %tid.x; mov.u32 %l, %laneid; ld.param.u64 %o, [out]; mul.wide.u32 %rd1, %t, 4;
  add.u64 %o, %o, %rd1; mov.u32 %r0, s; shl.b32 %s, %t, 2; add.u32 %s, %s, %r0; mov.u32 %v, 0;
  )",
                                              code, "\n  st.global.u32 [%o], %v; ret; }")});
  if (!runner.ok()) return runner.status();
  DeviceBuffer<uint32_t> out(threads, 0xabcdu);
  const absl::Status status = (*runner)->Run("k", {1}, {threads}, 0, out.address());
  if (!status.ok()) return status;
  return out.Values();
}

void Check(const std::string& code, uint32_t threads,
           const std::function<uint32_t(uint32_t)>& want) {
  const auto got = RunKernel(code, threads);
  ASSERT_OK(got) << code;
  for (uint32_t t = 0; t < threads; ++t) ASSERT_EQ((*got)[t], want(t)) << t << code;
}

TEST(WarpMeetingTest, LanesWaitInBothArmsOfABranch) {
  // Each half writes, meets the other in its own arm, and reads what that wrote.
  Check(R"(
  setp.lt.u32 %p1, %l, 16; @%p1 bra LOW;
  st.shared.u32 [%s], %t; bar.warp.sync -1; xor.b32 %r1, %s, 64; ld.shared.u32 %v, [%r1]; bra END;
LOW: add.u32 %r2, %t, 100; st.shared.u32 [%s], %r2; bar.warp.sync 0xffffffff; xor.b32 %r1, %s, 64; ld.shared.u32 %v, [%r1];
END:)",
        64, [](uint32_t t) { return t % 32 < 16 ? t + 16 : t - 16 + 100; });
}

TEST(WarpMeetingTest, WhatOneLaneSaysIsUniform) {
  // How often all threads come to the barrier is known to lane 5 alone, which tells the others by a
  // constant and by a register; the block's last warp is half empty.
  for (const char* lane : {"5", "%r6"}) {
    Check(absl::StrCat(R"(
  ld.global.u32 %r7, [counter]; add.u32 %r6, %r7, 5;
  mov.u32 %r1, 0; st.shared.u32 [%s], %t;
LOOP: bar.sync 0; xor.b32 %r2, %s, 4; ld.shared.u32 %r3, [%r2]; bar.sync 0;
  add.u32 %r3, %r3, 1; st.shared.u32 [%s], %r3; add.u32 %r1, %r1, 1;
  setp.eq.u32 %p1, %l, 5; selp.u32 %r4, %r1, 77, %p1;
  shfl.sync.idx.b32 %r5|%p3, %r4, )",
                       lane, R"(, 31, -1;
  setp.lt.u32 %p4, %r5, 3; and.pred %p4, %p4, %p3; @%p4 bra LOOP;
  ld.shared.u32 %v, [%s]; mad.lo.u32 %v, %r5, 1000, %v;)"),
          48, [](uint32_t t) { return (t ^ 1) + 3 + 3000; });
  }
  // A segment of half a warp, of which a small block has only the first.
  for (const uint32_t threads : {16u, 48u}) {
    Check("add.u32 %r1, %t, 7; shfl.sync.idx.b32 %v|%p1, %r1, 3, 0x101f, -1; @!%p1 mov.u32 %v, 0;",
          threads, [](uint32_t t) { return t / 16 * 16 + 10; });
  }
  // Outside of the clamp each lane keeps its own, and be there only one.
  Check("shfl.sync.idx.b32 %v|%p1, %t, 20, 15, -1; @!%p1 add.u32 %v, %v, 100;", 1,
        [](uint32_t) { return 100; });
  Check("shfl.sync.idx.b32 %v|%p1, %t, 20, 15, -1; @!%p1 add.u32 %v, %v, 100;", 32,
        [](uint32_t t) { return t + 100; });
}

TEST(WarpMeetingTest, ValuesCrossBetweenInstructions) {
  // The same shuffle and vote, at two places.
  Check(R"(
  and.b32 %r1, %l, 1; setp.eq.u32 %p1, %r1, 0; @%p1 bra EVEN;
  add.u32 %r2, %t, 1000; shfl.sync.bfly.b32 %v, %r2, 1, 31, -1; bra END;
EVEN: shfl.sync.bfly.b32 %v, %t, 1, 31, -1;
END:)",
        64, [](uint32_t t) { return t % 2 == 0 ? (t ^ 1) + 1000 : t ^ 1; });
  Check(R"(
  setp.lt.u32 %p1, %l, 10; setp.eq.u32 %p2, %l, 3; @%p1 bra FEW;
  vote.sync.ballot.b32 %v, !%p2, -1; bra END;
FEW: vote.sync.ballot.b32 %v, %p2, -1;
END:)",
        32, [](uint32_t) { return 0xfffffc08u; });
  Check(R"(
  setp.lt.u32 %p1, %l, 7; @%p1 bra FEW;
  redux.sync.add.u32 %v, %l, -1; bra END;
FEW: mov.u32 %r1, 1; redux.sync.add.u32 %v, %r1, -1;
END:)",
        32, [](uint32_t) { return 31u * 32 / 2 - 21 + 7; });
}

TEST(WarpMeetingTest, MasksOfGroupsAreKeptApart) {
  // Tiles of 8 lanes, each with a mask of its own, at one instruction.
  const std::string tile =
      "shr.u32 %r1, %l, 3; shl.b32 %r2, %r1, 3; shl.b32 %r3, 0xff, %r2; setp.gt.u32 %p1, %l, 12; ";
  Check(tile + "vote.sync.ballot.b32 %v, %p1, %r3;", 64,
        [](uint32_t t) { return (0xffffe000u & (0xffu << (t % 32 / 8 * 8))); });
  Check(tile +
            "vote.sync.any.pred %p2, %p1, %r3; vote.sync.all.pred %p3, %p1, %r3; selp.b32 %v, 1, "
            "0, %p2; @%p3 add.u32 %v, %v, 2;",
        32, [](uint32_t t) { return t < 8    ? 0u
                                    : t < 16 ? 1u
                                             : 3u; });
  Check(tile + "redux.sync.max.u32 %v, %l, %r3;", 32, [](uint32_t t) { return t / 8 * 8 + 7; });
  Check(tile + "shr.u32 %r4, %l, 2; match.any.sync.b32 %v, %r4, %r3;", 32,
        [](uint32_t t) { return 0xfu << (t / 4 * 4); });
  Check(tile + "min.u32 %r4, %l, 8; match.all.sync.b32 %v|%p2, %r4, %r3; @!%p2 add.u32 %v, %v, 5;",
        32, [](uint32_t t) { return t < 8 ? 5u : 0xffu << (t / 8 * 8); });
  Check(tile + "elect.sync %v|%p2, %r3; @%p2 add.u32 %v, %v, 100;", 32,
        [](uint32_t t) { return t / 8 * 8 + (t % 8 == 0 ? 100 : 0); });
}

TEST(WarpMeetingTest, GroupsDivergeFromEachOther) {
  // Tiles loop a different number of times; inside, a tile meets itself only.
  Check(R"(
  shr.u32 %r1, %l, 3; shl.b32 %r2, %r1, 3; shl.b32 %r3, 0xff, %r2; mov.u32 %r5, 0; mov.u32 %v, %l;
L: shfl.sync.down.b32 %r6, %v, 1, 0x1807, %r3; add.u32 %v, %v, %r6; add.u32 %r5, %r5, 1; setp.le.u32 %p1, %r5, %r1; @%p1 bra L;)",
        32, [](uint32_t t) {
          std::vector<uint32_t> v(8);
          for (uint32_t k = 0; k < 8; ++k) v[k] = t / 8 * 8 + k;
          for (uint32_t n = 0; n <= t / 8; ++n) {
            const std::vector<uint32_t> old = v;
            for (uint32_t k = 0; k < 8; ++k) v[k] += old[std::min(k + 1, 7u)];
          }
          return v[t % 8];
        });
}

TEST(WarpMeetingTest, LanesThatEndedAreNotWaitedFor) {
  Check(R"(
  setp.gt.u32 %p1, %l, 20; mov.u32 %v, 7; @%p1 bra END;
  and.b32 %r1, %l, 1; setp.eq.u32 %p2, %r1, 0; @%p2 bra EVEN;
  bar.warp.sync -1; vote.sync.ballot.b32 %v, %p2, -1; bra END;
EVEN: bar.warp.sync -1; vote.sync.ballot.b32 %v, %p2, -1;
END:)",
        32, [](uint32_t t) { return t > 20 ? 7u : 0x155555u; });
}

TEST(WarpMeetingTest, FormsWithoutSync) {
  Check(
      "vote.ballot.b32 %v, %p0; setp.lt.u32 %p1, %l, 4; vote.ballot.b32 %v, %p1; "
      "vote.any.pred %p2, %p1; @%p2 add.u32 %v, %v, 100; vote.uni.pred %p3, %p1; @%p3 add.u32 %v, "
      "%v, 1000;",
      32, [](uint32_t) { return 115u; });
  Check("shfl.up.b32 %v|%p1, %l, 2, 0; @!%p1 add.u32 %v, %v, 50;", 32,
        [](uint32_t t) { return t < 2 ? t + 50 : t - 2; });
}

TEST(BlockMeetingTest, NamedAndCountedBarriers) {
  // Two pairs of warps meet at barriers of their own; the numbers are in registers.
  Check(R"(
  shr.u32 %r1, %t, 6; add.u32 %r1, %r1, 1; st.shared.u32 [%s], %t; bar.sync %r1, 64;
  xor.b32 %r2, %s, 128; ld.shared.u32 %v, [%r2];)",
        128, [](uint32_t t) { return t ^ 32; });
}

TEST(BlockMeetingTest, ProducersArriveWithoutWaiting) {
  // Warp 0 fills, warp 1 empties, twice, by a pair of barriers.
  Check(R"(
  setp.ge.u32 %p1, %t, 32; mov.u32 %r5, 0; @%p1 bra CONSUMER;
PRODUCER: bar.sync 2, 64; add.u32 %r6, %t, %r5; st.shared.u32 [%s], %r6; bar.arrive 1, 64;
  add.u32 %r5, %r5, 100; setp.lt.u32 %p2, %r5, 300; @%p2 bra PRODUCER; bra END;
CONSUMER: bar.arrive 2, 64; bar.sync 1, 64; ld.shared.u32 %r7, [%s+-128]; add.u32 %v, %v, %r7;
  add.u32 %r5, %r5, 100; setp.lt.u32 %p2, %r5, 300; @%p2 bra CONSUMER;
END:)",
        64, [](uint32_t t) { return t < 32 ? 0 : 3 * (t - 32) + 300; });
}

TEST(BlockMeetingTest, ReductionsOfPartOfABlock) {
  Check(R"(
  setp.ge.u32 %p1, %t, 64; @%p1 bra END; setp.gt.u32 %p2, %t, 50;
  barrier.red.popc.u32 %v, 3, 64, %p2; barrier.red.or.pred %p3, 3, 64, %p2; @%p3 add.u32 %v, %v, 100;
  barrier.red.and.pred %p3, 3, 64, %p2; @%p3 add.u32 %v, %v, 1000;
END:)",
        128, [](uint32_t t) { return t < 64 ? 113u : 0u; });
}

TEST(BlockMeetingTest, ShortWarpsCountAsWhole) {
  Check(
      "st.shared.u32 [%s], %t; bar.sync 0, 64; sub.u32 %r1, 196, %s; mov.u32 %r2, s; "
      "sub.u32 %r3, %s, %r2; sub.u32 %r3, 196, %r3; add.u32 %r3, %r3, %r2; ld.shared.u32 %v, "
      "[%r3];",
      50, [](uint32_t t) { return 49 - t; });
}

TEST(BlockMeetingTest, LanesOfOneWarpAtDifferentBarriers) {
  // Even lanes of both warps meet at barrier 1, odd ones at 2; the even ones meet again.
  Check(R"(
  and.b32 %r1, %l, 1; setp.eq.u32 %p1, %r1, 0; st.shared.u32 [%s], %t; xor.b32 %r2, %s, 128; @%p1 bra EVEN;
  barrier.sync 2, 32; ld.shared.u32 %v, [%r2]; bra END;
EVEN: barrier.sync 1, 32; ld.shared.u32 %r3, [%r2]; barrier.sync 1, 32; add.u32 %r3, %r3, 1000; st.shared.u32 [%s], %r3;
  barrier.sync 1, 32; ld.shared.u32 %v, [%r2];
END:)",
        64, [](uint32_t t) { return t % 2 == 1 ? t ^ 32 : t + 1000; });
}

TEST(BlockMeetingTest, ReductionsReachedByPartsOfAWarp) {
  Check(R"(
  and.b32 %r1, %l, 1; setp.eq.u32 %p1, %r1, 0; @%p1 bra EVEN;
  bar.red.popc.u32 %v, 0, %p1; bra END;
EVEN: setp.lt.u32 %p2, %t, 20; bar.red.popc.u32 %v, 0, %p2;
END: bar.red.popc.u32 %r2, 0, %p1; add.u32 %v, %v, %r2;)",
        96, [](uint32_t) { return 10u + 48; });
}

TEST(BlockMeetingTest, BarrierInsideAFunction) {
  auto runner = PtxRunner::Load({R"(
.version 8.7
.target sm_90
.address_size 64
.shared .align 4 .b8 s[4096];
.func (.param .b32 r) swap(.param .b32 t) {
  .reg .b32 %r<5>; .reg .pred %p; ld.param.b32 %r1, [t]; mov.u32 %r2, s; shl.b32 %r3, %r1, 2; add.u32 %r2, %r2, %r3;
  st.shared.u32 [%r2], %r1; bar.sync 0; xor.b32 %r2, %r2, 128; ld.shared.u32 %r4, [%r2]; bar.sync 0; st.param.b32 [r], %r4; ret; }
.global .align 8 .u64 table[1] = {swap};
.visible .entry k(.param .u64 out, .param .u32 indirect) {
  .reg .b32 %t, %v, %i; .reg .b64 %o, %f; .reg .pred %p; mov.u32 %t, %tid.x; ld.param.u32 %i, [indirect]; setp.eq.u32 %p, %i, 0;
  { .param .b32 a; .param .b32 q; st.param.b32 [a], %t; @%p bra DIRECT; ld.global.u64 %f, [table];
P: .callprototype (.param .b32 _) _ (.param .b32 _);
   call (q), %f, (a), P; bra JOIN;
DIRECT: call (q), swap, (a);
JOIN: ld.param.b32 %v, [q]; }
  ld.param.u64 %o, [out]; .reg .b64 %w; mul.wide.u32 %w, %t, 4; add.u64 %o, %o, %w; st.global.u32 [%o], %v; ret; })"});
  ASSERT_OK(runner);
  for (const uint32_t indirect : {0u, 1u}) {
    DeviceBuffer<uint32_t> out(64);
    ASSERT_OK((*runner)->Run("k", {1}, {64}, 0, out.address(), indirect));
    for (uint32_t t = 0; t < 64; ++t) ASSERT_EQ(out[t], t ^ 32) << indirect;
  }
}

TEST(BlockMeetingTest, ClusterBarrierOfOneBlock) {
  Check(R"(
  st.shared.u32 [%s], %t; barrier.cluster.arrive.release; barrier.cluster.wait.acquire;
  xor.b32 %r1, %s, 64; xor.b32 %r1, %r1, 128; ld.shared.u32 %v, [%r1];
  barrier.cluster.arrive; barrier.cluster.wait;)",
        128, [](uint32_t t) { return t ^ 48; });
}

TEST(BlockMeetingTest, NumbersBeyondTheLastFail) {
  EXPECT_THAT(RunKernel("mov.u32 %r1, 16; add.u32 %r1, %r1, %t; bar.sync %r1, 64;", 64),
              IsCudaError(CUDA_ERROR_ILLEGAL_INSTRUCTION));
}

TEST(ProgressTest, RetryLoopsOfAllThreads) {
  // atomicAdd of a float by compare-and-swap, from all lanes at once.
  Check(R"(
  ld.volatile.global.u32 %r1, [counter];
L: mov.u32 %r2, %r1; add.u32 %r3, %r2, 3; atom.global.cas.b32 %r1, [counter], %r2, %r3; setp.ne.u32 %p1, %r1, %r2; @%p1 bra L;
  bar.sync 0; ld.volatile.global.u32 %v, [counter];)",
        256, [](uint32_t) { return 768u; });
}

}  // namespace
}  // namespace fargpu::softgpu
