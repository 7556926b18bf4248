#include <cstring>
#include <fstream>

#include "softgpu/driver/driver_test.h"

namespace fargpu::softgpu {
namespace {

class LinkTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    for (const char* name : {"linked_one", "linked_two"}) {
      RegisterFakeKernel(FakeKernelInfo(name, {}), [this](const LaunchConfig&) {
        ++launches_;
        return absl::OkStatus();
      });
    }
    ASSERT_SUCCESS(cuLinkCreate(0, nullptr, nullptr, &state_));
  }
  CUresult Add(std::string text, size_t extra = 1) {
    return cuLinkAddData(state_, CU_JIT_INPUT_PTX, text.data(), text.size() + extra, "text", 0,
                         nullptr, nullptr);
  }

  CUlinkState state_ = nullptr;
  std::atomic<int> launches_{0};
};

TEST_F(LinkTest, ModulesBecomeOneImage) {
  EXPECT_SUCCESS(Add(".version 9.0\n.entry linked_one\n"));
  EXPECT_SUCCESS(Add(".version 9.0\n.entry linked_two\n", /*extra=*/0));
  void* image = nullptr;
  size_t size = 0;
  ASSERT_SUCCESS(cuLinkComplete(state_, &image, &size));
  // It stands by itself, also when it was copied and the link is gone.
  std::vector<char> copy(static_cast<char*>(image), static_cast<char*>(image) + size);
  EXPECT_SUCCESS(cuLinkDestroy(state_));
  CUmodule module = nullptr;
  ASSERT_SUCCESS(cuModuleLoadData(&module, copy.data()));
  unsigned count = 0;
  EXPECT_SUCCESS(cuModuleGetFunctionCount(&count, module));
  EXPECT_EQ(count, 2u);
  for (const char* name : {"linked_one", "linked_two"}) {
    CUfunction function = nullptr;
    ASSERT_SUCCESS(cuModuleGetFunction(&function, module, name));
    EXPECT_SUCCESS(Launch(function));
  }
  EXPECT_SUCCESS(cuCtxSynchronize());
  EXPECT_EQ(launches_, 2);
}

TEST_F(LinkTest, ErrorsGoToTheLogOfTheLink) {
  char log[64] = {};
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  void* values[] = {log, reinterpret_cast<void*>(sizeof(log))};
  CUlinkState state = nullptr;
  ASSERT_SUCCESS(cuLinkCreate(2, options, values, &state));
  char text[] = ".version 9.0\n.error unresolved\n";
  EXPECT_CU(CUDA_ERROR_INVALID_PTX, cuLinkAddData(state, CU_JIT_INPUT_PTX, text, sizeof(text),
                                                  "bad.ptx", 0, nullptr, nullptr));
  EXPECT_EQ(std::string(log), "error: input bad.ptx: unresolved\n");
  char object[] = "object";
  EXPECT_CU(CUDA_ERROR_NO_BINARY_FOR_GPU,
            cuLinkAddData(state, CU_JIT_INPUT_OBJECT, object, 6, "x.o", 0, nullptr, nullptr));
  EXPECT_EQ(std::string(log), "error: input x.o: holds no PTX");
}

TEST_F(LinkTest, RefusesWhatItCannotLink) {
  void* image = nullptr;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuLinkComplete(state_, &image, nullptr));
  char object[] = "object";
  EXPECT_CU(CUDA_ERROR_NO_BINARY_FOR_GPU,
            cuLinkAddData(state_, CU_JIT_INPUT_OBJECT, object, 6, "x.o", 0, nullptr, nullptr));
  // The device runtime is built in: its file has to be there, but is not read.
  const std::string runtime = ::testing::TempDir() + "/libcudadevrt.a";
  std::ofstream(runtime) << "!<arch>\n";
  EXPECT_SUCCESS(cuLinkAddFile(state_, CU_JIT_INPUT_LIBRARY, runtime.c_str(), 0, nullptr, nullptr));
  EXPECT_CU(CUDA_ERROR_FILE_NOT_FOUND,
            cuLinkAddFile(state_, CU_JIT_INPUT_LIBRARY, "/no/libcudadevrt.a", 0, nullptr, nullptr));
  EXPECT_CU(CUDA_ERROR_FILE_NOT_FOUND,
            cuLinkAddFile(state_, CU_JIT_INPUT_PTX, "/no/such.ptx", 0, nullptr, nullptr));
  EXPECT_CU(CUDA_ERROR_NOT_SUPPORTED,
            cuLinkAddData(state_, CU_JIT_INPUT_NVVM, object, 6, "x", 0, nullptr, nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuLinkAddData(state_, static_cast<CUjitInputType>(99), object,
                                                    6, "x", 0, nullptr, nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuLinkAddData(state_, CU_JIT_INPUT_PTX, nullptr, 6, "x", 0, nullptr, nullptr));
  EXPECT_SUCCESS(cuLinkDestroy(state_));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuLinkDestroy(state_));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, Add(".version 9.0\n"));
}

}  // namespace
}  // namespace fargpu::softgpu
