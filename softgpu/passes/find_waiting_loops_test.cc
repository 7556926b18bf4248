#include "softgpu/passes/find_waiting_loops.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "common/status_matchers.h"
#include "softgpu/passes/flatten_kernel.h"
#include "softgpu/passes/link_modules.h"
#include "softgpu/ptx/parser.h"

namespace fargpu::softgpu {
namespace {

struct Analyzed {
  std::unique_ptr<LinkedProgram> program;  // the kernel's names lie in its text
  FlatKernel kernel;
  ControlFlow flow;
  std::vector<bool> waiting;
};

Analyzed Analyze(const std::string& code) {
  auto module = ptx::ParseModule(absl::StrCat(R"(
.version 8.7
.target sm_90
.address_size 64
.global .align 8 .b8 x[64];
.visible .entry k(.param .u32 n) {
  .reg .b32 %r<20>, %n, %i; .reg .b64 %rd<5>; .reg .pred %p<9>;
  ld.param.u32 %n, [n]; mov.u32 %i, %tid.x; mov.u64 %rd1, x;
  )",
                                              code, "\n  ret; }"));
  EXPECT_OK(module);
  if (!module.ok()) return {};
  std::vector<std::unique_ptr<ptx::Module>> modules;
  modules.push_back(*std::move(module));
  auto program = LinkedProgram::Link(std::move(modules));
  EXPECT_OK(program);
  auto kernel = FlattenKernel(**program, 0);
  EXPECT_OK(kernel);
  Analyzed result;
  result.program = *std::move(program);
  result.kernel = *std::move(kernel);
  EXPECT_TRUE(OrderBlocks(&result.kernel, &result.flow));
  const Ssa ssa = BuildSsa(&result.kernel, result.flow);
  result.waiting = FindWaitingLoops(&result.kernel, result.flow, ssa);
  return result;
}

// For each loop of the code, outermost first: must others act before a thread leaves it?
std::vector<bool> Waiting(const std::string& code) { return Analyze(code).waiting; }

// May lanes do something before a barrier once they are behind the code's only loop?
bool ActsBehindLoop(const std::string& code) {
  const Analyzed a = Analyze(
      "L: ld.volatile.global.u32 %r1, [%rd1]; setp.eq.u32 %p1, %r1, 0; "
      "@%p1 bra L; " +
      code);
  EXPECT_EQ(a.flow.loops.size(), 1u);
  std::vector<int> behind;
  for (const int s : a.kernel.blocks[a.flow.loops[0].latch].Successors()) {
    if (!a.flow.loops[0].contains[s]) behind.push_back(s);
  }
  EXPECT_EQ(behind.size(), 1u);
  return MayActBeforeBarrier(a.kernel, behind);
}

using Flags = std::vector<bool>;

TEST(FindWaitingLoopsTest, LocksAndFlagsWait) {
  EXPECT_EQ(
      Waiting("L: atom.global.cas.b32 %r1, [%rd1], 0, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra L;"),
      Flags{true});
  EXPECT_EQ(Waiting("L: atom.global.exch.b32 %r1, [%rd1], 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra L;"),
            Flags{true});
  EXPECT_EQ(Waiting("L: ld.volatile.global.u32 %r1, [%rd1]; setp.lt.u32 %p1, %r1, %n; @%p1 bra L;"),
            Flags{true});
  EXPECT_EQ(Waiting("L: ld.global.acquire.gpu.u32 %r1, [%rd1]; and.b32 %r1, %r1, 1; "
                    "setp.eq.u32 %p1, %r1, 0; @%p1 bra L;"),
            Flags{true});
  EXPECT_EQ(Waiting("L: atom.global.add.u32 %r1, [%rd1], 0; setp.lt.u32 %p1, %r1, %n; @%p1 bra L;"),
            Flags{true});
  EXPECT_EQ(Waiting("L: nanosleep.u32 20; ld.global.u32 %r1, [%rd1]; setp.lt.u32 %p1, %r1, %n; "
                    "@%p1 bra L;"),
            Flags{true});
  // The compared value is reset in each round.
  EXPECT_EQ(Waiting("L: mov.u32 %r2, 0; atom.global.cas.b32 %r1, [%rd1], %r2, 1; "
                    "setp.ne.u32 %p1, %r1, 0; @%p1 bra L;"),
            Flags{true});
}

TEST(FindWaitingLoopsTest, WhatIsKnownOnlyThroughABranchCounts) {
  EXPECT_EQ(Waiting(R"(
  mov.u32 %r5, 0;
L: atom.global.cas.b32 %r1, [%rd1], 0, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra NEXT;
  mov.u32 %r5, 1; atom.global.exch.b32 %r2, [%rd1], 0;
NEXT: setp.eq.u32 %p2, %r5, 0; @%p2 bra L;)"),
            Flags{true});
  // The inner loop waits, and the outer one counts how often.
  EXPECT_EQ(Waiting(R"(
OUTER: mov.u32 %r5, 0;
L: add.u32 %r5, %r5, 1; ld.volatile.global.u32 %r1, [%rd1]; setp.ne.u32 %p1, %r1, 0; @%p1 bra L;
  setp.lt.u32 %p2, %r5, %n; @%p2 bra OUTER;)"),
            (Flags{true, true}));
}

TEST(FindWaitingLoopsTest, RetriesAndCountedLoopsDoNotWait) {
  // atomicAdd by compare-and-swap.
  EXPECT_EQ(Waiting(R"(
  ld.global.u32 %r1, [%rd1];
L: mov.u32 %r2, %r1; add.u32 %r3, %r2, 5; atom.global.cas.b32 %r1, [%rd1], %r2, %r3;
  setp.ne.u32 %p1, %r1, %r2; @%p1 bra L;)"),
            Flags{false});
  // A histogram.
  EXPECT_EQ(Waiting("L: atom.global.add.u32 %r1, [%rd1], 1; red.global.max.u32 [%rd1+4], %i; "
                    "add.u32 %i, %i, 32; setp.lt.u32 %p1, %i, %n; @%p1 bra L;"),
            Flags{false});
  // Work is handed out by a counter.
  EXPECT_EQ(Waiting("L: atom.global.add.u32 %r1, [%rd1], 1; setp.lt.u32 %p1, %r1, %n; @%p1 bra L;"),
            Flags{false});
  // A branch that depends on others, but no exit.
  EXPECT_EQ(Waiting(R"(
L: atom.global.exch.b32 %r1, [%rd1], 1; setp.ne.u32 %p2, %r1, 0; @%p2 bra SKIP; st.global.u32 [%rd1+8], %i;
SKIP: add.u32 %i, %i, 32; setp.lt.u32 %p1, %i, %n; @%p1 bra L;)"),
            Flags{false});
}

TEST(MayActBeforeBarrierTest, OnlyWhatOthersSeeCounts) {
  EXPECT_FALSE(ActsBehindLoop("bar.sync 0; st.global.u32 [%rd1], %r1;"));
  EXPECT_FALSE(
      ActsBehindLoop("add.u32 %r1, %r1, 1; ld.volatile.global.u32 %r2, [%rd1]; membar.gl; "
                     "barrier.sync 3; st.global.u32 [%rd1], %r1;"));
  EXPECT_FALSE(
      ActsBehindLoop("setp.eq.u32 %p2, %i, 0; @%p2 bra A; bar.sync 0; bra B; A: bar.sync 0; "
                     "B: st.global.u32 [%rd1], %r1;"));
  EXPECT_FALSE(ActsBehindLoop(""));
  EXPECT_TRUE(ActsBehindLoop("st.global.u32 [%rd1], %r1; bar.sync 0;"));
  EXPECT_TRUE(ActsBehindLoop("atom.global.add.u32 %r2, [%rd1], 1; bar.sync 0;"));
  EXPECT_TRUE(
      ActsBehindLoop("setp.eq.u32 %p2, %i, 0; @%p2 bra A; bar.sync 0; A: red.global.add.u32 "
                     "[%rd1], 1;"));
}

TEST(MayActBeforeBarrierTest, BarriersThatSomePassWithoutTheOthersDoNotStop) {
  EXPECT_TRUE(ActsBehindLoop("bar.sync 0, 32; st.global.u32 [%rd1], %r1;"));
  EXPECT_TRUE(ActsBehindLoop("bar.arrive 0, 64; st.global.u32 [%rd1], %r1;"));
  EXPECT_TRUE(ActsBehindLoop("bar.warp.sync -1; st.global.u32 [%rd1], %r1;"));
  EXPECT_TRUE(ActsBehindLoop("@%p1 bar.sync 0; st.global.u32 [%rd1], %r1;"));
}

}  // namespace
}  // namespace fargpu::softgpu
