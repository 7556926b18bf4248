#include "tests/conformance/ptx/harness.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gtest/gtest.h"

#include "common/cuda_error.h"
#include "softgpu/exec/testing/ptx_runner.h"

namespace fargpu::conformance {
namespace {

using softgpu::DeviceBuffer;
using softgpu::PtxRunner;

// More rows than this in one kernel take the compiler longer than several kernels do.
constexpr size_t kRowsPerKernel = 24;
constexpr uint32_t kBlock = 96;
// A wrong row shows so many of its wrong results.
constexpr int kShown = 3;

constexpr char kHeader[] = ".version 9.1\n.target sm_120a\n.address_size 64\n";

enum class Spread { kVarying, kUniform };

std::string KernelText(const Group& group, size_t first, size_t last, Spread spread) {
  std::string text = absl::StrCat(kHeader, R"(
.visible .entry k(.param .u64 in0, .param .u64 in1, .param .u64 in2, .param .u64 out,
                  .param .u32 count) {
  .reg .pred %p, %q, %r, %beyond;
  .reg .b16 %h<8>;
  .reg .b32 %x<8>, %index, %count;
  .reg .b64 %y<8>, %offset, %from, %to, %step;
)");
  const auto type = [](int bits) {
    return bits == 1 ? std::string("pred") : absl::StrCat("b", bits);
  };
  const char* const names[] = {"%a", "%b", "%c"};
  for (int k = 0; k < 3; ++k) {
    if (group.inputs[k].bits == 0) continue;
    absl::StrAppend(&text, "  .reg .", type(group.inputs[k].bits), " ", names[k], ";\n");
  }
  absl::StrAppend(&text, "  .reg .", type(group.result_bits), " %d;\n");
  if (spread == Spread::kVarying) {
    absl::StrAppend(&text, "  mov.u32 %x0, %ntid.x; mov.u32 %x1, %ctaid.x; mov.u32 %x2, %tid.x;\n",
                    "  mad.lo.u32 %index, %x0, %x1, %x2;\n");
  } else {
    absl::StrAppend(&text, "  mov.u32 %index, %ctaid.x;\n");
  }
  absl::StrAppend(&text, R"(  ld.param.u32 %count, [count];
  setp.ge.u32 %beyond, %index, %count;
  @%beyond exit;
  mul.wide.u32 %offset, %index, 8;
)");
  for (int k = 0; k < 3; ++k) {
    const int bits = group.inputs[k].bits;
    if (bits == 0) continue;
    absl::StrAppend(&text, "  ld.param.u64 %from, [in", k,
                    "];\n  add.u64 %from, %from, %offset;\n");
    if (bits == 1) {
      absl::StrAppend(&text, "  ld.global.u32 %x0, [%from];\n  setp.ne.u32 ", names[k],
                      ", %x0, 0;\n");
    } else {
      absl::StrAppend(&text, "  ld.global.b", bits, " ", names[k], ", [%from];\n");
    }
  }
  absl::StrAppend(&text, R"(  ld.param.u64 %to, [out];
  add.u64 %to, %to, %offset;
  mul.wide.u32 %step, %count, 8;
)");
  for (size_t r = first; r < last; ++r) {
    if (group.result_bits == 1) {
      absl::StrAppend(&text, "  setp.ne.u32 %d, 0, 0;\n  { ", group.rows[r].code,
                      " }\n  selp.b32 %x0, 1, 0, %d;\n  st.global.b32 [%to], %x0;\n");
    } else {
      absl::StrAppend(&text, "  mov.b", group.result_bits, " %d, 0x55;\n  { ", group.rows[r].code,
                      " }\n  st.global.b", group.result_bits, " [%to], %d;\n");
    }
    absl::StrAppend(&text, "  add.u64 %to, %to, %step;\n");
  }
  absl::StrAppend(&text, "  ret;\n}\n");
  return text;
}

bool SameFloat(const Format& format, uint64_t got, uint64_t want) {
  return got == want || (IsNan(Decode(format, got)) && IsNan(Decode(format, want)));
}

bool Close(const Format& format, uint64_t got_bits, const Expectation& want) {
  const double got = static_cast<double>(Decode(format, got_bits));
  if (std::isnan(want.value) || std::isnan(got)) return std::isnan(want.value) && std::isnan(got);
  if (got == want.value) return true;
  return std::fabs(got - want.value) <=
         std::max(want.absolute, want.relative * std::fabs(want.value));
}

bool Agrees(Compare compare, uint64_t got, const Expectation& want) {
  const auto halves = [&](const Format& format) {
    return SameFloat(format, got & 0xffff, want.bits & 0xffff) &&
           SameFloat(format, got >> 16, want.bits >> 16);
  };
  switch (compare) {
    case Compare::kBits:
      return got == want.bits;
    case Compare::kHalf:
      return SameFloat(kF16, got, want.bits);
    case Compare::kBHalf:
      return SameFloat(kBF16, got, want.bits);
    case Compare::kHalfPair:
      return halves(kF16);
    case Compare::kBHalfPair:
      return halves(kBF16);
    case Compare::kFloat:
      return SameFloat(kF32, got, want.bits);
    case Compare::kDouble:
      return SameFloat(kF64, got, want.bits);
    case Compare::kNearHalf:
      return Close(kF16, got, want);
    case Compare::kNearBHalf:
      return Close(kBF16, got, want);
    case Compare::kNearFloat:
      return Close(kF32, got, want);
    case Compare::kNearDouble:
      return Close(kF64, got, want);
  }
  return false;
}

bool IsNear(Compare compare) { return compare >= Compare::kNearHalf; }

// Every combination of the first two operands' values, with the third's taken in turn; where those
// are few, every combination of all three.
std::vector<std::vector<uint64_t>> Combinations(const Group& group) {
  std::vector<std::vector<uint64_t>> columns(3);
  const auto size = [&](int k) {
    return group.inputs[k].bits == 0 ? size_t{1} : group.inputs[k].values->size();
  };
  const auto value = [&](int k, size_t i) {
    return group.inputs[k].bits == 0 ? 0 : (*group.inputs[k].values)[i % size(k)];
  };
  const bool all = size(0) * size(1) * size(2) <= 1500;
  size_t turn = 0;
  for (size_t a = 0; a < size(0); ++a) {
    for (size_t b = 0; b < size(1); ++b) {
      // Three thirds per pair keep the third operand from following the second.
      const size_t thirds = group.inputs[2].bits == 0 ? 1 : all ? size(2) : 3;
      for (size_t c = 0; c < thirds; ++c) {
        columns[0].push_back(value(0, a));
        columns[1].push_back(value(1, b));
        columns[2].push_back(value(2, all ? c : turn++));
      }
      ++turn;
    }
  }
  return columns;
}

// What is wrong with which form.
using Failures = std::multimap<std::string, std::string>;

absl::Status RunRows(const Group& group, size_t first, size_t last, Spread spread,
                     const std::vector<std::vector<uint64_t>>& columns,
                     std::vector<uint64_t>* results) {
  auto runner = PtxRunner::Load({KernelText(group, first, last, spread)});
  if (!runner.ok()) return runner.status();
  const uint32_t count = static_cast<uint32_t>(columns[0].size());
  DeviceBuffer<uint64_t> a(columns[0]), b(columns[1]), c(columns[2]);
  DeviceBuffer<uint64_t> out(count * (last - first), 0);
  const softgpu::Dim3 block = {spread == Spread::kVarying ? kBlock : 1};
  const softgpu::Dim3 grid = {spread == Spread::kVarying ? (count + kBlock - 1) / kBlock : count};
  const absl::Status status = (*runner)->Run("k", grid, block, 0, a.address(), b.address(),
                                             c.address(), out.address(), count);
  *results = out.Values();
  return status;
}

void CheckRow(const Row& row, Spread spread, const std::vector<std::vector<uint64_t>>& columns,
              const uint64_t* results, Failures* failures) {
  int wrong = 0;
  std::string shown;
  for (size_t i = 0; i < columns[0].size(); ++i) {
    const uint64_t in[3] = {columns[0][i], columns[1][i], columns[2][i]};
    const Expectation want = row.expected(in);
    if (Agrees(row.compare, results[i], want)) continue;
    if (++wrong > kShown) continue;
    absl::StrAppend(&shown, "\n  a=", absl::Hex(in[0]), " b=", absl::Hex(in[1]),
                    " c=", absl::Hex(in[2]), ": got ", absl::Hex(results[i]), ", want ");
    if (IsNear(row.compare)) {
      absl::StrAppend(&shown, want.value, " within ", want.absolute, " or ", want.relative,
                      " of it");
    } else {
      absl::StrAppend(&shown, absl::Hex(want.bits));
    }
  }
  if (wrong == 0) return;
  failures->emplace(row.form, absl::StrCat(wrong, " of ", columns[0].size(), " results, ",
                                           spread == Spread::kVarying ? "varying" : "uniform",
                                           " operands, '", row.code, "'", shown));
}

void RunGroup(const Group& group, Spread spread, Failures* failures) {
  const std::vector<std::vector<uint64_t>> columns = Combinations(group);
  const size_t count = columns[0].size();
  for (size_t first = 0; first < group.rows.size(); first += kRowsPerKernel) {
    const size_t last = std::min(first + kRowsPerKernel, group.rows.size());
    std::vector<uint64_t> results;
    if (RunRows(group, first, last, spread, columns, &results).ok()) {
      for (size_t r = first; r < last; ++r) {
        CheckRow(group.rows[r], spread, columns, &results[(r - first) * count], failures);
      }
      continue;
    }
    // One of them is refused: which?
    for (size_t r = first; r < last; ++r) {
      const absl::Status status = RunRows(group, r, r + 1, spread, columns, &results);
      if (!status.ok()) {
        failures->emplace(group.rows[r].form, std::string(status.message()));
      } else {
        CheckRow(group.rows[r], spread, columns, results.data(), failures);
      }
    }
  }
}

// What is wrong with it; empty if nothing.
std::string RunKernel(const KernelRow& row) {
  const std::string text = absl::StrCat(kHeader, row.module, R"(
.visible .entry k(.param .u64 in, .param .u64 out) {
  .reg .pred %p<16>;
  .reg .b16 %h<32>;
  .reg .b32 %x<64>;
  .reg .b64 %y<32>, %in, %out;
  ld.param.u64 %in, [in];
  ld.param.u64 %out, [out];
)",
                                        row.code, "\n}\n");
  auto runner = PtxRunner::Load({text});
  if (!runner.ok()) return absl::StrCat(runner.status().message(), "\n", row.code);
  const std::vector<uint32_t> want = row.expected();
  std::vector<uint32_t> input = row.input;
  if (input.empty()) input.push_back(0);
  DeviceBuffer<uint32_t> in(input), out(want.size(), 0);
  const absl::Status status = (*runner)->Run("k", row.grid, row.block, row.dynamic_shared_bytes,
                                             in.address(), out.address());
  if (ToCuResult(status) != row.error) {
    return absl::StrCat(status.ok() ? "it succeeds" : status.message(), ", expected error ",
                        row.error, "\n", row.code);
  }
  const std::vector<uint32_t> got = out.Values();
  int wrong = 0;
  std::string shown;
  for (size_t i = 0; i < want.size(); ++i) {
    if (got[i] != want[i] && ++wrong <= kShown) {
      absl::StrAppend(&shown, "word ", i, " is 0x", absl::Hex(got[i]), ", not 0x",
                      absl::Hex(want[i]), "\n");
    }
  }
  return wrong == 0 ? "" : absl::StrCat(wrong, " of ", want.size(), " words: ", shown, row.code);
}

const Values& Keep(Values values) { return *new Values(std::move(values)); }

template <typename... T>
Values BitsOf(T... floats) {
  return {static_cast<uint64_t>(Bits(floats))...};
}

Values Concat(Values a, const Values& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Each value beside several others.
Values PairsOf(const Values& halves) {
  Values pairs;
  for (size_t i = 0; i < halves.size(); ++i) {
    pairs.push_back(halves[i] | halves[(i * 5 + 3) % halves.size()] << 16);
  }
  return pairs;
}

}  // namespace

const Values& Ints16() {
  static const Values& values =
      Keep({0,     1,      2,      7,      15,     16,     100,    0x7f,   0x80,   0xff,
            0x100, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0xff80, 0xfffe, 0xffff, 0x1234, 0xdead});
  return values;
}
const Values& Ints32() {
  static const Values& values =
      Keep({0,          1,          2,          3,          7,          8,
            31,         32,         33,         0x7f,       0x80,       0xff,
            0x7fff,     0x8000,     0xffff,     0x10000,    0x00ffffff, 0x7ffffffe,
            0x7fffffff, 0x80000000, 0x80000001, 0xffff8000, 0xffffff80, 0xfffffffe,
            0xffffffff, 0x12345678, 0xdeadbeef, 0x0f0f3210, 100000});
  return values;
}
const Values& Ints64() {
  static const Values& values = Keep({0,
                                      1,
                                      2,
                                      31,
                                      32,
                                      63,
                                      64,
                                      65,
                                      0xff,
                                      0x7fffffff,
                                      0x80000000,
                                      0xffffffff,
                                      0x100000000,
                                      0x7fffffffffffffff,
                                      0x8000000000000000,
                                      0x8000000000000001,
                                      0xffffffff80000000,
                                      0xfffffffffffffffe,
                                      ~uint64_t{0},
                                      0x123456789abcdef0,
                                      0xdeadbeefcafebabe,
                                      1000000007,
                                      (uint64_t{1} << 53) + 1,
                                      0x7ffffffffffffc00});
  return values;
}
const Values& Floats() {
  static const Values& values = Keep(
      Concat(BitsOf(0.0f, -0.0f, 1.0f, -1.0f, 1.5f, 2.5f, -2.5f, 0.5f, -0.5f, 0.1f, 3.1415927f,
                    -123456.789f, 16777217.0f, 2147483648.0f, -2147483648.0f, 4294967296.0f, 1e10f,
                    1e-10f, 65504.0f, 65520.0f, 0x1p-14f, 0x1p-25f, 448.0f, 0x1.fffffep+0f),
             {0x00000001, 0x80000001, 0x007fffff, 0x00800000, 0x80800000, 0x7f7fffff, 0xff7fffff,
              0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001}));
  return values;
}
const Values& Doubles() {
  static const Values& values =
      Keep(Concat(BitsOf(0.0, -0.0, 1.0, -1.0, 1.5, 2.5, -2.5, 0.5, 0.1, -3.141592653589793, 1e300,
                         -1e-300, 4294967295.5, 2147483647.5, -2147483648.5, 9223372036854775808.0,
                         -9223372036854775808.0, 18446744073709551616.0, 16777217.0, 1e-40,
                         0x1p-149, 0x1.ffffffp+127, 65519.99, 0x1.0000000000001p+0),
                  {0x0000000000000001, 0x8000000000000001, 0x000fffffffffffff, 0x0010000000000000,
                   0x7fefffffffffffff, 0xffefffffffffffff, 0x7ff0000000000000, 0xfff0000000000000,
                   0x7ff8000000000000, 0xfff8000000000001}));
  return values;
}
const Values& Halves() {
  static const Values& values =
      Keep({0x0000, 0x8000, 0x3c00, 0xbc00, 0x3e00, 0x4100, 0xc100, 0x3800, 0x2e66,
            0x4248, 0xd640, 0x0001, 0x8001, 0x03ff, 0x0400, 0x8400, 0x7bff, 0xfbff,
            0x7c00, 0xfc00, 0x7e00, 0xfe01, 0x3c01, 0x5640, 0x0801});
  return values;
}
const Values& BHalves() {
  static const Values& values =
      Keep({0x0000, 0x8000, 0x3f80, 0xbf80, 0x3fc0, 0x4020, 0xc020, 0x3f00, 0x3dcd,
            0x4049, 0xc2c8, 0x0001, 0x8001, 0x007f, 0x0080, 0x8080, 0x7f7f, 0xff7f,
            0x7f80, 0xff80, 0x7fc0, 0xffc1, 0x3f81, 0x42c8, 0x0101});
  return values;
}
const Values& HalfPairs() {
  static const Values& values = Keep(PairsOf(Halves()));
  return values;
}
const Values& BHalfPairs() {
  static const Values& values = Keep(PairsOf(BHalves()));
  return values;
}
const Values& Booleans() {
  static const Values& values = Keep({0, 1});
  return values;
}

// FARGPU_CONFORMANCE_ONLY=setp.ge runs only the forms that begin so: for debugging.
bool Wanted(absl::string_view form) {
  static const char* const prefix = std::getenv("FARGPU_CONFORMANCE_ONLY");
  return prefix == nullptr || absl::StartsWith(form, prefix);
}

void Table::AddKernel(KernelRow row) {
  if (std::any_of(row.forms.begin(), row.forms.end(), Wanted)) kernels_.push_back(std::move(row));
}

void Table::Insert(std::string form, std::string code, Row row, const OperandSpec (&specs)[3],
                   int result_bits) {
  if (!Wanted(form)) return;
  row.code = absl::StrReplaceAll(code, {{"$", form}});
  row.form = std::move(form);
  for (Group& group : groups_) {
    if (group.result_bits == result_bits && std::equal(specs, specs + 3, group.inputs)) {
      group.rows.push_back(std::move(row));
      return;
    }
  }
  groups_.emplace_back();
  std::copy(specs, specs + 3, groups_.back().inputs);
  groups_.back().result_bits = result_bits;
  groups_.back().rows.push_back(std::move(row));
}

std::vector<std::string> Table::Forms() const {
  std::vector<std::string> forms;
  for (const Group& group : groups_) {
    for (const Row& row : group.rows) forms.push_back(row.form);
  }
  for (const KernelRow& row : kernels_) {
    forms.insert(forms.end(), row.forms.begin(), row.forms.end());
  }
  return forms;
}

const std::set<std::string>& ExpectedFailures() {
  static const auto* const forms = [] {
    auto* set = new std::set<std::string>;
    std::ifstream file(FARGPU_SOURCE_DIR "/tests/conformance/expected_failures.txt");
    EXPECT_TRUE(file.good()) << "expected_failures.txt is missing";
    for (std::string line; std::getline(file, line);) {
      if (!line.empty() && line[0] != '#') set->insert(line);
    }
    return set;
  }();
  return *forms;
}

void RunTable(const Table& table) {
  Failures failures;
  for (const Group& group : table.groups()) {
    RunGroup(group, Spread::kVarying, &failures);
    RunGroup(group, Spread::kUniform, &failures);
  }
  for (const KernelRow& row : table.kernels()) {
    const std::string problem = RunKernel(row);
    for (const std::string& form : row.forms) {
      if (!problem.empty()) failures.emplace(form, problem);
    }
  }
  for (const auto& [form, problem] : failures) {
    if (ExpectedFailures().count(form) == 0) ADD_FAILURE() << form << ": " << problem;
  }
  for (const std::string& form : table.Forms()) {
    if (ExpectedFailures().count(form) != 0 && failures.count(form) == 0) {
      ADD_FAILURE() << form << " is right now: remove it from expected_failures.txt";
    }
  }
}

}  // namespace fargpu::conformance
