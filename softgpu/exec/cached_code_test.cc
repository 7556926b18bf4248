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

}  // namespace
}  // namespace fargpu::softgpu
