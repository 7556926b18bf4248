#include "softgpu/exec/atomics.h"

#include <immintrin.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "softgpu/exec/half.h"
#include "softgpu/llvm/warp_context.h"

namespace fargpu::softgpu {
namespace {

template <typename T>
T Number(T value, T operand, AtomicOp op) {
  switch (op) {
    case AtomicOp::kAdd:
      return static_cast<T>(value + operand);
    case AtomicOp::kMin:
      return operand < value ? operand : value;
    case AtomicOp::kMax:
      return operand > value ? operand : value;
    default:
      return operand;
  }
}

// The new value of an integer.
template <typename T>
T Integer(T value, T operand, T swap, AtomicOp op) {
  switch (op) {
    case AtomicOp::kInc:
      return value >= operand ? T{0} : static_cast<T>(value + 1);
    case AtomicOp::kDec:
      return value == 0 || value > operand ? operand : static_cast<T>(value - 1);
    case AtomicOp::kAnd:
      return value & operand;
    case AtomicOp::kOr:
      return value | operand;
    case AtomicOp::kXor:
      return value ^ operand;
    case AtomicOp::kExchange:
      return operand;
    case AtomicOp::kCompareExchange:
      return value == operand ? swap : value;
    default:
      return Number<T>(value, operand, op);
  }
}

uint16_t HalfOp(uint16_t value, uint16_t operand, AtomicOp op, bool bfloat) {
  const auto load = bfloat ? BFloatToFloat : HalfToFloat;
  const float x = load(value);
  const float y = load(operand);
  const float r = op == AtomicOp::kAdd   ? x + y
                  : op == AtomicOp::kMin ? std::fmin(x, y)
                                         : std::fmax(x, y);
  return bfloat ? FloatToBFloat(r) : FloatToHalf(r);
}

// Replaces the word at `address` by update(word); returns what was there. T is an unsigned type.
template <typename T, typename Update>
T Replace(uint64_t address, bool block_private, const Update& update) {
  T* place = reinterpret_cast<T*>(address);
  if (block_private) {  // the warps of a block run on one thread
    const T old = *place;
    *place = update(old);
    return old;
  }
  std::atomic_ref<T> word(*place);
  T old = word.load(std::memory_order_relaxed);
  while (!word.compare_exchange_weak(old, update(old), std::memory_order_acq_rel,
                                     std::memory_order_relaxed)) {
  }
  return old;
}

template <typename Word, typename Update>
void ForLanes(const uint64_t* addresses, uint32_t mask, const void* a, const void* b, void* out,
              bool block_private, const Update& update) {
  const Word* operands = static_cast<const Word*>(a);
  const Word* swaps = static_cast<const Word*>(b);
  Word* results = static_cast<Word*>(out);
  for (; mask != 0; mask &= mask - 1) {
    const int lane = std::countr_zero(mask);
    results[lane] = Replace<Word>(addresses[lane], block_private, [&](Word old) {
      return update(old, operands[lane], swaps[lane]);
    });
  }
}

// Calls visit with `op` as a type, so that what is done per lane has no choice left to make.
template <AtomicOp kOp>
using OpConstant = std::integral_constant<AtomicOp, kOp>;
template <typename Visit>
void WithOp(AtomicOp op, const Visit& visit) {
  switch (op) {
    case AtomicOp::kAdd:
      return visit(OpConstant<AtomicOp::kAdd>{});
    case AtomicOp::kMin:
      return visit(OpConstant<AtomicOp::kMin>{});
    case AtomicOp::kMax:
      return visit(OpConstant<AtomicOp::kMax>{});
    case AtomicOp::kInc:
      return visit(OpConstant<AtomicOp::kInc>{});
    case AtomicOp::kDec:
      return visit(OpConstant<AtomicOp::kDec>{});
    case AtomicOp::kAnd:
      return visit(OpConstant<AtomicOp::kAnd>{});
    case AtomicOp::kOr:
      return visit(OpConstant<AtomicOp::kOr>{});
    case AtomicOp::kXor:
      return visit(OpConstant<AtomicOp::kXor>{});
    case AtomicOp::kExchange:
      return visit(OpConstant<AtomicOp::kExchange>{});
    case AtomicOp::kCompareExchange:
      return visit(OpConstant<AtomicOp::kCompareExchange>{});
  }
}

}  // namespace

void RunAtomic(uint32_t code, const uint64_t* addresses, uint32_t mask, const void* a,
               const void* b, void* out) {
  const AtomicOp op = static_cast<AtomicOp>(code & 0xff);
  const AtomicType type = static_cast<AtomicType>(code >> 8 & 0xff);
  const bool block_private = (code & kAtomicBlockPrivate) != 0;
  const auto run = [&]<typename Word>(Word, const auto& update) {
    ForLanes<Word>(addresses, mask, a, b, out, block_private, update);
  };
  switch (type) {
    case AtomicType::kU32:
      if (op == AtomicOp::kAdd && !block_private) {
        const uint32_t* operands = static_cast<const uint32_t*>(a);
        uint32_t* results = static_cast<uint32_t*>(out);
        for (; mask != 0; mask &= mask - 1) {
          const int lane = std::countr_zero(mask);
          results[lane] = std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(addresses[lane]))
                              .fetch_add(operands[lane], std::memory_order_acq_rel);
        }
        return;
      }
      return WithOp(op, [&](auto known) {
        run(uint32_t{}, [](uint32_t v, uint32_t x, uint32_t s) {
          return Integer<uint32_t>(v, x, s, decltype(known)::value);
        });
      });
    case AtomicType::kS32:
      return WithOp(op, [&](auto known) {
        run(uint32_t{}, [](uint32_t v, uint32_t x, uint32_t s) {
          constexpr AtomicOp kOp = decltype(known)::value;
          if constexpr (kOp == AtomicOp::kAdd) return v + x;
          return static_cast<uint32_t>(Integer<int32_t>(
              static_cast<int32_t>(v), static_cast<int32_t>(x), static_cast<int32_t>(s), kOp));
        });
      });
    case AtomicType::kU64:
      return run(uint64_t{}, [op](uint64_t v, uint64_t x, uint64_t s) {
        return Integer<uint64_t>(v, x, s, op);
      });
    case AtomicType::kS64:
      return run(uint64_t{}, [op](uint64_t v, uint64_t x, uint64_t s) {
        if (op == AtomicOp::kAdd) return v + x;
        return static_cast<uint64_t>(Integer<int64_t>(
            static_cast<int64_t>(v), static_cast<int64_t>(x), static_cast<int64_t>(s), op));
      });
    case AtomicType::kF32:
      return run(uint32_t{}, [op](uint32_t v, uint32_t x, uint32_t) {
        return std::bit_cast<uint32_t>(
            Number<float>(std::bit_cast<float>(v), std::bit_cast<float>(x), op));
      });
    case AtomicType::kF64:
      return run(uint64_t{}, [op](uint64_t v, uint64_t x, uint64_t) {
        return std::bit_cast<uint64_t>(
            Number<double>(std::bit_cast<double>(v), std::bit_cast<double>(x), op));
      });
    case AtomicType::kU16:
      return run(uint16_t{}, [op](uint16_t v, uint16_t x, uint16_t s) {
        return Integer<uint16_t>(v, x, s, op);
      });
    case AtomicType::kF16:
    case AtomicType::kBF16: {
      const bool bfloat = type == AtomicType::kBF16;
      return run(uint16_t{}, [op, bfloat](uint16_t v, uint16_t x, uint16_t) {
        return HalfOp(v, x, op, bfloat);
      });
    }
    case AtomicType::kF16x2:
    case AtomicType::kBF16x2: {
      const bool bfloat = type == AtomicType::kBF16x2;
      return run(uint32_t{}, [op, bfloat](uint32_t v, uint32_t x, uint32_t) {
        const uint32_t low = HalfOp(static_cast<uint16_t>(v), static_cast<uint16_t>(x), op, bfloat);
        const uint32_t high =
            HalfOp(static_cast<uint16_t>(v >> 16), static_cast<uint16_t>(x >> 16), op, bfloat);
        return low | high << 16;
      });
    }
  }
}

namespace {

// The operands pass through volatile variables, so that nothing is computed in another mode.
template <typename T>
void RoundLanes(RoundedOp op, const void* pa, const void* pb, const void* pc, void* out) {
  const T* a = static_cast<const T*>(pa);
  const T* b = static_cast<const T*>(pb);
  const T* c = static_cast<const T*>(pc);
  T* result = static_cast<T*>(out);
  for (int lane = 0; lane < kWarpSize; ++lane) {
    volatile T x = 0, y = 0, z = 0, r = 0;
    switch (op) {
      case RoundedOp::kFromS64:
        r = static_cast<T>(static_cast<const volatile int64_t*>(pa)[lane]);
        break;
      case RoundedOp::kFromU64: {
        const uint64_t v = static_cast<const volatile uint64_t*>(pa)[lane];
        if (v >> 63 == 0) {
          volatile int64_t small = static_cast<int64_t>(v);
          r = static_cast<T>(small);
        } else {
          // Halved with the lost bit kept sticky, converted (one rounding), doubled (exact).
          volatile int64_t half = static_cast<int64_t>(v >> 1 | (v & 1));
          r = static_cast<T>(half);
          r = r * 2;
        }
        break;
      }
      default:
        x = a[lane];
        if (b != nullptr) y = b[lane];
        if (c != nullptr) z = c[lane];
        switch (op) {
          case RoundedOp::kAdd:
            r = x + y;
            break;
          case RoundedOp::kSub:
            r = x - y;
            break;
          case RoundedOp::kMul:
            r = x * y;
            break;
          case RoundedOp::kDiv:
            r = x / y;
            break;
          case RoundedOp::kSqrt:
            r = std::sqrt(x);
            break;
          default:
            r = std::fma(x, y, z);
            break;
        }
    }
    result[lane] = r;
  }
}

}  // namespace

void RunRounded(uint32_t code, const void* a, const void* b, const void* c, void* out) {
  const RoundedOp op = static_cast<RoundedOp>(code & 0xff);
  const RoundingMode mode = static_cast<RoundingMode>(code >> 8 & 0xff);
  const unsigned before = _mm_getcsr();
  static constexpr unsigned kModes[] = {_MM_ROUND_NEAREST, _MM_ROUND_TOWARD_ZERO, _MM_ROUND_DOWN,
                                        _MM_ROUND_UP};
  _mm_setcsr((before & ~static_cast<unsigned>(_MM_ROUND_MASK)) | kModes[static_cast<int>(mode)]);
  if (op == RoundedOp::kNarrow) {
    for (int lane = 0; lane < kWarpSize; ++lane) {
      volatile double x = static_cast<const double*>(a)[lane];
      volatile float r = static_cast<float>(x);
      static_cast<float*>(out)[lane] = r;
    }
  } else if ((code >> 16 & 1) != 0) {
    RoundLanes<double>(op, a, b, c, out);
  } else {
    RoundLanes<float>(op, a, b, c, out);
  }
  _mm_setcsr(before);
}

}  // namespace fargpu::softgpu
