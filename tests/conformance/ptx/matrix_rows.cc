// Matrix instructions. The elements are small whole numbers and multiples of a power of two, so
// that all sums are exact. Fragments of mma are laid out by the PTX manual's general rule: lane = 4
// * group
// + thread; register r holds row group (+ 8 if r is odd) and the elements along k of word thread
// (+ 4 if r / 2 is odd). softgpu/exec/matrix_test.cc has every form's table.
#include <algorithm>
#include <cstring>
#include <fstream>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "tests/conformance/ptx/tables.h"

namespace fargpu::conformance {
namespace {

struct Element {
  absl::string_view name;
  int bits;
};
constexpr Element kElements[] = {{"f16", 16}, {"bf16", 16}, {"tf32", 32}, {"f32", 32}, {"f64", 64},
                                 {"s8", 8},   {"u8", 8},    {"s32", 32},  {"e4m3", 8}, {"e5m2", 8}};

int BitsOf(absl::string_view type) {
  for (const Element& e : kElements) {
    if (e.name == type) return e.bits;
  }
  return 0;
}

uint64_t EncodeAs(absl::string_view type, int value) {
  if (type == "s8" || type == "u8") return static_cast<uint8_t>(value);
  if (type == "s32") return static_cast<uint32_t>(value);
  const Format& format = type == "f16"    ? kF16
                         : type == "bf16" ? kBF16
                         : type == "f64"  ? kF64
                         : type == "e4m3" ? kE4M3
                         : type == "e5m2" ? kE5M2
                                          : kF32;
  return Encode(format, {static_cast<Wide>(value), 0});
}

struct Product {
  std::string d, a, b, c;  // types
  int m = 0, n = 0, k = 0;
  bool a_row = true, b_row = false;
  int A(int row, int x) const { return (row * 3 + x * 5) % 7 - (a == "u8" ? 0 : 3); }
  int B(int x, int column) const { return (x * 4 + column * 3) % 5 - (b == "u8" ? 0 : 2); }
  int C(int row, int column) const { return row * 2 - column; }
  int D(int row, int column) const {
    int sum = C(row, column);
    for (int x = 0; x < k; ++x) sum += A(row, x) * B(x, column);
    return sum;
  }
};

bool ParseProduct(const std::string& form, Product* p) {
  std::vector<std::string> types;
  std::vector<std::string> layouts;
  for (const absl::string_view part : absl::StrSplit(form, '.')) {
    const size_t n = part.find('n'), k = part.find('k');
    if (part[0] == 'm' && n != part.npos && k != part.npos &&
        absl::SimpleAtoi(part.substr(1, n - 1), &p->m)) {
      if (!absl::SimpleAtoi(part.substr(n + 1, k - n - 1), &p->n) ||
          !absl::SimpleAtoi(part.substr(k + 1), &p->k)) {
        return false;
      }
    }
    if (part == "row" || part == "col") layouts.emplace_back(part);
    if (BitsOf(part) != 0) types.emplace_back(part);
  }
  if (types.size() == 2) types = {types[0], "f16", "f16", types[1]};
  if (types.size() != 4 || layouts.size() != 2 || p->m == 0) return false;
  p->d = types[0];
  p->a = types[1];
  p->b = types[2];
  p->c = types[3];
  p->a_row = layouts[0] == "row";
  p->b_row = layouts[1] == "row";
  return true;
}

void Put(std::vector<uint32_t>* words, int index, absl::string_view type, int value) {
  const uint64_t bits = EncodeAs(type, value);
  const size_t bytes = static_cast<size_t>(BitsOf(type)) / 8;
  std::memcpy(reinterpret_cast<char*>(words->data()) + static_cast<size_t>(index) * bytes, &bits,
              bytes);
}

std::string Registers(const char* prefix, int first, int count) {
  std::string list = "{";
  for (int r = 0; r < count; ++r) absl::StrAppend(&list, r == 0 ? "" : ", ", prefix, first + r);
  return list + "}";
}

// wmma: loads A, B and C from memory, each a matrix without gaps, and stores D.
constexpr int kMatrixWords = 512;
KernelRow WmmaRow(const std::string& form, const Product& p, const std::set<std::string>& known) {
  const auto index = [](int row, int column, int rows, int columns, bool by_rows) {
    return by_rows ? row * columns + column : column * rows + row;
  };
  const bool wide = p.a == "f64";
  const bool halves = p.a == "f16";
  const auto registers = [&](int elements, const std::string& type) {
    return std::max(1, elements * BitsOf(type) / (32 * (wide ? 64 : 32)));
  };
  const int na = halves ? 8 : registers(p.m * p.k, p.a),
            nb = halves ? 8 : registers(p.k * p.n, p.b);
  const int nc = registers(p.m * p.n, p.c), nd = registers(p.m * p.n, p.d);
  const std::string shape = absl::StrCat("m", p.m, "n", p.n, "k", p.k);
  const std::string width = wide ? ".b64 " : ".b32 ";
  KernelRow row;
  row.forms = {form};
  row.module = absl::StrCat(".shared .align 32 .b8 area[", 4 * kMatrixWords * 4, "];\n");
  row.code =
      absl::StrCat(".reg", width, "%fa<8>, %fb<8>, %fc<8>, %fd<8>;\n",
                   "mov.u32 %x0, %tid.x; shl.b32 %x0, %x0, 2;\n",
                   "COPY: cvt.u64.u32 %y1, %x0; add.u64 %y2, %in, %y1; ld.global.b32 %x1, [%y2]; "
                   "mov.u32 %x2, area; add.u32 %x2, %x2, %x0; st.shared.b32 [%x2], %x1; "
                   "add.u32 %x0, %x0, 128; setp.lt.u32 %p0, %x0, ",
                   3 * kMatrixWords * 4, "; @%p0 bra COPY; bar.sync 0; mov.u32 %x5, area;\n");
  // The forms of loads and stores that programs use with this product, in whatever space.
  int at = 0;
  const auto move = [&](const char* operation, char matrix, bool by_rows, const std::string& type,
                        int count, int stride, int first, const std::string& fragment) {
    std::vector<std::string> spaces;
    for (const char* space : {"", ".shared", ".global"}) {
      std::string name =
          absl::StrCat("wmma.", operation, ".", std::string(1, matrix), ".sync.aligned.",
                       by_rows ? "row" : "col", ".", shape, space, ".", type);
      if (known.count(name) > 0 || (spaces.empty() && std::string(space) == ".global"))
        spaces.push_back(name);
    }
    for (const std::string& name : spaces) {
      if (known.count(name) > 0) row.forms.push_back(name);
      const bool shared = name.find(".shared") != std::string::npos;
      const bool store = matrix == 'd';
      std::string address;
      if (store && shared) {
        address = absl::StrCat("[%x5+", first, "]");
      } else if (store) {
        address = "[%out]";
      } else {
        address = absl::StrCat(shared ? "[%x5+" : "[%in+", first, "]");
      }
      const std::string list = Registers(fragment.c_str(), 0, count);
      absl::StrAppend(&row.code, name, " ", store ? address + ", " + list : list + ", " + address,
                      ", ", stride, ";\n");
      if (store && shared) {
        absl::StrAppend(
            &row.code, "bar.sync 0; mov.u32 %x0, %tid.x; shl.b32 %x0, %x0, 2;\nBACK", at,
            ": add.u32 %x2, %x5, %x0; ld.shared.b32 %x1, [%x2+", first,
            "]; cvt.u64.u32 %y1, %x0; add.u64 %y2, %out, %y1; st.global.b32 [%y2], %x1; "
            "add.u32 %x0, %x0, 128; setp.lt.u32 %p0, %x0, ",
            p.m * p.n * BitsOf(p.d) / 8, "; @%p0 bra BACK", at, ";\n");
        ++at;
      }
    }
  };
  move("load", 'a', p.a_row, p.a, na, p.a_row ? p.k : p.m, 0, "%fa");
  move("load", 'b', p.b_row, p.b, nb, p.b_row ? p.n : p.k, kMatrixWords * 4, "%fb");
  const bool c_row =
      known.count(absl::StrCat("wmma.store.d.sync.aligned.col.", shape, ".shared.", p.d)) == 0;
  move("load", 'c', c_row, p.c, nc, c_row ? p.n : p.m, 2 * kMatrixWords * 4, "%fc");
  absl::StrAppend(&row.code, form, " ", Registers("%fd", 0, nd), ", ", Registers("%fa", 0, na),
                  ", ", Registers("%fb", 0, nb), ", ", Registers("%fc", 0, nc), ";\n");
  move("store", 'd', c_row, p.d, nd, c_row ? p.n : p.m, 3 * kMatrixWords * 4, "%fd");
  row.code += "ret;";
  std::vector<uint32_t> a(kMatrixWords), b(kMatrixWords), c(kMatrixWords);
  for (int i = 0; i < p.m; ++i) {
    for (int x = 0; x < p.k; ++x) Put(&a, index(i, x, p.m, p.k, p.a_row), p.a, p.A(i, x));
    for (int j = 0; j < p.n; ++j) Put(&c, index(i, j, p.m, p.n, c_row), p.c, p.C(i, j));
  }
  for (int x = 0; x < p.k; ++x) {
    for (int j = 0; j < p.n; ++j) Put(&b, index(x, j, p.k, p.n, p.b_row), p.b, p.B(x, j));
  }
  for (const auto* part : {&a, &b, &c})
    row.input.insert(row.input.end(), part->begin(), part->end());
  row.expected = [p, index, c_row] {
    std::vector<uint32_t> d(static_cast<size_t>(p.m * p.n * BitsOf(p.d) / 32));
    for (int i = 0; i < p.m; ++i) {
      for (int j = 0; j < p.n; ++j) Put(&d, index(i, j, p.m, p.n, c_row), p.d, p.D(i, j));
    }
    return d;
  };
  return row;
}

// mma: each lane takes its registers from %in and puts those of D to %out, 8 words apart.
KernelRow MmaRow(const std::string& form, const Product& p) {
  const bool wide = p.a == "f64";
  const int word_bits = wide ? 64 : 32;
  const int words = p.k * BitsOf(p.a) / word_bits;
  const int na = p.m * words / 32, nb = p.n * words / 32;
  const auto accumulators = [&](const std::string& type) {
    return p.m * p.n * BitsOf(type) / (32 * word_bits);
  };
  const int nc = accumulators(p.c), nd = accumulators(p.d);
  const int per_lane = 16;  // registers, at most
  const char* const reg = wide ? "%y" : "%x";
  KernelRow row;
  row.forms = {form};
  row.code = absl::StrCat("mov.u32 %x0, %tid.x; mul.wide.u32 %y0, %x0, ", per_lane * word_bits / 8,
                          "; add.u64 %y1, %in, %y0; add.u64 %y2, %out, %y0;\n");
  for (int r = 0; r < na + nb + nc; ++r) {
    absl::StrAppend(&row.code, "ld.global.b", word_bits, " ", reg, 10 + r, ", [%y1+",
                    r * word_bits / 8, "];\n");
  }
  absl::StrAppend(&row.code, form, " ", Registers(reg, 26, nd), ", ", Registers(reg, 10, na), ", ",
                  Registers(reg, 10 + na, nb), ", ", Registers(reg, 10 + na + nb, nc), ";\n");
  for (int r = 0; r < nd; ++r) {
    absl::StrAppend(&row.code, "st.global.b", word_bits, " [%y2+", r * word_bits / 8, "], ", reg,
                    26 + r, ";\n");
  }
  row.code += "ret;";
  row.input.resize(static_cast<size_t>(32 * per_lane * word_bits / 32));
  const int a_per_word = word_bits / BitsOf(p.a);
  const auto accumulator_place = [](int lane, int e) {
    return std::pair{lane / 4 + 8 * (e / 2), lane % 4 * 2 + e % 2};
  };
  const auto put_accumulators = [=](std::vector<uint32_t>* out, int lane, int first,
                                    const std::string& type, auto value) {
    const int per_register = word_bits / BitsOf(type);
    for (int e = 0; e < p.m * p.n / 32; ++e) {
      const auto [i, j] = accumulator_place(lane, e);
      Put(out, (lane * per_lane + first) * per_register + e, type, value(i, j));
    }
  };
  for (int lane = 0; lane < 32; ++lane) {
    const int group = lane / 4, thread = lane % 4;
    for (int r = 0; r < na; ++r) {
      const int i = p.m == 8 ? group : group + 8 * (r % 2);
      const int word = thread + 4 * (p.m == 8 ? r : r / 2);
      for (int e = 0; e < a_per_word; ++e) {
        Put(&row.input, (lane * per_lane + r) * a_per_word + e, p.a, p.A(i, word * a_per_word + e));
      }
    }
    for (int r = 0; r < nb; ++r) {
      for (int e = 0; e < a_per_word; ++e) {
        Put(&row.input, (lane * per_lane + na + r) * a_per_word + e, p.b,
            p.B((thread + 4 * r) * a_per_word + e, group));
      }
    }
    put_accumulators(&row.input, lane, na + nb, p.c, [&](int i, int j) { return p.C(i, j); });
  }
  row.expected = [=] {
    std::vector<uint32_t> out(static_cast<size_t>(32 * per_lane * word_bits / 32), 0);
    for (int lane = 0; lane < 32; ++lane) {
      put_accumulators(&out, lane, 0, p.d, [&](int i, int j) { return p.D(i, j); });
    }
    return out;
  };
  return row;
}

}  // namespace

void AddMatrixRows(Table* t) {
  std::ifstream file(FARGPU_SOURCE_DIR "/tests/conformance/ptx/mnemonics.tsv");
  std::set<std::string> known;
  std::string line;
  while (std::getline(file, line)) known.insert(line.substr(0, line.find('\t')));
  for (const std::string& form : known) {
    Product p;
    if (form.rfind("wmma.mma.", 0) == 0 && ParseProduct(form, &p))
      t->AddKernel(WmmaRow(form, p, known));
    if (form.rfind("mma.", 0) == 0 && ParseProduct(form, &p)) t->AddKernel(MmaRow(form, p));
  }
}

}  // namespace fargpu::conformance
