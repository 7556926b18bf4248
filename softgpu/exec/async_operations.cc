#include "softgpu/exec/async_operations.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>

#include "absl/strings/str_format.h"

#include "softgpu/exec/atomics.h"
#include "softgpu/exec/launch_failure.h"

namespace fargpu::softgpu {
namespace {

template <typename Visit>
void ForEachLane(uint32_t mask, const Visit& visit) {
  for (; mask != 0; mask &= mask - 1) visit(std::countr_zero(mask));
}

// A barrier object as a 64-bit word of memory: arrivals still missing, arrivals of a phase, the
// phase's parity and the bytes that are expected. A word of zeros is no barrier object.
struct Phase {
  static constexpr uint64_t kCountMask = (1 << 20) - 1;
  static constexpr uint64_t kByteMask = (1 << 22) - 1;

  uint64_t pending = 0;
  uint64_t expected = 0;
  uint64_t parity = 0;
  int64_t bytes = 0;

  static Phase Unpack(uint64_t word) {
    Phase p;
    p.pending = word & kCountMask;
    p.expected = word >> 20 & kCountMask;
    p.parity = word >> 40 & 1;
    p.bytes = static_cast<int64_t>(word << 1) >> 42;  // 22 bits from 41 on, with their sign
    return p;
  }
  uint64_t Pack() const {
    return pending | expected << 20 | parity << 40 |
           (static_cast<uint64_t>(bytes) & kByteMask) << 41;
  }
  void CompleteIfDone() {
    if (pending != 0 || bytes != 0) return;
    parity ^= 1;
    pending = expected;
  }
};

// Replaces the object at `address` by change(object); returns the word that was there. Blocks of
// a cluster may do this from different threads.
template <typename Change>
uint64_t ChangeObject(uint64_t address, const Change& change) {
  std::atomic_ref<uint64_t> word(*reinterpret_cast<uint64_t*>(address));
  uint64_t old = word.load(std::memory_order_acquire);
  while (true) {
    Phase phase = Phase::Unpack(old);
    change(&phase);
    if (word.compare_exchange_weak(old, phase.Pack(), std::memory_order_acq_rel,
                                   std::memory_order_acquire)) {
      return old;
    }
  }
}

}  // namespace

void CompleteBytes(uint64_t address, uint64_t bytes) {
  ChangeObject(address, [&](Phase* p) {
    p->bytes -= static_cast<int64_t>(bytes);
    p->CompleteIfDone();
  });
}

uint64_t AddressInBlock(uint64_t address, int rank) {
  constexpr uint64_t kOffsetMask = (uint64_t{1} << kClusterShift) - 1;
  return static_cast<uint64_t>(rank + 1) << kClusterShift | (address & kOffsetMask);
}

namespace {

void MulticastCopy(const OperationCall& call, int lane, uint64_t bytes) {
  const uint64_t from = PlainAddress(call, lane, (call.code & kFromShared) != 0,
                                     call.slots.Of<uint64_t>(1)[lane], bytes, 16);
  for (uint32_t rest = call.slots.Of<uint16_t>(4)[lane]; rest != 0; rest &= rest - 1) {
    const int rank = std::countr_zero(rest);
    const uint64_t to = PlainAddress(
        call, lane, true, AddressInBlock(call.slots.Of<uint64_t>(0)[lane], rank), bytes, 16);
    std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    CompleteBytes(PlainAddress(call, lane, true,
                               AddressInBlock(call.slots.Of<uint64_t>(3)[lane], rank), 8, 8),
                  bytes);
  }
}

}  // namespace

namespace {

template <uint64_t kBytes>
void CopyLanes(const OperationCall& call) {
  const AddressCheck check(call);
  const bool to_shared = (call.code & kToShared) != 0;
  const bool from_shared = (call.code & kFromShared) != 0;
  ForEachLane(call.mask, [&](int lane) {
    const uint64_t to =
        check.Plain(lane, to_shared, call.slots.Of<uint64_t>(0)[lane], kBytes, kBytes);
    const uint64_t read = std::min<uint64_t>(call.slots.Of<uint32_t>(2)[lane], kBytes);
    char buffer[kBytes] = {};
    // Where nothing is read the address may be anything.
    if (read > 0) {
      const uint64_t from =
          check.Plain(lane, from_shared, call.slots.Of<uint64_t>(1)[lane], read, kBytes);
      // A size that the compiler knows makes this one move.
      if (read == kBytes) {
        std::memcpy(buffer, reinterpret_cast<const void*>(from), kBytes);
      } else {
        std::memcpy(buffer, reinterpret_cast<const void*>(from), read);
      }
    }
    std::memcpy(reinterpret_cast<void*>(to), buffer, kBytes);
  });
}

}  // namespace

void Copy(const OperationCall& call) {
  switch (call.code & 0xff) {
    case 4:
      return CopyLanes<4>(call);
    case 8:
      return CopyLanes<8>(call);
    default:
      return CopyLanes<16>(call);
  }
}

void BulkCopy(const OperationCall& call) {
  ForEachLane(call.mask, [&](int lane) {
    const uint64_t bytes = call.slots.Of<uint32_t>(2)[lane];
    if (bytes % 16 != 0) {
      EndLaunch(
          call.context, CUDA_ERROR_MISALIGNED_ADDRESS,
          absl::StrFormat("%s, %s, PTX line %u: a copy of %u bytes, not a multiple of 16",
                          Where(call.context), ThreadOf(call.context, lane), call.line, bytes));
    }
    if ((call.code & kMulticast) != 0) return MulticastCopy(call, lane, bytes);
    const uint64_t to = PlainAddress(call, lane, (call.code & kToShared) != 0,
                                     call.slots.Of<uint64_t>(0)[lane], bytes, 16);
    const uint64_t from = PlainAddress(call, lane, (call.code & kFromShared) != 0,
                                       call.slots.Of<uint64_t>(1)[lane], bytes, 16);
    if ((call.code & kBulkReduce) != 0) {
      const uint32_t code = static_cast<uint32_t>(call.code >> 8 & 0xff) |
                            static_cast<uint32_t>(call.code >> 16 & 0xff) << 8;
      const uint64_t size = AtomicBytes(static_cast<AtomicType>(code >> 8));
      for (uint64_t at = 0; at < bytes; at += size) {
        uint64_t addresses[kWarpSize];
        uint64_t operand = 0;
        uint64_t old = 0;
        addresses[0] = to + at;
        std::memcpy(&operand, reinterpret_cast<const void*>(from + at), size);
        RunAtomic(code, addresses, 1, &operand, &operand, &old);
      }
    } else {
      std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    }
    if ((call.code & kBulkBarrier) != 0) {
      CompleteBytes(PlainAddress(call, lane, true, call.slots.Of<uint64_t>(3)[lane], 8, 8), bytes);
    }
  });
}

void BarrierObject(const OperationCall& call) {
  const BarrierObjectOp op = static_cast<BarrierObjectOp>(call.code & 0xff);
  ForEachLane(call.mask, [&](int lane) {
    uint64_t* state = call.slots.Of<uint64_t>(0);
    uint32_t* answer = call.slots.Of<uint32_t>(0);
    const uint32_t count = call.slots.Of<uint32_t>(2)[lane];
    if (op == BarrierObjectOp::kPendingCount) {
      answer[lane] = static_cast<uint32_t>(Phase::Unpack(call.slots.Of<uint64_t>(3)[lane]).pending);
      return;
    }
    const uint64_t address = PlainAddress(call, lane, (call.code & kToShared) != 0,
                                          call.slots.Of<uint64_t>(1)[lane], 8, 8);
    std::atomic_ref<uint64_t> word(*reinterpret_cast<uint64_t*>(address));
    const auto check_pending = [&](const Phase& p, uint64_t wanted) {
      if (p.pending >= wanted) return;
      EndLaunch(call.context, CUDA_ERROR_LAUNCH_FAILED,
                absl::StrFormat("%s, %s, PTX line %u: %u arrivals at a barrier object that waits "
                                "for %u",
                                Where(call.context), ThreadOf(call.context, lane), call.line,
                                wanted, p.pending));
    };
    switch (op) {
      case BarrierObjectOp::kInit: {
        if (count == 0 || count > Phase::kCountMask) {
          EndLaunch(
              call.context, CUDA_ERROR_LAUNCH_FAILED,
              absl::StrFormat("%s, %s, PTX line %u: a barrier object for %u arrivals",
                              Where(call.context), ThreadOf(call.context, lane), call.line, count));
        }
        word.store(Phase{.pending = count, .expected = count}.Pack(), std::memory_order_release);
        return;
      }
      case BarrierObjectOp::kInvalidate:
        word.store(0, std::memory_order_release);
        return;
      case BarrierObjectOp::kArrive:
      case BarrierObjectOp::kArriveDrop:
        state[lane] = ChangeObject(address, [&](Phase* p) {
          check_pending(*p, count);
          p->pending -= count;
          if (op == BarrierObjectOp::kArriveDrop) p->expected -= count;
          p->CompleteIfDone();
        });
        return;
      case BarrierObjectOp::kExpect:
        ChangeObject(address, [&](Phase* p) { p->bytes += count; });
        return;
      case BarrierObjectOp::kArriveExpect:
        state[lane] = ChangeObject(address, [&](Phase* p) {
          check_pending(*p, 1);
          p->bytes += count;
          p->pending -= 1;
          p->CompleteIfDone();
        });
        return;
      case BarrierObjectOp::kComplete:
        CompleteBytes(address, count);
        return;
      case BarrierObjectOp::kTestState:
        answer[lane] = Phase::Unpack(word.load(std::memory_order_acquire)).parity !=
                       Phase::Unpack(call.slots.Of<uint64_t>(3)[lane]).parity;
        return;
      case BarrierObjectOp::kTestParity:
        answer[lane] = Phase::Unpack(word.load(std::memory_order_acquire)).parity != (count & 1);
        return;
      case BarrierObjectOp::kPendingCount:
        return;
    }
  });
}

void Atomic128(const OperationCall& call) {
  using Word = unsigned __int128;
  const bool exchange = static_cast<AtomicOp>(call.code & 0xff) == AtomicOp::kExchange;
  const auto join = [&](unsigned slot, int lane) {
    return static_cast<Word>(call.slots.Of<uint64_t>(slot + 1)[lane]) << 64 |
           call.slots.Of<uint64_t>(slot)[lane];
  };
  ForEachLane(call.mask, [&](int lane) {
    auto* place = reinterpret_cast<Word*>(call.slots.Of<uint64_t>(2)[lane]);
    const Word wanted = join(3, lane);
    Word old = exchange ? 0 : join(5, lane);
    while (true) {
      const Word seen = __sync_val_compare_and_swap(place, old, wanted);
      if (seen == old || !exchange) {
        old = seen;
        break;
      }
      old = seen;
    }
    call.slots.Of<uint64_t>(0)[lane] = static_cast<uint64_t>(old);
    call.slots.Of<uint64_t>(1)[lane] = static_cast<uint64_t>(old >> 64);
  });
}

}  // namespace fargpu::softgpu
