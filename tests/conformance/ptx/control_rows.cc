// Branches, calls, ends of threads.
#include "tests/conformance/ptx/tables.h"

namespace fargpu::conformance {
namespace {

// A word per lane.
std::vector<uint32_t> Lanes(uint32_t count, uint32_t (*value)(uint32_t lane)) {
  std::vector<uint32_t> words;
  for (uint32_t lane = 0; lane < count; ++lane) words.push_back(value(lane));
  return words;
}

constexpr char kOutOfLane[] =
    "mov.u32 %x0, %tid.x; mul.wide.u32 %y0, %x0, 4; add.u64 %y0, %out, %y0; ";

}  // namespace

void AddControlRows(Table* t) {
  const std::string at = kOutOfLane;
  t->AddKernel({{"bra", "bra.uni", "ret"},
                at + R"(
  mov.u32 %x1, 0;
  mov.u32 %x2, 0;
LOOP:
  setp.ge.u32 %p0, %x1, %x0;
  @%p0 bra DONE;
  add.u32 %x2, %x2, %x1;
  add.u32 %x1, %x1, 1;
  bra.uni LOOP;
DONE:
  st.global.u32 [%y0], %x2;
  ret;)",
                [] { return Lanes(32, [](uint32_t lane) { return lane * (lane - 1) / 2; }); }});
  t->AddKernel({{"exit"},
                at + R"(
  setp.lt.u32 %p0, %x0, 9;
  st.global.u32 [%y0], 1;
  @%p0 exit;
  st.global.u32 [%y0], 2;
  exit;)",
                [] { return Lanes(32, [](uint32_t lane) { return lane < 9 ? 1u : 2u; }); }});
  KernelRow calls{{"call", "call.uni", "ret", "ld.param.b32", "st.param.b32"},
                  at + R"(
  .param .b32 a0;
  .param .b32 r0;
  st.param.b32 [a0], %x0;
  call.uni (r0), square, (a0);
  ld.param.b32 %x1, [r0];
  setp.lt.u32 %p0, %x0, 5;
  st.param.b32 [a0], %x1;
  @%p0 call (r0), square, (a0);
  ld.param.b32 %x1, [r0];
  st.global.u32 [%y0], %x1;
  ret;)",
                  [] {
                    return Lanes(32, [](uint32_t lane) {
                      return lane < 5 ? lane * lane * lane * lane : lane * lane;
                    });
                  }};
  calls.module = R"(
.func (.param .b32 r) square(.param .b32 x) {
  .reg .b32 %v;
  ld.param.b32 %v, [x];
  mul.lo.u32 %v, %v, %v;
  st.param.b32 [r], %v;
  ret;
}
)";
  t->AddKernel(std::move(calls));
  KernelRow trap{
      {"trap"}, "trap; st.global.u32 [%out], 1;", [] { return std::vector<uint32_t>{0}; }};
  trap.error = CUDA_ERROR_LAUNCH_FAILED;
  t->AddKernel(std::move(trap));
  for (const char* form : {"griddepcontrol.wait", "griddepcontrol.launch_dependents"}) {
    t->AddKernel({{form}, at + form + "; st.global.u32 [%y0], 7;", [] {
                    return Lanes(32, [](uint32_t) { return 7u; });
                  }});
  }
}

}  // namespace fargpu::conformance
