// Kernels whose blocks form clusters.
#include "softgpu/driver/ptx_test.h"

namespace fargpu::softgpu {
namespace {

std::string Kernel(const std::string& code, const std::string& directives = "") {
  return absl::StrCat(".visible .entry k(.param .u64 memory) ", directives, R"( {
  .reg .b32 %t, %b, %n, %i, %c, %s, %r<30>; .reg .b16 %h<4>; .reg .b64 %o, %rd<20>; .reg .pred %p<10>; .reg .f32 %f<4>;
  .shared .align 128 .b32 words[256]; .shared .align 8 .b64 object;
  mov.u32 %t, %tid.x; mov.u32 %b, %ctaid.x; mov.u32 %n, %ntid.x; mad.lo.u32 %i, %b, %n, %t;
  mov.u32 %c, %cluster_ctarank; mov.u32 %s, %cluster_nctarank;
  ld.param.u64 %rd0, [memory]; mul.wide.u32 %o, %i, 4; add.u64 %o, %rd0, %o;
  )",
                      code, "\n  ret; }");
}

class ClusterTest : public PtxTest {
 protected:
  // The words that the threads of `grid` blocks of `block` threads, in clusters of `cluster`,
  // write.
  std::vector<uint32_t> Run(const std::string& code, Dim3 grid, unsigned block, Dim3 cluster) {
    const CUfunction function = LoadPtx(Kernel(code));
    const size_t count = size_t{grid.x} * grid.y * grid.z * block;
    CUdeviceptr memory = Upload(std::vector<uint32_t>(count));
    CUlaunchAttribute attribute = {};
    attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attribute.value.clusterDim = {cluster.x, cluster.y, cluster.z};
    CUlaunchConfig config = {};
    config.gridDimX = grid.x;
    config.gridDimY = grid.y;
    config.gridDimZ = grid.z;
    config.blockDimX = block;
    config.blockDimY = config.blockDimZ = 1;
    config.attrs = &attribute;
    config.numAttrs = 1;
    void* params[] = {&memory};
    EXPECT_SUCCESS(
        cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1));
    EXPECT_SUCCESS(cuLaunchKernelEx(&config, function, params, nullptr));
    EXPECT_SUCCESS(cuCtxSynchronize());
    return Download<uint32_t>(memory, count);
  }
};

TEST_F(ClusterTest, BlocksKnowTheirPlace) {
  const std::string code = R"(
  mov.u32 %r1, %ctaid.y; mov.u32 %r2, %nctaid.x; mad.lo.u32 %b, %r1, %r2, %b; mul.wide.u32 %rd1, %b, 4; add.u64 %o, %rd0, %rd1;
  mov.u32 %r3, %clusterid.x; mov.u32 %r4, %clusterid.y; mov.u32 %r5, %nclusterid.x; mov.u32 %r6, %cluster_ctaid.x; mov.u32 %r7, %cluster_ctaid.y;
  mov.u32 %r8, %cluster_nctaid.y; mov.pred %p1, %is_explicit_cluster; selp.u32 %r9, 1, 0, %p1;
  shl.b32 %r10, %r3, 4; or.b32 %r10, %r10, %r4; shl.b32 %r10, %r10, 4; or.b32 %r10, %r10, %r5; shl.b32 %r10, %r10, 4; or.b32 %r10, %r10, %r6;
  shl.b32 %r10, %r10, 4; or.b32 %r10, %r10, %r7; shl.b32 %r10, %r10, 4; or.b32 %r10, %r10, %r8; shl.b32 %r10, %r10, 4; or.b32 %r10, %r10, %r9;
  shl.b32 %r10, %r10, 4; or.b32 %r10, %r10, %c; st.global.u32 [%o], %r10;)";
  // Alone, and where blocks wait for each other: then they run cluster by cluster.
  for (const char* more : {"", "barrier.cluster.arrive; barrier.cluster.wait;"}) {
    const std::vector<uint32_t> got = Run(more + code, {6, 4, 1}, 1, {2, 2, 1});
    for (uint32_t y = 0; y < 4; ++y) {
      for (uint32_t x = 0; x < 6; ++x) {
        const uint32_t expected = (x / 2) << 28 | (y / 2) << 24 | 3 << 20 | (x % 2) << 16 |
                                  (y % 2) << 12 | 2 << 8 | 1 << 4 | (x % 2 + y % 2 * 2);
        EXPECT_EQ(got[y * 6 + x], expected) << x << ", " << y;
      }
    }
  }
}

// Each block fills words[t] with 1000 * block + t, all wait, each thread reads the word of the next
// block of the cluster.
constexpr char kExchange[] = R"(
  mul.lo.u32 %r1, %b, 1000; add.u32 %r1, %r1, %t; shl.b32 %r2, %t, 2; mov.u32 %r3, words; add.u32 %r3, %r3, %r2; st.shared.u32 [%r3], %r1;
  barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;
  add.u32 %r4, %c, 1; rem.u32 %r4, %r4, %s; )";

TEST_F(ClusterTest, SharedMemoryOfOtherBlocks) {
  const char* reads[] = {
      "mapa.shared::cluster.u32 %r5, %r3, %r4; ld.shared::cluster.u32 %r6, [%r5];",
      "mapa.shared::cluster.u32 %r5, words, %r4; add.u32 %r5, %r5, %r2; ld.shared::cluster.u32 "
      "%r6, [%r5+0];",
      // As generic addresses.
      "cvt.u64.u32 %rd1, %r3; cvta.shared.u64 %rd1, %rd1; mapa.u64 %rd2, %rd1, %r4; ld.u32 %r6, "
      "[%rd2];",
      "mapa.shared::cluster.u32 %r5, %r3, %r4; cvt.u64.u32 %rd1, %r5; cvta.shared::cluster.u64 "
      "%rd1, %rd1; ld.relaxed.cluster.u32 %r6, [%rd1];",
      // There and back.
      "cvt.u64.u32 %rd1, %r3; cvta.shared.u64 %rd1, %rd1; mapa.u64 %rd2, %rd1, %r4; "
      "cvta.to.shared::cluster.u64 %rd3, %rd2; "
      "ld.shared::cluster.u32 %r6, [%rd3];",
      // Its rank, twice.
      "mapa.shared::cluster.u32 %r5, %r3, %r4; getctarank.shared::cluster.u32 %r7, %r5; "
      "setp.ne.u32 %p1, %r7, %r4; @%p1 trap; "
      "cvt.u64.u32 %rd1, %r3; cvta.shared.u64 %rd1, %rd1; mapa.u64 %rd2, %rd1, %r4; getctarank.u64 "
      "%r7, %rd2; setp.ne.u32 %p1, %r7, %r4; @%p1 trap; "
      "isspacep.shared::cluster %p2, %rd2; @!%p2 trap; isspacep.shared %p3, %rd2; setp.eq.u32 %p4, "
      "%r4, %c; xor.pred %p5, %p3, %p4; @%p5 trap; "
      "ld.shared::cluster.u32 %r6, [%r5];",
  };
  for (const char* read : reads) {
    for (const uint32_t size : {1u, 2u, 4u, 16u}) {
      const std::vector<uint32_t> got = Run(
          absl::StrCat(kExchange, read,
                       "st.global.u32 [%o], %r6; barrier.cluster.arrive; barrier.cluster.wait;"),
          {32, 1, 1}, 64, {size, 1, 1});
      for (uint32_t i = 0; i < got.size(); ++i) {
        const uint32_t block = i / 64;
        const uint32_t next = block / size * size + (block + 1) % size;
        ASSERT_EQ(got[i], 1000 * next + i % 64) << read << ", clusters of " << size << ", " << i;
      }
    }
  }
}

TEST_F(ClusterTest, StoresAtomicsAndBarrierObjects) {
  // Every thread of every block adds into words[t] of block 0, and announces that to the barrier
  // object there; block 0 waits for all.
  const std::vector<uint32_t> got = Run(R"(
  shl.b32 %r2, %t, 2; mov.u32 %r3, words; add.u32 %r3, %r3, %r2; st.shared.u32 [%r3], 0; mul.lo.u32 %r8, %s, %n;
  setp.eq.u32 %p1, %t, 0; @%p1 mbarrier.init.shared::cta.b64 [object], %r8;
  barrier.cluster.arrive; barrier.cluster.wait;
  mapa.shared::cluster.u32 %r4, %r3, 0; mapa.shared::cluster.u32 %r5, object, 0;
  add.u32 %r6, %c, 1; atom.shared::cluster.add.u32 %r7, [%r4], %r6;
  mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r5];
  setp.ne.u32 %p2, %c, 0; @%p2 bra END;
WAIT: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [object], 0; @!%p3 bra WAIT;
  ld.shared.u32 %r9, [%r3]; st.global.u32 [%o], %r9;
END: barrier.cluster.arrive; barrier.cluster.wait;)",
                                        {8, 1, 1}, 96, {4, 1, 1});
  for (uint32_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i], i / 96 % 4 == 0 ? 1u + 2 + 3 + 4 : 0) << i;
  }
}

TEST_F(ClusterTest, AsynchronousStores) {
  // Each thread sends two words to the next block, which waits for their bytes.
  const std::vector<uint32_t> got = Run(R"(
  shl.b32 %r2, %t, 3; mov.u32 %r3, words; add.u32 %r3, %r3, %r2; setp.eq.u32 %p1, %t, 0;
  st.shared.u32 [%r3], 0; st.shared.u32 [%r3+4], 7;
  @%p1 mbarrier.init.shared::cta.b64 [object], 1; shl.b32 %r8, %n, 3; shl.b32 %r9, %n, 2; add.u32 %r8, %r8, %r9;
  @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [object], %r8;
  barrier.cluster.arrive; barrier.cluster.wait;
  add.u32 %r4, %c, 1; rem.u32 %r4, %r4, %s; mapa.shared::cluster.u32 %r5, %r3, %r4; mapa.shared::cluster.u32 %r6, object, %r4;
  st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [%r5], {%i, %b}, [%r6];
  red.async.relaxed.cluster.global.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r5], 1000, [%r6];
WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p3, [object], 0; @!%p3 bra WAIT;
  ld.shared.u32 %r10, [%r3]; ld.shared.u32 %r11, [%r3+4]; shl.b32 %r11, %r11, 16; add.u32 %r10, %r10, %r11; st.global.u32 [%o], %r10;
  barrier.cluster.arrive; barrier.cluster.wait;)",
                                        {4, 1, 1}, 64, {2, 1, 1});
  for (uint32_t i = 0; i < got.size(); ++i) {
    const uint32_t from = (i / 64) ^ 1;
    ASSERT_EQ(got[i], (from << 16) + from * 64 + i % 64 + 1000) << i;
  }
}

TEST_F(ClusterTest, CopiesToSeveralBlocks) {
  // Block 1 sends 64 bytes to blocks 0 and 2 of its cluster of four, at the same place in each.
  const std::vector<uint32_t> got = Run(R"(
  shl.b32 %r2, %t, 2; mov.u32 %r3, words; add.u32 %r3, %r3, %r2; setp.eq.u32 %p1, %t, 0; st.shared.u32 [%r3], 77; add.u32 %r1, %t, 500;
  st.global.u32 [%o], %r1; @%p1 mbarrier.init.shared::cta.b64 [object], 1; and.b32 %r5, %c, 1; setp.eq.u32 %p2, %r5, 0; and.pred %p3, %p1, %p2;
  @%p3 mbarrier.arrive.expect_tx.shared::cta.b64 _, [object], 64; membar.gl;
  barrier.cluster.arrive; barrier.cluster.wait;
  setp.eq.u32 %p4, %c, 1; and.pred %p5, %p1, %p4; mov.u16 %h1, 5;
  @%p5 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r3], [%o], 64, [object], %h1;
  @!%p2 bra END;
WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p6, [object], 0; @!%p6 bra WAIT;
END: ld.shared.u32 %r6, [%r3]; barrier.cluster.arrive; barrier.cluster.wait; st.global.u32 [%o], %r6;)",
                                        {4, 1, 1}, 32, {4, 1, 1});
  for (uint32_t i = 0; i < got.size(); ++i) {
    const bool sent = i / 32 % 2 == 0 && i % 32 < 16;
    ASSERT_EQ(got[i], sent ? 500 + i % 32 : 77) << i;
  }
}

TEST_F(ClusterTest, ThreadsThatEndedAreNotWaitedFor) {
  // The odd blocks end at once, and so do the second warps of the others.
  const std::vector<uint32_t> got = Run(R"(
  and.b32 %r1, %c, 1; setp.ne.u32 %p1, %r1, 0; setp.ge.u32 %p2, %t, 32; or.pred %p3, %p1, %p2; @%p3 bra END;
  barrier.cluster.arrive; barrier.cluster.wait; barrier.cluster.arrive; barrier.cluster.wait; st.global.u32 [%o], 3;
END:)",
                                        {8, 1, 1}, 64, {4, 1, 1});
  for (uint32_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i], i / 64 % 2 == 0 && i % 64 < 32 ? 3u : 0u) << i;
  }
}

TEST_F(ClusterTest, OutsideOfTheCluster) {
  for (const char* access :
       {"mapa.shared::cluster.u32 %r5, words, 2; ld.shared::cluster.u32 %r6, [%r5];",
        "mapa.shared::cluster.u32 %r5, words, 1; ld.shared::cluster.u32 %r6, [%r5+8192];",
        "mapa.shared::cluster.u32 %r5, object, 3; mbarrier.arrive.shared::cluster.b64 _, [%r5];"}) {
    CUdeviceptr memory = Upload(std::vector<uint32_t>(64));
    void* params[] = {&memory};
    const CUfunction function = LoadPtx(Kernel(access, ".reqnctapercluster 2 .explicitcluster"));
    ASSERT_SUCCESS(cuLaunchKernel(function, 2, 1, 1, 32, 1, 1, 0, nullptr, params, nullptr));
    EXPECT_CU(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize()) << access;
    StartAnew();
  }
}

TEST_F(ClusterTest, TheKernelSaysHowLargeClustersAre) {
  const CUfunction function =
      LoadPtx(Kernel("st.global.u32 [%o], %s;", ".explicitcluster .reqnctapercluster 4, 1, 1"));
  CUdeviceptr memory = Upload(std::vector<uint32_t>(8));
  void* params[] = {&memory};
  ASSERT_SUCCESS(cuLaunchKernel(function, 8, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr));
  ASSERT_SUCCESS(cuCtxSynchronize());
  EXPECT_EQ(Download<uint32_t>(memory, 8), std::vector<uint32_t>(8, 4));
  EXPECT_CU(CUDA_ERROR_INVALID_CLUSTER_SIZE,
            cuLaunchKernel(function, 6, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr));
}

TEST_F(ClusterTest, CooperativeGridsOfClusters) {
  const CUfunction function = LoadPtx(Kernel(absl::StrCat(kExchange, R"(
  mapa.shared::cluster.u32 %r5, %r3, %r4; ld.shared::cluster.u32 %r6, [%r5]; st.global.u32 [%o], %r6;
  barrier.cluster.arrive; barrier.cluster.wait;)"),
                                             ".reqnctapercluster 2"));
  CUdeviceptr memory = Upload(std::vector<uint32_t>(6 * 32));
  void* params[] = {&memory};
  ASSERT_SUCCESS(cuLaunchCooperativeKernel(function, 6, 1, 1, 32, 1, 1, 0, nullptr, params));
  ASSERT_SUCCESS(cuCtxSynchronize());
  const std::vector<uint32_t> got = Download<uint32_t>(memory, 6 * 32);
  for (uint32_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], 1000 * (i / 32 ^ 1) + i % 32);
}

}  // namespace
}  // namespace fargpu::softgpu
