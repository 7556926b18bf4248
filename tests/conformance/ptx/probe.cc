#include "tests/conformance/ptx/probe.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace fargpu::conformance {
namespace {

struct Form {
  std::string opcode;
  std::vector<std::string> modifiers;
  std::vector<std::string> types;
  bool Has(absl::string_view name) const {
    return std::find(modifiers.begin(), modifiers.end(), name) != modifiers.end();
  }
};

// Bits of a register that holds `type`; 0 if the word is no type.
int Width(absl::string_view type) {
  if (type == "pred") return 1;
  static constexpr absl::string_view kPairs[] = {"f16x2", "bf16x2", "u16x2", "s16x2"};
  if (std::find(std::begin(kPairs), std::end(kPairs), type) != std::end(kPairs)) return 32;
  if (type == "e4m3x2" || type == "e5m2x2" || type == "f16" || type == "bf16") return 16;
  if (type == "tf32") return 32;
  if (type == "f32x2") return 64;
  int bits = 0;
  if (type.size() < 2 || absl::string_view("busf").find(type[0]) == absl::string_view::npos ||
      !absl::SimpleAtoi(type.substr(1), &bits)) {
    return 0;
  }
  return bits == 8 ? 16 : bits;
}

std::string Register(int bits, int index) {
  const char* const prefix = bits == 1     ? "%p"
                             : bits == 16  ? "%h"
                             : bits == 32  ? "%x"
                             : bits == 128 ? "%z"
                                           : "%y";
  return absl::StrCat(prefix, index);
}

// d, a, b, ...: one register per width.
std::string Registers(std::initializer_list<int> widths) {
  std::vector<std::string> names;
  int index = 1;
  for (const int bits : widths) names.push_back(Register(bits, index++));
  return absl::StrJoin(names, ", ");
}

int Lanes(const Form& f) { return f.Has("v8") ? 8 : f.Has("v4") ? 4 : f.Has("v2") ? 2 : 1; }

std::string Value(const Form& f, int bits, int first) {
  const int lanes = Lanes(f);
  if (lanes == 1) return Register(bits, first);
  std::vector<std::string> names;
  for (int k = 0; k < lanes; ++k) names.push_back(Register(bits, first + k));
  return absl::StrCat("{", absl::StrJoin(names, ", "), "}");
}

std::string Address(const Form& f) {
  if (f.Has("param")) return "[p]";
  for (const std::string& m : f.modifiers) {
    if (absl::StartsWith(m, "shared")) return "[sm]";
  }
  if (f.Has("const")) return "[cm]";
  if (f.Has("local")) return "[lm]";
  return "[%y20]";
}

bool OneOf(const std::string& word, std::initializer_list<const char*> words) {
  return std::any_of(words.begin(), words.end(), [&](const char* w) { return word == w; });
}

// The operands, without ';'. "?" if unknown.
std::string Operands(const Form& f) {
  const std::string& op = f.opcode;
  const int w = f.types.empty() ? 0 : Width(f.types.front());
  const int last = f.types.empty() ? 0 : Width(f.types.back());
  const int twice = f.Has("wide") ? 2 * w : w;
  if (OneOf(op, {"ret", "exit", "trap", "membar", "fence", "griddepcontrol", "brkpt"})) return "";
  if (op == "bra") return "DONE";
  if (op == "call") return "f";
  if (OneOf(op, {"bar", "barrier"})) {
    if (f.Has("warp")) return "-1";
    if (f.Has("red")) return absl::StrCat(Register(w, 1), ", 0, %p2");
    return f.Has("arrive") ? "0, 64" : "0";
  }
  if (op == "nanosleep") return "%x1";
  if (op == "activemask") return "%x1";
  if (op == "shfl") return "%x1|%p1, %x2, 1, 31, -1";
  if (op == "vote") return absl::StrCat(Register(last, 1), ", %p2, -1");
  if (op == "match")
    return f.Has("all") ? absl::StrCat("%x1|%p1, ", Register(w, 2), ", -1")
                        : absl::StrCat("%x1, ", Register(w, 2), ", -1");
  if (op == "redux") return "%x1, %x2, -1";
  if (op == "prefetch" || op == "prefetchu") return "[%y20]";
  if (op == "cp") {
    if (f.Has("commit_group") || f.Has("wait_all")) return "";
    if (f.Has("wait_group")) return "0";
    if (f.Has("bulk")) return "[sm], [%y20], 16, [mb]";
    return "[sm], [%y20], 16";
  }
  if (op == "mbarrier") {
    if (f.Has("init")) return "[mb], 32";
    if (f.Has("inval")) return "[mb]";
    if (f.Has("arrive")) return "%y1, [mb]";
    if (f.Has("expect_tx")) return "[mb], 16";
    return f.Has("parity") ? "%p1, [mb], 0" : "%p1, [mb], %y1";
  }
  if (op == "ldmatrix") {
    return f.Has("x4")   ? "{%x1, %x2, %x3, %x4}, [sm]"
           : f.Has("x2") ? "{%x1, %x2}, [sm]"
                         : "{%x1}, [sm]";
  }
  if (w == 0) return "?";
  if (OneOf(op, {"ld", "ldu"})) {
    const bool hint = f.Has("L2::cache_hint");
    return absl::StrCat(Value(f, w, 1), ", ", Address(f), hint ? ", %y21" : "");
  }
  if (op == "st") return absl::StrCat(Address(f), ", ", Value(f, w, 1));
  if (op == "atom") {
    return absl::StrCat(Register(w, 1), ", ", Address(f), ", ", Register(w, 2),
                        f.Has("cas") ? absl::StrCat(", ", Register(w, 3)) : "");
  }
  if (op == "red") return absl::StrCat(Address(f), ", ", Register(w, 2));
  if (op == "setp") {
    const bool combined = f.Has("and") || f.Has("or") || f.Has("xor");
    return absl::StrCat(combined ? "%p1|%p2, " : "%p1, ", Register(w, 2), ", ", Register(w, 3),
                        combined ? ", %p4" : "");
  }
  if (op == "set") return Registers({w, last, last});
  if (op == "slct") return Registers({w, w, w, last});
  if (op == "selp") return absl::StrCat(Registers({w, w, w}), ", %p1");
  if (op == "testp") return absl::StrCat("%p1, ", Register(w, 1));
  if (op == "cvta") return Registers({w, w});
  if (op == "cvt") {
    if (f.Has("pack")) {
      return f.types.size() == 3 ? Registers({32, 32, 32, 32}) : Registers({32, 32, 32});
    }
    if (absl::EndsWith(f.types.front(), "x2") && f.types.back() == "f32") {
      return Registers({w, 32, 32});
    }
    return Registers({w, last});
  }
  if (OneOf(op, {"mul", "addc", "subc", "add", "sub", "div", "rem", "min", "max", "and", "or",
                 "xor", "copysign", "mul24"})) {
    return Registers({twice, w, w});
  }
  if (OneOf(op, {"mad", "madc", "fma", "mad24", "sad"})) return Registers({twice, w, w, twice});
  if (OneOf(op, {"mov", "abs", "neg", "not", "cnot", "brev", "rcp", "sqrt", "rsqrt", "ex2", "lg2",
                 "sin", "cos", "tanh"})) {
    return Registers({w, w});
  }
  if (OneOf(op, {"popc", "clz", "bfind"})) return Registers({32, w});
  if (OneOf(op, {"shl", "shr"})) return Registers({w, w, 32});
  if (op == "bfe") return Registers({w, w, 32, 32});
  if (op == "bfi") return Registers({w, w, w, 32, 32});
  if (OneOf(op, {"bmsk", "szext"})) return Registers({32, 32, 32});
  if (OneOf(op, {"prmt", "shf", "dp4a", "dp2a", "fns"})) return Registers({32, 32, 32, 32});
  if (op == "lop3") return absl::StrCat(Registers({32, 32, 32, 32}), ", 0xe2");
  if (op[0] == 'v') {  // video
    const bool third = f.Has("add") || f.Has("min") || f.Has("max") || f.types.size() > 3;
    return third ? Registers({32, 32, 32, 32}) : Registers({32, 32, 32});
  }
  return "?";
}

}  // namespace

std::string ProbeModule(absl::string_view name) {
  Form form;
  for (const absl::string_view part : absl::StrSplit(name, '.')) {
    if (form.opcode.empty()) {
      form.opcode = std::string(part);
      continue;
    }
    form.modifiers.emplace_back(part);
    if (Width(part) != 0) form.types.emplace_back(part);
  }
  const std::string operands = Operands(form);
  if (operands == "?") return "";
  return absl::StrCat(R"(.version 9.1
.target sm_120a
.address_size 64
.const .align 16 .b8 cm[64];
.func f() { ret; }
.visible .entry k(.param .align 16 .b8 p[64]) {
  .reg .pred %p<24>;
  .reg .b16 %h<24>;
  .reg .b32 %x<24>;
  .reg .b64 %y<24>;
  .reg .b128 %z<8>;
  .shared .align 16 .b8 sm[256];
  .shared .align 8 .b64 mb;
  .local .align 16 .b8 lm[256];
  ld.param.u64 %y20, [p];
  )",
                      name, operands.empty() ? "" : " ", operands, R"(;
DONE:
  ret;
}
)");
}

}  // namespace fargpu::conformance
