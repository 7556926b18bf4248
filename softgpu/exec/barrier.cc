// Barriers of a block or a cluster. All its warps run on one thread, so nothing here needs a lock.
#include <algorithm>
#include <bit>

#include "absl/types/span.h"

#include "softgpu/exec/worker.h"

namespace fargpu::softgpu {

RunningBlock::Barrier& RunningBlock::BarrierOf(uint32_t id) {
  return id == kClusterBarrier ? cluster[0]->barriers[id] : barriers[id];
}

void Worker::Arrive(uint32_t id, uint32_t threads, uint32_t count) {
  RunningBlock::Barrier& barrier = running_->block->BarrierOf(id);
  // Threads come in warps, also those of the last one, which may be short.
  barrier.expected = (threads + kWarpSize - 1) / kWarpSize * kWarpSize;
  barrier.arrived += count;
}

void Worker::Enter(uint32_t id, uint32_t threads, uint32_t lanes, uint32_t count, BarrierOp op,
                   uint32_t predicates) {
  RunningWarp* warp = running_;
  RunningBlock::Barrier& barrier = warp->block->BarrierOf(id);
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
    uint32_t id = 0;
    while (id < kBarriers && (warp->arrival_set >> id & 1) == 0) ++id;
    RunningWarp::Arrival& arrival = warp->arrivals[id];
    if (arrival.threads < kWarpSize) {
      warp->block->BarrierOf(id).arrived += kWarpSize - arrival.threads;
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
  RunningBlock::Barrier& barrier = block->BarrierOf(id);
  if (barrier.arrived == 0) return;
  RunningBlock* const own[] = {block};
  const absl::Span<RunningBlock* const> blocks =
      id == kClusterBarrier ? absl::MakeConstSpan(block->cluster) : absl::MakeConstSpan(own);
  uint32_t expected = barrier.expected;
  if (expected == 0) {
    for (const RunningBlock* b : blocks) expected += b->live_warps * kWarpSize;
  }
  if (barrier.arrived < expected) return;
  const uint32_t lanes = barrier.lanes;
  const uint32_t true_lanes = barrier.true_lanes;
  barrier = {.phase = barrier.phase + 1};
  for (RunningBlock* b : blocks) {
    for (RunningWarp& warp : b->warps) {
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
}

}  // namespace fargpu::softgpu
