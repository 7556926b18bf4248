// Kernels that do what they must not, and what the program learns of it.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "softgpu/driver/ptx_test.h"

namespace fargpu::softgpu {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

// k(memory): %o is `memory`, %t the thread.
std::string Kernel(const std::string& code, const std::string& before = "") {
  return absl::StrCat(before, R"(
.extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);
.extern .func (.param .b64 r) malloc(.param .b64 n);
.extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
.visible .entry k(.param .u64 memory) {
  .reg .b32 %t, %b, %r<20>; .reg .b64 %o, %rd<9>; .reg .pred %p<10>; .reg .f32 %f<4>;
  .local .align 16 .b8 depot[64]; .shared .align 16 .b8 tile[64];
  mov.u32 %t, %tid.x; mov.u32 %b, %ctaid.x; ld.param.u64 %o, [memory];
  )",
                      code, "\n  ret; }");
}

constexpr char kRecursive[] = R"(
.func (.param .b32 r) deep(.param .b32 n) {
  .reg .b32 %x, %y; .reg .pred %p; .param .b32 a; .param .b32 s;
  ld.param.b32 %x, [n]; mov.u32 %y, 0; setp.eq.u32 %p, %x, 0; @%p bra END;
  sub.u32 %y, %x, 1; { .param .b32 a1; .param .b32 r1; st.param.b32 [a1], %y; call (r1), deep, (a1); ld.param.b32 %y, [r1]; }
  add.u32 %y, %y, 1;
END: st.param.b32 [r], %y; ret; }
.func (.param .b32 r) wide(.param .b32 n) {
  .reg .b32 %x, %y; .reg .b64 %a; .reg .pred %p; .local .align 16 .b8 frame[1024];
  ld.param.b32 %x, [n]; mov.u64 %a, frame; st.local.u32 [%a+512], %x; mov.u32 %y, 0; setp.eq.u32 %p, %x, 0; @%p bra END;
  sub.u32 %y, %x, 1; { .param .b32 a1; .param .b32 r1; st.param.b32 [a1], %y; call (r1), wide, (a1); ld.param.b32 %y, [r1]; }
  ld.local.u32 %x, [%a+512]; add.u32 %y, %y, %x;
END: st.param.b32 [r], %y; ret; }
)";

std::string CallOf(const char* function, uint32_t depth) {
  return absl::StrCat("{ .param .b32 a; .param .b32 r; mov.u32 %r1, ", depth,
                      "; st.param.b32 [a], %r1; call (r), ", function,
                      ", (a); ld.param.b32 %r2, [r]; } st.global.u32 [%o], %r2;");
}

class MisbehaviourTest : public PtxTest {
 protected:
  // Runs `code` and expects `error`: at the next synchronisation and at every call after it, until
  // the context is reset. The process, and kernels after that, go on.
  void ExpectError(CUresult error, const std::string& code, const std::string& before = "") {
    SCOPED_TRACE(code);
    const CUfunction function = LoadPtx(Kernel(code, before));
    const CUdeviceptr memory = Upload(std::vector<uint32_t>(64));
    ASSERT_SUCCESS(Run(function, 2, 64, memory));
    EXPECT_CU(error, cuCtxSynchronize());
    CUdeviceptr more = 0;
    EXPECT_CU(error, cuMemAlloc(&more, 4));
    EXPECT_CU(error, cuStreamSynchronize(nullptr));
    EXPECT_CU(error, Run(function, 1, 32, memory));
    EXPECT_CU(error, cuCtxSynchronize());
    StartAnew();
    ExpectResult(7, "mov.u32 %r1, 7; st.global.u32 [%o], %r1;");
  }

  void ExpectResult(uint32_t value, const std::string& code, const std::string& before = "") {
    SCOPED_TRACE(code);
    const CUfunction function = LoadPtx(Kernel(code, before));
    const CUdeviceptr memory = Upload(std::vector<uint32_t>(64, 0xeeeeeeee));
    ASSERT_SUCCESS(Run(function, 1, 32, memory));
    ASSERT_SUCCESS(cuCtxSynchronize());
    EXPECT_EQ(Download<uint32_t>(memory, 1)[0], value);
  }
};

TEST_F(MisbehaviourTest, WildAddresses) {
  ExpectError(CUDA_ERROR_ILLEGAL_ADDRESS,
              "mov.u64 %rd1, 16; ld.global.u32 %r1, [%rd1]; st.global.u32 [%o], %r1;");
  ExpectError(CUDA_ERROR_ILLEGAL_ADDRESS, "mov.u64 %rd1, 0; st.u32 [%rd1], %t;");
  ExpectError(CUDA_ERROR_ILLEGAL_ADDRESS,
              "mov.u64 %rd1, 0x7fffffff0000; atom.global.add.u32 %r1, [%rd1], 1;");
  // In the window, where nothing is allocated.
  ExpectError(CUDA_ERROR_ILLEGAL_ADDRESS,
              "add.u64 %rd1, %o, 0x40000000; st.global.u32 [%rd1], %t;");
  ExpectError(CUDA_ERROR_ILLEGAL_ADDRESS, "mov.u32 %r1, 0x100000; st.shared.u32 [%r1], %t;");
  ExpectError(CUDA_ERROR_ILLEGAL_ADDRESS, "mov.u32 %r1, 0x1000000; st.local.u32 [%r1], %t;");
  // Of the program's own memory, which the kernel has not been given.
  static int hidden = 5;
  ExpectError(CUDA_ERROR_ILLEGAL_ADDRESS,
              absl::StrCat("mov.u64 %rd1, ", reinterpret_cast<uint64_t>(&hidden),
                           "; ld.u32 %r1, [%rd1]; st.global.u32 [%o], %r1;"));
}

TEST_F(MisbehaviourTest, MisalignedAddresses) {
  ExpectError(CUDA_ERROR_MISALIGNED_ADDRESS, "st.global.u32 [%o+2], %t;");
  ExpectError(CUDA_ERROR_MISALIGNED_ADDRESS,
              "ld.global.v2.u32 {%r1, %r2}, [%o+4]; st.global.u32 [%o], %r1;");
  ExpectError(CUDA_ERROR_MISALIGNED_ADDRESS, "mov.u32 %r1, 3; st.shared.u16 [%r1], 5;");
}

TEST_F(MisbehaviourTest, WildJumps) {
  constexpr char kCall[] =
      "{ .param .b32 a; .param .b32 r; st.param.b32 [a], %t; "
      "P: .callprototype (.param .b32 _) _ (.param .b32 _); call (r), %rd1, (a), P; }";
  ExpectError(CUDA_ERROR_INVALID_PC, absl::StrCat("mov.u64 %rd1, 0x1234; ", kCall), kRecursive);
  ExpectError(CUDA_ERROR_INVALID_PC, absl::StrCat("mov.u64 %rd1, %o; ", kCall), kRecursive);
}

TEST_F(MisbehaviourTest, StackOverflow) {
  ExpectError(CUDA_ERROR_HARDWARE_STACK_ERROR, CallOf("deep", 0x7fffffff), kRecursive);
  ExpectError(CUDA_ERROR_HARDWARE_STACK_ERROR, CallOf("wide", 0x7fffffff), kRecursive);
  // What was deep enough for nobody before the limit was raised.
  ExpectResult(20, CallOf("deep", 20), kRecursive);
  ExpectResult(20 * 21 / 2, CallOf("wide", 20), kRecursive);
  ASSERT_SUCCESS(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 256 << 10));
  ExpectResult(3000, CallOf("deep", 3000), kRecursive);
}

TEST_F(MisbehaviourTest, TrapsAndAssertions) {
  ExpectError(CUDA_ERROR_LAUNCH_FAILED, "setp.eq.u32 %p1, %t, 33; @%p1 trap;");
  ::testing::internal::CaptureStderr();
  ExpectError(CUDA_ERROR_ASSERT, R"(
  mov.u32 %r1, 0x3078; st.local.u32 [depot], %r1; mov.u64 %rd1, depot; cvta.local.u64 %rd1, %rd1;
  { .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;
    st.param.b64 [a], %rd1; st.param.b64 [b], %rd1; st.param.b32 [c], 12; st.param.b64 [d], %rd1; st.param.b64 [e], 1;
    call __assertfail, (a, b, c, d, e); })");
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("x0:12: x0: block: ["),
            std::string::npos);
}

TEST_F(MisbehaviourTest, DivisionByZeroIsNoError) {
  // As the instruction of a card gives it: all ones; of floats, infinity.
  ExpectResult(0xffffffff, "mov.u32 %r1, 0; div.u32 %r2, 100, %r1; st.global.u32 [%o], %r2;");
  ExpectResult(
      0x7f800000,
      "mov.f32 %f1, 0f00000000; div.rn.f32 %f2, 0f3F800000, %f1; st.global.f32 [%o], %f2;");
  ExpectResult(0x80000000,
               "mov.u32 %r1, 0x80000000; div.s32 %r2, %r1, -1; st.global.u32 [%o], %r2;");
}

TEST_F(MisbehaviourTest, BarriersThatNobodyCompletes) {
  ExpectError(CUDA_ERROR_LAUNCH_FAILED,
              "setp.lt.u32 %p1, %t, 32; @%p1 bra A; bar.sync 1, 64; bra E; A: bar.sync 2, 64; E:");
}

TEST_F(MisbehaviourTest, AKernelIsEndedWithItsContext) {
  const std::string endless = Kernel("L: bra L;");
  const std::string waits =
      Kernel("L: ld.volatile.global.u32 %r1, [%o]; setp.eq.u32 %p1, %r1, 0; @%p1 bra L;");
  const CUdeviceptr zeros = Upload(std::vector<uint32_t>(64));
  ASSERT_SUCCESS(Run(LoadPtx(waits), 4, 64, zeros));
  const auto start = steady_clock::now();
  StartAnew();
  EXPECT_LT(steady_clock::now() - start, seconds(30));
  ExpectResult(7, "mov.u32 %r1, 7; st.global.u32 [%o], %r1;");
  CUcontext own = nullptr;
  ASSERT_SUCCESS(cuCtxCreate(&own, nullptr, 0, 0));
  const CUdeviceptr memory = Upload(std::vector<uint32_t>(64));
  ASSERT_SUCCESS(Run(LoadPtx(endless), 4, 64, memory));
  // What is queued behind it is not run.
  ASSERT_SUCCESS(cuMemsetD32Async(memory, 1, 64, nullptr));
  ASSERT_SUCCESS(cuCtxDestroy(own));
  ASSERT_SUCCESS(cuCtxSetCurrent(context_));
  ExpectResult(7, "mov.u32 %r1, 7; st.global.u32 [%o], %r1;");
}

TEST_F(MisbehaviourTest, WhatAShortKernelPrintsComesOutWhenItsContextGoes) {
  const CUfunction function = LoadPtx(Kernel(R"(
  mov.u32 %r1, 0x6b6f; st.local.u32 [depot], %r1; mov.u64 %rd1, depot; cvta.local.u64 %rd1, %rd1;
  { .param .b64 f; .param .b64 a; .param .b32 r; st.param.b64 [f], %rd1; st.param.b64 [a], 0; call (r), vprintf, (f, a); })"));
  ::testing::internal::CaptureStdout();
  ASSERT_SUCCESS(Run(function, 1, 2, CUdeviceptr{0}));
  StartAnew();
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "okok");
}

// Prints the number of its thread and block, with a newline.
constexpr char kPrints[] = R"(
  mov.u32 %r1, 0x6425; st.local.u32 [depot], %r1; mov.u32 %r1, 0x0a; st.local.u8 [depot+2], %r1; st.local.u8 [depot+3], 0;
  st.local.u32 [depot+8], %b; mov.u64 %rd1, depot; cvta.local.u64 %rd1, %rd1; add.u64 %rd2, %rd1, 8;
  { .param .b64 f; .param .b64 a; .param .b32 r; st.param.b64 [f], %rd1; st.param.b64 [a], %rd2; call (r), vprintf, (f, a); })";

TEST_F(MisbehaviourTest, PrintfReadsNoStringsOfTheProgram) {
  static const char kSecret[] = "secret";
  ::testing::internal::CaptureStdout();
  ExpectError(CUDA_ERROR_ILLEGAL_ADDRESS, absl::StrCat(R"(
  mov.u32 %r1, 0x7325; st.local.u32 [depot], %r1; mov.u64 %rd3, )",
                                                       reinterpret_cast<uint64_t>(kSecret), R"(;
  st.local.u64 [depot+8], %rd3; mov.u64 %rd1, depot; cvta.local.u64 %rd1, %rd1; add.u64 %rd2, %rd1, 8;
  { .param .b64 f; .param .b64 a; .param .b32 r; st.param.b64 [f], %rd1; st.param.b64 [a], %rd2; call (r), vprintf, (f, a); })"));
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "");
}

TEST_F(MisbehaviourTest, TheRingOfPrintfKeepsTheLatest) {
  ASSERT_SUCCESS(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 400));
  const CUfunction function = LoadPtx(Kernel(kPrints));
  ::testing::internal::CaptureStdout();
  for (unsigned b = 0; b < 10; ++b) ASSERT_SUCCESS(Run(function, 100, 1, CUdeviceptr{0}));
  ASSERT_SUCCESS(cuCtxSynchronize());
  const std::string text = ::testing::internal::GetCapturedStdout();
  EXPECT_LE(text.size(), 400u);
  EXPECT_GT(text.size(), 380u);
  // Whole lines of numbers below 100, which are longer than what is left over.
  for (size_t start = 0; start < text.size(); start = text.find('\n', start) + 1) {
    EXPECT_LT(std::stoi(text.substr(start)), 100) << text;
  }
  EXPECT_EQ(text.back(), '\n');
}

TEST_F(MisbehaviourTest, TheHeapEndsWithItsContext) {
  ASSERT_SUCCESS(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 64 << 10));
  const std::string code = Kernel(R"(
  { .param .b64 n; .param .b64 r; st.param.b64 [n], 1024; call (r), malloc, (n); ld.param.b64 %rd2, [r]; }
  setp.ne.u64 %p1, %rd2, 0; @%p1 red.global.add.u32 [%o], 1;)");
  for (int round = 0; round < 2; ++round) {
    const CUdeviceptr memory = Upload(std::vector<uint32_t>(64));
    ASSERT_SUCCESS(Run(LoadPtx(code), 1, 100, memory));
    ASSERT_SUCCESS(cuCtxSynchronize());
    EXPECT_EQ(Download<uint32_t>(memory, 1)[0], 64u);
    StartAnew();
    ASSERT_SUCCESS(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 64 << 10));
  }
}

// A child that launches an endless kernel and ends as `how` says. (Of a suite named DeathTest,
// which runs first: a child of a process that has called cuInit has no driver.)
void RunChild(const char* how) {
  if (cuInit(0) != CUDA_SUCCESS) _exit(1);
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  const std::string text =
      absl::StrCat(".version 8.7\n.target sm_90\n.address_size 64\n", Kernel("L: bra L;"));
  if (cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
      cuCtxSetCurrent(context) != CUDA_SUCCESS ||
      cuModuleLoadData(&module, text.c_str()) != CUDA_SUCCESS ||
      cuModuleGetFunction(&function, module, "k") != CUDA_SUCCESS) {
    _exit(1);
  }
  CUdeviceptr memory = 0;
  void* params[] = {&memory};
  if (cuLaunchKernel(function, 8, 1, 1, 64, 1, 1, 0, nullptr, params, nullptr) != CUDA_SUCCESS) {
    _exit(1);
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  if (how == std::string("exit")) exit(3);
  cuCtxSynchronize();  // until the signal comes
  _exit(1);
}

TEST(EndOfTheProcessDeathTest, AnEndlessKernelDoesNotHoldItUp) {
  for (const char* how : {"exit", "signal"}) {
    const auto start = steady_clock::now();
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) RunChild(how);
    if (how == std::string("signal")) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1500));
      ASSERT_EQ(kill(child, SIGINT), 0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (how == std::string("exit")) {
      EXPECT_TRUE(WIFEXITED(status));
      EXPECT_EQ(WEXITSTATUS(status), 3);
    } else {
      EXPECT_TRUE(WIFSIGNALED(status));
      EXPECT_EQ(WTERMSIG(status), SIGINT);
    }
    EXPECT_LT(steady_clock::now() - start, seconds(30));
  }
}

}  // namespace
}  // namespace fargpu::softgpu
