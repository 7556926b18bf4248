// Barriers of a block. All its warps run on one thread, so nothing here needs a lock.
#include <algorithm>
#include <bit>

#include "softgpu/exec/worker.h"

namespace fargpu::softgpu {

void Worker::Arrive(uint32_t id, uint32_t threads, uint32_t count) {
  RunningBlock::Barrier& barrier = running_->block->barriers[id];
  // Threads come in warps, also those of the last one, which may be short.
  barrier.expected = (threads + kWarpSize - 1) / kWarpSize * kWarpSize;
  barrier.arrived += count;
}

void Worker::Enter(uint32_t id, uint32_t threads, uint32_t lanes, uint32_t count, BarrierOp op,
                   uint32_t predicates) {
  RunningWarp* warp = running_;
  RunningBlock::Barrier& barrier = warp->block->barriers[id];
  RunningWarp::Arrival& arrival = warp->arrivals[id];
  if ((warp->arrival_set >> id & 1) == 0) arrival = {};
  Arrive(id, threads, count);
  arrival.lanes |= lanes;
  arrival.threads += count;
  arrival.op = op;
  if (op != BarrierOp::kSync) {
    barrier.lanes += static_cast<uint32_t>(std::popcount(lanes));
    barrier.true_lanes += static_cast<uint32_t>(std::popcount(predicates & lanes));
  }
  warp->arrival_set |= 1u << id;
  warp->state = RunningWarp::State::kWaiting;
}

void Worker::Wait() {
  RunningWarp* warp = running_;
  if (std::has_single_bit(warp->arrival_set)) {
    // All lanes that have not ended are there: the warp as a whole.
    const uint32_t id = static_cast<uint32_t>(std::countr_zero(warp->arrival_set));
    RunningWarp::Arrival& arrival = warp->arrivals[id];
    if (arrival.threads < kWarpSize) {
      warp->block->barriers[id].arrived += kWarpSize - arrival.threads;
      arrival.threads = kWarpSize;
    }
  }
  for (uint32_t rest = warp->arrival_set; rest != 0; rest &= rest - 1) {
    ReleaseBarrier(warp->block, static_cast<uint32_t>(std::countr_zero(rest)));
  }
  // The last to come is in the queue already, behind those that were there before.
  Suspend();
}

void Worker::ReleaseBarrier(RunningBlock* block, uint32_t id) {
  RunningBlock::Barrier& barrier = block->barriers[id];
  const uint32_t expected =
      barrier.expected == 0 ? block->live_warps * kWarpSize : barrier.expected;
  if (barrier.arrived == 0 || barrier.arrived < expected) return;
  const uint32_t lanes = barrier.lanes;
  const uint32_t true_lanes = barrier.true_lanes;
  barrier = {.phase = barrier.phase + 1};
  for (RunningWarp& warp : block->warps) {
    if ((warp.arrival_set >> id & 1) == 0) continue;
    const RunningWarp::Arrival& arrival = warp.arrivals[id];
    if (arrival.op != BarrierOp::kSync) {
      const uint32_t result = arrival.op == BarrierOp::kAnd  ? true_lanes == lanes
                              : arrival.op == BarrierOp::kOr ? true_lanes != 0
                                                             : true_lanes;
      for (uint32_t rest = arrival.lanes; rest != 0; rest &= rest - 1) {
        warp.results[std::countr_zero(rest)] = result;
      }
    }
    warp.arrival_set &= ~(1u << id);
    warp.released |= arrival.lanes;
    if (warp.state != RunningWarp::State::kWaiting) continue;
    warp.state = RunningWarp::State::kReady;
    ready_.push_back(&warp);
  }
}

}  // namespace fargpu::softgpu
