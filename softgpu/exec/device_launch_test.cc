// Grids that kernels launch: order, completion, limits, errors.
#include <cuda.h>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/cuda_error.h"
#include "common/status_matchers.h"
#include "softgpu/exec/testing/ptx_runner.h"

namespace fargpu::softgpu {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

// What libcudadevrt is built on, and kernels that keep a log: its first word counts, and what is
// appended follows. `launch` starts a kernel that takes the log and a value.
constexpr char kText[] = R"(
.version 9.0
.target sm_90
.address_size 64
.extern .func (.param .b64 r) __cuda_syscall_cnpv2GetParameterBufferV2
(.param .b64 f, .param .align 4 .b8 g[12], .param .align 4 .b8 b[12], .param .b32 s);
.extern .func (.param .b32 r) __cuda_syscall_cnpv2LaunchDeviceV2(.param .b64 p, .param .b64 s);
.extern .func (.param .b32 r) __cuda_syscall_cnpv2StreamCreate(.param .b64 p, .param .b32 f);
.extern .func (.param .b32 r) __cuda_syscall_cnpv2StreamDestroy(.param .b64 p);
.extern .func (.param .b32 r) __cuda_syscall_cnpv2EventCreate(.param .b64 p, .param .b32 f);
.extern .func (.param .b32 r) __cuda_syscall_cnpv2EventRecord(.param .b64 e, .param .b64 s);
.extern .func (.param .b32 r) __cuda_syscall_cnpv2StreamWaitEvent
(.param .b64 s, .param .b64 e, .param .b32 f);
.extern .func (.param .b32 r) __cuda_syscall_cnpv2GetLastError();
.extern .func (.param .b32 r) __cuda_syscall_cnpv2SetLastError(.param .b32 e);
.extern .func cudaGraphSetConditional(.param .b64 h, .param .b32 v);

.func (.param .b32 result) launch(.param .b64 function, .param .b32 blocks, .param .b32 threads,
                                  .param .b64 stream, .param .b64 log, .param .b32 value)
{
  .reg .b64 %rd<5>;
  .reg .b32 %r<5>;
  ld.param.u64 %rd1, [function];
  ld.param.u32 %r1, [blocks];
  ld.param.u32 %r2, [threads];
  .param .b64 param0;
  .param .align 4 .b8 param1[12];
  .param .align 4 .b8 param2[12];
  .param .b32 param3;
  .param .b64 retval0;
  st.param.b64 [param0], %rd1;
  st.param.b32 [param1], %r1;
  st.param.b32 [param1+4], 1;
  st.param.b32 [param1+8], 1;
  st.param.b32 [param2], %r2;
  st.param.b32 [param2+4], 1;
  st.param.b32 [param2+8], 1;
  st.param.b32 [param3], 0;
  call.uni (retval0), __cuda_syscall_cnpv2GetParameterBufferV2, (param0, param1, param2, param3);
  ld.param.b64 %rd2, [retval0];
  ld.param.u64 %rd3, [log];
  ld.param.u32 %r3, [value];
  st.u64 [%rd2], %rd3;
  st.u32 [%rd2+8], %r3;
  ld.param.u64 %rd4, [stream];
  .param .b64 param4;
  .param .b64 param5;
  .param .b32 retval1;
  st.param.b64 [param4], %rd2;
  st.param.b64 [param5], %rd4;
  call.uni (retval1), __cuda_syscall_cnpv2LaunchDeviceV2, (param4, param5);
  ld.param.b32 %r4, [retval1];
  st.param.b32 [result], %r4;
  ret;
}

.visible .entry append(.param .u64 log, .param .u32 value) {
  .reg .b64 %rd<4>;
  .reg .b32 %r<4>;
  ld.param.u64 %rd1, [log];
  ld.param.u32 %r1, [value];
  atom.global.add.u32 %r2, [%rd1], 1;
  mul.wide.u32 %rd2, %r2, 4;
  add.u64 %rd3, %rd1, %rd2;
  st.global.u32 [%rd3+4], %r1;
  ret;
}
// The same after some milliseconds.
.visible .entry append_late(.param .u64 log, .param .u32 value) {
  .reg .b64 %rd<6>;
  .reg .b32 %r<4>;
  .reg .pred %p;
  mov.u64 %rd4, %globaltimer;
Wait:
  mov.u64 %rd5, %globaltimer;
  sub.u64 %rd5, %rd5, %rd4;
  setp.lt.u64 %p, %rd5, 20000000;
  @%p bra Wait;
  ld.param.u64 %rd1, [log];
  ld.param.u32 %r1, [value];
  atom.global.add.u32 %r2, [%rd1], 1;
  mul.wide.u32 %rd2, %r2, 4;
  add.u64 %rd3, %rd1, %rd2;
  st.global.u32 [%rd3+4], %r1;
  ret;
}
.visible .entry fail(.param .u64 log, .param .u32 value) { trap; }
// Launches itself until that fails; the error is appended.
.visible .entry nest(.param .u64 log, .param .u32 value) {
  .reg .b64 %rd<4>;
  .reg .b32 %r<5>;
  .reg .pred %p;
  ld.param.u64 %rd1, [log];
  ld.param.u32 %r1, [value];
  add.u32 %r1, %r1, 1;
  mov.u64 %rd2, nest;
  .param .b64 f;
  .param .b32 g;
  .param .b32 b;
  .param .b64 s;
  .param .b64 l;
  .param .b32 v;
  .param .b32 e;
  st.param.b64 [f], %rd2;
  st.param.b32 [g], 1;
  st.param.b32 [b], 1;
  st.param.b64 [s], 4;
  st.param.b64 [l], %rd1;
  st.param.b32 [v], %r1;
  call.uni (e), launch, (f, g, b, s, l, v);
  ld.param.b32 %r2, [e];
  setp.eq.u32 %p, %r2, 0;
  @%p ret;
  atom.global.add.u32 %r3, [%rd1], 2;
  st.global.u32 [%rd1+4], %r1;
  st.global.u32 [%rd1+8], %r2;
  ret;
}
)";

// PTX that launches; %rd1 is the log. The error is in %r9.
std::string Start(const std::string& kernel, const std::string& stream, int value, int threads = 1,
                  int blocks = 1) {
  return absl::StrCat("{\n.param .b64 f;\n.param .b32 g;\n.param .b32 b;\n.param .b64 s;\n",
                      ".param .b64 l;\n.param .b32 v;\n.param .b32 e;\n.reg .b64 %f;\n",
                      "mov.u64 %f, ", kernel, ";\nst.param.b64 [f], %f;\nst.param.b32 [g], ",
                      blocks, ";\nst.param.b32 [b], ", threads, ";\nst.param.b64 [s], ", stream,
                      ";\nst.param.b64 [l], %rd1;\nst.param.b32 [v], ", value,
                      ";\ncall.uni (e), launch, (f, g, b, s, l, v);\nld.param.b32 %r9, [e];\n}\n");
}
// PTX that calls `function` with `arguments` ("b64 %rd3"...) and leaves the result in %r9.
std::string Call(const std::string& function, const std::vector<std::string>& arguments) {
  std::string text = "{\n.param .b32 e;\n";
  std::string list;
  for (size_t k = 0; k < arguments.size(); ++k) {
    const std::string type = arguments[k].substr(0, 3);
    absl::StrAppend(&text, ".param .", type, " a", k, ";\nst.param.", type, " [a", k, "], ",
                    arguments[k].substr(4), ";\n");
    absl::StrAppend(&list, k > 0 ? ", a" : "a", k);
  }
  return absl::StrCat(text, "call.uni (e), __cuda_syscall_cnpv2", function, ", (", list,
                      ");\nld.param.b32 %r9, [e];\n}\n");
}
// Appends %r9 to the log.
constexpr char kAppendResult[] =
    "atom.global.add.u32 %r8, [%rd1], 1;\nmul.wide.u32 %rd8, %r8, 4;\nadd.u64 %rd8, %rd8, %rd1;\n"
    "st.global.u32 [%rd8+4], %r9;\n";

class DeviceLaunchTest : public testing::Test {
 protected:
  absl::Status Run(const std::string& body, Dim3 grid = {1}, Dim3 block = {1}) {
    const std::string text = absl::StrCat(
        kText,
        ".visible .entry parent(.param .u64 p) {\n.reg .b64 %rd<16>;\n.reg .b32 %r<16>;\n"
        ".reg .pred %p<4>;\n.local .align 8 .b8 handles[64];\nld.param.u64 %rd1, [p];\n",
        body, "ret;\n}\n");
    auto loaded = PtxRunner::Load({text});
    if (!loaded.ok()) return loaded.status();
    runner_ = *std::move(loaded);
    return runner_->Run("parent", grid, block, 0, log_.address());
  }
  std::vector<uint32_t> Log() {
    std::vector<uint32_t> values = log_.Values();
    return {values.begin() + 1, values.begin() + 1 + values[0]};
  }

  std::unique_ptr<PtxRunner> runner_;
  DeviceBuffer<uint32_t> log_{8192, 0};
};

TEST_F(DeviceLaunchTest, ChildrenEndBeforeTheLaunchDoes) {
  ASSERT_OK(Run(absl::StrCat(Start("append_late", "4", 7), Start("append_late", "4", 7, 32, 3))));
  EXPECT_EQ(Log().size(), 97u);
  EXPECT_THAT(Log(), Each(7u));
}

TEST_F(DeviceLaunchTest, EveryThreadLaunches) {
  ASSERT_OK(Run(Start("append", "0", 3), {10}, {64}));
  EXPECT_EQ(Log(), std::vector<uint32_t>(640, 3));
}

TEST_F(DeviceLaunchTest, ABlocksNullStreamKeepsItsOrder) {
  ASSERT_OK(Run(absl::StrCat(Start("append_late", "0", 1), Start("append", "0", 2),
                             Start("append_late", "1", 3), Start("append", "0", 4))));
  EXPECT_THAT(Log(), ElementsAre(1, 2, 3, 4));
}

TEST_F(DeviceLaunchTest, FireAndForgetWaitsForNobody) {
  ASSERT_OK(Run(absl::StrCat(Start("append_late", "0", 1), Start("append", "0", 2),
                             Start("append", "4", 3))));
  EXPECT_THAT(Log(), UnorderedElementsAre(1, 2, 3));
  EXPECT_NE(Log().back(), 3u) << "it waited for what came before";
}

TEST_F(DeviceLaunchTest, TailLaunchesRunInTurnWhenAllElseHasEnded) {
  ASSERT_OK(Run(absl::StrCat(Start("append_late", "3", 4), Start("append", "3", 5),
                             Start("append_late", "4", 1), Start("append_late", "0", 1),
                             "mov.u32 %r9, 1;\n", kAppendResult)));
  EXPECT_THAT(Log(), ElementsAre(1, 1, 1, 4, 5));
}

TEST_F(DeviceLaunchTest, EventsOrderStreams) {
  std::string body = "mov.u64 %rd9, handles;\ncvta.local.u64 %rd9, %rd9;\n";
  absl::StrAppend(&body, "add.u64 %rd10, %rd9, 8;\nadd.u64 %rd11, %rd9, 16;\n");
  absl::StrAppend(&body, Call("StreamCreate", {"b64 %rd9", "b32 1"}), kAppendResult,
                  Call("StreamCreate", {"b64 %rd10", "b32 1"}), kAppendResult,
                  Call("EventCreate", {"b64 %rd11", "b32 2"}), kAppendResult);
  absl::StrAppend(&body, "ld.u64 %rd2, [%rd9];\nld.u64 %rd3, [%rd10];\nld.u64 %rd4, [%rd11];\n");
  absl::StrAppend(&body, Start("append_late", "%rd2", 11),
                  Call("EventRecord", {"b64 %rd4", "b64 %rd2"}),
                  Call("StreamWaitEvent", {"b64 %rd3", "b64 %rd4", "b32 0"}),
                  Start("append", "%rd3", 12), Call("StreamDestroy", {"b64 %rd2"}), kAppendResult);
  ASSERT_OK(Run(body));
  EXPECT_THAT(Log(), ElementsAre(0, 0, 0, 0, 11, 12));
}

TEST_F(DeviceLaunchTest, BadArgumentsAreErrors) {
  std::string body = "mov.u64 %rd9, handles;\ncvta.local.u64 %rd9, %rd9;\n";
  absl::StrAppend(
      &body, Call("StreamCreate", {"b64 %rd9", "b32 0"}), kAppendResult,
      Call("EventCreate", {"b64 %rd9", "b32 0"}), kAppendResult,
      Call("StreamDestroy", {"b64 4711"}), kAppendResult, Call("StreamDestroy", {"b64 0"}),
      kAppendResult, Call("EventRecord", {"b64 4711", "b64 0"}), kAppendResult,
      Call("LaunchDeviceV2", {"b64 %rd1", "b64 0"}), kAppendResult, Start("append", "4711", 1),
      kAppendResult, Start("12345", "0", 1), kAppendResult, Start("append", "0", 1, 1025),
      kAppendResult, Start("append", "0", 1, 0), kAppendResult);
  ASSERT_OK(Run(body));
  EXPECT_THAT(Log(), ElementsAre(1, 1, 1, 1, 1, 1, 1, 1, 7, 7));
}

TEST_F(DeviceLaunchTest, ThreadsHaveLastErrorsOfTheirOwn) {
  ASSERT_OK(Run(absl::StrCat("mov.u32 %r1, %tid.x;\n", Call("SetLastError", {"b32 %r1"}),
                             Call("GetLastError", {}), kAppendResult),
                {2}, {3}));
  EXPECT_THAT(Log(), UnorderedElementsAre(0, 0, 1, 1, 2, 2));
}

TEST_F(DeviceLaunchTest, NestingHasALimit) {
  ASSERT_OK(Run(Start("nest", "4", 0)));
  EXPECT_THAT(Log(), ElementsAre(24, 5));
}

TEST_F(DeviceLaunchTest, LaunchesThatMustWaitHaveALimit) {
  ASSERT_OK(Run(absl::StrCat("mov.u32 %r7, 0;\nLoop:\n", Start("append", "3", 1),
                             "add.u32 %r7, %r7, 1;\nsetp.eq.u32 %p1, %r9, 0;\n@%p1 bra Loop;\n",
                             kAppendResult, "mov.u32 %r9, %r7;\n", kAppendResult)));
  const std::vector<uint32_t> log = Log();
  ASSERT_EQ(log.size(), 2050u);
  EXPECT_EQ(log[0], 12u);
  EXPECT_EQ(log[1], 2049u);
}

TEST_F(DeviceLaunchTest, AChildsErrorEndsAll) {
  const absl::Status status = Run(absl::StrCat(Start("append_late", "0", 1), Start("fail", "0", 2),
                                               Start("append", "0", 3), Start("append", "3", 4)));
  EXPECT_EQ(ToCuResult(status), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_THAT(std::string(status.message()), HasSubstr("kernel fail"));
  EXPECT_THAT(Log(), ElementsAre(1));
  log_[0] = 0;
  ASSERT_OK(runner_->Run("append", {1}, {1}, 0, log_.address(), 9u));
  EXPECT_THAT(Log(), ElementsAre(9));
}

TEST_F(DeviceLaunchTest, TheParentsErrorEndsItsChildren) {
  // 400 times 20 ms one after the other would be seen.
  const absl::Status status = Run(
      absl::StrCat("mov.u32 %r7, 0;\nLoop:\n", Start("append_late", "0", 1),
                   "add.u32 %r7, %r7, 1;\nsetp.lt.u32 %p1, %r7, 400;\n@%p1 bra Loop;\ntrap;\n"));
  EXPECT_EQ(ToCuResult(status), CUDA_ERROR_LAUNCH_FAILED);
  EXPECT_LT(Log().size(), 400u);
}

TEST_F(DeviceLaunchTest, AWildResultPointerIsAnIllegalAddress) {
  EXPECT_EQ(ToCuResult(Run(Call("StreamCreate", {"b64 64", "b32 1"}))), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(DeviceLaunchTest, SetsConditionsOfGraphs) {
  ASSERT_OK(
      Run("{\n.param .b64 h;\n.param .b32 v;\nst.param.b64 [h], %rd1;\nst.param.b32 [v], 5;\n"
          "call.uni cudaGraphSetConditional, (h, v);\n}\n"));
  EXPECT_EQ(log_[0], 5u);
}

}  // namespace
}  // namespace fargpu::softgpu
