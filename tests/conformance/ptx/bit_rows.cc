// Logic, shifts, bit fields, permutations, moves, selections.
#include <algorithm>
#include <string>

#include "tests/conformance/ptx/tables.h"

namespace fargpu::conformance {
namespace {

const Values& ShiftAmounts() {
  static const Values& values =
      *new Values({0, 1, 5, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256, 300, 0xffffffff});
  return values;
}
const Values& Selectors() {
  static const Values& values =
      *new Values({0, 1, 2, 3, 4, 5, 0x3210, 0x7654, 0xfedc, 0x8888, 0x1111, 0x0123, 0xa5c3,
                   0xffff3210, 0x7777, 0xffffffff});
  return values;
}

template <typename T>
void AddLogic(Table* t, const std::string& name) {
  t->Add("and." + name, "$ %d, %a, %b;", [](T a, T b) { return static_cast<T>(a & b); });
  t->Add("or." + name, "$ %d, %a, %b;", [](T a, T b) { return static_cast<T>(a | b); });
  t->Add("xor." + name, "$ %d, %a, %b;", [](T a, T b) { return static_cast<T>(a ^ b); });
  t->Add("not." + name, "$ %d, %a;", [](T a) { return static_cast<T>(~a); });
  t->Add("cnot." + name, "$ %d, %a;", [](T a) { return static_cast<T>(a == 0); });
  t->Add("mov." + name, "$ %d, %a;", [](T a) { return a; });
  t->Add("selp." + name, "setp.lt.u32 %p, %c, 100; $ %d, %a, %b, %p;",
         [](T a, T b, uint32_t c) { return c < 100 ? a : b; });
  t->Add("selp." + name, "setp.lt.u32 %p, %c, 100; $ %d, %a, 5, !%p;",
         [](T a, T, uint32_t c) { return c < 100 ? T{5} : a; });
  t->Add("shl." + name, "$ %d, %a, %b;",
         [](T a, uint32_t b) { return static_cast<T>(b >= 8 * sizeof(T) ? 0 : uint64_t{a} << b); },
         {nullptr, &ShiftAmounts()});
  t->Add("shl." + name, "$ %d, %a, 3;", [](T a) { return static_cast<T>(a << 3); });
  t->Add("shl." + name, "$ %d, %a, 70;", [](T) { return T{0}; });
}

template <typename T>
void AddShiftRight(Table* t, const std::string& name) {
  t->Add("shr." + name, "$ %d, %a, %b;",
         [](T a, uint32_t b) {
           const bool beyond = b >= 8 * sizeof(T);
           if (beyond) return static_cast<T>(a < 0 ? -1 : 0);
           return static_cast<T>(a >> b);
         },
         {nullptr, &ShiftAmounts()});
  t->Add("shr." + name, "$ %d, %a, 3;", [](T a) { return static_cast<T>(a >> 3); });
  t->Add("shr." + name, "$ %d, %a, 70;", [](T a) { return static_cast<T>(a < 0 ? -1 : 0); });
}

template <typename T>
void AddMoves(Table* t, const std::string& name) {
  t->Add("mov." + name, "$ %d, %a;", [](T a) { return a; });
  t->Add("selp." + name, "setp.lt.u32 %p, %c, 100; $ %d, %a, %b, %p;",
         [](T a, T b, uint32_t c) { return c < 100 ? a : b; });
  t->Add("slct." + name + ".s32", "$ %d, %a, %b, %c;",
         [](T a, T b, int32_t c) { return c >= 0 ? a : b; });
  t->Add("slct." + name + ".f32", "$ %d, %a, %b, %c;",
         [](T a, T b, float c) { return c >= 0 ? a : b; });
  t->Add("slct.ftz." + name + ".f32", "$ %d, %a, %b, %c;",
         [](T a, T b, float c) { return Flush(c) >= 0 ? a : b; });
}

uint32_t Prmt(uint32_t a, uint32_t b, const int (&bytes)[4]) {
  const uint64_t both = uint64_t{b} << 32 | a;
  uint32_t r = 0;
  for (int k = 0; k < 4; ++k) r |= static_cast<uint32_t>(both >> (8 * bytes[k]) & 255) << (8 * k);
  return r;
}

void AddPermutations(Table* t) {
  const Pools pools = {nullptr, nullptr, &Selectors()};
  t->Add(
      "prmt.b32", "$ %d, %a, %b, %c;",
      [](uint32_t a, uint32_t b, uint32_t c) {
        const uint64_t both = uint64_t{b} << 32 | a;
        uint32_t r = 0;
        for (int k = 0; k < 4; ++k) {
          const uint32_t s = c >> (4 * k) & 15;
          uint32_t byte = static_cast<uint32_t>(both >> (8 * (s & 7)) & 255);
          if ((s & 8) != 0) byte = (byte & 128) != 0 ? 255 : 0;
          r |= byte << (8 * k);
        }
        return r;
      },
      pools);
  using U = uint32_t;
  t->Add(
      "prmt.b32.f4e", "$ %d, %a, %b, %c;",
      [](U a, U b, U c) {
        const int s = c & 3;
        return Prmt(a, b, {s, s + 1, s + 2, s + 3});
      },
      pools);
  t->Add(
      "prmt.b32.b4e", "$ %d, %a, %b, %c;",
      [](U a, U b, U c) {
        const int s = c & 3;
        return Prmt(a, b, {s, (s + 7) % 8, (s + 6) % 8, (s + 5) % 8});
      },
      pools);
  t->Add(
      "prmt.b32.rc8", "$ %d, %a, %b, %c;",
      [](U a, U b, U c) {
        const int s = c & 3;
        return Prmt(a, b, {s, s, s, s});
      },
      pools);
  t->Add(
      "prmt.b32.ecl", "$ %d, %a, %b, %c;",
      [](U a, U b, U c) {
        static constexpr int kRows[4][4] = {{0, 1, 2, 3}, {1, 1, 2, 3}, {2, 2, 2, 3}, {3, 3, 3, 3}};
        return Prmt(a, b, kRows[c & 3]);
      },
      pools);
  t->Add(
      "prmt.b32.ecr", "$ %d, %a, %b, %c;",
      [](U a, U b, U c) {
        static constexpr int kRows[4][4] = {{0, 0, 0, 0}, {0, 1, 1, 1}, {0, 1, 2, 2}, {0, 1, 2, 3}};
        return Prmt(a, b, kRows[c & 3]);
      },
      pools);
  t->Add(
      "prmt.b32.rc16", "$ %d, %a, %b, %c;",
      [](U a, U b, U c) {
        const int s = 2 * (c & 1);
        return Prmt(a, b, {s, s + 1, s, s + 1});
      },
      pools);
}

template <typename T>
T Bfe(T a, uint32_t pos, uint32_t len) {
  constexpr uint32_t kBits = 8 * sizeof(T);
  pos &= 255;
  len &= 255;
  const uint64_t u = static_cast<std::make_unsigned_t<T>>(a);
  uint64_t sign = 0;
  if (std::is_signed_v<T> && len != 0) sign = u >> std::min(pos + len - 1, kBits - 1) & 1;
  uint64_t r = 0;
  for (uint32_t k = 0; k < kBits; ++k) {
    const uint64_t bit = k < len && pos + k < kBits ? u >> (pos + k) & 1 : sign;
    r |= bit << k;
  }
  return static_cast<T>(r);
}
template <typename T>
void AddBfe(Table* t, const std::string& name) {
  t->Add("bfe." + name, "$ %d, %a, %b, %c;",
         [](T a, uint32_t b, uint32_t c) { return Bfe<T>(a, b, c); },
         {nullptr, &ShiftAmounts(), &ShiftAmounts()});
  t->Add("bfe." + name, "$ %d, %a, 4, 9;", [](T a) { return Bfe<T>(a, 4, 9); });
}
template <typename T>
void AddBfi(Table* t, const std::string& name) {
  const auto bfi = [](T a, T b, uint32_t pos, uint32_t len) {
    for (uint32_t k = 0; k < (len & 255) && (pos & 255) + k < 8 * sizeof(T); ++k) {
      const uint32_t at = (pos & 255) + k;
      b = static_cast<T>((b & ~(T{1} << at)) | (a >> k & 1) << at);
    }
    return b;
  };
  t->Add("bfi." + name, "$ %d, %a, %b, %c, 9;",
         [=](T a, T b, uint32_t c) { return bfi(a, b, c, 9); },
         {nullptr, nullptr, &ShiftAmounts()});
  t->Add("bfi." + name, "$ %d, %a, %b, 5, %c;",
         [=](T a, T b, uint32_t c) { return bfi(a, b, 5, c); },
         {nullptr, nullptr, &ShiftAmounts()});
}

template <typename T>
uint32_t Bfind(T a) {
  if (a < 0) a = static_cast<T>(~a);
  for (int k = 8 * sizeof(T) - 1; k >= 0; --k) {
    if ((static_cast<uint64_t>(a) >> k & 1) != 0) return static_cast<uint32_t>(k);
  }
  return ~0u;
}
template <typename T>
void AddBfind(Table* t, const std::string& name) {
  t->Add("bfind." + name, "$ %d, %a;", [](T a) { return Bfind<T>(a); });
  t->Add("bfind.shiftamt." + name, "$ %d, %a;", [](T a) {
    const uint32_t at = Bfind<T>(a);
    return at == ~0u ? at : static_cast<uint32_t>(8 * sizeof(T) - 1 - at);
  });
}

template <typename T>
void AddCounts(Table* t, const std::string& name) {
  constexpr int kBits = 8 * sizeof(T);
  t->Add("popc." + name, "$ %d, %a;", [](T a) {
    uint32_t n = 0;
    for (int k = 0; k < kBits; ++k) n += a >> k & 1;
    return n;
  });
  t->Add("clz." + name, "$ %d, %a;", [](T a) {
    uint32_t n = 0;
    for (int k = kBits - 1; k >= 0 && (a >> k & 1) == 0; --k) ++n;
    return n;
  });
  t->Add("brev." + name, "$ %d, %a;", [](T a) {
    T r = 0;
    for (int k = 0; k < kBits; ++k) r |= (a >> k & 1) << (kBits - 1 - k);
    return r;
  });
}

void AddFunnelShifts(Table* t) {
  using U = uint32_t;
  const Pools pools = {nullptr, nullptr, &ShiftAmounts()};
  const auto left = [](U a, U b, U n) { return n == 0 ? b : n == 32 ? a : b << n | a >> (32 - n); };
  const auto right = [](U a, U b, U n) {
    return n == 0 ? a : n == 32 ? b : a >> n | b << (32 - n);
  };
  t->Add(
      "shf.l.wrap.b32", "$ %d, %a, %b, %c;", [=](U a, U b, U c) { return left(a, b, c & 31); },
      pools);
  t->Add(
      "shf.l.clamp.b32", "$ %d, %a, %b, %c;",
      [=](U a, U b, U c) { return left(a, b, std::min(c, 32u)); }, pools);
  t->Add(
      "shf.r.wrap.b32", "$ %d, %a, %b, %c;", [=](U a, U b, U c) { return right(a, b, c & 31); },
      pools);
  t->Add(
      "shf.r.clamp.b32", "$ %d, %a, %b, %c;",
      [=](U a, U b, U c) { return right(a, b, std::min(c, 32u)); }, pools);
}

void AddLop3(Table* t) {
  using U = uint32_t;
  for (const U table : {0xe2u, 0x96u, 0x80u, 0x00u, 0xffu, 0x1bu, 0xf8u}) {
    t->Add("lop3.b32", "$ %d, %a, %b, %c, " + std::to_string(table) + ";", [table](U a, U b, U c) {
      U r = 0;
      for (int k = 0; k < 32; ++k) {
        const U row = (a >> k & 1) << 2 | (b >> k & 1) << 1 | (c >> k & 1);
        r |= (table >> row & 1) << k;
      }
      return r;
    });
  }
}

uint32_t FindNth(uint32_t mask, uint32_t base, int32_t offset) {
  if (base > 31) return ~0u;
  if (offset == 0) return (mask >> base & 1) != 0 ? base : ~0u;
  int64_t left = offset > 0 ? int64_t{offset} : -int64_t{offset};
  for (int at = static_cast<int>(base); at >= 0 && at<32; at += offset> 0 ? 1 : -1) {
    if ((mask >> at & 1) != 0 && --left == 0) return static_cast<uint32_t>(at);
  }
  return ~0u;
}

}  // namespace

void AddBitRows(Table* t) {
  AddLogic<uint16_t>(t, "b16");
  AddLogic<uint32_t>(t, "b32");
  AddLogic<uint64_t>(t, "b64");
  t->Add("and.pred", "$ %d, %a, %b;", [](bool a, bool b) { return a && b; });
  t->Add("or.pred", "$ %d, %a, !%b;", [](bool a, bool b) { return a || !b; });
  t->Add("xor.pred", "$ %d, %a, %b;", [](bool a, bool b) { return a != b; });
  t->Add("not.pred", "$ %d, %a;", [](bool a) { return !a; });
  t->Add("mov.pred", "$ %d, %a;", [](bool a) { return a; });
  t->Add("mov.pred", "mov.pred %p, 1; and.pred %d, %a, %p;", [](bool a) { return a; });
  AddShiftRight<uint16_t>(t, "b16");
  AddShiftRight<uint32_t>(t, "b32");
  AddShiftRight<uint64_t>(t, "b64");
  AddShiftRight<uint16_t>(t, "u16");
  AddShiftRight<uint32_t>(t, "u32");
  AddShiftRight<uint64_t>(t, "u64");
  AddShiftRight<int16_t>(t, "s16");
  AddShiftRight<int32_t>(t, "s32");
  AddShiftRight<int64_t>(t, "s64");
  AddMoves<uint16_t>(t, "u16");
  AddMoves<int16_t>(t, "s16");
  AddMoves<uint32_t>(t, "u32");
  AddMoves<int32_t>(t, "s32");
  AddMoves<uint64_t>(t, "u64");
  AddMoves<int64_t>(t, "s64");
  AddMoves<float>(t, "f32");
  AddMoves<double>(t, "f64");
  t->Add("mov.b32", "mov.b32 {%h0, %h1}, %a; mov.b32 %d, {%h1, %h0};",
         [](uint32_t a) { return a << 16 | a >> 16; });
  t->Add("mov.b64", "mov.b64 {%x0, %x1}, %a; mov.b64 %d, {%x1, %x0};",
         [](uint64_t a) { return a << 32 | a >> 32; });
  t->Add("mov.b64", "mov.b64 {%h0, %h1, %h2, _}, %a; mov.b64 %d, {%h2, %h2, %h1, %h0};",
         [](uint64_t a) {
           const uint64_t h0 = a & 0xffff, h1 = a >> 16 & 0xffff, h2 = a >> 32 & 0xffff;
           return h2 | h2 << 16 | h1 << 32 | h0 << 48;
         });
  t->Add("mov.b16", ".reg .b8 %l, %u; mov.b16 {%l, %u}, %a; mov.b16 %d, {%u, %l};",
         [](uint16_t a) { return static_cast<uint16_t>(a << 8 | a >> 8); });
  t->Add("mov.b32",
         ".reg .b8 %v<4>; mov.b32 {%v0, %v1, %v2, %v3}, %a; mov.b32 %d, {%v3, %v2, %v1, %v0};",
         [](uint32_t a) { return __builtin_bswap32(a); });
  AddPermutations(t);
  AddBfe<uint32_t>(t, "u32");
  AddBfe<int32_t>(t, "s32");
  AddBfe<uint64_t>(t, "u64");
  AddBfe<int64_t>(t, "s64");
  AddBfi<uint32_t>(t, "b32");
  AddBfi<uint64_t>(t, "b64");
  AddBfind<uint32_t>(t, "u32");
  AddBfind<int32_t>(t, "s32");
  AddBfind<uint64_t>(t, "u64");
  AddBfind<int64_t>(t, "s64");
  AddCounts<uint32_t>(t, "b32");
  AddCounts<uint64_t>(t, "b64");
  AddFunnelShifts(t);
  AddLop3(t);
  static const Values& offsets = *new Values({0, 1, 2, 5, 17, 32, 33, 0x80000000, 0xffffffff,
                                              0xfffffffe, 0xfffffffb, 0xffffffe0, 0x7fffffff});
  t->Add("fns.b32", "$ %d, %a, %b, %c;",
         [](uint32_t a, uint32_t b, int32_t c) { return FindNth(a, b, c); },
         {nullptr, &ShiftAmounts(), &offsets});
  for (const std::string op : {"or", "and", "xor"}) {
    t->Add("lop3." + op + ".b32",
           "setp.lt.u32 %q, %c, 100; $ %x0|%p, %a, %b, %c, 0x96, %q; selp.u32 %x1, 1, 0, %p; "
           "xor.b32 %d, %x0, %x1;",
           [op](uint32_t a, uint32_t b, uint32_t c) {
             const uint32_t r = a ^ b ^ c;
             const bool q = c < 100;
             const bool p = op == "or" ? r != 0 || q : op == "and" ? r != 0 && q : (r != 0) != q;
             return r ^ (p ? 1u : 0u);
           });
  }
  using U = uint32_t;
  const auto mask = [](U a, U b) {
    U r = 0;
    for (U k = 0; k < 32; ++k) r |= U{k >= a && k < uint64_t{a} + b} << k;
    return r;
  };
  t->Add("bmsk.clamp.b32", "$ %d, %a, %b;", [=](U a, U b) { return mask(a, b); },
         {&ShiftAmounts(), &ShiftAmounts()});
  t->Add("bmsk.wrap.b32", "$ %d, %a, %b;", [=](U a, U b) { return mask(a & 31, b & 31); },
         {&ShiftAmounts(), &ShiftAmounts()});
  const auto extend = [](U a, U n, bool sign) {
    if (n == 0) return U{0};
    if (n >= 32) return a;
    const U low = a & ((U{1} << n) - 1);
    return sign && (a >> (n - 1) & 1) != 0 ? low | ~U{0} << n : low;
  };
  const Pools szext = {nullptr, &ShiftAmounts()};
  t->Add(
      "szext.clamp.u32", "$ %d, %a, %b;", [=](U a, U b) { return extend(a, b, false); }, szext);
  t->Add(
      "szext.clamp.s32", "$ %d, %a, %b;", [=](U a, U b) { return extend(a, b, true); }, szext);
  t->Add(
      "szext.wrap.u32", "$ %d, %a, %b;", [=](U a, U b) { return extend(a, b & 31, false); }, szext);
  t->Add(
      "szext.wrap.s32", "$ %d, %a, %b;", [=](U a, U b) { return extend(a, b & 31, true); }, szext);
}

}  // namespace fargpu::conformance
