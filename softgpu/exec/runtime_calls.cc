// The functions that compiled code calls. They run on fibers: one that faults or fails leaves
// without unwinding, so nothing here holds a lock or memory across an access to device memory.
#include <emmintrin.h>
#include <time.h>

#include <bit>
#include <cstring>
#include <cuda.h>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "common/cuda_error.h"
#include "softgpu/exec/atomics.h"
#include "softgpu/exec/device_heap.h"
#include "softgpu/exec/device_printf.h"
#include "softgpu/exec/launch_failure.h"
#include "softgpu/exec/operations.h"
#include "softgpu/exec/worker.h"

namespace fargpu::softgpu {

std::string Where(const WarpContext* c) {
  const auto* warp = static_cast<const RunningWarp*>(c->block);
  return absl::StrFormat("kernel %s, block (%u, %u, %u)", warp->block->launch->kernel_name,
                         c->block_index[0], c->block_index[1], c->block_index[2]);
}

std::string ThreadOf(const WarpContext* c, int lane) {
  const uint32_t linear = c->warp_index * kWarpSize + static_cast<uint32_t>(lane);
  return absl::StrFormat("thread (%u, %u, %u)", linear % c->block_size[0],
                         linear / c->block_size[0] % c->block_size[1],
                         linear / c->block_size[0] / c->block_size[1]);
}

void EndLaunch(WarpContext* context, CUresult code, const std::string& message) {
  WarpOf(context)->block->launch->Fail(CudaError(code, message));
  Worker::Current()->Abandon();
}

bool InWindow(uint64_t address, uint64_t bytes) {
  const AddressWindow window = DeviceWindow();
  return address - window.base < window.size && window.size - (address - window.base) >= bytes;
}

namespace {

void Fault(WarpContext* c, const uint64_t* addresses, uint32_t mask, uint32_t bytes,
           uint32_t line) {
  const AddressWindow window = DeviceWindow();
  const bool in_block = (bytes & kFaultInBlock) != 0;
  bytes &= ~kFaultInBlock;
  const auto reachable = [&](uint64_t address) {
    return !in_block && address % bytes == 0 &&
           (address - window.base < window.size || HostRangeReachable(address, bytes));
  };
  bool all = true;
  for (uint32_t rest = mask; rest != 0 && all; rest &= rest - 1) {
    all = reachable(addresses[std::countr_zero(rest)]);
  }
  // A range that leaves the window although its anchor is inside is not the program's memory.
  const bool any_outside = [&] {
    for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      if (addresses[std::countr_zero(rest)] - window.base >= window.size) return true;
    }
    return false;
  }();
  if (all && any_outside) return;
  // The lane to blame: the first that is out of bounds or misaligned. Offsets into shared or
  // local memory are small numbers, outside the window.
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const uint64_t address = addresses[lane];
    const bool misaligned = address % bytes != 0;
    if (reachable(address)) continue;
    if (misaligned) {
      EndLaunch(c, CUDA_ERROR_MISALIGNED_ADDRESS,
                absl::StrFormat("%s, %s, PTX line %u: address 0x%x is not a multiple of %u",
                                Where(c), ThreadOf(c, lane), line, address, bytes));
    }
    EndLaunch(c, CUDA_ERROR_ILLEGAL_ADDRESS,
              absl::StrFormat("%s, %s, PTX line %u: access of %u bytes at 0x%x", Where(c),
                              ThreadOf(c, lane), line, bytes, address));
  }
  EndLaunch(c, CUDA_ERROR_ILLEGAL_ADDRESS,
            absl::StrFormat("%s, PTX line %u: illegal address", Where(c), line));
}

void Trap(WarpContext* c, uint32_t line) {
  EndLaunch(c, CUDA_ERROR_LAUNCH_FAILED,
            absl::StrFormat("%s: trap in PTX line %u", Where(c), line));
}

void FailCall(WarpContext* c, uint32_t fault, uint32_t line) {
  if (static_cast<CallFault>(fault) == CallFault::kStackOverflow) {
    EndLaunch(c, CUDA_ERROR_HARDWARE_STACK_ERROR,
              absl::StrFormat("%s: stack overflow in PTX line %u", Where(c), line));
  }
  EndLaunch(
      c, CUDA_ERROR_INVALID_PC,
      absl::StrFormat("%s: the call in PTX line %u goes where no function is", Where(c), line));
}

void CheckBarrier(WarpContext* c, uint32_t id) {
  if (id <= kClusterBarrier) return;
  EndLaunch(c, CUDA_ERROR_ILLEGAL_INSTRUCTION,
            absl::StrFormat("%s: barrier %u; there are %u", Where(c), id, kBarriers));
}

void Barrier(WarpContext* c, uint32_t id, uint32_t threads) {
  CheckBarrier(c, id);
  RunningWarp* warp = WarpOf(c);
  // The last warp that lives needs no switch, and neither does a block of one warp.
  if (threads == 0 && warp->block->live_warps == 1) return;
  Worker* worker = Worker::Current();
  worker->Enter(id, threads, 1, kWarpSize, BarrierOp::kSync, 0);
  worker->Wait();
  warp->released = 0;
}

uint32_t BarrierReduce(WarpContext* c, uint32_t id, uint32_t threads, uint32_t op,
                       uint32_t predicates, uint32_t mask) {
  CheckBarrier(c, id);
  Worker* worker = Worker::Current();
  worker->Enter(id, threads, mask, kWarpSize, static_cast<BarrierOp>(op), predicates);
  worker->Wait();
  WarpOf(c)->released = 0;
  return WarpOf(c)->results[std::countr_zero(mask) & (kWarpSize - 1)];
}

void BarrierArrive(WarpContext* c, uint32_t id, uint32_t threads, uint32_t lanes) {
  CheckBarrier(c, id);
  Worker* worker = Worker::Current();
  RunningWarp* warp = WarpOf(c);
  if (id == kClusterBarrier) warp->cluster_phase = warp->block->BarrierOf(id).phase;
  worker->Arrive(id, threads, lanes == 0 ? kWarpSize : static_cast<uint32_t>(std::popcount(lanes)));
  worker->ReleaseBarrier(warp->block, id);
}

void ClusterWait(WarpContext* c) {
  RunningWarp* warp = WarpOf(c);
  Worker* worker = Worker::Current();
  if (warp->block->BarrierOf(kClusterBarrier).phase != warp->cluster_phase) return;
  worker->Enter(kClusterBarrier, 0, 1, 0, BarrierOp::kSync, 0);
  warp->arrivals[kClusterBarrier].threads = kWarpSize;  // counted when it arrived
  worker->Wait();
  warp->released = 0;
}

uint32_t BarrierLanes(WarpContext* c, uint32_t waiting, const uint32_t* ids,
                      const uint32_t* threads, const uint32_t* ops, uint32_t predicates,
                      uint32_t* results) {
  RunningWarp* warp = WarpOf(c);
  Worker* worker = Worker::Current();
  const auto leave = [&] {
    std::memcpy(results, warp->results, sizeof warp->results);
    return std::exchange(warp->released, 0);
  };
  if (warp->released != 0) return leave();  // while other lanes ran
  uint32_t there = 0;
  for (uint32_t rest = warp->arrival_set; rest != 0; rest &= rest - 1) {
    there |= warp->arrivals[std::countr_zero(rest)].lanes;
  }
  for (uint32_t rest = waiting & ~there; rest != 0;) {
    const int first = std::countr_zero(rest);
    uint32_t same = 0;
    for (uint32_t more = rest; more != 0; more &= more - 1) {
      const int lane = std::countr_zero(more);
      if (ids[lane] == ids[first] && threads[lane] == threads[first] && ops[lane] == ops[first]) {
        same |= 1u << lane;
      }
    }
    rest &= ~same;
    CheckBarrier(c, ids[first]);
    worker->Enter(ids[first], threads[first], same, static_cast<uint32_t>(std::popcount(same)),
                  static_cast<BarrierOp>(ops[first]), predicates);
  }
  warp->state = RunningWarp::State::kWaiting;
  worker->Wait();
  return leave();
}

void Yield(WarpContext* c) {
  WarpOf(c)->yielded = true;
  Worker::Current()->Suspend();
}

// x86 loads acquire and stores release by themselves: only the compiler is to keep the order.
void KeepOrder() { asm volatile("" ::: "memory"); }

void Load(WarpContext* c, const uint64_t* addresses, uint32_t mask, uint32_t bytes, void* out,
          uint32_t order) {
  char* results = static_cast<char*>(out);
  for (; mask != 0; mask &= mask - 1) {
    const int lane = std::countr_zero(mask);
    char* to = results + static_cast<size_t>(lane) * bytes;
    const uint64_t at = addresses[lane];
    switch (bytes) {
      case 1:
        *reinterpret_cast<uint8_t*>(to) =
            __atomic_load_n(reinterpret_cast<const uint8_t*>(at), __ATOMIC_RELAXED);
        break;
      case 2:
        *reinterpret_cast<uint16_t*>(to) =
            __atomic_load_n(reinterpret_cast<const uint16_t*>(at), __ATOMIC_RELAXED);
        break;
      case 4:
        *reinterpret_cast<uint32_t*>(to) =
            __atomic_load_n(reinterpret_cast<const uint32_t*>(at), __ATOMIC_RELAXED);
        break;
      case 8:
        *reinterpret_cast<uint64_t*>(to) =
            __atomic_load_n(reinterpret_cast<const uint64_t*>(at), __ATOMIC_RELAXED);
        break;
      case 16:  // aligned 16-byte moves are single accesses on every CPU with AVX
        _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                         _mm_load_si128(reinterpret_cast<const __m128i*>(at)));
        break;
      default:
        std::memcpy(to, reinterpret_cast<const void*>(at), bytes);
    }
  }
  if (order == 2) KeepOrder();
}

void Store(WarpContext* c, const uint64_t* addresses, uint32_t mask, uint32_t bytes, const void* in,
           uint32_t order) {
  if (order == 2) KeepOrder();
  const char* values = static_cast<const char*>(in);
  for (; mask != 0; mask &= mask - 1) {
    const int lane = std::countr_zero(mask);
    const char* from = values + static_cast<size_t>(lane) * bytes;
    const uint64_t at = addresses[lane];
    switch (bytes) {
      case 1:
        __atomic_store_n(reinterpret_cast<uint8_t*>(at), *reinterpret_cast<const uint8_t*>(from),
                         __ATOMIC_RELAXED);
        break;
      case 2:
        __atomic_store_n(reinterpret_cast<uint16_t*>(at), *reinterpret_cast<const uint16_t*>(from),
                         __ATOMIC_RELAXED);
        break;
      case 4:
        __atomic_store_n(reinterpret_cast<uint32_t*>(at), *reinterpret_cast<const uint32_t*>(from),
                         __ATOMIC_RELAXED);
        break;
      case 8:
        __atomic_store_n(reinterpret_cast<uint64_t*>(at), *reinterpret_cast<const uint64_t*>(from),
                         __ATOMIC_RELAXED);
        break;
      case 16:
        _mm_store_si128(reinterpret_cast<__m128i*>(at),
                        _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
        break;
      default:
        std::memcpy(reinterpret_cast<void*>(at), from, bytes);
    }
  }
}

void Atomic(WarpContext* c, uint32_t code, const uint64_t* addresses, uint32_t mask, const void* a,
            const void* b, void* out) {
  RunAtomic(code, addresses, mask, a, b, out);
}

void Printf(WarpContext* c, const uint64_t* formats, const uint64_t* arguments, uint32_t mask,
            uint32_t* results) {
  for (; mask != 0; mask &= mask - 1) {
    const int lane = std::countr_zero(mask);
    if (!InWindow(formats[lane]) || (arguments[lane] != 0 && !InWindow(arguments[lane]))) {
      EndLaunch(c, CUDA_ERROR_ILLEGAL_ADDRESS,
                absl::StrFormat("%s, %s: printf with a format at 0x%x", Where(c), ThreadOf(c, lane),
                                formats[lane]));
    }
    int count = 0;
    uint64_t outside = 0;
    std::string text =
        FormatDevicePrintf(reinterpret_cast<const char*>(formats[lane]),
                           reinterpret_cast<const char*>(arguments[lane]), &count, &outside);
    if (outside != 0) {
      text = std::string();  // what is abandoned is never freed
      EndLaunch(c, CUDA_ERROR_ILLEGAL_ADDRESS,
                absl::StrFormat("%s, %s: printf of a string at 0x%x", Where(c), ThreadOf(c, lane),
                                outside));
    }
    results[lane] = static_cast<uint32_t>(count);
    WarpOf(c)->block->launch->Print(text);
  }
}

// At most this much of a string is shown in a message.
constexpr size_t kMaxAssertText = 1024;

std::string TextAt(uint64_t address) {
  if (!InWindow(address)) return "?";
  const char* text = reinterpret_cast<const char*>(address);
  return std::string(text, strnlen(text, kMaxAssertText));
}

void Assert(WarpContext* c, const uint64_t* message, const uint64_t* file, const uint32_t* line,
            const uint64_t* function, uint32_t mask) {
  std::string last;
  for (; mask != 0; mask &= mask - 1) {
    const int lane = std::countr_zero(mask);
    const uint32_t linear = c->warp_index * kWarpSize + static_cast<uint32_t>(lane);
    last =
        absl::StrFormat("%s:%u: %s: block: [%u,%u,%u], thread: [%u,%u,%u] Assertion `%s` failed.\n",
                        TextAt(file[lane]), line[lane], TextAt(function[lane]), c->block_index[0],
                        c->block_index[1], c->block_index[2], linear % c->block_size[0],
                        linear / c->block_size[0] % c->block_size[1],
                        linear / c->block_size[0] / c->block_size[1], TextAt(message[lane]));
    WarpOf(c)->block->launch->PrintError(last);
  }
  EndLaunch(c, CUDA_ERROR_ASSERT, absl::StrCat(Where(c), ": ", last));
}

void Heap(WarpContext* c, uint32_t is_free, const uint64_t* values, uint32_t mask,
          uint64_t* addresses) {
  const LaunchConfig& config = *WarpOf(c)->block->launch->config;
  DeviceHeap& heap = DeviceHeap::Of(config.heap);
  for (; mask != 0; mask &= mask - 1) {
    const int lane = std::countr_zero(mask);
    if (is_free == 0) {
      addresses[lane] = heap.Allocate(values[lane], config.heap_bytes);
    } else if (!heap.Free(values[lane])) {
      EndLaunch(c, CUDA_ERROR_LAUNCH_FAILED,
                absl::StrFormat("%s, %s: free of 0x%x, which malloc did not return", Where(c),
                                ThreadOf(c, lane), values[lane]));
    }
  }
}

void Round(WarpContext* c, uint32_t code, const void* a, const void* b, const void* d, void* out) {
  RunRounded(code, a, b, d, out);
}

uint64_t Nanoseconds(clockid_t clock) {
  timespec now = {};
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

uint64_t Clock(WarpContext* c) { return Nanoseconds(CLOCK_MONOTONIC); }  // a GPU of 1 GHz
uint64_t Timer(WarpContext* c) { return Nanoseconds(CLOCK_REALTIME); }
void* Frame(WarpContext* c, uint32_t warp, uint64_t bytes) {
  std::vector<FrameMemory>& frames = WarpOf(c)->block->frames;
  if (warp >= frames.size()) frames.resize(warp + 1);
  void* const frame = frames[warp].Ensure(bytes);
  if (frame != nullptr) return frame;
  EndLaunch(c, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
            absl::StrFormat("%s: no memory for %u bytes of a warp's values", Where(c), bytes));
}

void Fence(WarpContext* c) { _mm_mfence(); }

}  // namespace

// In the order of RuntimeFunction.
void* const* RuntimeTable() {
  static void* const table[kRuntimeFunctionCount] = {
      reinterpret_cast<void*>(&Fault),         reinterpret_cast<void*>(&Trap),
      reinterpret_cast<void*>(&Barrier),       reinterpret_cast<void*>(&BarrierReduce),
      reinterpret_cast<void*>(&Yield),         reinterpret_cast<void*>(&Load),
      reinterpret_cast<void*>(&Store),         reinterpret_cast<void*>(&Atomic),
      reinterpret_cast<void*>(&Printf),        reinterpret_cast<void*>(&Assert),
      reinterpret_cast<void*>(&Round),         reinterpret_cast<void*>(&Clock),
      reinterpret_cast<void*>(&Timer),         reinterpret_cast<void*>(&Fence),
      reinterpret_cast<void*>(&BarrierArrive), reinterpret_cast<void*>(&BarrierLanes),
      reinterpret_cast<void*>(&Heap),          reinterpret_cast<void*>(&ClusterWait),
      reinterpret_cast<void*>(&RunOperation),  reinterpret_cast<void*>(&Frame),
      reinterpret_cast<void*>(&FailCall),
  };
  return table;
}

}  // namespace fargpu::softgpu
