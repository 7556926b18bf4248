// add, sub, mul, mad, div, rem, min, max, abs, neg, sad, mul24, dot products, carry chains.
#include <algorithm>
#include <limits>
#include <string>

#include "tests/conformance/ptx/tables.h"

namespace fargpu::conformance {
namespace {

using I128 = __int128;

// The wrap-around results of C++'s unsigned types, for T of any size.
template <typename T>
T Low(I128 v) {
  return static_cast<T>(static_cast<std::make_unsigned_t<T>>(static_cast<unsigned __int128>(v)));
}
template <typename T>
T High(I128 v) {
  return Low<T>(v >> (8 * sizeof(T)));
}
template <typename T>
T Clamp(I128 v) {
  return static_cast<T>(
      std::clamp<I128>(v, std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
}

// What is the same for all types: `name` is s16, u64, ...
template <typename T>
void AddForType(Table* t, const std::string& name) {
  t->Add("add." + name, "$ %d, %a, %b;", [](T a, T b) { return Low<T>(I128{a} + b); });
  t->Add("sub." + name, "$ %d, %a, %b;", [](T a, T b) { return Low<T>(I128{a} - b); });
  t->Add("mul.lo." + name, "$ %d, %a, %b;", [](T a, T b) { return Low<T>(I128{a} * b); });
  t->Add("mul.hi." + name, "$ %d, %a, %b;", [](T a, T b) {
    // Of unsigned 64-bit factors the product needs all 128 bits.
    if constexpr (std::is_unsigned_v<T>) {
      return static_cast<T>(static_cast<unsigned __int128>(a) * b >> (8 * sizeof(T)));
    } else {
      return High<T>(I128{a} * b);
    }
  });
  t->Add("mad.lo." + name, "$ %d, %a, %b, %c;",
         [](T a, T b, T c) { return Low<T>(static_cast<unsigned __int128>(I128{a}) * b + c); });
  t->Add("mad.hi." + name, "$ %d, %a, %b, %c;", [](T a, T b, T c) {
    if constexpr (std::is_unsigned_v<T>) {
      return Low<T>(I128{static_cast<T>(static_cast<unsigned __int128>(a) * b >> (8 * sizeof(T)))} +
                    c);
    } else {
      return Low<T>(I128{High<T>(I128{a} * b)} + c);
    }
  });
  // Division by zero gives all ones, and the remainder of it the dividend.
  t->Add("div." + name, "$ %d, %a, %b;",
         [](T a, T b) { return b == 0 ? static_cast<T>(~T{0}) : Low<T>(I128{a} / b); });
  t->Add("rem." + name, "$ %d, %a, %b;", [](T a, T b) { return b == 0 ? a : Low<T>(I128{a} % b); });
  t->Add("div." + name, "$ %d, %a, 7;", [](T a) { return static_cast<T>(a / 7); });
  t->Add("rem." + name, "$ %d, %a, 10;", [](T a) { return static_cast<T>(a % 10); });
  t->Add("min." + name, "$ %d, %a, %b;", [](T a, T b) { return std::min(a, b); });
  t->Add("max." + name, "$ %d, %a, %b;", [](T a, T b) { return std::max(a, b); });
  t->Add("sad." + name, "$ %d, %a, %b, %c;",
         [](T a, T b, T c) { return Low<T>(I128{c} + (a < b ? I128{b} - a : I128{a} - b)); });
  if constexpr (std::is_signed_v<T>) {
    t->Add("abs." + name, "$ %d, %a;", [](T a) { return Low<T>(a < 0 ? -I128{a} : I128{a}); });
    t->Add("neg." + name, "$ %d, %a;", [](T a) { return Low<T>(-I128{a}); });
  }
}

template <typename T, typename W>
void AddWide(Table* t, const std::string& name) {
  t->Add("mul.wide." + name, "$ %d, %a, %b;", [](T a, T b) { return Low<W>(I128{a} * b); });
  t->Add("mad.wide." + name, "$ %d, %a, %b, %c;",
         [](T a, T b, W c) { return Low<W>(I128{a} * b + c); });
}

template <typename T>
I128 Cut24(T a) {
  return std::is_signed_v<T> ? I128{static_cast<int32_t>(static_cast<uint32_t>(a) << 8) >> 8}
                             : I128{static_cast<uint32_t>(a) & 0xffffff};
}

template <typename T>
void Add24(Table* t, const std::string& name) {
  t->Add("mul24.lo." + name, "$ %d, %a, %b;", [](T a, T b) { return Low<T>(Cut24(a) * Cut24(b)); });
  t->Add("mul24.hi." + name, "$ %d, %a, %b;",
         [](T a, T b) { return Low<T>(Cut24(a) * Cut24(b) >> 16); });
  t->Add("mad24.lo." + name, "$ %d, %a, %b, %c;",
         [](T a, T b, T c) { return Low<T>(Cut24(a) * Cut24(b) + c); });
  t->Add("mad24.hi." + name, "$ %d, %a, %b, %c;",
         [](T a, T b, T c) { return Low<T>((Cut24(a) * Cut24(b) >> 16) + c); });
}

// Two lanes of 16 bits.
template <typename T, typename F>
uint32_t Each16(uint32_t a, uint32_t b, F f) {
  uint32_t r = 0;
  for (int k = 0; k < 32; k += 16) {
    r |= uint32_t{static_cast<uint16_t>(f(static_cast<T>(a >> k), static_cast<T>(b >> k)))} << k;
  }
  return r;
}

template <typename T>
void AddPacked(Table* t, const std::string& name) {
  t->Add("add." + name, "$ %d, %a, %b;",
         [](uint32_t a, uint32_t b) { return Each16<T>(a, b, [](T x, T y) { return x + y; }); });
  t->Add("min." + name, "$ %d, %a, %b;", [](uint32_t a, uint32_t b) {
    return Each16<T>(a, b, [](T x, T y) { return std::min(x, y); });
  });
  t->Add("max." + name, "$ %d, %a, %b;", [](uint32_t a, uint32_t b) {
    return Each16<T>(a, b, [](T x, T y) { return std::max(x, y); });
  });
  if constexpr (std::is_signed_v<T>) {
    for (const char* form : {"min.s16x2.relu", "min.relu.s16x2"}) {
      t->Add(form, "$ %d, %a, %b;", [](uint32_t a, uint32_t b) {
        return Each16<T>(a, b, [](T x, T y) { return std::max<T>(std::min(x, y), 0); });
      });
    }
    for (const char* form : {"max.s16x2.relu", "max.relu.s16x2"}) {
      t->Add(form, "$ %d, %a, %b;", [](uint32_t a, uint32_t b) {
        return Each16<T>(a, b, [](T x, T y) { return std::max<T>(std::max(x, y), 0); });
      });
    }
  }
}

template <typename T>
int64_t Field(uint32_t v, int from) {
  return static_cast<T>(v >> from);
}

template <typename A, typename B>
void AddDot(Table* t, const std::string& types) {
  t->Add("dp4a." + types, "$ %d, %a, %b, %c;", [](uint32_t a, uint32_t b, uint32_t c) {
    int64_t sum = c;
    for (int k = 0; k < 32; k += 8) sum += Field<A>(a, k) * Field<B>(b, k);
    return static_cast<uint32_t>(sum);
  });
  using A16 = std::conditional_t<std::is_signed_v<A>, int16_t, uint16_t>;
  t->Add("dp2a.lo." + types, "$ %d, %a, %b, %c;", [](uint32_t a, uint32_t b, uint32_t c) {
    return static_cast<uint32_t>(c + Field<A16>(a, 0) * Field<B>(b, 0) +
                                 Field<A16>(a, 16) * Field<B>(b, 8));
  });
  t->Add("dp2a.hi." + types, "$ %d, %a, %b, %c;", [](uint32_t a, uint32_t b, uint32_t c) {
    return static_cast<uint32_t>(c + Field<A16>(a, 0) * Field<B>(b, 16) +
                                 Field<A16>(a, 16) * Field<B>(b, 24));
  });
}

void AddCarries(Table* t) {
  // Each form once in a chain over two 32-bit halves, against 64-bit arithmetic.
  const std::string split = "mov.b64 {%x0, %x1}, %a; mov.b64 {%x2, %x3}, %b; ";
  const std::string join = " mov.b64 %d, {%x4, %x5};";
  const auto add = [](uint64_t a, uint64_t b) { return a + b; };
  const auto subtract = [](uint64_t a, uint64_t b) { return a - b; };
  for (const std::string type : {"u32", "s32"}) {
    t->Add("add.cc." + type, split + "$ %x4, %x0, %x2; addc." + type + " %x5, %x1, %x3;" + join,
           add);
    t->Add("addc." + type, split + "add.cc." + type + " %x4, %x0, %x2; $ %x5, %x1, %x3;" + join,
           add);
    t->Add("sub.cc." + type, split + "$ %x4, %x0, %x2; subc." + type + " %x5, %x1, %x3;" + join,
           subtract);
    t->Add("subc." + type, split + "sub.cc." + type + " %x4, %x0, %x2; $ %x5, %x1, %x3;" + join,
           subtract);
    // The third step's carry: the top half of a 96-bit sum (difference).
    t->Add("addc.cc." + type,
           split + "add.cc." + type + " %x4, %x0, %x2; $ %x4, %x1, %x3; addc." + type +
               " %x5, 5, 7; mov.u32 %x4, 0;" + join,
           [](uint64_t a, uint64_t b) {
             const uint64_t carry =
                 static_cast<uint64_t>((static_cast<unsigned __int128>(a) + b) >> 64);
             return (12 + carry) << 32;
           });
    t->Add("subc.cc." + type,
           split + "sub.cc." + type + " %x4, %x0, %x2; $ %x4, %x1, %x3; subc." + type +
               " %x5, 12, 7; mov.u32 %x4, 0;" + join,
           [](uint64_t a, uint64_t b) { return (uint64_t{5} - (a < b ? 1 : 0)) << 32; });
  }
  const auto product = [](uint64_t a, uint64_t b) { return a * b; };
  // a * b by 32-bit pieces: low half of the low product, then its high half and the cross terms.
  t->Add("mad.lo.cc.u32",
         split + "mov.u32 %x6, -1; $ %x4, %x0, %x2, %x6; addc.u32 %x5, 0, 0;" + join,
         [](uint64_t a, uint64_t b) {
           return uint64_t{static_cast<uint32_t>(a) * static_cast<uint32_t>(b)} + 0xffffffff;
         });
  t->Add("madc.lo.u32",
         split +
             "mul.lo.u32 %x4, %x0, %x2; mul.hi.u32 %x5, %x0, %x2; mov.u32 %x6, 0; "
             "mad.lo.cc.u32 %x6, %x4, 1, 0; $ %x5, %x0, %x3, %x5; mad.lo.u32 %x5, %x1, %x2, %x5;" +
             join,
         product);
  t->Add("madc.lo.cc.u32",
         split + "add.cc.u32 %x4, %x0, -1; $ %x4, %x1, %x3, %x2; addc.u32 %x5, 0, 0;" + join,
         [](uint64_t a, uint64_t b) {
           const uint32_t carry = static_cast<uint32_t>(a) != 0;
           const uint32_t low = static_cast<uint32_t>(a >> 32) * static_cast<uint32_t>(b >> 32);
           return uint64_t{low} + static_cast<uint32_t>(b) + carry;
         });
  t->Add(
      "mad.hi.cc.u32", split + "mov.u32 %x6, -5; $ %x4, %x0, %x2, %x6; addc.u32 %x5, 0, 0;" + join,
      [](uint64_t a, uint64_t b) {
        return (uint64_t{static_cast<uint32_t>(a)} * static_cast<uint32_t>(b) >> 32) + 0xfffffffb;
      });
  t->Add("madc.hi.u32", split + "add.cc.u32 %x4, %x1, %x3; $ %x5, %x0, %x2, 0;" + join,
         [](uint64_t a, uint64_t b) {
           const uint64_t sum = (a >> 32) + (b >> 32);
           const uint32_t high = static_cast<uint32_t>(
               uint64_t{static_cast<uint32_t>(a)} * static_cast<uint32_t>(b) >> 32);
           return uint64_t{static_cast<uint32_t>(high + (sum >> 32))} << 32 |
                  static_cast<uint32_t>(sum);
         });
  t->Add("madc.hi.cc.u32",
         split + "add.cc.u32 %x4, %x1, %x3; $ %x4, %x0, %x2, -1; addc.u32 %x5, 0, 0;" + join,
         [](uint64_t a, uint64_t b) {
           const uint64_t carry = ((a >> 32) + (b >> 32)) >> 32;
           return (uint64_t{static_cast<uint32_t>(a)} * static_cast<uint32_t>(b) >> 32) +
                  0xffffffff + carry;
         });
  for (const std::string type : {"u64", "s64"}) {
    t->Add("add.cc." + type, "$ %y0, %a, %b; addc." + type + " %d, 0, 0;",
           [](uint64_t a, uint64_t b) { return uint64_t{a + b < a}; });
    t->Add("addc.cc." + type, "add.cc.u64 %y0, %a, 1; $ %y0, %a, %b; addc." + type + " %d, 0, 0;",
           [](uint64_t a, uint64_t b) {
             const unsigned __int128 sum =
                 static_cast<unsigned __int128>(a) + b + (a == ~uint64_t{0} ? 1 : 0);
             return static_cast<uint64_t>(sum >> 64);
           });
    t->Add("sub.cc." + type, "$ %y0, %a, %b; subc." + type + " %d, 0, 0;",
           [](uint64_t a, uint64_t b) { return a < b ? ~uint64_t{0} : 0; });
    t->Add("mad.lo.cc." + type, "$ %y0, %a, %b, -1; addc." + type + " %d, 0, 0;",
           [](uint64_t a, uint64_t b) { return uint64_t{a * b != 0}; });
    t->Add("madc.hi." + type, "add.cc.u64 %y0, %a, -1; $ %d, %a, %b, 3;",
           [type](uint64_t a, uint64_t b) {
             const uint64_t high =
                 type == "u64" ? static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64)
                               : static_cast<uint64_t>(
                                     I128{static_cast<int64_t>(a)} * static_cast<int64_t>(b) >> 64);
             return high + 3 + (a != 0);
           });
  }
}

}  // namespace

void AddIntegerRows(Table* t) {
  AddForType<int16_t>(t, "s16");
  AddForType<uint16_t>(t, "u16");
  AddForType<int32_t>(t, "s32");
  AddForType<uint32_t>(t, "u32");
  AddForType<int64_t>(t, "s64");
  AddForType<uint64_t>(t, "u64");
  AddWide<int16_t, int32_t>(t, "s16");
  AddWide<uint16_t, uint32_t>(t, "u16");
  AddWide<int32_t, int64_t>(t, "s32");
  AddWide<uint32_t, uint64_t>(t, "u32");
  Add24<int32_t>(t, "s32");
  Add24<uint32_t>(t, "u32");
  AddPacked<int16_t>(t, "s16x2");
  AddPacked<uint16_t>(t, "u16x2");
  AddDot<int8_t, int8_t>(t, "s32.s32");
  AddDot<int8_t, uint8_t>(t, "s32.u32");
  AddDot<uint8_t, int8_t>(t, "u32.s32");
  AddDot<uint8_t, uint8_t>(t, "u32.u32");
  t->Add("add.sat.s32", "$ %d, %a, %b;",
         [](int32_t a, int32_t b) { return Clamp<int32_t>(I128{a} + b); });
  t->Add("sub.sat.s32", "$ %d, %a, %b;",
         [](int32_t a, int32_t b) { return Clamp<int32_t>(I128{a} - b); });
  t->Add("mad.hi.sat.s32", "$ %d, %a, %b, %c;",
         [](int32_t a, int32_t b, int32_t c) { return Clamp<int32_t>((I128{a} * b >> 32) + c); });
  t->Add("mad24.hi.sat.s32", "$ %d, %a, %b, %c;", [](int32_t a, int32_t b, int32_t c) {
    return Clamp<int32_t>((Cut24(a) * Cut24(b) >> 16) + c);
  });
  for (const char* form : {"min.s32.relu", "min.relu.s32"}) {
    t->Add(form, "$ %d, %a, %b;", [](int32_t a, int32_t b) { return std::max(std::min(a, b), 0); });
  }
  for (const char* form : {"max.s32.relu", "max.relu.s32"}) {
    t->Add(form, "$ %d, %a, %b;", [](int32_t a, int32_t b) { return std::max(std::max(a, b), 0); });
  }
  AddCarries(t);
}

}  // namespace fargpu::conformance
