#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "softgpu/standins/nvrtc_options.h"
#include "softgpu/standins/real_library.h"

namespace fargpu::standins {
namespace {

using testing::Contains;
using testing::ElementsAre;

TEST(CompileForPtxTest, AsksForPtxInEveryWayOfWritingIt) {
  for (const char* const option : {"--gpu-architecture", "-arch"}) {
    const std::string name = option;
    EXPECT_THAT(CompileForPtx({name + "=sm_90a", "-I/x"}).options,
                ElementsAre(name + "=compute_90a", "-I/x"));
    EXPECT_TRUE(CompileForPtx({name + "=sm_90a"}).machine_code);
    EXPECT_THAT(CompileForPtx({"-G", name, "sm_100f"}).options,
                ElementsAre("-G", name, "compute_100f"));
    EXPECT_TRUE(CompileForPtx({name, "sm_100f"}).machine_code);
  }
}

TEST(CompileForPtxTest, LeavesOtherOptionsAlone) {
  for (const std::vector<std::string>& options :
       std::vector<std::vector<std::string>>{{},
                                             {"-arch=compute_90"},
                                             {"-arch"},
                                             {"-architecture=sm_90"},
                                             {"-DX=-arch=sm_90"},
                                             {"-arch=sm_90", "-dlto"},
                                             {"--dlink-time-opt", "--gpu-architecture=sm_90"}}) {
    const CompileOptions result = CompileForPtx(options);
    EXPECT_EQ(result.options, options);
    EXPECT_FALSE(result.machine_code);
  }
}

TEST(RealLibraryTest, LooksWhereTheUserSaysFirst) {
  const std::vector<std::string> folders = LibraryFolders("cuda_nvrtc", 13);
  ASSERT_FALSE(folders.empty());
  EXPECT_EQ(folders[0], FARGPU_FAKE_COMPILERS);
  EXPECT_THAT(folders, Contains("/usr/local/cuda/lib64"));
}

TEST(RealLibraryTest, LooksInVirtualEnvironmentsAndToolkits) {
  setenv("CUDA_HOME", "/some/toolkit/", 1);
  setenv("CONDA_PREFIX", "/some/conda", 1);
  const std::vector<std::string> folders = LibraryFolders("cuda_nvrtc", 13);
  EXPECT_THAT(folders, Contains("/some/toolkit//lib64"));
  EXPECT_THAT(folders, Contains("/some/conda/lib"));
  unsetenv("CUDA_HOME");
  unsetenv("CONDA_PREFIX");
}

TEST(RealLibraryTest, PassesOverStandIns) {
  EXPECT_EQ(LoadRealLibrary("libnvrtc.so.12", "cuda_nvrtc", 99), nullptr)
      << "only the stand-in's folder and places without CUDA 99 hold libnvrtc.so.12";
  EXPECT_EQ(LoadRealLibrary("libnothing.so.1", "nothing", 13), nullptr);
}

class StandIn {
 public:
  explicit StandIn(const char* name)
      : library_(dlopen((std::string(FARGPU_STANDINS) + "/" + name).c_str(), RTLD_NOW)) {
    EXPECT_NE(library_, nullptr) << dlerror();
  }
  template <typename Function>
  Function* Get(const char* name) const {
    void* const function = library_ == nullptr ? nullptr : dlsym(library_, name);
    EXPECT_NE(function, nullptr) << name;
    return reinterpret_cast<Function*>(function);
  }

 private:
  void* const library_;
};

class NvrtcTest : public testing::Test {
 protected:
  void SetUp() override {
    const char* const contents = "contents";
    const char* const names = "header";
    ASSERT_EQ(nvrtc_.Get<int(void**, const char*, const char*, int, const char* const*,
                             const char* const*)>("nvrtcCreateProgram")(&program_, "source", "name",
                                                                        1, &contents, &names),
              0);
  }
  void TearDown() override {
    EXPECT_EQ(nvrtc_.Get<int(void**)>("nvrtcDestroyProgram")(&program_), 0);
  }
  int Compile(std::vector<const char*> options) {
    return nvrtc_.Get<int(void*, int, const char* const*)>("nvrtcCompileProgram")(
        program_, static_cast<int>(options.size()), options.data());
  }
  std::string Code() {
    size_t size = 0;
    EXPECT_EQ(nvrtc_.Get<int(void*, size_t*)>("nvrtcGetCUBINSize")(program_, &size), 0);
    std::string code(size, '?');
    EXPECT_EQ(nvrtc_.Get<int(void*, char*)>("nvrtcGetCUBIN")(program_, code.data()), 0);
    EXPECT_EQ(code.back(), '\0');
    code.pop_back();
    return code;
  }

  const StandIn nvrtc_{"libnvrtc.so.13"};
  void* program_ = nullptr;
};

TEST_F(NvrtcTest, GivesPtxForMachineCode) {
  ASSERT_EQ(Compile({"-arch=sm_90", "-G"}), 0);
  EXPECT_EQ(Code(), "ptx: -arch=compute_90 -G ");
  ASSERT_EQ(Compile({"-arch=compute_90"}), 0);
  EXPECT_EQ(Code(), "cubin: -arch=compute_90 ") << "what the program gets wrong stays wrong";
}

TEST_F(NvrtcTest, ForwardsErrorsAndWhatItDoesNotKnow) {
  EXPECT_EQ(Compile({"-arch=sm_90", "-bad"}), 5);
  EXPECT_STREQ(nvrtc_.Get<const char*(int)>("nvrtcGetErrorString")(5), "five");
  int version[2] = {0, 0};
  EXPECT_EQ(nvrtc_.Get<int(int*, int*)>("nvrtcVersion")(&version[0], &version[1]), 0);
  EXPECT_THAT(version, ElementsAre(13, 7));
  EXPECT_EQ(nvrtc_.Get<int(void*)>("nvrtcGetNVVM")(program_), 11)
      << "the real one has no such function";
}

TEST_F(NvrtcTest, FindsItsTargetsInManyThreadsAtOnce) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([this] {
      int version[2] = {0, 0};
      EXPECT_EQ(nvrtc_.Get<int(int*, int*)>("nvrtcVersion")(&version[0], &version[1]), 0);
      EXPECT_EQ(version[1], 7);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class NvJitLinkTest : public testing::Test {
 protected:
  void Create(std::vector<const char*> options) {
    ASSERT_EQ(link_.Get<int(void**, uint32_t, const char**)>("__nvJitLinkCreate_13_0")(
                  &handle_, static_cast<uint32_t>(options.size()), options.data()),
              0);
  }
  void TearDown() override {
    EXPECT_EQ(link_.Get<int(void**)>("__nvJitLinkDestroy_13_0")(&handle_), 0);
  }
  void Add(int type, const std::string& data) {
    ASSERT_EQ(link_.Get<int(void*, int, const void*, size_t, const char*)>(
                  "__nvJitLinkAddData_13_0")(handle_, type, data.data(), data.size(), "name"),
              0);
  }
  std::string Code() {
    EXPECT_EQ(link_.Get<int(void*)>("__nvJitLinkComplete_13_0")(handle_), 0);
    size_t size = 0;
    EXPECT_EQ(link_.Get<int(void*, size_t*)>("nvJitLinkGetLinkedCubinSize")(handle_, &size), 0);
    std::string code(size, '?');
    EXPECT_EQ(link_.Get<int(void*, void*)>("nvJitLinkGetLinkedCubin")(handle_, code.data()), 0);
    EXPECT_EQ(code.back(), '\0');
    code.pop_back();
    return code;
  }
  static constexpr int kCubin = 1, kPtx = 2, kLtoIr = 3;

  const StandIn link_{"libnvJitLink.so.13"};
  void* handle_ = nullptr;
};

TEST_F(NvJitLinkTest, AsksForPtxOfLtoIr) {
  Create({"-arch=sm_90", "-lto"});
  Add(kLtoIr, "IR");
  EXPECT_EQ(Code(), "ptx: -arch=sm_90 -lto -ptx ");
}

TEST_F(NvJitLinkTest, GivesPtxBackAsModules) {
  Create({"-arch=sm_90"});
  Add(kPtx, ".version 8.0");
  Add(kPtx, std::string(".version 8.1\0", 13));
  EXPECT_EQ(Code(), ".version 8.0\n//// the next module of a linked image\n.version 8.1");
}

TEST_F(NvJitLinkTest, LeavesMachineCodeToTheRealOne) {
  Create({"-arch=sm_90"});
  Add(kPtx, ".version 8.0");
  Add(kCubin,
      "\x7f"
      "ELF");
  EXPECT_EQ(Code(), "cubin: -arch=sm_90 ");
}

TEST_F(NvJitLinkTest, LeavesAProgramThatWantsPtxAlone) {
  Create({"-arch=sm_90", "-lto", "-ptx"});
  EXPECT_EQ(Code(), "cubin: -arch=sm_90 -lto -ptx ");
}

TEST(DriverTest, MakesTheLoaderFindTheStandIns) {
  const std::string command =
      std::string("env -u LD_LIBRARY_PATH " FARGPU_COMPILE_PROBE " ") + FARGPU_DRIVER;
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

// NVIDIA's own, of the toolkit that the build uses.
TEST(RealNvrtcTest, CompilesForTheSoftwareDevice) {
  const std::string folder = FARGPU_CUDA_LIBRARIES;
  void* const real = dlopen((folder + "/libnvrtc.so.13").c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(real, nullptr) << "no libnvrtc.so.13 in '" << folder << "'";
  // The stand-in of this process has taken the fake: another process asks.
  const std::string command = "FARGPU_NVIDIA_LIBRARY_PATH=" + folder + " " + FARGPU_COMPILE_PROBE;
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

}  // namespace
}  // namespace fargpu::standins

int main(int argc, char** argv) {
  // Before anything asks for the real libraries.
  setenv("FARGPU_NVIDIA_LIBRARY_PATH", FARGPU_FAKE_COMPILERS ":" FARGPU_STANDINS, 1);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
