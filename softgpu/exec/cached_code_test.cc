// That launches use the code cache: what is stored, when it is found, and that damage does no harm.
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "softgpu/exec/testing/ptx_runner.h"

namespace fargpu::softgpu {
namespace {

namespace fs = std::filesystem;

// The process has one cache, whose place is read from the environment at the first launch.
const std::string& Folder() {
  static const std::string* const folder = [] {
    std::string name = testing::TempDir() + "/cached_code.XXXXXX";
    if (mkdtemp(name.data()) == nullptr) std::abort();
    setenv("FARGPU_CACHE_DIR", name.c_str(), 1);
    unsetenv("FARGPU_CACHE_BYTES");
    return new std::string(name + "/softgpu");
  }();
  return *folder;
}

std::string StoreKernel(int value) {
  return absl::StrCat(R"(.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 out)
{
  .reg .u64 %rd<4>;
  .reg .u32 %r<4>;
  .local .align 4 .b8 depot[64];
  ld.param.u64 %rd1, [out];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd2, %r1, 4;
  add.u64 %rd1, %rd1, %rd2;
  mov.u32 %r2, )",
                      value, R"(;
  st.local.u32 [depot], %r2;
  ld.local.u32 %r3, [depot];
  add.u32 %r3, %r3, %r1;
  st.global.u32 [%rd1], %r3;
  ret;
}
)");
}

class CachedCodeTest : public testing::Test {
 protected:
  CachedCodeTest() { fs::remove_all(Folder()); }
  ~CachedCodeTest() override { fs::remove_all(fs::path(Folder()).parent_path()); }

  // A new program, as another process would have it.
  static void Run(int value, uint32_t threads) {
    auto runner = PtxRunner::Load({StoreKernel(value)});
    ASSERT_TRUE(runner.ok()) << runner.status();
    DeviceBuffer<uint32_t> out(threads);
    ASSERT_TRUE((*runner)->Run("k", {1, 1, 1}, {threads, 1, 1}, 0, out.address()).ok());
    for (uint32_t k = 0; k < threads; ++k) EXPECT_EQ(out[k], value + k);
  }
  static std::vector<fs::path> Files() {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(Folder())) files.push_back(entry.path());
    return files;
  }
};

TEST_F(CachedCodeTest, ASecondProgramUsesTheFile) {
  Run(5, 64);
  ASSERT_EQ(Files().size(), 1u);
  const fs::path file = Files()[0];
  const auto old = fs::file_time_type::clock::now() - std::chrono::hours(1);
  fs::last_write_time(file, old);
  Run(5, 64);
  ASSERT_EQ(Files().size(), 1u);
  EXPECT_GT(fs::last_write_time(file), old) << "a hit notes that the file was used";
}

TEST_F(CachedCodeTest, TextAndBlockShapeArePartOfTheKey) {
  Run(5, 64);
  Run(6, 64);
  EXPECT_EQ(Files().size(), 2u);
  Run(5, 96);
  EXPECT_EQ(Files().size(), 3u);
}

TEST_F(CachedCodeTest, ADamagedFileIsCompiledAgain) {
  Run(5, 64);
  ASSERT_EQ(Files().size(), 1u);
  const auto size = fs::file_size(Files()[0]);
  fs::resize_file(Files()[0], size / 2);
  Run(5, 64);
  ASSERT_EQ(Files().size(), 1u);
  EXPECT_EQ(fs::file_size(Files()[0]), size);
}

// Each thread counts to `rounds`.
constexpr char kCountKernel[] = R"(.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 out, .param .u32 rounds)
{
  .reg .u64 %rd<4>;
  .reg .u32 %r<6>;
  .reg .pred %p;
  ld.param.u64 %rd1, [out];
  ld.param.u32 %r1, [rounds];
  mov.u32 %r2, %tid.x;
  mul.wide.u32 %rd2, %r2, 4;
  add.u64 %rd1, %rd1, %rd2;
  mov.u32 %r3, 0;
loop:
  st.volatile.global.u32 [%rd1], %r3;
  add.u32 %r3, %r3, 1;
  setp.lt.u32 %p, %r3, %r1;
  @%p bra loop;
  st.global.u32 [%rd1], %r3;
  ret;
}
)";

TEST_F(CachedCodeTest, AKernelThatRunsLongIsCompiledInFull) {
  auto runner = PtxRunner::Load({kCountKernel});
  ASSERT_TRUE(runner.ok()) << runner.status();
  DeviceBuffer<uint32_t> out(32);
  const auto run = [&](uint32_t rounds) {
    ASSERT_TRUE((*runner)->Run("k", {1, 1, 1}, {32, 1, 1}, 0, out.address(), rounds).ok());
    for (uint32_t k = 0; k < 32; ++k) ASSERT_EQ(out[k], rounds);
  };
  run(1);
  EXPECT_EQ(Files().size(), 1u);
  for (int launches = 0; launches < 1000 && Files().size() < 2; ++launches) run(1 << 16);
  EXPECT_EQ(Files().size(), 2u) << "one file for each effort";
  // Another program starts with the better code.
  runner = PtxRunner::Load({kCountKernel});
  ASSERT_TRUE(runner.ok()) << runner.status();
  const auto old = fs::file_time_type::clock::now() - std::chrono::hours(1);
  for (const fs::path& file : Files()) fs::last_write_time(file, old);
  run(1);
  int used = 0;
  for (const fs::path& file : Files()) used += fs::last_write_time(file) > old;
  EXPECT_EQ(used, 1);
}

// `sections` branches that differ between lanes, with registers that all sections use.
std::string BranchingKernel(int sections) {
  std::string text = R"(.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 out)
{
  .reg .u64 %rd<4>;
  .reg .u32 %r<20>;
  .reg .b16 %h<4>;
  .reg .pred %p;
  ld.param.u64 %rd1, [out];
  mov.u32 %r1, %tid.x;
  mul.wide.u32 %rd2, %r1, 4;
  add.u64 %rd1, %rd1, %rd2;
  mov.u32 %r0, 1;
)";
  for (int k = 0; k < sections; ++k) {
    const int a = k % 8 + 2;
    const int b = (k + 3) % 8 + 2;
    absl::StrAppend(&text, "  setp.gt.u32 %p, %r1, ", k % 32, ";\n  @%p bra L", k, ";\n");
    absl::StrAppend(&text, "  mad.lo.u32 %r", a, ", %r", b, ", 3, %r1;\n");
    absl::StrAppend(&text, "  fma.rn.f16x2 %r", b, ", %r", a, ", %r", b, ", %r1;\n");
    absl::StrAppend(&text, "L", k, ":\n  add.u32 %r0, %r0, %r", a, ";\n");
  }
  absl::StrAppend(&text, "  st.global.u32 [%rd1], %r0;\n  ret;\n}\n");
  return text;
}

TEST_F(CachedCodeTest, TenTimesTheKernelIsTenTimesTheCode) {
  uintmax_t bytes[2] = {};
  DeviceBuffer<uint32_t> out(32);
  for (int k = 0; k < 2; ++k) {
    fs::remove_all(Folder());
    auto runner = PtxRunner::Load({BranchingKernel(k == 0 ? 60 : 600)});
    ASSERT_TRUE(runner.ok()) << runner.status();
    ASSERT_TRUE((*runner)->Run("k", {1, 1, 1}, {32, 1, 1}, 0, out.address()).ok());
    ASSERT_EQ(Files().size(), 1u);
    bytes[k] = fs::file_size(Files()[0]);
  }
  EXPECT_LT(bytes[1], 13 * bytes[0]);
  EXPECT_LT(bytes[1], 3000u * 400u) << "bytes for 3,000 instructions";
}

}  // namespace
}  // namespace fargpu::softgpu
