// Loads, stores and atomic operations of every form that programs use: the list is mnemonics.tsv,
// and what a form must do follows from its space, its type and its number of elements.
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "tests/conformance/ptx/tables.h"

namespace fargpu::conformance {
namespace {

constexpr uint32_t kLanes = 32;
constexpr uint32_t kBytes = 32;  // of memory, for each lane
// More forms in one kernel take longer to compile than two kernels.
constexpr size_t kFormsInKernel = 12;

struct Form {
  std::string name;
  std::vector<std::string> parts;
  std::string space;  // "" for generic
  std::string type;
  uint32_t bits = 0;
  uint32_t count = 1;
  bool Has(absl::string_view part) const {
    for (const std::string& p : parts) {
      if (p == part) return true;
    }
    return false;
  }
};

Form Parse(const std::string& name) {
  Form f;
  f.name = name;
  f.parts = absl::StrSplit(name, '.');
  for (const std::string& part : f.parts) {
    for (const char* space : {"global", "shared", "local", "const", "param"}) {
      if (part == space) f.space = part;
    }
    if (part == "v2") f.count = 2;
    if (part == "v4") f.count = 4;
    if (part == "v8") f.count = 8;
  }
  f.type = f.parts.back();
  f.bits = f.type == "f16x2" || f.type == "bf16x2" ? 32
           : f.type == "bf16"                      ? 16
                              : static_cast<uint32_t>(std::atoi(f.type.c_str() + 1));
  return f;
}

std::vector<Form> FormsOf(std::initializer_list<absl::string_view> opcodes) {
  std::ifstream file(FARGPU_SOURCE_DIR "/tests/conformance/ptx/mnemonics.tsv");
  std::vector<Form> forms;
  std::string line;
  while (std::getline(file, line)) {
    const std::string name = line.substr(0, line.find('\t'));
    const std::string opcode = name.substr(0, name.find('.'));
    for (const absl::string_view wanted : opcodes) {
      if (opcode == wanted) forms.push_back(Parse(name));
    }
  }
  return forms;
}

// The bytes of memory, words of all lanes: every byte is different from its neighbours, and the
// upper bits of many are set.
std::vector<uint32_t> Pattern() {
  std::vector<uint32_t> words(kLanes * kBytes / 4);
  for (uint32_t k = 0; k < words.size(); ++k) words[k] = k * 0x9e3779b9u + 0x01f283a5u;
  return words;
}

uint64_t Element(const Form& f, const uint8_t* lane, uint32_t k) {
  uint64_t value = 0;
  std::memcpy(&value, lane + k * f.bits / 8, f.bits / 8);
  if (f.type[0] == 's' && f.bits < 64) {
    value = static_cast<uint64_t>(static_cast<int64_t>(value << (64 - f.bits)) >> (64 - f.bits));
  }
  return value;
}

std::string List(const char* prefix, uint32_t count) {
  std::string list;
  for (uint32_t k = 0; k < count; ++k) {
    absl::StrAppend(&list, k == 0 ? "" : ", ", prefix, 10 + k);
  }
  return count == 1 ? list : absl::StrCat("{", list, "}");
}

// %y1: the lane's 32 bytes at %in; %y2: its part of %out; the space's address for them in %x3
// (shared) or %y3. `out_bytes` is what a lane writes.
std::string Prologue(const std::string& space, uint32_t out_bytes) {
  std::string code = absl::StrCat(
      "mov.u32 %x0, %tid.x; mul.wide.u32 %y0, %x0, 32; add.u64 %y1, %in, %y0; mul.wide.u32 %y0, "
      "%x0, ",
      out_bytes, "; add.u64 %y2, %out, %y0;\n");
  if (space == "shared") {
    code += "mov.u32 %x3, area; shl.b32 %x1, %x0, 5; add.u32 %x3, %x3, %x1;\n";
  } else if (space == "local") {
    code += ".local .align 32 .b8 depot[64]; mov.u64 %y3, depot; add.u64 %y3, %y3, 32;\n";
  } else if (space == "const") {
    code += "mov.u64 %y3, constants; mul.wide.u32 %y4, %x0, 32; add.u64 %y3, %y3, %y4;\n";
  } else {
    code += "mov.u64 %y3, %y1;\n";
  }
  return code;
}

std::string Module(const std::string& space) {
  if (space == "shared") return ".shared .align 32 .b8 area[1024];\n";
  if (space != "const") return "";
  std::string text = ".const .align 32 .b32 constants[256] = {";
  for (const uint32_t word : Pattern())
    absl::StrAppend(&text, text.back() == '{' ? "" : ", ", word);
  return text + "};\n";
}

std::string AddressOf(const std::string& space) { return space == "shared" ? "[%x3]" : "[%y3]"; }

// Every load of `forms`, all of one space, from the same bytes.
KernelRow LoadRow(const std::vector<Form>& forms, const std::string& space) {
  uint32_t words = 0;
  for (const Form& f : forms) words += f.count * 2;
  KernelRow row;
  row.code = Prologue(space, words * 4);
  row.module = Module(space);
  row.input = Pattern();
  if (space == "shared" || space == "local") {
    absl::StrAppend(&row.code, "ld.global.v4.b32 {%x20, %x21, %x22, %x23}, [%y1]; st.", space,
                    ".v4.b32 ", AddressOf(space), ", {%x20, %x21, %x22, %x23};\n",
                    "ld.global.v4.b32 {%x20, %x21, %x22, %x23}, [%y1+16]; st.", space, ".v4.b32 ",
                    space == "shared" ? "[%x3+16]" : "[%y3+16]", ", {%x20, %x21, %x22, %x23};\n");
  }
  uint32_t at = 0;
  for (const Form& f : forms) {
    row.forms.push_back(f.name);
    const bool wide = f.bits == 64;
    const bool hint = f.Has("L2::cache_hint");
    absl::StrAppend(&row.code, hint ? "mov.u64 %y9, 0; " : "", f.name, " ",
                    List(wide ? "%y" : "%x", f.count), ", ", AddressOf(space), hint ? ", %y9" : "",
                    ";\n");
    for (uint32_t k = 0; k < f.count; ++k) {
      absl::StrAppend(&row.code, "st.global.b", wide ? 64 : 32, " [%y2+", at, "], ",
                      wide ? "%y" : "%x", 10 + k, ";\n");
      at += 8;
    }
  }
  row.code += "ret;";
  row.expected = [forms] {
    const std::vector<uint32_t> memory = Pattern();
    std::vector<uint32_t> out;
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(memory.data()) + lane * kBytes;
      for (const Form& f : forms) {
        for (uint32_t k = 0; k < f.count; ++k) {
          const uint64_t value = Element(f, bytes, k);
          out.push_back(static_cast<uint32_t>(value));
          out.push_back(f.bits == 64 ? static_cast<uint32_t>(value >> 32) : 0);
        }
      }
    }
    return out;
  };
  return row;
}

// Every store of `forms`: over a background, what is stored being the pattern's first elements.
KernelRow StoreRow(const std::vector<Form>& forms, const std::string& space) {
  KernelRow row;
  const uint32_t out_bytes = static_cast<uint32_t>(forms.size()) * kBytes;
  row.code = Prologue(space, out_bytes);
  row.module = Module(space);
  row.input = Pattern();
  uint32_t at = 0;
  for (const Form& f : forms) {
    row.forms.push_back(f.name);
    const bool wide = f.bits == 64;
    const bool to_out = space == "global" || space.empty();
    std::string address = AddressOf(space);
    const auto behind = [&](uint32_t offset) {
      return absl::StrCat(address.substr(0, address.size() - 1), "+", offset, "]");
    };
    if (to_out) address = absl::StrCat("[%y2+", at, "]");
    for (uint32_t k = 0; k < f.count; ++k) {
      absl::StrAppend(&row.code, "ld.global.b", f.bits, " ", wide ? "%y" : "%x", 10 + k, ", [%y1+",
                      k * f.bits / 8, "];\n");
    }
    if (!to_out) {
      absl::StrAppend(&row.code, "mov.u64 %y8, 0; st.", space, ".b64 ", behind(0), ", %y8; st.",
                      space, ".b64 ", behind(8), ", %y8; st.", space, ".b64 ", behind(16),
                      ", %y8; st.", space, ".b64 ", behind(24), ", %y8;\n");
    }
    absl::StrAppend(&row.code, f.name, " ", address, ", ", List(wide ? "%y" : "%x", f.count),
                    ";\n");
    for (uint32_t k = 0; k < 4 && !to_out; ++k) {
      absl::StrAppend(&row.code, "ld.", space, ".b64 %y8, ", behind(8 * k), "; st.global.b64 [%y2+",
                      at + 8 * k, "], %y8;\n");
    }
    at += kBytes;
  }
  row.code += "ret;";
  row.expected = [forms] {
    const std::vector<uint32_t> memory = Pattern();
    std::vector<uint32_t> out(kLanes * forms.size() * kBytes / 4, 0);
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      for (size_t n = 0; n < forms.size(); ++n) {
        std::memcpy(out.data() + (lane * forms.size() + n) * kBytes / 4,
                    memory.data() + lane * kBytes / 4, forms[n].count * forms[n].bits / 8);
      }
    }
    return out;
  };
  return row;
}

// Parameters are those of a function: they are what has an address and every type.
KernelRow ParameterRow(const std::vector<Form>& forms, bool load) {
  uint32_t words = 0;
  for (const Form& f : forms) words += load ? f.count * 2 : kBytes / 4;
  KernelRow row;
  row.input = Pattern();
  row.code = Prologue("param", words * 4);
  std::string function =
      ".func passed(.param .align 32 .b8 p[32], .param .b64 q) {\n"
      ".reg .b32 %x<40>; .reg .b64 %y<40>; ld.param.b64 %y2, [q];\n";
  uint32_t at = 0;
  const auto call = [&](uint32_t offset) {
    return absl::StrCat("add.u64 %y7, %y2, ", offset,
                        "; st.param.b64 [q0], %y7; call passed, (p0, q0); }\n");
  };
  constexpr char kDeclare[] = "{ .param .align 32 .b8 p0[32]; .param .b64 q0;\n";
  if (load) {
    row.code += kDeclare;
    for (uint32_t k = 0; k < 4; ++k) {
      absl::StrAppend(&row.code, "ld.global.b64 %y8, [%y1+", 8 * k, "]; st.param.b64 [p0+", 8 * k,
                      "], %y8;\n");
    }
    row.code += call(0);
  }
  for (const Form& f : forms) {
    row.forms.push_back(f.name);
    const bool wide = f.bits == 64;
    const std::string list = List(wide ? "%y" : "%x", f.count);
    if (load) {
      absl::StrAppend(&function, f.name, " ", list, ", [p];\n");
      for (uint32_t k = 0; k < f.count; ++k) {
        absl::StrAppend(&function, "st.global.b", wide ? 64 : 32, " [%y2+", at, "], ",
                        wide ? "%y" : "%x", 10 + k, ";\n");
        at += 8;
      }
      continue;
    }
    row.code += kDeclare;
    for (uint32_t k = 0; k < 4; ++k) {
      absl::StrAppend(&row.code, "st.param.b64 [p0+", 8 * k, "], 0;\n");
    }
    for (uint32_t k = 0; k < f.count; ++k) {
      absl::StrAppend(&row.code, "ld.global.b", f.bits, " ", wide ? "%y" : "%x", 10 + k, ", [%y1+",
                      k * f.bits / 8, "];\n");
    }
    absl::StrAppend(&row.code, f.name, " [p0], ", list, ";\n", call(at));
    at += kBytes;
  }
  if (!load) {
    for (uint32_t k = 0; k < 4; ++k) {
      absl::StrAppend(&function, "ld.param.b64 %y8, [p+", 8 * k, "]; st.global.b64 [%y2+", 8 * k,
                      "], %y8;\n");
    }
  }
  row.module = function + "ret; }\n";
  row.code += "ret;";
  row.expected = load ? LoadRow(forms, "").expected : StoreRow(forms, "global").expected;
  return row;
}

// One cell per lane: words 0 and 1 hold what is there, 2 and 3 the operand, 4 and 5 what cas
// stores. Lanes do not meet, so that the result does not depend on their order.
uint64_t Apply(const Form& f, uint64_t old, uint64_t x, uint64_t swap) {
  const uint64_t mask = f.bits == 64 ? ~uint64_t{0} : (uint64_t{1} << f.bits) - 1;
  const auto less = [&](uint64_t a, uint64_t b) {
    if (f.type[0] != 's') return a < b;
    return static_cast<int64_t>(a << (64 - f.bits)) < static_cast<int64_t>(b << (64 - f.bits));
  };
  if (f.Has("cas")) return old == x ? swap : old;
  if (f.Has("exch")) return x;
  if (f.Has("and")) return old & x;
  if (f.Has("or")) return old | x;
  if (f.Has("xor")) return old ^ x;
  if (f.Has("inc")) return old >= x ? 0 : old + 1;
  if (f.Has("dec")) return old == 0 || old > x ? x : old - 1;
  if (f.Has("min")) return less(x, old) ? x : old;
  if (f.Has("max")) return less(old, x) ? x : old;
  const auto add = [](const Format& format, uint64_t a, uint64_t b) {
    return Encode(format, Sum(Decode(format, a), Decode(format, b)));
  };
  if (f.type == "f32") return add(kF32, old, x);
  if (f.type == "f64") return add(kF64, old, x);
  if (f.type == "f16" || f.type == "bf16") return add(f.type == "f16" ? kF16 : kBF16, old, x);
  if (f.type == "f16x2" || f.type == "bf16x2") {
    const Format& format = f.type == "f16x2" ? kF16 : kBF16;
    return add(format, old & 0xffff, x & 0xffff) | add(format, old >> 16, x >> 16) << 16;
  }
  return (old + x) & mask;
}

// Values that are numbers in every format, some of them the same as the operand.
std::vector<uint32_t> AtomicInput() {
  std::vector<uint32_t> words(kLanes * kBytes / 4, 0);
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    uint32_t* cell = words.data() + lane * 8;
    cell[0] = 0x40003c00u + lane * 0x00810123u;
    cell[1] = 0x3ff80000u + lane * 0x01000000u;
    cell[2] = lane % 3 == 0 ? cell[0] : 0x3f804100u + lane * 0x00400110u;
    cell[3] = lane % 3 == 0 ? cell[1] : 0x40080000u ^ lane << 31;
    cell[4] = 0x12345678u + lane;
    cell[5] = 0x9abcdef0u - lane;
  }
  return words;
}

KernelRow AtomicRow(const Form& f) {
  KernelRow row;
  row.forms = {f.name};
  row.input = AtomicInput();
  row.code = Prologue(f.space, 16);
  row.module = Module(f.space);
  const bool wide = f.bits == 64;
  const char* const reg = wide ? "%y" : f.bits == 16 ? "%h" : "%x";
  const std::string r = reg;
  const std::string address = AddressOf(f.space);
  absl::StrAppend(&row.code, "ld.global.b", f.bits, " ", r, "20, [%y1]; ld.global.b", f.bits, " ",
                  r, "21, [%y1+8]; ld.global.b", f.bits, " ", r, "22, [%y1+16];\n");
  if (f.space == "shared")
    absl::StrAppend(&row.code, "st.shared.b", f.bits, " [%x3], ", r, "20;\n");
  const bool returns = f.parts[0] == "atom";
  absl::StrAppend(&row.code, "mov.b", f.bits, " ", r, "23, ", r, "20; ", f.name, " ",
                  returns ? r + "23, " : "", address, ", ", r, "21",
                  f.Has("cas") ? ", " + r + "22" : "", ";\n");
  absl::StrAppend(&row.code, "st.global.b", f.bits, " [%y2], ", r, "23; ld",
                  f.space.empty() ? "" : ".", f.space, ".b", f.bits, " ", r, "24, ", address,
                  "; st.global.b", f.bits, " [%y2+8], ", r, "24; ret;");
  row.expected = [f] {
    const std::vector<uint32_t> in = AtomicInput();
    std::vector<uint32_t> out;
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      uint64_t v[3] = {};
      for (int k = 0; k < 3; ++k) std::memcpy(&v[k], in.data() + lane * 8 + 2 * k, f.bits / 8);
      for (const uint64_t value : {v[0], Apply(f, v[0], v[1], v[2])}) {
        out.push_back(static_cast<uint32_t>(value));
        out.push_back(f.bits == 64 ? static_cast<uint32_t>(value >> 32) : 0);
      }
    }
    return out;
  };
  return row;
}

}  // namespace

// multimem.*: of one device, what is reduced is its own memory.
void AddMultimemRows(Table* t) {
  std::vector<Form> loads, stores;
  for (const Form& f : FormsOf({"multimem"})) {
    if (f.Has("red")) {
      t->AddKernel(AtomicRow(f));
    } else {
      (f.Has("st") ? stores : loads).push_back(f);
    }
  }
  for (size_t first = 0; first < loads.size(); first += kFormsInKernel) {
    const size_t end = std::min(first + kFormsInKernel, loads.size());
    t->AddKernel(
        LoadRow({loads.begin() + static_cast<long>(first), loads.begin() + static_cast<long>(end)},
                "global"));
  }
  t->AddKernel(StoreRow(stores, "global"));
}

void AddMemoryRows(Table* t) {
  for (const bool load : {true, false}) {
    std::map<std::string, std::vector<Form>> by_space;
    for (Form& f : FormsOf({load ? "ld" : "st"})) by_space[f.space].push_back(std::move(f));
    for (const auto& [space, forms] : by_space) {
      for (size_t first = 0; first < forms.size(); first += kFormsInKernel) {
        const std::vector<Form> some(
            forms.begin() + static_cast<long>(first),
            forms.begin() + static_cast<long>(std::min(first + kFormsInKernel, forms.size())));
        t->AddKernel(space == "param" ? ParameterRow(some, load)
                     : load           ? LoadRow(some, space)
                                      : StoreRow(some, space));
      }
    }
  }
}

void AddAtomicRows(Table* t) {
  for (const Form& f : FormsOf({"atom", "red"})) t->AddKernel(AtomicRow(f));
}

}  // namespace fargpu::conformance
