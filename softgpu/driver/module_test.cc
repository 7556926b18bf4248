#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>

#include "common/cuda_error.h"
#include "protocol/driver_abi/image.h"
#include "softgpu/driver/driver_test.h"

namespace fargpu::softgpu {
namespace {

using ::testing::HasSubstr;
using ::testing::StrEq;

// A container with one PTX entry, uncompressed.
std::string Container(const std::string& text) {
  std::string payload = text + '\0';
  payload.resize((payload.size() + 7) / 8 * 8, '\0');
  std::string entry(64, '\0');
  const auto put = [&](size_t offset, auto value) {
    std::memcpy(entry.data() + offset, &value, sizeof(value));
  };
  put(0, uint16_t{1});
  put(2, uint16_t{0x0101});
  put(4, uint32_t{64});
  put(8, uint64_t{payload.size()});
  put(26, uint16_t{9});
  put(28, uint32_t{75});
  put(40, uint64_t{0x11});
  std::string header(16, '\0');
  const uint32_t magic = 0xBA55ED50;
  const uint16_t version = 1, header_size = 16;
  const uint64_t size = entry.size() + payload.size();
  std::memcpy(header.data(), &magic, 4);
  std::memcpy(header.data() + 4, &version, 2);
  std::memcpy(header.data() + 6, &header_size, 2);
  std::memcpy(header.data() + 8, &size, 8);
  return header + entry + payload;
}

std::string EmptyContainer() {
  std::string header = Container("").substr(0, 16);
  std::memset(header.data() + 8, 0, 8);
  return header;
}

class ModuleTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    for (const char* name : {"one", "two"}) {
      RegisterFakeKernel(FakeKernelInfo(name, {8, 4}), [this](const LaunchConfig&) {
        ++launches_;
        return absl::OkStatus();
      });
    }
  }
  CUresult LaunchWithParams(CUfunction function) {
    uint64_t first = 1;
    uint32_t second = 2;
    void* params[] = {&first, &second};
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, params, nullptr);
  }

  const std::string text_ =
      ".version 9.0\n.entry one\n.entry two\n.global g 100 7\n.global h 4 3\n";
  std::atomic<int> launches_{0};
};

TEST_F(ModuleTest, LoadsTextAndFindsWhatIsInIt) {
  CUmodule module = nullptr;
  ASSERT_SUCCESS(cuModuleLoadData(&module, text_.c_str()));
  CUfunction function = nullptr, all[3] = {};
  EXPECT_SUCCESS(cuModuleGetFunction(&function, module, "two"));
  EXPECT_CU(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&function, module, "three"));
  unsigned count = 0;
  EXPECT_SUCCESS(cuModuleGetFunctionCount(&count, module));
  EXPECT_EQ(count, 2u);
  EXPECT_SUCCESS(cuModuleEnumerateFunctions(all, 3, module));
  EXPECT_EQ(all[1], function);
  EXPECT_EQ(all[2], nullptr);
  CUmodule owner = nullptr;
  EXPECT_SUCCESS(cuFuncGetModule(&owner, function));
  EXPECT_EQ(owner, module);
  const char* name = nullptr;
  EXPECT_SUCCESS(cuFuncGetName(&name, all[0]));
  EXPECT_THAT(name, StrEq("one"));
  CUdeviceptr g = 0, h = 0;
  size_t size = 0;
  EXPECT_SUCCESS(cuModuleGetGlobal(&g, &size, module, "g"));
  EXPECT_EQ(size, 100u);
  EXPECT_SUCCESS(cuModuleGetGlobal(&h, nullptr, module, "h"));
  EXPECT_EQ(h % 256, 0u);
  char bytes[100];
  EXPECT_SUCCESS(cuMemcpyDtoH(bytes, g, 100));
  EXPECT_EQ(bytes[99], 7);
  EXPECT_SUCCESS(cuMemcpyDtoH(bytes, h, 4));
  EXPECT_EQ(bytes[0], 3);
  EXPECT_CU(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal(&g, &size, module, "x"));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuModuleGetGlobal(nullptr, nullptr, module, "g"));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuModuleGetFunction(nullptr, module, "one"));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuModuleGetFunction(&function, module, nullptr));

  EXPECT_SUCCESS(LaunchWithParams(all[0]));
  EXPECT_SUCCESS(cuModuleUnload(module));
  EXPECT_EQ(launches_, 1);  // unloading waits for what runs
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuModuleUnload(module));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuModuleGetFunction(&function, module, "one"));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, LaunchWithParams(all[0]));
  size_t free = 0, total = 0;
  EXPECT_SUCCESS(cuMemGetInfo(&free, &total));
  EXPECT_EQ(free, total);
}

TEST_F(ModuleTest, BadPtxIsReportedWithItsLog) {
  char error[64] = "untouched", info[64] = "untouched";
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
                            CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
                            CU_JIT_WALL_TIME};
  void* values[] = {error, reinterpret_cast<void*>(sizeof(error)), info,
                    reinterpret_cast<void*>(sizeof(info)), nullptr};
  CUmodule module = nullptr;
  const char* const bad = ".version 9.0\n.error unexpected_thing\n";
  EXPECT_CU(CUDA_ERROR_INVALID_PTX, cuModuleLoadDataEx(&module, bad, 5, options, values));
  EXPECT_THAT(error, HasSubstr("unexpected_thing"));
  EXPECT_EQ(reinterpret_cast<size_t>(values[1]), std::strlen(error));
  EXPECT_THAT(info, StrEq(""));
  // A buffer that is too small is filled as far as it goes.
  char small[4] = {1, 1, 1, 1};
  values[0] = small;
  values[1] = reinterpret_cast<void*>(size_t{3});
  EXPECT_CU(CUDA_ERROR_INVALID_PTX, cuModuleLoadDataEx(&module, bad, 5, options, values));
  EXPECT_THAT(small, StrEq("un"));
  EXPECT_EQ(small[3], 1);
  options[0] = static_cast<CUjit_option>(999);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuModuleLoadDataEx(&module, bad, 5, options, values));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuModuleLoadDataEx(&module, bad, 1, nullptr, nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuModuleLoadData(&module, nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuModuleLoadData(nullptr, bad));
}

TEST_F(ModuleTest, ContainersAndWrappers) {
  const std::string container = Container(text_);
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  EXPECT_SUCCESS(cuModuleLoadData(&module, container.data()));
  EXPECT_SUCCESS(cuModuleGetFunction(&function, module, "one"));
  driver_abi::FatbinWrapper wrapper;
  wrapper.container = container.data();
  EXPECT_SUCCESS(cuModuleLoadFatBinary(&module, &wrapper));
  EXPECT_SUCCESS(cuModuleGetFunction(&function, module, "two"));
}

TEST_F(ModuleTest, RelocatableContainersAreLinked) {
  const std::string first = Container(".version 9.0\n.entry one\n");
  const std::string second = Container(".version 9.0\n.entry two\n.global g 4 1\n");
  const std::string empty = EmptyContainer();
  const void* links[] = {first.data(), second.data(), nullptr};
  driver_abi::FatbinWrapper wrapper;
  wrapper.version = 2;
  wrapper.container = empty.data();
  wrapper.links = links;
  CUmodule module = nullptr;
  ASSERT_SUCCESS(cuModuleLoadData(&module, &wrapper));
  unsigned count = 0;
  EXPECT_SUCCESS(cuModuleGetFunctionCount(&count, module));
  EXPECT_EQ(count, 2u);
  CUdeviceptr g = 0;
  EXPECT_SUCCESS(cuModuleGetGlobal(&g, nullptr, module, "g"));
}

TEST_F(ModuleTest, AnImageWithoutPtxLoadsAndCannotRun) {
  const std::string empty = EmptyContainer();
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  ASSERT_SUCCESS(cuModuleLoadData(&module, empty.data()));
  EXPECT_CU(CUDA_ERROR_NO_BINARY_FOR_GPU, cuModuleGetFunction(&function, module, "one"));
  CUlibrary library = nullptr;
  ASSERT_SUCCESS(
      cuLibraryLoadData(&library, empty.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUkernel kernel = nullptr;
  ASSERT_SUCCESS(cuLibraryGetKernel(&kernel, library, "one"));
  EXPECT_CU(CUDA_ERROR_NO_BINARY_FOR_GPU, cuKernelGetFunction(&function, kernel));
  EXPECT_CU(CUDA_ERROR_NO_BINARY_FOR_GPU, LaunchWithParams(reinterpret_cast<CUfunction>(kernel)));
  EXPECT_SUCCESS(cuLibraryUnload(library));
}

TEST_F(ModuleTest, GarbageIsRefused) {
  CUmodule module = nullptr;
  const char garbage[256] = "\x01\x02\x03\x04 this is no image";
  EXPECT_CU(CUDA_ERROR_INVALID_IMAGE, cuModuleLoadData(&module, garbage));
  EXPECT_CU(CUDA_ERROR_FILE_NOT_FOUND, cuModuleLoad(&module, "/nonexistent/file.ptx"));
}

TEST_F(ModuleTest, FilesAreCheckedWhole) {
  const std::string path =
      ::testing::TempDir() + "/softgpu_module_test_" + std::to_string(getpid());
  const auto write = [&](const std::string& contents) {
    std::ofstream(path, std::ios::binary) << contents;
  };
  CUmodule module = nullptr;
  write(text_);
  EXPECT_SUCCESS(cuModuleLoad(&module, path.c_str()));
  const std::string container = Container(text_);
  write(container);
  EXPECT_SUCCESS(cuModuleLoad(&module, path.c_str()));
  for (size_t size : {size_t{4}, size_t{15}, size_t{40}, container.size() - 8}) {
    write(container.substr(0, size));
    EXPECT_CU(CUDA_ERROR_INVALID_IMAGE, cuModuleLoad(&module, path.c_str())) << size;
  }
  write(
      std::string("\x7f"
                  "ELF",
                  4));
  EXPECT_CU(CUDA_ERROR_INVALID_IMAGE, cuModuleLoad(&module, path.c_str()));
  std::remove(path.c_str());
}

TEST_F(ModuleTest, LibrariesLoadWithoutAContextAndServeAllDevices) {
  ASSERT_SUCCESS(cuCtxSetCurrent(nullptr));
  CUlibrary library = nullptr;
  CUlibraryOption option = CU_LIBRARY_BINARY_IS_PRESERVED;
  ASSERT_SUCCESS(
      cuLibraryLoadData(&library, text_.c_str(), nullptr, nullptr, 0, &option, nullptr, 1));
  CUkernel kernel = nullptr, all[2] = {};
  ASSERT_SUCCESS(cuLibraryGetKernel(&kernel, library, "one"));
  CUkernel again = nullptr;
  ASSERT_SUCCESS(cuLibraryGetKernel(&again, library, "one"));
  EXPECT_EQ(kernel, again);
  unsigned count = 0;
  EXPECT_SUCCESS(cuLibraryGetKernelCount(&count, library));
  EXPECT_EQ(count, 2u);
  EXPECT_SUCCESS(cuLibraryEnumerateKernels(all, 2, library));
  EXPECT_EQ(all[0], kernel);
  EXPECT_CU(CUDA_ERROR_NOT_FOUND, cuLibraryGetKernel(&again, library, "three"));
  CUlibrary owner = nullptr;
  EXPECT_SUCCESS(cuKernelGetLibrary(&owner, kernel));
  EXPECT_EQ(owner, library);
  size_t offset = 0, size = 0;
  EXPECT_SUCCESS(cuKernelGetParamInfo(kernel, 1, &offset, &size));
  EXPECT_EQ(offset, 8u);
  EXPECT_EQ(size, 4u);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuKernelGetParamInfo(kernel, 2, &offset, &size));
  CUfunction function = nullptr;
  EXPECT_CU(CUDA_ERROR_INVALID_CONTEXT, cuKernelGetFunction(&function, kernel));

  CUdeviceptr variables[2] = {};
  for (int device = 0; device < 2; ++device) {
    CUcontext context = nullptr;
    ASSERT_SUCCESS(cuDevicePrimaryCtxRetain(&context, device));
    ASSERT_SUCCESS(cuCtxSetCurrent(context));
    ASSERT_SUCCESS(cuKernelGetFunction(&function, kernel));
    EXPECT_SUCCESS(LaunchWithParams(function));
    EXPECT_SUCCESS(LaunchWithParams(reinterpret_cast<CUfunction>(kernel)));
    EXPECT_SUCCESS(cuCtxSynchronize());
    EXPECT_SUCCESS(cuLibraryGetGlobal(&variables[device], &size, library, "g"));
    EXPECT_EQ(size, 100u);
    int ordinal = -1;
    EXPECT_SUCCESS(
        cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, variables[device]));
    EXPECT_EQ(ordinal, device);
    CUmodule module = nullptr;
    EXPECT_SUCCESS(cuLibraryGetModule(&module, library));
    EXPECT_CU(CUDA_ERROR_NOT_PERMITTED, cuModuleUnload(module));
  }
  EXPECT_NE(variables[0], variables[1]);
  EXPECT_EQ(launches_, 4);
  EXPECT_SUCCESS(cuLibraryUnload(library));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuLibraryUnload(library));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, LaunchWithParams(reinterpret_cast<CUfunction>(kernel)));
}

TEST_F(ModuleTest, ALibrarySurvivesAReset) {
  CUlibrary library = nullptr;
  ASSERT_SUCCESS(
      cuLibraryLoadData(&library, text_.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  CUkernel kernel = nullptr;
  ASSERT_SUCCESS(cuLibraryGetKernel(&kernel, library, "one"));
  for (int round = 0; round < 3; ++round) {
    EXPECT_SUCCESS(LaunchWithParams(reinterpret_cast<CUfunction>(kernel)));
    CUdeviceptr g = 0;
    EXPECT_SUCCESS(cuLibraryGetGlobal(&g, nullptr, library, "g"));
    char byte = 0;
    EXPECT_SUCCESS(cuMemcpyDtoH(&byte, g, 1));
    EXPECT_EQ(byte, 7);  // initialised again
    EXPECT_SUCCESS(cuMemsetD8(g, 1, 100));
    EXPECT_SUCCESS(cuDevicePrimaryCtxReset(0));
    ASSERT_SUCCESS(cuDevicePrimaryCtxRetain(&context_, 0));
  }
  EXPECT_EQ(launches_, 3);
  EXPECT_SUCCESS(cuLibraryUnload(library));
}

TEST_F(ModuleTest, ManagedVariablesAreReachedFromTheHost) {
  CUlibrary library = nullptr;
  ASSERT_SUCCESS(cuLibraryLoadData(&library, ".version 9.0\n.managed m 4 9\n", nullptr, nullptr, 0,
                                   nullptr, nullptr, 0));
  CUdeviceptr m = 0;
  EXPECT_CU(CUDA_ERROR_NOT_FOUND, cuLibraryGetGlobal(&m, nullptr, library, "m"));
  ASSERT_SUCCESS(cuLibraryGetManaged(&m, nullptr, library, "m"));
  EXPECT_EQ(*reinterpret_cast<char*>(m), 9);
  EXPECT_SUCCESS(cuLibraryUnload(library));
}

TEST_F(ModuleTest, LoadingIsLazy) {
  CUmoduleLoadingMode mode = CU_MODULE_EAGER_LOADING;
  EXPECT_SUCCESS(cuModuleGetLoadingMode(&mode));
  EXPECT_EQ(mode, CU_MODULE_LAZY_LOADING);
}

}  // namespace
}  // namespace fargpu::softgpu
