// Copies of cp.async, barrier objects, the widest atomics, address spaces and special registers.
#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "common/status_matchers.h"
#include "softgpu/exec/testing/ptx_runner.h"

namespace fargpu::softgpu {
namespace {

// k(in, out): %t is the thread, %in and %out the addresses of its 16 bytes in both; s is shared.
std::string Kernel(const std::string& code) {
  return absl::StrCat(R"(
.version 8.7
.target sm_90
.address_size 64
.shared .align 16 .b8 s[8192];
.shared .align 8 .b8 bar[64];
.global .align 4 .u32 flag = 0;
.visible .entry k(.param .u64 in, .param .u64 out) {
  .reg .b32 %t, %s, %r<10>; .reg .b64 %in, %out, %off, %rd<10>, %state; .reg .pred %p<6>;
  .reg .b128 %w<3>;
  mov.u32 %t, %tid.x; ld.param.u64 %in, [in]; ld.param.u64 %out, [out]; mul.wide.u32 %off, %t, 16;
  add.u64 %in, %in, %off; add.u64 %out, %out, %off; shl.b32 %s, %t, 4; mov.u32 %r0, s; add.u32 %s, %s, %r0;
  )",
                      code, "\n  ret; }");
}

struct Result {
  absl::Status status;
  std::vector<uint32_t> out;  // four words per thread
};
Result RunKernel(const std::string& code, uint32_t threads = 64, Dim3 grid = {1},
                 bool cooperative = false) {
  auto runner = PtxRunner::Load({Kernel(code)});
  if (!runner.ok()) return {runner.status(), {}};
  std::vector<uint32_t> values(threads * 4);
  std::iota(values.begin(), values.end(), 1000);
  DeviceBuffer<uint32_t> in(values), out(threads * 4, 0xabcdu);
  (*runner)->cooperative = cooperative;
  const absl::Status status = (*runner)->Run("k", grid, {threads}, 0, in.address(), out.address());
  return {status, out.Values()};
}

constexpr char kStore[] =
    "ld.shared.v4.u32 {%r1, %r2, %r3, %r4}, [%s]; st.global.v4.u32 [%out], {%r1, %r2, %r3, %r4};";

TEST(AsyncCopyTest, CopiesAndFillsWithZeros) {
  Result r = RunKernel(
      absl::StrCat("cp.async.cg.shared.global.L2::128B [%s], [%in], 16; cp.async.commit_group; "
                   "cp.async.wait_group 0;",
                   kStore));
  ASSERT_OK(r.status);
  for (uint32_t k = 0; k < 256; ++k) ASSERT_EQ(r.out[k], 1000 + k);
  // Bytes behind the source's end are zero; where nothing is read, the address is not looked at.
  r = RunKernel(absl::StrCat(
      "and.b32 %r5, %t, 3; shl.b32 %r5, %r5, 2; setp.eq.u32 %p1, %r5, 0; @%p1 mov.u64 %in, 0;"
      "cp.async.cg.shared.global [%s], [%in], 16, %r5; cp.async.wait_all;",
      kStore));
  ASSERT_OK(r.status);
  for (uint32_t k = 0; k < 256; ++k) {
    ASSERT_EQ(r.out[k], k % 4 < k / 4 % 4 ? 1000 + k : 0) << k;
  }
  r =
      RunKernel(absl::StrCat("st.shared.v4.u32 [%s], {%t, %t, %t, %t}; setp.gt.u32 %p1, %t, 31;"
                             "cp.async.ca.shared.global [%s+4], [%in+8], 4, %p1; "
                             "cp.async.ca.shared.global [%s+8], [%in], 8;",
                             kStore));
  ASSERT_OK(r.status);
  for (uint32_t t = 0; t < 64; ++t) {
    EXPECT_EQ(r.out[4 * t], t);
    EXPECT_EQ(r.out[4 * t + 1], t > 31 ? 0 : 1002 + 4 * t);
    EXPECT_EQ(r.out[4 * t + 3], 1001 + 4 * t);
  }
  EXPECT_THAT(RunKernel("cp.async.cg.shared.global [%s], [%in+4], 16;").status,
              IsCudaError(CUDA_ERROR_MISALIGNED_ADDRESS));
  EXPECT_THAT(RunKernel("add.u32 %s, %s, 65536; cp.async.cg.shared.global [%s], [%in], 16;").status,
              IsCudaError(CUDA_ERROR_ILLEGAL_ADDRESS));
  EXPECT_THAT(RunKernel("mov.u64 %in, 64; cp.async.cg.shared.global [%s], [%in], 16;").status,
              IsCudaError(CUDA_ERROR_ILLEGAL_ADDRESS));
}

TEST(AsyncCopyTest, BulkCopiesCompleteTransactions) {
  // Thread 0 copies for all; the others wait for the bytes.
  const Result r = RunKernel(absl::StrCat(R"(
  setp.ne.u32 %p1, %t, 0; mov.u32 %r5, bar; mov.u32 %r6, s;
  @!%p1 mbarrier.init.shared::cta.b64 [%r5], 1; bar.sync 0; @%p1 bra WAIT;
  mbarrier.arrive.expect_tx.shared::cta.b64 %state, [%r5], 1024;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r6], [%in], 1024, [%r5];
WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r5], 0; @!%p2 bra WAIT;)",
                                          kStore));
  ASSERT_OK(r.status);
  for (uint32_t k = 0; k < 256; ++k) ASSERT_EQ(r.out[k], 1000 + k);
  const Result back = RunKernel(R"(
  st.shared.v4.u32 [%s], {%t, %t, %t, %t}; bar.sync 0; setp.ne.u32 %p1, %t, 0; @%p1 bra END; mov.u32 %r6, s;
  cp.async.bulk.global.shared::cta.bulk_group [%out], [%r6], 512; cp.async.bulk.commit_group;
  cp.async.bulk.wait_group.read 0;
  cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%out], [%r6], 512;
END:)");
  ASSERT_OK(back.status);
  for (uint32_t k = 0; k < 128; ++k) ASSERT_EQ(back.out[k], 2 * (k / 4));
  EXPECT_EQ(back.out[128], 0xabcdu);
}

TEST(BarrierObjectTest, PhasesAndStates) {
  // One thread walks through the life of an object for 3 arrivals.
  const Result r = RunKernel(R"(
  .reg .b32 %a<8>; mov.u32 %r5, bar; mbarrier.init.shared.b64 [%r5], 3;
  mbarrier.arrive.shared.b64 %state, [%r5]; mbarrier.test_wait.shared.b64 %p1, [%r5], %state; selp.b32 %a0, 1, 0, %p1;
  mbarrier.pending_count.b64 %a1, %state;
  mbarrier.arrive.shared.b64 _, [%r5], 2; mbarrier.test_wait.shared.b64 %p1, [%r5], %state; selp.b32 %a2, 1, 0, %p1;
  mbarrier.test_wait.parity.shared.b64 %p1, [%r5], 0; selp.b32 %a3, 1, 0, %p1;
  st.global.v4.u32 [%out], {%a0, %a1, %a2, %a3};)",
                             1);
  ASSERT_OK(r.status);
  EXPECT_EQ(r.out, (std::vector<uint32_t>{0, 3, 1, 1}));
  EXPECT_THAT(RunKernel("mov.u32 %r5, bar; mbarrier.init.shared.b64 [%r5], 1; bar.sync 0; "
                        "mbarrier.arrive.shared.b64 _, [%r5], 2;")
                  .status,
              IsCudaError(CUDA_ERROR_LAUNCH_FAILED));
}

TEST(BarrierObjectTest, SecondPhase) {
  const Result r = RunKernel(R"(
  .reg .b32 %a<8>; mov.u32 %r5, bar; mbarrier.init.shared.b64 [%r5], 3; mbarrier.arrive.shared.b64 _, [%r5], 3;
  mbarrier.test_wait.parity.shared.b64 %p1, [%r5], 1; selp.b32 %a0, 1, 0, %p1;
  mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r5], 64; mbarrier.arrive.shared.b64 _, [%r5], 3;
  mbarrier.test_wait.parity.shared.b64 %p1, [%r5], 1; selp.b32 %a1, 1, 0, %p1;
  mbarrier.complete_tx.shared.b64 [%r5], 64;
  mbarrier.test_wait.parity.shared.b64 %p1, [%r5], 1; selp.b32 %a2, 1, 0, %p1;
  mbarrier.arrive_drop.shared.b64 %state, [%r5]; mbarrier.arrive.shared.b64 _, [%r5], 2; mbarrier.arrive.shared.b64 _, [%r5], 2;
  mbarrier.test_wait.parity.shared.b64 %p1, [%r5], 1; selp.b32 %a3, 1, 0, %p1; mbarrier.inval.shared.b64 [%r5];
  st.global.v4.u32 [%out], {%a0, %a1, %a2, %a3};)",
                             1);
  ASSERT_OK(r.status);
  // The drop lowered the fourth phase to two arrivals, so that it ended too.
  EXPECT_EQ(r.out, (std::vector<uint32_t>{0, 0, 1, 1}));
}

TEST(BarrierObjectTest, WarpsMeetByState) {
  const Result r = RunKernel(absl::StrCat(R"(
  mov.u32 %r5, bar; setp.eq.u32 %p1, %t, 0; @%p1 mbarrier.init.shared.b64 [%r5], 128; bar.sync 0;
  xor.b32 %r6, %s, 0x200; st.shared.v4.u32 [%r6], {%t, %t, %t, %t};
  mbarrier.arrive.shared::cta.b64 %state, [%r5];
WAIT: mbarrier.try_wait.shared.b64 %p2, [%r5], %state; @!%p2 bra WAIT;)",
                                          kStore),
                             128);
  ASSERT_OK(r.status);
  for (uint32_t t = 0; t < 128; ++t) ASSERT_EQ(r.out[4 * t], t ^ 32);
}

TEST(WideAtomicTest, ExchangeAndCompareOf128Bits) {
  const Result r = RunKernel(R"(
  mov.b128 %w0, {%rd1, %rd2};
  cvt.u64.u32 %rd1, %t; mov.u64 %rd2, 7; mov.b128 %w0, {%rd1, %rd2};
  ld.global.v2.u64 {%rd3, %rd4}, [%in]; mov.b128 %w1, {%rd3, %rd4};
  setp.eq.u32 %p1, %t, 3; @%p1 add.u64 %rd3, %rd3, 1; mov.b128 %w1, {%rd3, %rd4};
  atom.global.cas.b128 %w2, [%in], %w1, %w0; mov.b128 {%rd5, %rd6}, %w2; cvt.u32.u64 %r1, %rd5;
  atom.global.exch.b128 %w2, [%in], %w0; mov.b128 {%rd5, %rd6}, %w2; cvt.u32.u64 %r2, %rd5; cvt.u32.u64 %r3, %rd6;
  ld.global.u32 %r4, [%in]; st.global.v4.u32 [%out], {%r1, %r2, %r3, %r4};)",
                             32);
  ASSERT_OK(r.status);
  for (uint32_t t = 0; t < 32; ++t) {
    EXPECT_EQ(r.out[4 * t], 1000 + 4 * t);
    EXPECT_EQ(r.out[4 * t + 1], t == 3 ? 1000 + 4 * t : t);
    EXPECT_EQ(r.out[4 * t + 2], t == 3 ? 1002 + 4 * t : 7);
    EXPECT_EQ(r.out[4 * t + 3], t);
  }
}

TEST(WideAccessTest, LoadsAndStoresOf128Bits) {
  const Result r = RunKernel(R"(
  ld.global.b128 %w0, [%in]; mov.b128 {%rd3, %rd4}, %w0; add.u64 %rd4, %rd4, 5; mov.b128 %w1, {%rd4, %rd3};
  setp.ne.u32 %p1, %t, 3; @%p1 st.global.b128 [%out], %w1; @!%p1 ld.relaxed.gpu.global.b128 %w2, [%in];
  @!%p1 st.release.gpu.global.b128 [%out], %w2;)",
                             32);
  ASSERT_OK(r.status);
  for (uint32_t t = 0; t < 32; ++t) {
    const uint32_t first = 1000 + 4 * t;
    const std::vector<uint32_t> expected =
        t == 3 ? std::vector<uint32_t>{first, first + 1, first + 2, first + 3}
               : std::vector<uint32_t>{first + 7, first + 3, first, first + 1};
    EXPECT_EQ(std::vector<uint32_t>(r.out.begin() + 4 * t, r.out.begin() + 4 * t + 4), expected)
        << t;
  }
}

// One access for all lanes of a warp; each sees what those before it have added.
TEST(AtomicTest, LanesCountInOnePlace) {
  for (const char* place : {"shared", "global"}) {
    const Result r = RunKernel(absl::StrCat(
        R"(
  mov.u32 %r1, 0; setp.eq.u32 %p0, %t, 0; @%p0 st.shared.u32 [s], %r1; bar.sync 0;
  and.b32 %r2, %t, 3; setp.eq.u32 %p1, %r2, 1; mov.u32 %r3, 99;
  @%p1 atom.)",
        place, ".add.u32 %r3, [", absl::string_view(place) == "shared" ? "s" : "flag",
        R"(], 5; bar.sync 0;
  setp.gt.u32 %p2, %t, 200;
  @%p2 atom.shared.add.u32 %r3, [s+4096], 1;
  )",
        "ld.", place, ".u32 %r4, [", absl::string_view(place) == "shared" ? "s" : "flag",
        "]; st.global.v4.u32 [%out], {%r3, %r4, %r1, %r1};"));
    ASSERT_OK(r.status);
    std::vector<uint32_t> seen;
    for (uint32_t t = 0; t < 64; ++t) {
      EXPECT_EQ(r.out[4 * t + 1], 80u) << place;
      if (t % 4 != 1) {
        EXPECT_EQ(r.out[4 * t], 99u) << place << " " << t;
        continue;
      }
      if (t % 32 != 1) {
        EXPECT_EQ(r.out[4 * t], seen.back() + 5) << place << " " << t;
      }
      seen.push_back(r.out[4 * t]);
    }
    std::sort(seen.begin(), seen.end());
    for (uint32_t k = 0; k < seen.size(); ++k) EXPECT_EQ(seen[k], 5 * k) << place;
  }
}

// Each step of a scan is stored and read back; nothing may be kept in registers meanwhile.
TEST(OrderedAccessTest, VolatileSharedMemoryIsReadAgain) {
  const Result r = RunKernel(R"(
  shl.b32 %r1, %t, 2; mov.u32 %r2, s; add.u32 %r1, %r1, %r2;
  st.volatile.shared.u32 [%r1], %t; st.volatile.shared.u32 [%r1+256], %t; bar.sync 0;
  mov.u32 %r3, 1; mov.u32 %r6, 0;
loop:
  sub.u32 %r4, %r1, 4; setp.eq.u32 %p0, %t, 0; selp.b32 %r4, %r1, %r4, %p0;
  ld.volatile.shared.u32 %r5, [%r4]; bar.sync 0;
  st.volatile.shared.u32 [%r1], %r5; bar.sync 0;
  add.u32 %r3, %r3, 1; setp.le.u32 %p1, %r3, 10; @%p1 bra loop;
  ld.volatile.shared.v2.u32 {%r7, %r8}, [s+8]; ld.relaxed.cta.shared.u32 %r9, [%r1+256];
  st.global.v4.u32 [%out], {%r5, %r7, %r8, %r9};)");
  ASSERT_OK(r.status);
  for (uint32_t t = 0; t < 64; ++t) {
    EXPECT_EQ(r.out[4 * t], t < 10 ? 0 : t - 10) << t;
    EXPECT_EQ(r.out[4 * t + 1], 0u);
    EXPECT_EQ(r.out[4 * t + 2], 0u);
    EXPECT_EQ(r.out[4 * t + 3], t);
  }
}

TEST(WideAtomicTest, VectorsOfFloats) {
  const Result r = RunKernel(R"(
  .reg .f32 %f<5>; mov.f32 %f1, 0f3F800000; mov.f32 %f2, 0f40000000; ld.param.u64 %out, [out];
  mov.u32 %r1, 0; mov.u32 %r3, 0x3c003c00; setp.eq.u32 %p1, %t, 0; @%p1 st.global.v4.u32 [%out], {%r1, %r1, %r1, %r1}; bar.sync 0;
  atom.global.add.v2.f32 {%f3, %f4}, [%out], {%f1, %f2}; red.global.add.noftz.v2.f16x2 [%out+8], {%r3, %r3};)",
                             64);
  ASSERT_OK(r.status);
  EXPECT_EQ(r.out[0], 0x42800000u);  // 64
  EXPECT_EQ(r.out[1], 0x43000000u);  // 128
  EXPECT_EQ(r.out[2], 0x54005400u);  // 64, 64 as halves
  EXPECT_EQ(r.out[3], 0x54005400u);
}

TEST(SpecialTest, AddressSpaces) {
  const Result r = RunKernel(R"(
  .local .align 8 .b8 l[32]; mov.u64 %rd1, l; cvta.local.u64 %rd1, %rd1; mov.u64 %rd2, s; cvta.shared.u64 %rd2, %rd2;
  mov.u32 %r1, 0; mov.u32 %r2, 0; mov.u32 %r3, 0;
  isspacep.local %p1, %rd1; @%p1 or.b32 %r1, %r1, 1; isspacep.shared %p1, %rd1; @%p1 or.b32 %r1, %r1, 2; isspacep.global %p1, %rd1; @%p1 or.b32 %r1, %r1, 4;
  isspacep.local %p1, %rd2; @%p1 or.b32 %r2, %r2, 1; isspacep.shared::cta %p1, %rd2; @%p1 or.b32 %r2, %r2, 2; isspacep.global %p1, %rd2; @%p1 or.b32 %r2, %r2, 4;
  isspacep.local %p1, %in; @%p1 or.b32 %r3, %r3, 1; isspacep.shared %p1, %in; @%p1 or.b32 %r3, %r3, 2; isspacep.global %p1, %in; @%p1 or.b32 %r3, %r3, 4;
  mov.u64 %rd3, 12; isspacep.global %p1, %rd3; selp.b32 %r4, 1, 0, %p1;
  createpolicy.fractional.L2::evict_first.b64 %rd4, 0f3F800000; discard.global.L2 [%in], 128;
  st.global.v4.u32 [%out], {%r1, %r2, %r3, %r4};)",
                             40);
  ASSERT_OK(r.status);
  for (uint32_t t = 0; t < 40; ++t) {
    EXPECT_EQ((std::vector<uint32_t>(r.out.begin() + 4 * t, r.out.begin() + 4 * t + 4)),
              (std::vector<uint32_t>{1, 2, 4, 0}));
  }
}

TEST(SpecialTest, RegistersOfGridAndSharedMemory) {
  const Result r = RunKernel(R"(
  mov.u32 %r1, %reserved_smem_offset_1; st.shared.u32 [%r1+1020], %t; mov.u32 %r2, %total_smem_size;
  mov.u32 %r3, %smid; mov.u32 %r4, %nsmid; setp.lt.u32 %p1, %r3, %r4; selp.b32 %r3, 1, 0, %p1;
  mov.u32 %r4, %cluster_nctarank; mov.u32 %r5, %cluster_ctaid.x; add.u32 %r4, %r4, %r5;
  st.global.v4.u32 [%out], {%r1, %r2, %r3, %r4};)",
                             1);
  ASSERT_OK(r.status);
  EXPECT_GE(r.out[0], 8192u);
  EXPECT_EQ(r.out[1], 8192u);
  EXPECT_EQ(r.out[2], 1u);
  EXPECT_EQ(r.out[3], 1u);
}

TEST(SpecialTest, GridsSynchroniseOnTheirWorkspace) {
  // What cooperative groups do: a counter whose top bit flips when the last block has come.
  const Result r = RunKernel(R"(
  mov.u32 %r1, %envreg1; mov.u32 %r2, %envreg2; mov.b64 %rd1, {%r2, %r1}; setp.ne.u32 %p1, %t, 0;
  bar.sync 0; @%p1 bra JOIN; mov.u32 %r3, %ctaid.x; mov.u32 %r4, %nctaid.x; sub.u32 %r5, 0x80000001, %r4;
  setp.eq.u32 %p2, %r3, 0; selp.b32 %r5, %r5, 1, %p2; atom.global.add.u32 %r6, [flag], 1; membar.gl;
  atom.global.add.u32 %r6, [%rd1+4], %r5;
L: ld.volatile.global.u32 %r7, [%rd1+4]; xor.b32 %r7, %r7, %r6; and.b32 %r7, %r7, 0x80000000; setp.eq.u32 %p3, %r7, 0; @%p3 bra L;
JOIN: bar.sync 0; ld.volatile.global.u32 %r8, [flag]; min.u32 %r8, %r8, 24; atom.global.min.u32 %r9, [%out], %r8;)",
                             64, {24}, true);
  ASSERT_OK(r.status);
  for (uint32_t t = 0; t < 64; ++t) ASSERT_EQ(r.out[4 * t], 24u);
}

}  // namespace
}  // namespace fargpu::softgpu
