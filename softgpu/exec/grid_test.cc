// Grids of kernels whose warps do not wait for each other: one call of compiled code runs many
// blocks, and every thread must still see its own indices.
#include <cuda.h>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/cuda_error.h"
#include "softgpu/exec/testing/ptx_runner.h"

namespace fargpu::softgpu {
namespace {

constexpr char kHeader[] = ".version 8.0\n.target sm_80\n.address_size 64\n";

// Counts at out[global thread index] and leaves ctaid.x + 100 ctaid.y + 10000 ctaid.z in it.
constexpr char kIndices[] = R"(
.visible .entry k(.param .u64 out)
{
  .reg .u64 %rd<4>;
  .reg .u32 %r<16>;
  ld.param.u64 %rd1, [out];
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ctaid.y;
  mov.u32 %r3, %ctaid.z;
  mov.u32 %r4, %nctaid.x;
  mov.u32 %r5, %nctaid.y;
  mad.lo.u32 %r6, %r3, %r5, %r2;
  mad.lo.u32 %r6, %r6, %r4, %r1;
  mov.u32 %r7, %ntid.x;
  mov.u32 %r8, %ntid.y;
  mov.u32 %r9, %tid.x;
  mov.u32 %r10, %tid.y;
  mad.lo.u32 %r11, %r10, %r7, %r9;
  mul.lo.u32 %r12, %r7, %r8;
  mad.lo.u32 %r13, %r6, %r12, %r11;
  mul.wide.u32 %rd2, %r13, 4;
  add.u64 %rd1, %rd1, %rd2;
  mad.lo.u32 %r14, %r2, 100, %r1;
  mad.lo.u32 %r14, %r3, 10000, %r14;
  red.global.add.u32 [%rd1], %r14;
  red.global.add.u32 [%rd1], 1000000;
  ret;
}
)";

void CheckIndices(PtxRunner* runner, Dim3 grid, Dim3 block) {
  const size_t threads = size_t{block.x} * block.y;
  const size_t blocks = size_t{grid.x} * grid.y * grid.z;
  DeviceBuffer<uint32_t> out(threads * blocks + 64, 0);
  const absl::Status status = runner->Run("k", grid, block, 0, out.address());
  ASSERT_TRUE(status.ok()) << status;
  size_t at = 0;
  for (uint32_t z = 0; z < grid.z; ++z) {
    for (uint32_t y = 0; y < grid.y; ++y) {
      for (uint32_t x = 0; x < grid.x; ++x) {
        for (size_t t = 0; t < threads; ++t, ++at) {
          ASSERT_EQ(out[at], 1000000 + x + 100 * y + 10000 * z) << at;
        }
      }
    }
  }
  for (; at < out.size(); ++at) ASSERT_EQ(out[at], 0u) << "behind the last thread";
}

TEST(GridTest, EveryThreadRunsOnceAndKnowsItsPlace) {
  auto runner = PtxRunner::Load({std::string(kHeader) + kIndices});
  ASSERT_TRUE(runner.ok()) << runner.status();
  CheckIndices(runner->get(), {1, 1, 1}, {1, 1, 1});
  CheckIndices(runner->get(), {7, 5, 3}, {37, 1, 1});
  CheckIndices(runner->get(), {1, 9, 4}, {64, 1, 1});
  CheckIndices(runner->get(), {3, 1, 50}, {5, 7, 1});
  CheckIndices(runner->get(), {90, 80, 1}, {33, 3, 1});
  // From the ninth shape on the code is for any shape.
  for (uint32_t x = 1; x < 100; x += 9) CheckIndices(runner->get(), {5, 4, 3}, {x, 2, 1});
  (*runner)->cooperative = true;
  CheckIndices(runner->get(), {20, 3, 1}, {40, 1, 1});
}

TEST(GridTest, AFaultStopsTheGridAndNamesTheBlock) {
  auto runner = PtxRunner::Load({std::string(kHeader) + R"(
.visible .entry k(.param .u64 out)
{
  .reg .u64 %rd<4>;
  .reg .u32 %r<4>;
  .reg .pred %p;
  ld.param.u64 %rd1, [out];
  mov.u32 %r1, %ctaid.y;
  setp.ne.u32 %p, %r1, 77;
  @%p bra done;
  mov.u64 %rd1, 24;
done:
  st.global.u32 [%rd1], %r1;
  ret;
}
)"});
  ASSERT_TRUE(runner.ok()) << runner.status();
  DeviceBuffer<uint32_t> out(1, 0);
  const absl::Status status = (*runner)->Run("k", {2, 1000, 1}, {64, 1, 1}, 0, out.address());
  EXPECT_EQ(ToCuResult(status), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_THAT(std::string(status.message()), testing::ContainsRegex("block \\([01], 77, 0\\)"));
  EXPECT_TRUE((*runner)->Run("k", {2, 50, 1}, {64, 1, 1}, 0, out.address()).ok())
      << "the program goes on";
}

TEST(GridTest, UnmappedMemoryFaultsTheSameWay) {
  auto runner = PtxRunner::Load({std::string(kHeader) + kIndices});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const AddressWindow window = DeviceWindow();
  const absl::Status status =
      (*runner)->Run("k", {4, 4, 1}, {64, 1, 1}, 0, window.base + window.size - (1 << 20));
  EXPECT_EQ(ToCuResult(status), CUDA_ERROR_ILLEGAL_ADDRESS);
}

}  // namespace
}  // namespace fargpu::softgpu
