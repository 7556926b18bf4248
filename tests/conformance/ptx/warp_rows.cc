// Instructions at which threads meet, fences, copies and barrier objects. What is hard about them
// is tested beside the engine (softgpu/exec/meeting_test.cc, async_test.cc).
#include "absl/strings/str_cat.h"

#include "tests/conformance/ptx/tables.h"

namespace fargpu::conformance {
namespace {

// %x0 is the thread, %y0 its word of %out, %y1 that of %in; the result in %x9 is stored.
std::string Code(const std::string& code) {
  return absl::StrCat(
      "mov.u32 %x0, %tid.x; mul.wide.u32 %y2, %x0, 4; add.u64 %y0, %out, %y2; add.u64 %y1, %in, "
      "%y2;"
      "mov.u32 %x1, %laneid; mov.u32 %x9, 0;\n",
      code, "\nst.global.u32 [%y0], %x9; ret;");
}

KernelRow Row(std::vector<std::string> forms, const std::string& code,
              const std::function<uint32_t(uint32_t)>& expected, uint32_t threads = 64) {
  KernelRow row;
  row.forms = std::move(forms);
  row.code = Code(code);
  row.block = {threads, 1, 1};
  row.module = ".shared .align 16 .b8 area[2048]; .shared .align 8 .b8 object[8];\n";
  for (uint32_t k = 0; k < 512; ++k) row.input.push_back(7000 + k);
  row.expected = [expected, threads] {
    std::vector<uint32_t> words;
    for (uint32_t t = 0; t < threads; ++t) words.push_back(expected(t));
    return words;
  };
  return row;
}

void AddWarpKernels(Table* t) {
  const auto lane_of = [](uint32_t thread) { return thread % 32; };
  t->AddKernel(Row({"activemask.b32"},
                   "setp.gt.u32 %p0, %x1, 20; @%p0 bra END; activemask.b32 %x9;\nEND:",
                   [=](uint32_t k) { return lane_of(k) > 20 ? 0 : 0x1fffffu; }));
  for (const char* form : {"vote.sync.ballot.b32", "vote.ballot.sync.b32"}) {
    t->AddKernel(Row({form}, absl::StrCat("setp.lt.u32 %p0, %x1, 11; ", form, " %x9, %p0, -1;"),
                     [](uint32_t) { return 0x7ffu; }));
  }
  t->AddKernel(Row({"vote.sync.any.pred", "vote.sync.all.pred"}, R"(
  setp.eq.u32 %p0, %x0, 40; vote.sync.any.pred %p1, %p0, -1; selp.u32 %x9, 1, 0, %p1;
  setp.lt.u32 %p2, %x0, 40; vote.sync.all.pred %p3, %p2, -1; @%p3 add.u32 %x9, %x9, 2;)",
                   [](uint32_t k) { return k < 32 ? 2u : 1u; }));
  t->AddKernel(Row({"shfl.sync.idx.b32"}, "shfl.sync.idx.b32 %x9, %x0, 5, 31, -1;",
                   [](uint32_t k) { return k / 32 * 32 + 5; }));
  t->AddKernel(Row({"shfl.sync.bfly.b32"}, "shfl.sync.bfly.b32 %x9, %x0, 12, 31, -1;",
                   [](uint32_t k) { return k ^ 12; }));
  t->AddKernel(Row({"shfl.sync.down.b32"},
                   "shfl.sync.down.b32 %x9|%p0, %x0, 3, 0x1c1f, -1; @!%p0 add.u32 %x9, %x9, 1000;",
                   [](uint32_t k) { return k % 4 == 0 ? k + 3 : k + 1000; }));
  t->AddKernel(Row({"shfl.sync.up.b32"},
                   "shfl.sync.up.b32 %x9|%p0, %x0, 3, 0, -1; @!%p0 add.u32 %x9, %x9, 1000;",
                   [](uint32_t k) { return k % 32 >= 3 ? k - 3 : k + 1000; }));
  t->AddKernel(Row({"match.any.sync.b32"}, "shr.u32 %x2, %x1, 3; match.any.sync.b32 %x9, %x2, -1;",
                   [=](uint32_t k) { return 0xffu << (lane_of(k) / 8 * 8); }));
  t->AddKernel(
      Row({"match.any.sync.b64"}, R"(
  and.b32 %x2, %x1, 1; mov.b64 %y5, {%x2, %x2}; and.b32 %x3, %x1, 16; mov.b64 %y6, {%x3, 0}; xor.b64 %y5, %y5, %y6;
  match.any.sync.b64 %x9, %y5, -1;)",
          [=](uint32_t k) { return (k % 2 == 0 ? 0x5555u : 0xaaaau) << (lane_of(k) / 16 * 16); }));
  t->AddKernel(Row({"redux.sync.add.s32", "redux.sync.add.u32"}, R"(
  sub.u32 %x2, 3, %x0; redux.sync.add.s32 %x9, %x2, -1; redux.sync.add.u32 %x3, %x1, 0xffffffff; add.u32 %x9, %x9, %x3;)",
                   [](uint32_t k) { return 32u * 3 - (k / 32 * 32 * 32 + 31 * 16) + 31 * 16; }));
  t->AddKernel(Row({"redux.sync.and.b32", "redux.sync.or.b32", "redux.sync.max.s32"}, R"(
  or.b32 %x2, %x0, 0x100; redux.sync.and.b32 %x3, %x2, -1; redux.sync.or.b32 %x4, %x0, -1; sub.u32 %x5, 10, %x0;
  redux.sync.max.s32 %x6, %x5, -1; mad.lo.u32 %x9, %x4, 1000, %x3; mad.lo.u32 %x9, %x6, 1000000, %x9;)",
                   [](uint32_t k) {
                     const uint32_t base = k / 32 * 32;
                     return (10 - base) * 1000000 + (base | 31) * 1000 + (base | 0x100);
                   }));
  t->AddKernel(Row({"bar.warp.sync"}, R"(
  mov.u32 %x2, area; shl.b32 %x3, %x0, 2; add.u32 %x2, %x2, %x3; st.shared.u32 [%x2], %x0; bar.warp.sync 0xffffffff;
  xor.b32 %x2, %x2, 28; ld.shared.u32 %x9, [%x2];)",
                   [](uint32_t k) { return k ^ 7; }));
}

void AddBlockKernels(Table* t) {
  constexpr char kPut[] =
      "mov.u32 %x2, area; shl.b32 %x3, %x0, 2; add.u32 %x2, %x2, %x3; st.shared.u32 [%x2], %x0;";
  constexpr char kGet[] = "xor.b32 %x2, %x2, 128; ld.shared.u32 %x9, [%x2];";
  for (const char* form : {"bar.sync", "barrier.sync", "barrier.sync.aligned"}) {
    t->AddKernel(Row(
        {form}, absl::StrCat(kPut, form, " 0;", kGet), [](uint32_t k) { return k ^ 32; }, 128));
    t->AddKernel(Row(
        {form}, absl::StrCat("shr.u32 %x5, %x0, 6; ", kPut, form, " %x5, 64;", kGet),
        [](uint32_t k) { return k ^ 32; }, 128));
  }
  t->AddKernel(Row(
      {"bar.red.and.pred", "bar.red.or.pred", "bar.red.popc.u32"}, R"(
  setp.lt.u32 %p0, %x0, 40; bar.red.popc.u32 %x9, 0, %p0; bar.red.or.pred %p1, 0, %p0; @%p1 add.u32 %x9, %x9, 100;
  bar.red.and.pred %p1, 0, %p0; @%p1 add.u32 %x9, %x9, 1000;)",
      [](uint32_t) { return 140u; }, 100));
  t->AddKernel(Row(
      {"barrier.red.or.pred"}, R"(
  setp.ge.u32 %p0, %x0, 64; @%p0 bra END; setp.eq.u32 %p1, %x0, 50; barrier.red.or.pred %p2, 2, 64, %p1; selp.u32 %x9, 1, 0, %p2;
END:)",
      [](uint32_t k) { return k < 64 ? 1u : 0u; }, 128));
  t->AddKernel(Row({"membar.cta", "membar.gl", "membar.sys", "fence.acq_rel.sys", "nanosleep.u32",
                    "prefetch.global.L2"},
                   absl::StrCat(kPut,
                                "membar.cta; membar.gl; membar.sys; fence.acq_rel.sys; "
                                "nanosleep.u32 20; prefetch.global.L2 [%y1]; bar.sync 0;",
                                kGet),
                   [](uint32_t k) { return k ^ 32; }));
  t->AddKernel(Row({"cvta.global.u64", "cvta.to.global.u64", "cvta.shared.u64",
                    "cvta.to.shared.u64", "cvta.local.u64", "cvta.to.local.u64"},
                   R"(
  .local .align 8 .b8 depot[8]; cvta.global.u64 %y3, %y1; ld.u32 %x9, [%y3]; cvta.to.global.u64 %y4, %y3; ld.global.u32 %x2, [%y4]; sub.u32 %x9, %x9, %x2;
  mov.u64 %y5, area; cvta.shared.u64 %y6, %y5; st.u32 [%y6], 5; cvta.to.shared.u64 %y7, %y6; ld.shared.u32 %x3, [%y7]; add.u32 %x9, %x9, %x3;
  mov.u64 %y5, depot; cvta.local.u64 %y6, %y5; st.u32 [%y6], %x0; cvta.to.local.u64 %y7, %y6; ld.local.u32 %x3, [%y7]; add.u32 %x9, %x9, %x3;)",
                   [](uint32_t k) { return 5 + k; }));
}

void AddAsyncKernels(Table* t) {
  for (const char* form : {"cp.async.ca.shared.global", "cp.async.ca.shared.global.L2::128B",
                           "cp.async.cg.shared.global", "cp.async.cg.shared.global.L2::128B"}) {
    t->AddKernel(Row(
        {form, "cp.async.commit_group", "cp.async.wait_group", "cp.async.wait_all"},
        absl::StrCat(
            R"(
  mov.u32 %x2, area; shl.b32 %x3, %x0, 4; add.u32 %x2, %x2, %x3; mul.wide.u32 %y3, %x0, 16; add.u64 %y4, %in, %y3;
  )",
            form,
            R"( [%x2], [%y4], 16; cp.async.commit_group; cp.async.wait_group 0; cp.async.wait_all; bar.sync 0;
  mov.u32 %x2, area; shl.b32 %x3, %x0, 2; add.u32 %x2, %x2, %x3; ld.shared.u32 %x9, [%x2];)"),
        [](uint32_t k) { return 7000 + k; }));
  }
  t->AddKernel(Row({"mbarrier.init.shared.b64", "mbarrier.expect_tx.relaxed.cta.shared::cta.b64",
                    "mbarrier.arrive.shared::cta.b64", "mbarrier.try_wait.parity.shared.b64",
                    "mbarrier.try_wait.shared.b64", "mbarrier.inval.shared.b64",
                    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"},
                   R"(
  mov.u32 %x2, object; mov.u32 %x3, area; setp.ne.u32 %p0, %x0, 0; @!%p0 mbarrier.init.shared.b64 [%x2], 64; bar.sync 0; @%p0 bra JOIN;
  mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%x2], 256;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%x3], [%in], 256, [%x2];
JOIN: mbarrier.arrive.shared::cta.b64 %y5, [%x2];
STATE: mbarrier.try_wait.shared.b64 %p1, [%x2], %y5; @!%p1 bra STATE;
PARITY: mbarrier.try_wait.parity.shared.b64 %p1, [%x2], 0; @!%p1 bra PARITY;
  shl.b32 %x4, %x0, 2; add.u32 %x3, %x3, %x4; ld.shared.u32 %x9, [%x3]; bar.sync 0; @!%p0 mbarrier.inval.shared.b64 [%x2];)",
                   [](uint32_t k) { return 7000 + k; }));
  for (const char* form :
       {"ldmatrix.sync.aligned.m8n8.x4.shared.b16", "ldmatrix.sync.aligned.x4.m8n8.shared.b16"}) {
    t->AddKernel(Row(
        {form},
        absl::StrCat(R"(
  mov.u32 %x2, area; shl.b32 %x3, %x0, 4; add.u32 %x2, %x2, %x3; mul.wide.u32 %y3, %x0, 16; add.u64 %y4, %in, %y3;
  ld.global.v4.b32 {%x10, %x11, %x12, %x13}, [%y4]; st.shared.v4.b32 [%x2], {%x10, %x11, %x12, %x13}; bar.sync 0;
  )",
                     form, " {%x10, %x11, %x12, %x13}, [%x2]; mad.lo.u32 %x9, %x11, 10000, %x12;"),
        [](uint32_t k) { return (7000 + 32 + k) * 10000 + 7000 + 64 + k; }, 32));
  }
  t->AddKernel(Row(
      {"ldmatrix.sync.aligned.x4.trans.m8n8.shared.b16"}, R"(
  mov.u32 %x2, area; shl.b32 %x3, %x0, 4; add.u32 %x2, %x2, %x3; mul.wide.u32 %y3, %x0, 16; add.u64 %y4, %in, %y3;
  ld.global.v4.b32 {%x10, %x11, %x12, %x13}, [%y4]; st.shared.v4.b32 [%x2], {%x10, %x11, %x12, %x13}; bar.sync 0;
  ldmatrix.sync.aligned.x4.trans.m8n8.shared.b16 {%x10, %x11, %x12, %x9}, [%x2];)",
      [](uint32_t k) {
        // Rows 2 (k % 4) and the next of column k / 4, in tile 3; a word holds 2 columns.
        const auto at = [&](uint32_t row, uint32_t column) {
          const uint32_t word = 7000 + 96 + row * 4 + column / 2;
          return column % 2 == 0 ? word & 0xffff : word >> 16;
        };
        return at(k % 4 * 2, k / 4) | at(k % 4 * 2 + 1, k / 4) << 16;
      },
      32));
}

}  // namespace

void AddWarpRows(Table* t) {
  AddWarpKernels(t);
  AddBlockKernels(t);
  AddAsyncKernels(t);
}

}  // namespace fargpu::conformance
