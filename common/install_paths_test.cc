#include "common/install_paths.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/status_matchers.h"

namespace fargpu {
namespace {

using ::testing::HasSubstr;

TEST(InstallPathsTest, FindsBothLayoutsAndNamesWhereItLooked) {
  std::string pattern = testing::TempDir() + "install_paths_test_XXXXXX";
  const std::filesystem::path root = mkdtemp(pattern.data());
  const std::string bin = (root / "bin").string();
  const auto missing = ClientLibraryDirFrom(bin);
  EXPECT_THAT(missing, StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(std::string(missing.status().message()),
              HasSubstr((root / "lib/fargpu/client").string()));
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr((root / "client").string()));

  for (const char* folder : {"client", "softgpu", "lib/fargpu/client", "lib/fargpu/softgpu"}) {
    std::filesystem::create_directories(root / folder);
    std::ofstream(root / folder / "libcuda.so.1") << "x";
    if (std::string(folder) == "softgpu") {
      EXPECT_EQ(ClientLibraryDirFrom(bin).value(), (root / "client").string());
      EXPECT_EQ(SoftgpuLibraryPathFrom(bin).value(), (root / "softgpu/libcuda.so.1").string());
    }
  }
  EXPECT_EQ(ClientLibraryDirFrom(bin).value(), (root / "lib/fargpu/client").string());
  EXPECT_EQ(SoftgpuLibraryPathFrom(bin).value(),
            (root / "lib/fargpu/softgpu/libcuda.so.1").string());
  std::filesystem::remove_all(root);
}

TEST(InstallPathsTest, FindsProgramsBesideThisOne) {
  ASSERT_OK_AND_ASSIGN(const std::string self, ProgramPath("common_install_paths_test"));
  EXPECT_EQ(std::filesystem::canonical("/proc/self/exe").string(), self);
  EXPECT_THAT(ProgramPath("no-such-program"), StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace fargpu
