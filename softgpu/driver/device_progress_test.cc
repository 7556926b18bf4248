// Threads that wait for each other: every kernel here ends on a card, and must end here.
#include <numeric>

#include "softgpu/driver/ptx_test.h"

namespace fargpu::softgpu {
namespace {

// k(memory, n): %o is `memory`, %i the thread's number over all blocks, below %n.
std::string Kernel(const std::string& code) {
  return absl::StrCat(R"(
.visible .entry k(.param .u64 memory, .param .u32 count) {
  .reg .b32 %t, %b, %i, %n, %d, %r<20>; .reg .b64 %o, %rd<20>; .reg .pred %p<10>;
  .shared .align 8 .u32 shared_word; .shared .align 8 .b64 shared_wide;
  mov.u32 %t, %tid.x; mov.u32 %b, %ctaid.x; mov.u32 %d, %ntid.x; mad.lo.u32 %i, %b, %d, %t;
  ld.param.u64 %o, [memory]; ld.param.u32 %n, [count]; setp.ge.u32 %p9, %i, %n; @%p9 bra END;
  )",
                      code, "\nEND: ret; }");
}

class ProgressTest : public PtxTest {
 protected:
  // The memory after `threads` threads have run `code`, in blocks of `block`.
  std::vector<uint32_t> Run(const std::string& code, unsigned threads, unsigned block,
                            std::vector<uint32_t> memory) {
    const CUfunction function = LoadPtx(Kernel(code));
    const CUdeviceptr address = Upload(memory);
    EXPECT_SUCCESS(PtxTest::Run(function, (threads + block - 1) / block, block, address, threads));
    EXPECT_SUCCESS(cuCtxSynchronize());
    return Download<uint32_t>(address, memory.size());
  }
};

constexpr unsigned kThreads[] = {32, 33, 1000, 20000, 100000};

TEST_F(ProgressTest, ALockThatAllThreadsTake) {
  for (const unsigned threads : kThreads) {
    EXPECT_EQ(Run(R"(
L: atom.acquire.gpu.global.cas.b32 %r1, [%o], 0, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra L;
  ld.global.u32 %r2, [%o+4]; add.u32 %r2, %r2, 1; st.global.u32 [%o+4], %r2;
  membar.gl; atom.release.gpu.global.exch.b32 %r3, [%o], 0;)",
                  threads, 256, {0, 0, 0, 0})[1],
              threads);
  }
}

TEST_F(ProgressTest, ALockByTicket) {
  // A thread waits for the one before it, wherever that is.
  for (const unsigned threads : kThreads) {
    EXPECT_EQ(Run(R"(
  atom.global.add.u32 %r1, [%o], 1;
L: ld.acquire.gpu.global.u32 %r2, [%o+8]; setp.ne.u32 %p1, %r1, %r2; @%p1 bra L;
  ld.volatile.global.u32 %r2, [%o+4]; add.u32 %r2, %r2, 1; st.volatile.global.u32 [%o+4], %r2;
  add.u32 %r1, %r1, 1; st.release.gpu.global.u32 [%o+8], %r1;)",
                  threads, 256, {0, 0, 0, 0})[1],
              threads);
  }
}

// A bounded queue of 64 cells {turn, value}: threads with even numbers put their number in, the
// others take one out and mark it. Head at 0, tail at 4, cells from 64 on, marks behind them.
constexpr char kQueue[] = R"(
  and.b32 %r1, %i, 1; setp.eq.u32 %p1, %r1, 1; add.u64 %rd1, %o, 64; @%p1 bra TAKE;
  atom.global.add.u32 %r2, [%o], 1; shr.u32 %r3, %r2, 6; shl.b32 %r3, %r3, 1; and.b32 %r4, %r2, 63;
  mul.wide.u32 %rd2, %r4, 8; add.u64 %rd1, %rd1, %rd2;
P: ld.acquire.gpu.global.u32 %r5, [%rd1]; setp.ne.u32 %p2, %r5, %r3; @%p2 bra P;
  st.relaxed.gpu.global.u32 [%rd1+4], %i; add.u32 %r3, %r3, 1; st.release.gpu.global.u32 [%rd1], %r3; bra END;
TAKE: atom.global.add.u32 %r2, [%o+4], 1; shr.u32 %r3, %r2, 6; shl.b32 %r3, %r3, 1; add.u32 %r3, %r3, 1; and.b32 %r4, %r2, 63;
  mul.wide.u32 %rd2, %r4, 8; add.u64 %rd1, %rd1, %rd2;
T: ld.acquire.gpu.global.u32 %r5, [%rd1]; setp.ne.u32 %p2, %r5, %r3; @%p2 bra T;
  ld.relaxed.gpu.global.u32 %r6, [%rd1+4]; add.u32 %r3, %r3, 1; st.release.gpu.global.u32 [%rd1], %r3;
  mul.wide.u32 %rd3, %r6, 4; add.u64 %rd3, %o, %rd3; red.global.add.u32 [%rd3+576], 1;)";

TEST_F(ProgressTest, AQueueBetweenAllThreads) {
  for (unsigned threads : kThreads) {
    threads &= ~1u;
    const std::vector<uint32_t> memory =
        Run(kQueue, threads, 256, std::vector<uint32_t>(144 + threads));
    for (unsigned i = 0; i < threads; i += 2)
      ASSERT_EQ(memory[144 + i], 1u) << i << " of " << threads;
  }
}

// A stack of nodes by compare and swap: every thread pushes its own node, then pops one. The word
// at 0 is {tag, node + 1}; links from 64 on, marks behind them.
constexpr char kStack[] = R"(
  mul.wide.u32 %rd1, %i, 4; add.u64 %rd1, %o, %rd1; ld.volatile.global.u64 %rd2, [%o]; add.u32 %r1, %i, 1;
PUSH: cvt.u32.u64 %r2, %rd2; st.volatile.global.u32 [%rd1+64], %r2; shr.u64 %rd3, %rd2, 32; add.u64 %rd3, %rd3, 1;
  shl.b64 %rd3, %rd3, 32; cvt.u64.u32 %rd4, %r1; or.b64 %rd3, %rd3, %rd4; membar.gl;
  atom.global.cas.b64 %rd5, [%o], %rd2, %rd3; setp.ne.u64 %p1, %rd5, %rd2; mov.u64 %rd2, %rd5; @%p1 bra PUSH;
  ld.volatile.global.u64 %rd2, [%o];
POP: cvt.u32.u64 %r2, %rd2; setp.eq.u32 %p2, %r2, 0; @%p2 trap; sub.u32 %r3, %r2, 1; mul.wide.u32 %rd6, %r3, 4; add.u64 %rd6, %o, %rd6;
  ld.volatile.global.u32 %r4, [%rd6+64]; shr.u64 %rd3, %rd2, 32; add.u64 %rd3, %rd3, 1; shl.b64 %rd3, %rd3, 32;
  cvt.u64.u32 %rd4, %r4; or.b64 %rd3, %rd3, %rd4;
  atom.global.cas.b64 %rd5, [%o], %rd2, %rd3; setp.ne.u64 %p1, %rd5, %rd2; mov.u64 %rd2, %rd5; @%p1 bra POP;
  mul.wide.u32 %rd7, %n, 4; add.u64 %rd6, %rd6, %rd7; red.global.add.u32 [%rd6+64], 1;)";

TEST_F(ProgressTest, AStackByCompareAndSwap) {
  for (const unsigned threads : kThreads) {
    const std::vector<uint32_t> memory =
        Run(kStack, threads, 128, std::vector<uint32_t>(16 + 2 * threads));
    for (unsigned i = 0; i < threads; ++i) ASSERT_EQ(memory[16 + threads + i], 1u) << i;
    EXPECT_EQ(memory[0], 0u);
  }
}

// The sum of what comes before a block, in one pass: blocks number themselves as they start,
// publish their own sum {1, sum}, look back until they meet {2, sum of all up to there}, and
// publish that of themselves. Counter at 0, status words from 64 on, results behind them.
constexpr char kLookBack[] = R"(
  setp.ne.u32 %p1, %t, 0; @%p1 bra REST;
  st.shared.u32 [shared_word], 0; atom.global.add.u32 %r1, [%o], 1; cvt.u64.u32 %rd9, %r1; st.shared.u64 [shared_wide], %rd9;
REST: bar.sync 0; ld.shared.u64 %rd9, [shared_wide]; cvt.u32.u64 %r1, %rd9; add.u32 %r2, %t, %r1; and.b32 %r2, %r2, 7;
  atom.shared.add.u32 %r3, [shared_word], %r2; bar.sync 0; @%p1 bra END;
  ld.shared.u32 %r4, [shared_word]; mul.wide.u32 %rd1, %r1, 8; add.u64 %rd1, %o, %rd1; add.u64 %rd1, %rd1, 64;
  cvt.u64.u32 %rd2, %r4; or.b64 %rd2, %rd2, 0x100000000; st.volatile.global.u64 [%rd1], %rd2;
  mov.u32 %r5, 0; mov.u64 %rd3, %rd1; mov.u32 %r6, %r1;
BACK: setp.eq.u32 %p2, %r6, 0; @%p2 bra DONE; sub.u32 %r6, %r6, 1; sub.u64 %rd3, %rd3, 8;
SPIN: ld.volatile.global.u64 %rd4, [%rd3]; shr.u64 %rd5, %rd4, 32; cvt.u32.u64 %r7, %rd5; setp.eq.u32 %p3, %r7, 0; @%p3 bra SPIN;
  cvt.u32.u64 %r8, %rd4; add.u32 %r5, %r5, %r8; setp.eq.u32 %p4, %r7, 1; @%p4 bra BACK;
DONE: add.u32 %r9, %r5, %r4; cvt.u64.u32 %rd2, %r9; or.b64 %rd2, %rd2, 0x200000000; st.volatile.global.u64 [%rd1], %rd2;
  mov.u32 %r10, %nctaid.x; mul.wide.u32 %rd6, %r10, 8; mul.wide.u32 %rd7, %r1, 4; add.u64 %rd6, %rd6, %rd7; add.u64 %rd6, %o, %rd6;
  st.global.u32 [%rd6+64], %r5;)";

TEST_F(ProgressTest, DecoupledLookBack) {
  for (const unsigned blocks : {1u, 2u, 37u, 800u}) {
    const unsigned block = 128;
    const std::vector<uint32_t> memory =
        Run(kLookBack, blocks * block, block, std::vector<uint32_t>(16 + 3 * blocks));
    uint32_t before = 0;
    for (unsigned b = 0; b < blocks; ++b) {
      ASSERT_EQ(memory[16 + 2 * blocks + b], before) << b << " of " << blocks;
      for (unsigned t = 0; t < block; ++t) before += (t + b) & 7;
    }
  }
}

TEST_F(ProgressTest, LanesOfAWarpWaitForEachOther) {
  // Each lane waits for the one above it, then for the one below.
  for (const char* code : {R"(
  mul.wide.u32 %rd1, %t, 4; add.u64 %rd1, %o, %rd1; setp.eq.u32 %p1, %t, 31; @%p1 bra GO;
L: ld.volatile.global.u32 %r1, [%rd1+4]; setp.eq.u32 %p2, %r1, 0; @%p2 bra L;
GO: mov.u32 %r1, 1; st.volatile.global.u32 [%rd1], %r1;)",
                           R"(
  mul.wide.u32 %rd1, %t, 4; add.u64 %rd1, %o, %rd1; setp.eq.u32 %p1, %t, 0; @%p1 bra GO;
L: ld.volatile.global.u32 %r1, [%rd1+-4]; setp.eq.u32 %p2, %r1, 0; @%p2 bra L;
GO: mov.u32 %r1, 1; st.volatile.global.u32 [%rd1], %r1;)"}) {
    const std::vector<uint32_t> memory = Run(code, 32, 32, std::vector<uint32_t>(32));
    EXPECT_EQ(std::accumulate(memory.begin(), memory.end(), 0u), 32u) << code;
  }
}

TEST_F(ProgressTest, WarpsAndBlocksWaitForEachOther) {
  // The last warp, or block, goes first.
  for (const unsigned block : {1024u, 32u}) {
    const std::vector<uint32_t> memory = Run(R"(
  shr.u32 %r9, %i, 5; shr.u32 %r8, %n, 5; mul.wide.u32 %rd1, %r9, 4; add.u64 %rd1, %o, %rd1; add.u32 %r7, %r9, 1;
  setp.eq.u32 %p1, %r7, %r8; @%p1 bra GO;
L: ld.acquire.gpu.global.u32 %r1, [%rd1+4]; setp.eq.u32 %p2, %r1, 0; @%p2 bra L;
GO: mov.u32 %r1, 1; st.release.gpu.global.u32 [%rd1], %r1;)",
                                             1024, block, std::vector<uint32_t>(32));
    EXPECT_EQ(std::accumulate(memory.begin(), memory.end(), 0u), 32u) << block;
  }
}

TEST_F(ProgressTest, StreamsRunAtTheSameTime) {
  // A kernel of one stream waits for what a kernel of another, launched later, writes.
  const CUdeviceptr memory = Upload(std::vector<uint32_t>(4));
  const CUfunction waits =
      LoadPtx(Kernel("L: ld.acquire.sys.global.u32 %r1, [%o]; setp.eq.u32 %p1, %r1, 0; @%p1 bra L; "
                     "st.global.u32 [%o+4], 1;"));
  const CUfunction writes = LoadPtx(Kernel("st.release.sys.global.u32 [%o], 1;"));
  CUstream streams[2] = {};
  for (CUstream& stream : streams) ASSERT_SUCCESS(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  unsigned threads = 32;
  CUdeviceptr address = memory;
  void* params[] = {&address, &threads};
  ASSERT_SUCCESS(cuLaunchKernel(waits, 1, 1, 1, 32, 1, 1, 0, streams[0], params, nullptr));
  ASSERT_SUCCESS(cuLaunchKernel(writes, 1, 1, 1, 32, 1, 1, 0, streams[1], params, nullptr));
  ASSERT_SUCCESS(cuCtxSynchronize());
  EXPECT_EQ(Download<uint32_t>(memory, 2), (std::vector<uint32_t>{1, 1}));
}

}  // namespace
}  // namespace fargpu::softgpu
