// Video instructions: parts of registers, saturation, second operations, lanes.
#include <algorithm>
#include <limits>
#include <string>

#include "tests/conformance/ptx/tables.h"

namespace fargpu::conformance {
namespace {

using I128 = __int128;
using U = uint32_t;

// The part of `v` that a selector names ("", "b0".."b3", "h0", "h1").
int64_t Part(U v, const std::string& selector, bool is_signed) {
  if (selector.empty()) return is_signed ? int64_t{static_cast<int32_t>(v)} : int64_t{v};
  const U at = static_cast<U>(selector[1] - '0');
  if (selector[0] == 'b') {
    const U byte = v >> (8 * at) & 0xff;
    return is_signed ? int64_t{static_cast<int8_t>(byte)} : int64_t{byte};
  }
  const U half = v >> (16 * at) & 0xffff;
  return is_signed ? int64_t{static_cast<int16_t>(half)} : int64_t{half};
}

int64_t ClampTo(int64_t v, int bits, bool is_signed) {
  const int64_t low = is_signed ? -(int64_t{1} << (bits - 1)) : 0;
  const int64_t high = (int64_t{1} << (is_signed ? bits - 1 : bits)) - 1;
  return std::clamp(v, low, high);
}

struct Operation {
  const char* name;
  int64_t (*apply)(int64_t a, int64_t b);
};
constexpr Operation kOperations[] = {
    {"add", [](int64_t a, int64_t b) { return a + b; }},
    {"sub", [](int64_t a, int64_t b) { return a - b; }},
    {"absdiff", [](int64_t a, int64_t b) { return a < b ? b - a : a - b; }},
    {"min", [](int64_t a, int64_t b) { return std::min(a, b); }},
    {"max", [](int64_t a, int64_t b) { return std::max(a, b); }},
};

void AddScalars(Table* t) {
  for (const Operation& op : kOperations) {
    const auto apply = op.apply;
    const std::string v = std::string("v") + op.name;
    for (const bool to : {false, true}) {
      for (const bool from : {false, true}) {
        const std::string types =
            std::string(to ? ".s32" : ".u32") + (from ? ".s32" : ".u32") + (from ? ".u32" : ".s32");
        t->Add(v + types, "$ %d, %a, %b;", [=](U a, U b) {
          return static_cast<U>(apply(Part(a, "", from), Part(b, "", !from)));
        });
        t->Add(v + types + ".sat", "$ %d, %a.b1, %b.h1;", [=](U a, U b) {
          return static_cast<U>(ClampTo(apply(Part(a, "b1", from), Part(b, "h1", !from)), 32, to));
        });
        t->Add(v + types + ".sat", "$ %d.b2, %a.h0, %b, %c;", [=](U a, U b, U c) {
          const int64_t r = ClampTo(apply(Part(a, "h0", from), Part(b, "", !from)), 8, to);
          return (c & 0xff00ffff) | (static_cast<U>(r) & 0xff) << 16;
        });
        t->Add(v + types, "$ %d.h1, %a.b3, %b.b0, %c;", [=](U a, U b, U c) {
          const int64_t r = apply(Part(a, "b3", from), Part(b, "b0", !from));
          return (c & 0xffff) | static_cast<U>(r) << 16;
        });
        t->Add(v + types + ".add", "$ %d, %a.h1, %b, %c;", [=](U a, U b, U c) {
          return static_cast<U>(apply(Part(a, "h1", from), Part(b, "", !from))) + c;
        });
        t->Add(v + types + ".max", "$ %d, %a, %b.b1, %c;", [=](U a, U b, U c) {
          const U r = static_cast<U>(apply(Part(a, "", from), Part(b, "b1", !from)));
          return to ? static_cast<U>(std::max(static_cast<int32_t>(r), static_cast<int32_t>(c)))
                    : std::max(r, c);
        });
        t->Add(v + types + ".min", "$ %d, %a, %b, %c;", [=](U a, U b, U c) {
          const U r = static_cast<U>(apply(Part(a, "", from), Part(b, "", !from)));
          return to ? static_cast<U>(std::min(static_cast<int32_t>(r), static_cast<int32_t>(c)))
                    : std::min(r, c);
        });
      }
    }
  }
  for (const bool from : {false, true}) {
    const std::string types = std::string(from ? ".s32" : ".u32") + ".u32";
    t->Add("vset" + types + ".lt", "$ %d, %a, %b;",
           [=](U a, U b) { return U{Part(a, "", from) < int64_t{b}}; });
    t->Add("vset" + types + ".ge", "$ %d.b1, %a.h0, %b.b2, %c;", [=](U a, U b, U c) {
      return (c & 0xffff00ff) | U{Part(a, "h0", from) >= Part(b, "b2", false)} << 8;
    });
    t->Add("vset" + types + ".ne.add", "$ %d, %a, %b, %c;",
           [=](U a, U b, U c) { return U{Part(a, "", from) != int64_t{b}} + c; });
  }
}

void AddShifts(Table* t) {
  for (const bool from : {false, true}) {
    const std::string type = from ? ".s32" : ".u32";
    const std::string types = type + type + ".u32";
    const auto left = [from](U a, U by) { return static_cast<I128>(Part(a, "", from)) << by; };
    const auto right = [from](U a, U by) { return static_cast<I128>(Part(a, "", from)) >> by; };
    t->Add("vshl" + types + ".clamp", "$ %d, %a, %b;",
           [=](U a, U b) { return static_cast<U>(left(a, std::min(b, 32u))); });
    t->Add("vshl" + types + ".wrap", "$ %d, %a, %b;",
           [=](U a, U b) { return static_cast<U>(left(a, b & 31)); });
    t->Add("vshl" + types + ".sat.clamp", "$ %d, %a, %b.b0;", [=](U a, U b) {
      const I128 v = left(a, std::min(b & 0xff, 32u));
      const I128 low = from ? -(I128{1} << 31) : 0, high = (I128{1} << (from ? 31 : 32)) - 1;
      return static_cast<U>(std::clamp(v, low, high));
    });
    t->Add("vshr" + types + ".clamp", "$ %d, %a, %b;",
           [=](U a, U b) { return static_cast<U>(right(a, std::min(b, 32u))); });
    t->Add("vshr" + types + ".wrap", "$ %d, %a, %b;",
           [=](U a, U b) { return static_cast<U>(right(a, b & 31)); });
    t->Add("vshr" + types + ".clamp.add", "$ %d, %a, %b, %c;",
           [=](U a, U b, U c) { return static_cast<U>(right(a, std::min(b, 32u))) + c; });
  }
}

void AddMads(Table* t) {
  const auto clamp = [](I128 v, bool is_signed) {
    const I128 low = is_signed ? -(I128{1} << 31) : 0;
    const I128 high = (I128{1} << (is_signed ? 31 : 32)) - 1;
    return static_cast<U>(std::clamp(v, low, high));
  };
  t->Add("vmad.u32.u32.u32", "$ %d, %a, %b.h0, %c;",
         [](U a, U b, U c) { return static_cast<U>(I128{a} * (b & 0xffff) + c); });
  t->Add("vmad.s32.s32.u32.sat", "$ %d, %a, %b, -%c;", [=](U a, U b, U c) {
    return clamp(I128{static_cast<int32_t>(a)} * b - static_cast<int32_t>(c), true);
  });
  t->Add("vmad.s32.s32.s32.sat.shr7", "$ %d, -%a.b1, %b.h1, %c;", [=](U a, U b, U c) {
    return clamp((-I128{Part(a, "b1", true)} * Part(b, "h1", true) + static_cast<int32_t>(c)) >> 7,
                 true);
  });
  t->Add("vmad.u32.u32.u32.sat.shr15", "$ %d, %a, %b, %c;",
         [=](U a, U b, U c) { return clamp((I128{a} * b + c) >> 15, false); });
  t->Add("vmad.u32.u32.u32.po", "$ %d, %a, %b, %c;",
         [](U a, U b, U c) { return static_cast<U>(I128{a} * b + c + 1); });
}

// ---- two halves, four bytes

// Lane `index` of {b, a}, with `lanes` lanes in each.
int64_t Lane(U a, U b, int index, int lanes, bool is_signed) {
  const U v = index < lanes ? a : b;
  const std::string selector =
      std::string(lanes == 4 ? "b" : "h") + static_cast<char>('0' + index % lanes);
  return Part(v, selector, is_signed);
}

void AddLanes(Table* t, int lanes) {
  const std::string count = std::to_string(lanes);
  const int bits = 32 / lanes;
  const U lane_mask = static_cast<U>((uint64_t{1} << bits) - 1);
  static constexpr Operation kAverage = {
      "avrg", [](int64_t a, int64_t b) { return (a + b + (a + b >= 0 ? 1 : 0)) >> 1; }};
  std::vector<Operation> operations(std::begin(kOperations), std::end(kOperations));
  operations.push_back(kAverage);
  for (const Operation& op : operations) {
    const auto apply = op.apply;
    const std::string v = "v" + std::string(op.name) + count;
    for (const bool is_signed : {false, true}) {
      const std::string type = is_signed ? ".s32" : ".u32";
      const std::string types = type + type + type;
      // Lane k of each source, or as `pick` says.
      const auto run = [=](U a, U b, U c, U written, const int(&pick)[8], bool saturate, bool add) {
        U r = c;
        for (int k = 0; k < lanes; ++k) {
          if ((written >> k & 1) == 0) continue;
          int64_t x = apply(Lane(a, b, pick[k], lanes, is_signed),
                            Lane(a, b, pick[4 + k], lanes, is_signed));
          if (saturate) x = ClampTo(x, bits, is_signed);
          if (add) {
            r += static_cast<U>(x);
          } else {
            r = (r & ~(lane_mask << (k * bits))) | (static_cast<U>(x) & lane_mask) << (k * bits);
          }
        }
        return r;
      };
      static constexpr int kPlain2[8] = {0, 1, 0, 0, 2, 3, 0, 0};
      static constexpr int kPlain4[8] = {0, 1, 2, 3, 4, 5, 6, 7};
      static constexpr int kPicked2[8] = {3, 0, 0, 0, 1, 1, 0, 0};
      static constexpr int kPicked4[8] = {7, 0, 2, 2, 5, 1, 6, 3};
      const bool two = lanes == 2;
      const U all = (1u << lanes) - 1;
      t->Add(v + types, "$ %d, %a, %b, %c;", [=](U a, U b, U c) {
        return run(a, b, c, all, two ? kPlain2 : kPlain4, false, false);
      });
      t->Add(v + types, "$ %d, %a, %b, 0;",
             [=](U a, U b) { return run(a, b, 0, all, two ? kPlain2 : kPlain4, false, false); });
      t->Add(v + types + ".sat",
             two ? "$ %d.h1, %a.h03, %b.h11, %c;" : "$ %d.b20, %a.b2207, %b.b3615, %c;",
             [=](U a, U b, U c) {
               return run(a, b, c, two ? 2 : 5, two ? kPicked2 : kPicked4, true, false);
             });
      t->Add(v + types + ".add", "$ %d, %a, %b, %c;", [=](U a, U b, U c) {
        return run(a, b, c, all, two ? kPlain2 : kPlain4, false, true);
      });
    }
  }
  t->Add("vset" + count + ".u32.u32.lt", "$ %d, %a, %b, %c;", [=](U a, U b, U) {
    U r = 0;
    for (int k = 0; k < lanes; ++k) {
      r |= U{Lane(a, b, k, lanes, false) < Lane(a, b, lanes + k, lanes, false)} << (k * bits);
    }
    return r;
  });
  t->Add("vset" + count + ".s32.s32.ge.add", "$ %d, %a, %b, %c;", [=](U a, U b, U c) {
    for (int k = 0; k < lanes; ++k) {
      c += Lane(a, b, k, lanes, true) >= Lane(a, b, lanes + k, lanes, true);
    }
    return c;
  });
}

}  // namespace

void AddVideoRows(Table* t) {
  AddScalars(t);
  AddShifts(t);
  AddMads(t);
  AddLanes(t, 2);
  AddLanes(t, 4);
}

}  // namespace fargpu::conformance
