#include "tests/conformance/ptx/probe.h"

#include <algorithm>
#include <fstream>
#include <utility>

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

std::string List(int count, int bits, int first) {
  std::vector<std::string> names;
  for (int k = 0; k < count; ++k) names.push_back(Register(bits, first + k));
  return absl::StrCat("{", absl::StrJoin(names, ", "), "}");
}

// "m16n8k16" -> 16, 8, 16.
bool ParseShape(absl::string_view word, int* m, int* n, int* k) {
  const size_t at_n = word.find('n'), at_k = word.find('k');
  return !word.empty() && word[0] == 'm' && at_n != word.npos && at_k != word.npos && at_n < at_k &&
         absl::SimpleAtoi(word.substr(1, at_n - 1), m) &&
         absl::SimpleAtoi(word.substr(at_n + 1, at_k - at_n - 1), n) &&
         absl::SimpleAtoi(word.substr(at_k + 1), k);
}

// Bits of an element of a matrix.
int ElementBits(absl::string_view type) {
  if (type == "e4m3" || type == "e5m2") return 8;
  if (type == "tf32") return 32;
  if (type == "bf16" || type == "f16") return 16;
  int bits = 0;
  return type.size() > 1 && absl::SimpleAtoi(type.substr(1), &bits) ? bits : 0;
}

// Fragment of a matrix of `elements`, as mma.sync spreads it over a warp.
std::string Fragment(int elements, int bits, int first) {
  if (bits == 64) return List(elements / 32, 64, first);
  return List(std::max(1, elements / 32 * bits / 32), 32, first);
}

std::string MmaOperands(const Form& f) {
  int m = 0, n = 0, k = 0;
  std::vector<std::string> types;
  for (const std::string& word : f.modifiers) {
    if (!ParseShape(word, &m, &n, &k) && ElementBits(word) != 0) types.push_back(word);
  }
  if (m == 0 || types.size() != 4) return "?";
  return absl::StrCat(Fragment(m * n, ElementBits(types[0]), 0), ", ",
                      Fragment(m * k, ElementBits(types[1]), 8), ", ",
                      Fragment(n * k, ElementBits(types[2]), 12), ", ",
                      Fragment(m * n, ElementBits(types[3]), 16));
}

// wmma spreads a matrix otherwise: halves are there twice.
std::string WmmaFragment(char which, int m, int n, int k, absl::string_view type, int first) {
  const int bits = ElementBits(type);
  const int elements = which == 'a' ? m * k : which == 'b' ? n * k : m * n;
  if (type == "f16" && which != 'c') return List(8, 32, first);
  return Fragment(elements, bits, first);
}

std::string WmmaOperands(const Form& f) {
  int m = 0, n = 0, k = 0;
  std::vector<std::string> types;
  for (const std::string& word : f.modifiers) {
    if (!ParseShape(word, &m, &n, &k) && ElementBits(word) != 0) types.push_back(word);
  }
  if (m == 0 || types.empty()) return "?";
  if (f.Has("load")) {
    const char which = f.Has("a") ? 'a' : f.Has("b") ? 'b' : 'c';
    return absl::StrCat(WmmaFragment(which, m, n, k, types[0], 0), ", ", Address(f), ", 32");
  }
  if (f.Has("store")) {
    return absl::StrCat(Address(f), ", ", WmmaFragment('c', m, n, k, types[0], 0), ", 32");
  }
  // d and c; a and b too, unless they are f16.
  const bool halves = types.size() == 2;
  if (!halves && types.size() != 4) return "?";
  return absl::StrCat(WmmaFragment('c', m, n, k, types[0], 0), ", ",
                      WmmaFragment('a', m, n, k, halves ? "f16" : types[1], 0), ", ",
                      WmmaFragment('b', m, n, k, halves ? "f16" : types[2], 8), ", ",
                      WmmaFragment('c', m, n, k, types.back(), 12));
}

std::string ImageOperands(const Form& f) {
  const int coordinates = f.Has("1d") ? 1 : f.Has("2d") || f.Has("a1d") ? 2 : 4;
  const std::string place = absl::StrCat("[%y20, ", List(coordinates, 32, 8), "]");
  const int w = Width(f.types.front());
  if (f.opcode == "tex") return absl::StrCat(Value(f, w, 0), ", ", place);
  return absl::StrCat(place, ", ", Value(f, w, 0));
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
  if (op == "mma") return MmaOperands(f);
  if (op == "wmma") return WmmaOperands(f);
  if (w == 0) return "?";
  if (op == "tex" || op == "sust") return ImageOperands(f);
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
  if (op == "multimem") {
    const std::string value = Value(f, last == 16 ? 32 : last, 1);
    return f.Has("ld_reduce") ? absl::StrCat(value, ", [%y20]") : absl::StrCat("[%y20], ", value);
  }
  if (op[0] == 'v') {  // video
    const bool third = f.Has("add") || f.Has("min") || f.Has("max") || f.types.size() > 3;
    return third ? Registers({32, 32, 32, 32}) : Registers({32, 32, 32});
  }
  return "?";
}

}  // namespace

std::vector<KnownForm> KnownForms() {
  std::vector<KnownForm> forms;
  std::ifstream file(FARGPU_PTX_FORMS);
  for (std::string line; std::getline(file, line);) {
    const std::vector<absl::string_view> fields = absl::StrSplit(line, '\t');
    KnownForm form;
    if (fields.size() != 2 || !absl::SimpleAtoi(fields[1], &form.occurrences)) return {};
    form.name = std::string(fields[0]);
    forms.push_back(std::move(form));
  }
  return forms;
}

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
  .reg .b16 %h<32>;
  .reg .b32 %x<32>;
  .reg .b64 %y<32>;
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
