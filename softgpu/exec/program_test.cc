// Images of programs: what is found at load, what when a kernel is used.
#include <cuda.h>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "common/cuda_error.h"
#include "common/status_matchers.h"
#include "softgpu/exec/testing/ptx_runner.h"
#include "softgpu/ptx/parser.h"

namespace fargpu::softgpu {
namespace {

using ::testing::HasSubstr;

constexpr char kHeader[] = ".version 9.1\n.target sm_120\n.address_size 64\n";

// A kernel that stores `value`; `code` stands before that.
std::string StoreKernel(const std::string& name, int value, const std::string& code = "") {
  return absl::StrCat(".visible .entry ", name, "(.param .u64 p) {\n.reg .b64 %rd<3>;\n",
                      ".reg .b32 %r<4>;\nld.param.u64 %rd1, [p];\n", code, "st.global.u32 [%rd1], ",
                      value, ";\nret;\n}\n");
}

uint32_t Stored(PtxRunner& runner, const std::string& name) {
  DeviceBuffer<uint32_t> out(1, 0);
  EXPECT_OK(runner.Run(name, {1}, {1}, 0, out.address())) << name;
  return out[0];
}

TEST(ProgramTest, AnUnknownInstructionFailsItsKernelOnly) {
  auto runner = PtxRunner::Load({kHeader + StoreKernel("good", 5) +
                                 StoreKernel("bad", 6, "frobnicate.s32 %r1, %r2;\n") +
                                 StoreKernel("worse", 7, "add.s32.e3m9 %r1, %r2;\n")});
  ASSERT_OK(runner);
  EXPECT_EQ(Stored(**runner, "good"), 5u);
  DeviceBuffer<uint32_t> out(1, 0);
  for (int time = 0; time < 2; ++time) {
    const absl::Status status = (*runner)->Run("bad", {1}, {1}, 0, out.address());
    EXPECT_EQ(ToCuResult(status), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_THAT(
        std::string(status.message()),
        HasSubstr("kernel bad, line 15, 'frobnicate.s32': this instruction is not supported"));
  }
  EXPECT_FALSE((*runner)->Run("worse", {1}, {1}, 0, out.address()).ok());
  EXPECT_EQ(Stored(**runner, "good"), 5u);
}

TEST(ProgramTest, SmallTextsAreCheckedWhenTheyAreLoaded) {
  std::string log;
  const std::string text = kHeader + StoreKernel("k", 1, "mov.u32 %r1 5;\n");
  const auto program = Program::Link({text}, &log);
  EXPECT_EQ(ToCuResult(program.status()), CUDA_ERROR_INVALID_PTX);
  EXPECT_THAT(log, HasSubstr("line 8, column 13: expected ';'"));
}

TEST(ProgramTest, UndeclaredNamesAreFoundWhenATextIsLoaded) {
  for (const auto& [code, error] :
       {std::pair("mov.u32 %r1, %q7;\n", "register %q7 is not declared"),
        std::pair("mov.u64 %rd2, nowhere;\n", "nowhere is not declared"),
        std::pair("ld.global.u32 %r1, [nowhere+4];\n", "nowhere is not declared")}) {
    std::string log;
    const auto program = Program::Link({kHeader + StoreKernel("k", 1, code)}, &log);
    EXPECT_EQ(ToCuResult(program.status()), CUDA_ERROR_INVALID_PTX) << code;
    EXPECT_THAT(log, HasSubstr("line 8, column ")) << code;
    EXPECT_THAT(log, HasSubstr(error)) << code;
  }
}

TEST(ProgramTest, OfLongTextsOnlyTheKernelsThatAreUsed) {
  std::string text = kHeader + StoreKernel("good", 5) + StoreKernel("bad", 6, "mov.u32 %r1 5;\n");
  // Kernels that nobody launches, and which no one could compile.
  for (int k = 0; text.size() <= ptx::kParsedAtOnce; ++k) {
    std::string code;
    for (int i = 0; i < 200; ++i)
      code += "frobnicate.s32 %r1, %r2, nonsense, {%r3, _}, [%rd1+4];\n";
    text += StoreKernel(absl::StrCat("unused", k), k, code);
  }
  text += StoreKernel("last", 9, ".shared .align 8 .b8 tile[96];\n.local .b32 depot[6];\n");
  auto runner = PtxRunner::Load({text});
  ASSERT_OK(runner);
  EXPECT_EQ(Stored(**runner, "good"), 5u);
  EXPECT_EQ(Stored(**runner, "last"), 9u);
  const KernelInfo& last = (*runner)->program->kernels().back();
  EXPECT_EQ(last.name, "last");
  EXPECT_EQ(last.static_shared_bytes, 96u);
  EXPECT_EQ(last.local_bytes, 32u);
  DeviceBuffer<uint32_t> out(1, 0);
  for (int time = 0; time < 2; ++time) {
    const absl::Status status = (*runner)->Run("bad", {1}, {1}, 0, out.address());
    EXPECT_EQ(ToCuResult(status), CUDA_ERROR_INVALID_PTX);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("function bad: line 15, column 13: expected ';'"));
  }
}

TEST(ProgramTest, AliasesStandForFunctions) {
  const std::string module = R"(
.visible .func (.param .b32 r) other(.param .b32 x);
.visible .func (.param .b32 r) twice(.param .b32 x) {
  .reg .b32 %v;
  ld.param.b32 %v, [x];
  add.s32 %v, %v, %v;
  st.param.b32 [r], %v;
  ret;
}
.alias other, twice;
)";
  const std::string call = R"(.param .b32 a;
.param .b32 b;
st.param.b32 [a], 21;
call.uni (b), other, (a);
ld.param.b32 %r1, [b];
st.global.u32 [%rd1+4], %r1;
)";
  auto runner = PtxRunner::Load({kHeader + module + StoreKernel("k", 1, call)});
  ASSERT_OK(runner);
  DeviceBuffer<uint32_t> out(2, 0);
  ASSERT_OK((*runner)->Run("k", {1}, {1}, 0, out.address()));
  EXPECT_EQ(out[1], 42u);
  const auto broken = Program::Link({kHeader + std::string(".alias a, missing;\n")}, nullptr);
  EXPECT_THAT(std::string(broken.status().message()),
              HasSubstr("line 4, column 8: alias a stands for missing, which is no function"));
}

TEST(ProgramTest, VectorRegistersHoldTheirElements) {
  auto runner = PtxRunner::Load({kHeader + StoreKernel("k", 1, R"(.reg .v4 .b32 %v;
mov.b32 %v.x, 10; mov.b32 %v.y, 20; mov.b32 %v.z, 30; mov.b32 %v.w, 40;
add.s32 %v.w, %v.w, %v.b;
st.global.v4.b32 [%rd1+16], %v;
)")});
  ASSERT_OK(runner);
  DeviceBuffer<uint32_t> out(8, 0);
  ASSERT_OK((*runner)->Run("k", {1}, {1}, 0, out.address()));
  EXPECT_EQ(out.Values(), std::vector<uint32_t>({1, 0, 0, 0, 10, 20, 30, 70}));
}

}  // namespace
}  // namespace fargpu::softgpu
