// Kernels that do not end, or wait for what has not started; the heap and the assertions of
// kernels.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "common/status_matchers.h"
#include "softgpu/exec/testing/ptx_runner.h"

namespace fargpu::softgpu {
namespace {

using ::testing::HasSubstr;

// k(out): %o is the address of the thread's word, over all blocks; %t the thread in its block.
std::string Kernel(const std::string& code) {
  return absl::StrCat(R"(
.version 8.7
.target sm_90
.address_size 64
.extern .func (.param .b64 r) malloc(.param .b64 n);
.extern .func free(.param .b64 p);
.extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
.global .align 4 .u32 arrived = 0;
.visible .entry k(.param .u64 out) {
  .reg .b32 %t, %b, %n, %i, %v, %r<20>; .reg .b64 %o, %rd<9>; .reg .pred %p<10>;
  mov.u32 %t, %tid.x; mov.u32 %b, %ctaid.x; mov.u32 %n, %ntid.x; mad.lo.u32 %i, %b, %n, %t;
  ld.param.u64 %o, [out]; mul.wide.u32 %rd0, %i, 8; add.u64 %o, %o, %rd0;
  )",
                      code, "\n  ret; }");
}

class MisbehaviourTest : public ::testing::Test {
 protected:
  absl::Status Launch(const std::string& code, uint32_t blocks, uint32_t threads,
                      uint64_t heap = uint64_t{8} << 20) {
    auto runner = PtxRunner::Load({Kernel(code)});
    if (!runner.ok()) return runner.status();
    DeviceBuffer<uint64_t> out(blocks * threads, 0);
    const uint64_t address = out.address();
    LaunchConfig config;
    config.grid = {blocks};
    config.block = {threads};
    config.params = absl::MakeSpan(reinterpret_cast<const char*>(&address), sizeof address);
    config.interrupted = &interrupted_;
    config.heap_bytes = heap;
    config.error_sink = [this](absl::string_view text) {
      errors_.append(text.data(), text.size());
    };
    started_ = true;
    const absl::Status status = (*runner)->program->Launch(0, config);
    out_ = out.Values();
    return status;
  }

  // Launches code that does not end and interrupts it.
  void CheckInterrupted(const std::string& code, uint32_t blocks, uint32_t threads) {
    started_ = false;
    interrupted_ = false;
    absl::Status status;
    std::thread launcher([&] {
      // As the threads of work queues do.
      sigset_t all;
      sigfillset(&all);
      sigdelset(&all, SIGSEGV);
      pthread_sigmask(SIG_SETMASK, &all, nullptr);
      status = Launch(code, blocks, threads);
    });
    while (!started_) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    InterruptLaunches(&interrupted_);
    launcher.join();
    EXPECT_THAT(status, IsCudaError(CUDA_ERROR_LAUNCH_FAILED)) << code;
    EXPECT_THAT(std::string(status.message()), HasSubstr("interrupted"));
    EXPECT_THAT(Launch("mov.u32 %r1, 1;", 1, 32), IsCudaError(CUDA_ERROR_LAUNCH_FAILED));
    interrupted_ = false;
    EXPECT_OK(Launch("mov.u32 %r1, 1;", 1, 32));
  }

  std::atomic<bool> interrupted_{false};
  std::atomic<bool> started_{false};
  std::vector<uint64_t> out_;
  std::string errors_;
};

TEST_F(MisbehaviourTest, EndlessKernelsAreInterrupted) {
  CheckInterrupted("L: bra L;", 1, 32);
  CheckInterrupted(
      "L: ld.global.u32 %r1, [%o]; add.u32 %r1, %r1, 1; st.global.u32 [%o], %r1; "
      "setp.ne.u32 %p1, %r1, 0x80000000; @%p1 bra L; bra L;",
      8, 64);
  CheckInterrupted("L: bar.sync 0; bra L;", 4, 128);
  CheckInterrupted("L: ld.volatile.global.u32 %r1, [%o]; setp.eq.u32 %p1, %r1, 0; @%p1 bra L;", 4,
                   64);
  CheckInterrupted(
      "mov.u32 %r2, 0; L: add.u32 %r2, %r2, 1; { .param .b64 n; .param .b64 r; mov.u64 "
      "%rd1, 64; st.param.b64 [n], %rd1; call (r), malloc, (n); ld.param.b64 %rd2, [r]; } "
      "{ .param .b64 q; st.param.b64 [q], %rd2; call free, (q); } bra L;",
      2, 32);
}

TEST_F(MisbehaviourTest, BlocksMayWaitForBlocksThatComeLater) {
  // A barrier of the whole grid, without a cooperative launch, as old programs have it: more blocks
  // than there are cores.
  EXPECT_OK(Launch(R"(
  setp.ne.u32 %p1, %t, 0; @%p1 bra JOIN; atom.global.add.u32 %r1, [arrived], 1; mov.u32 %r2, %nctaid.x;
L: ld.volatile.global.u32 %r1, [arrived]; setp.lt.u32 %p2, %r1, %r2; @%p2 bra L;
JOIN: bar.sync 0; ld.volatile.global.u32 %r1, [arrived]; cvt.u64.u32 %rd1, %r1; st.global.u64 [%o], %rd1;)",
                   100, 64));
  for (const uint64_t v : out_) ASSERT_EQ(v, 100u);
}

constexpr char kAllocate[] = R"(
  { .param .b64 n; .param .b64 r; mul.wide.u32 %rd1, %t, 8; add.u64 %rd1, %rd1, 24; st.param.b64 [n], %rd1;
    call (r), malloc, (n); ld.param.b64 %rd2, [r]; }
  st.global.u64 [%o], %rd2;)";

TEST_F(MisbehaviourTest, HeapOfKernels) {
  EXPECT_OK(Launch(absl::StrCat(kAllocate, R"(
  cvt.u64.u32 %rd3, %i; st.u64 [%rd2], %rd3; st.u64 [%rd2+16], %rd3; bar.sync 0; ld.u64 %rd4, [%rd2]; setp.ne.u64 %p1, %rd4, %rd3; @%p1 trap;
  { .param .b64 q; st.param.b64 [q], %rd2; call free, (q); })"),
                   4, 64));
  std::set<uint64_t> first(out_.begin(), out_.begin() + 64);
  EXPECT_EQ(first.size(), 64u);
  EXPECT_EQ(first.count(0), 0u);
  for (const uint64_t address : first) EXPECT_EQ(address % 16, 0u);
  // Everything was given back; a heap of 4096 bytes does not hold all that 64 threads want.
  EXPECT_OK(
      Launch(absl::StrCat(kAllocate,
                          "{ .param .b64 q; bar.sync 0; st.param.b64 [q], %rd2; call free, (q); }"),
             1, 64, 4096));
  const auto failed = std::count(out_.begin(), out_.end(), 0u);
  EXPECT_GT(failed, 0);
  EXPECT_LT(failed, 64);
  EXPECT_THAT(
      Launch("{ .param .b64 q; mov.u64 %rd1, 4096; st.param.b64 [q], %rd1; call free, (q); }", 1,
             32),
      IsCudaError(CUDA_ERROR_LAUNCH_FAILED));
}

TEST_F(MisbehaviourTest, AssertionsGoToStandardError) {
  const absl::Status status = Launch(R"(
  .local .align 8 .b8 text[16]; mov.u64 %rd1, text; cvta.local.u64 %rd1, %rd1; mov.u32 %r1, 0x313c69; st.u32 [%rd1], %r1;
  setp.ne.u32 %p1, %t, 5; @%p1 bra END;
  { .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e; mov.u32 %r2, 42; mov.u64 %rd2, 1;
    st.param.b64 [a], %rd1; st.param.b64 [b], %rd1; st.param.b32 [c], %r2; st.param.b64 [d], %rd1; st.param.b64 [e], %rd2;
    call __assertfail, (a, b, c, d, e); }
END:)",
                                     1, 32);
  EXPECT_THAT(status, IsCudaError(CUDA_ERROR_ASSERT));
  EXPECT_EQ(errors_, "i<1:42: i<1: block: [0,0,0], thread: [5,0,0] Assertion `i<1` failed.\n");
}

}  // namespace
}  // namespace fargpu::softgpu
