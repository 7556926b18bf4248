#include "softgpu/exec/worker.h"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cuda.h>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "common/cuda_error.h"
#include "softgpu/exec/interrupt.h"

namespace fargpu::softgpu {
namespace {

constexpr size_t kSignalStackBytes = size_t{64} << 10;
// Stacks kept for later; a block has at most 32 warps.
constexpr size_t kMaxFreeStacks = 64;
// A worker whose warps have all waited this many times, with a sched_yield between, starts another
// block, up to some number. Waiting for a block that runs on another thread is mostly shorter.
constexpr int kIdleTimes = 200;
constexpr size_t kMaxResidentBlocks = 512;
// What a thread keeps from one launch to the next: the largest cluster.
constexpr size_t kMaxSpareBlocks = 16;

// From the shared memory of one block of a cluster to that of the next.
uint64_t SharedStride(const Launch& launch) {
  return std::max<uint64_t>((launch.shared_bytes + 127) / 128 * 128, 128);
}

// Initial-exec, so that the signal handler never allocates it.
__attribute__((tls_model("initial-exec"))) thread_local Worker* t_worker = nullptr;

}  // namespace

WindowArena::~WindowArena() {
  if (address_ != 0) ReleaseWindowRange(address_, bytes_);
}

void* FrameMemory::Ensure(uint64_t bytes) {
  if (bytes > bytes_) {
    bytes_ = (bytes + kFrameAlignment - 1) / kFrameAlignment * kFrameAlignment;
    memory_.reset(std::aligned_alloc(kFrameAlignment, bytes_));
    if (memory_ == nullptr) bytes_ = 0;
  }
  return memory_.get();
}

bool WindowArena::Ensure(uint64_t bytes) {
  if (bytes <= bytes_) return true;
  if (address_ != 0) ReleaseWindowRange(address_, bytes_);
  bytes_ = std::bit_ceil(std::max<uint64_t>(bytes, 4096));
  address_ = ReserveWindowRange(bytes_);
  if (address_ == 0) bytes_ = 0;
  return address_ != 0;
}

Worker::Worker(uint32_t number) : number_(number) {
  InstallFaultHandler();
  UnblockInterrupts();
  // Kernels overflow their own stack sometimes, so the handler needs another one.
  stack_t present = {};
  if (sigaltstack(nullptr, &present) == 0 && (present.ss_flags & SS_DISABLE) == 0) return;
  void* stack =
      mmap(nullptr, kSignalStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (stack == MAP_FAILED) return;
  stack_t wanted = {};
  wanted.ss_sp = stack;
  wanted.ss_size = kSignalStackBytes;
  if (sigaltstack(&wanted, nullptr) != 0) {
    munmap(stack, kSignalStackBytes);
    return;
  }
  signal_stack_ = stack;
}

Worker::~Worker() {
  if (signal_stack_ == nullptr) return;
  stack_t off = {};
  off.ss_flags = SS_DISABLE;
  sigaltstack(&off, nullptr);
  munmap(signal_stack_, kSignalStackBytes);
}

Worker* Worker::Current() {
  Worker* worker = t_worker;
  return worker;
}

FiberStack Worker::TakeStack(size_t bytes) {
  if (bytes != FiberStack::kUsualBytes || free_stacks_.empty()) return FiberStack(bytes);
  FiberStack stack = std::move(free_stacks_.back());
  free_stacks_.pop_back();
  return stack;
}

void Worker::KeepStack(FiberStack* stack) {
  if (stack->bytes() == FiberStack::kUsualBytes && free_stacks_.size() < kMaxFreeStacks) {
    free_stacks_.push_back(std::move(*stack));
  }
  *stack = FiberStack();
}

void Worker::FiberMain(void* argument) {
  auto* worker = static_cast<Worker*>(argument);
  RunningWarp* warp = worker->running_;
  if (warp->block->launch->extent == Extent::kBlocks) {
    RunIndependentBlocks(warp);
  } else {
    warp->block->launch->function(&warp->context);
  }
  warp->state = RunningWarp::State::kDone;
  worker->Abandon();
}

void Worker::Suspend() {
  RunningWarp* self = running_;
  // Straight to the next warp where possible: barriers are frequent, and the way through the
  // scheduler is twice as long.
  if (!self->yielded && !ready_.empty() && ready_.front()->saved != nullptr &&
      !self->block->launch->failed.load(std::memory_order_relaxed)) {
    RunningWarp* next = ready_.front();
    ready_.pop_front();
    if (next == self) return;
    running_ = next;
    TrackFiber(next->stack.tracked());
    fargpu_fiber_switch(&self->saved, next->saved);
    return;
  }
  TrackFiber(scheduler_fiber_);
  fargpu_fiber_switch(&self->saved, scheduler_);
}

void Worker::Abandon() {
  TrackFiber(scheduler_fiber_);
  fargpu_fiber_abandon(scheduler_);
}

RunningWarp* Worker::Resume(RunningWarp* first) {
  running_ = first;
  fault = Fault{};
  t_worker = this;
  scheduler_fiber_ = TrackedFiber();
  TrackFiber(first->stack.tracked());
  fargpu_fiber_switch(&scheduler_, first->saved);
  // A signal's handler came here without a word.
  if (fault.happened) TrackFiber(scheduler_fiber_);
  t_worker = nullptr;
  RunningWarp* warp = std::exchange(running_, nullptr);
  if (!fault.happened) return warp;
  if (fault.interrupted) return warp;  // the launch knows
  const WarpContext& c = warp->context;
  const std::string where =
      absl::StrFormat("kernel %s, block (%u, %u, %u), warp %u", warp->block->launch->kernel_name,
                      c.block_index[0], c.block_index[1], c.block_index[2], c.warp_index);
  if (fault.in_guard) {
    warp->block->launch->Fail(
        CudaError(CUDA_ERROR_HARDWARE_STACK_ERROR, absl::StrCat(where, ": stack overflow")));
  } else {
    warp->block->launch->Fail(
        CudaError(CUDA_ERROR_ILLEGAL_ADDRESS,
                  absl::StrFormat("%s: access to address %p, where nothing is allocated", where,
                                  fault.address)));
  }
  return warp;
}

void Worker::MakeRoom(Blocks* blocks, size_t count) {
  while (blocks->size() < count) {
    if (spare_blocks_.empty()) {
      blocks->push_back(std::make_unique<RunningBlock>());
    } else {
      blocks->push_back(std::move(spare_blocks_.back()));
      spare_blocks_.pop_back();
    }
  }
}

bool Worker::StartCluster(Launch* launch, uint64_t index, Blocks* blocks, size_t place) {
  const uint32_t count = launch->extent == Extent::kBlocks ? 1 : launch->cluster_blocks;
  MakeRoom(blocks, place + count);
  RunningBlock* const first = (*blocks)[place].get();
  first->cluster.clear();
  for (uint32_t k = 0; k < count; ++k) first->cluster.push_back((*blocks)[place + k].get());
  if (!first->shared.Ensure(count * SharedStride(*launch))) {
    launch->Fail(
        CudaError(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
                  absl::StrCat("kernel ", launch->kernel_name, ": no room for ", count, " times ",
                               launch->shared_bytes, " bytes of shared memory")));
    return false;
  }
  for (uint32_t k = 1; k < count; ++k) first->cluster[k]->cluster = first->cluster;
  for (uint32_t k = 0; k < count; ++k) {
    if (!StartBlock(launch, index + k, first->cluster[k])) return false;
  }
  return true;
}

bool Worker::StartBlock(Launch* launch, uint64_t index, RunningBlock* block) {
  const LaunchConfig& config = *launch->config;
  const uint64_t threads = uint64_t{config.block.x} * config.block.y * config.block.z;
  const uint64_t warps = (threads + kWarpSize - 1) / kWarpSize;
  const uint64_t local_per_warp = launch->local_bytes * kWarpSize;
  if (!block->local.Ensure(warps * local_per_warp)) {
    launch->Fail(CudaError(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
                           absl::StrCat("kernel ", launch->kernel_name, ": no room for ",
                                        warps * local_per_warp, " bytes of local memory")));
    return false;
  }
  block->launch = launch;
  block->index = index;
  const uint64_t fibers = launch->extent == Extent::kWarp ? warps : 1;
  block->warps.resize(fibers);
  block->live_warps = static_cast<uint32_t>(fibers);
  for (RunningBlock::Barrier& barrier : block->barriers) barrier = {};
  for (uint64_t w = 0; w < fibers; ++w) PrepareWarp(block, w);
  return true;
}

void Worker::PrepareWarp(RunningBlock* block, uint64_t index) {
  const Launch& launch = *block->launch;
  const LaunchConfig& config = *launch.config;
  const uint64_t threads = uint64_t{config.block.x} * config.block.y * config.block.z;
  RunningWarp& warp = block->warps[index];
  warp.block = block;
  warp.saved = nullptr;
  warp.state = RunningWarp::State::kReady;
  warp.yielded = false;
  warp.arrival_set = 0;
  warp.released = 0;
  WarpContext& c = warp.context;
  c.params = launch.params;
  const auto rank = static_cast<uint64_t>(
      std::find(block->cluster.begin(), block->cluster.end(), block) - block->cluster.begin());
  c.cluster_shared = block->cluster[0]->shared.address();
  c.cluster_stride = SharedStride(launch);
  c.shared_base = c.cluster_shared + rank * c.cluster_stride;
  c.cluster_size[0] = launch.cluster.x;
  c.cluster_size[1] = launch.cluster.y;
  c.cluster_size[2] = launch.cluster.z;
  c.explicit_cluster = launch.explicit_cluster ? 1 : 0;
  c.shared_bytes = launch.shared_bytes;
  c.local_base = block->local.address() + index * launch.local_bytes * kWarpSize;
  c.variables = launch.variables;
  c.runtime = RuntimeTable();
  SetBlockIndex(launch, block->index, &c);
  c.grid_size[0] = config.grid.x;
  c.grid_size[1] = config.grid.y;
  c.grid_size[2] = config.grid.z;
  c.block_size[0] = config.block.x;
  c.block_size[1] = config.block.y;
  c.block_size[2] = config.block.z;
  c.block_count = 1;
  c.warp_index = static_cast<uint32_t>(index);
  const uint64_t lanes = std::min<uint64_t>(kWarpSize, threads - index * kWarpSize);
  c.active = lanes == kWarpSize ? 0xffffffffu : (1u << lanes) - 1;
  c.dynamic_shared_bytes = config.dynamic_shared_bytes;
  c.multiprocessor = number_;
  c.multiprocessors = WorkerCount();
  c.total_shared_bytes = launch.total_shared_bytes;
  c.reserved_shared_offset = launch.reserved_shared_offset;
  c.grid_number = launch.grid_number;
  c.grid_workspace = launch.grid_workspace;
  c.block = &warp;
  ready_.push_back(&warp);
}

void Worker::SetBlockIndex(const Launch& launch, uint64_t index, WarpContext* c) {
  const Dim3& grid = launch.config->grid;
  const auto place = [](uint64_t n, const Dim3& size, uint32_t* out) {
    out[0] = static_cast<uint32_t>(n % size.x);
    out[1] = static_cast<uint32_t>(n / size.x % size.y);
    out[2] = static_cast<uint32_t>(n / size.x / size.y);
  };
  if (launch.cluster_blocks == 1 || launch.extent == Extent::kBlocks)
    return place(index, grid, c->block_index);
  // Cluster by cluster.
  const Dim3& size = launch.cluster;
  uint32_t inner[3];
  place(index % launch.cluster_blocks, size, inner);
  place(index / launch.cluster_blocks, {grid.x / size.x, grid.y / size.y, grid.z / size.z},
        c->block_index);
  c->block_index[0] = c->block_index[0] * size.x + inner[0];
  c->block_index[1] = c->block_index[1] * size.y + inner[1];
  c->block_index[2] = c->block_index[2] * size.z + inner[2];
}

// On a fiber, the only one of its worker: this block and all that can be had after it.
void Worker::RunIndependentBlocks(RunningWarp* warp) {
  Launch* launch = warp->block->launch;
  uint64_t index = warp->block->index;
  uint64_t count = std::min<uint64_t>(launch->blocks_at_once, launch->blocks - index);
  while (true) {
    SetBlockIndex(*launch, index, &warp->context);
    warp->context.block_count = static_cast<uint32_t>(count);
    launch->function(&warp->context);
    if (launch->failed.load(std::memory_order_relaxed)) return;
    index = launch->next_block.fetch_add(launch->blocks_at_once, std::memory_order_relaxed);
    if (index >= launch->blocks) return;
    count = std::min<uint64_t>(launch->blocks_at_once, launch->blocks - index);
  }
}

void Worker::EndWarp(RunningWarp* warp) {
  KeepStack(&warp->stack);
  RunningBlock* block = warp->block;
  --block->live_warps;
  // Whoever waits only for this warp goes on.
  for (uint32_t id = 0; id <= kBarriers; ++id) ReleaseBarrier(block, id);
}

void Worker::Schedule(Launch* launch, Blocks* blocks) {
  uint64_t idle_rounds = 0;
  int idle_times = 0;  // since a warp last did anything but wait
  size_t round = ready_.size();
  while (!ready_.empty() && !launch->failed.load(std::memory_order_relaxed)) {
    RunningWarp* warp = ready_.front();
    ready_.pop_front();
    if (warp->saved == nullptr) {
      warp->stack = TakeStack(launch->stack_bytes);
      if (!warp->stack.valid()) {
        launch->Fail(
            CudaError(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
                      absl::StrCat("kernel ", launch->kernel_name, ": no memory for a stack")));
        break;
      }
      warp->saved = warp->stack.Prepare(&FiberMain, this);
    }
    warp = Resume(warp);
    if (fault.happened) break;
    if (warp->state == RunningWarp::State::kDone) {
      EndWarp(warp);
      idle_rounds = 0;
      idle_times = 0;
    } else if (warp->yielded) {
      warp->yielded = false;
      // It spins. When all do, they wait for another thread: let that run.
      ready_.push_back(warp);
      if (++idle_rounds >= std::max<size_t>(round, 1)) {
        idle_rounds = 0;
        sched_yield();
        if (++idle_times >= kIdleTimes && StartAnother(launch, blocks)) idle_times = 0;
      }
    } else {
      idle_rounds = 0;
    }
    round = ready_.size();
  }
  if (!launch->failed.load(std::memory_order_relaxed)) {
    for (const auto& block : *blocks) {
      if (block->live_warps == 0) continue;
      launch->Fail(CudaError(
          CUDA_ERROR_LAUNCH_FAILED,
          absl::StrCat("kernel ", launch->kernel_name, ": block ", block->index, " has ",
                       block->live_warps, " warps that wait at different barriers for ever")));
      break;
    }
  }
  // After an error the warps that are left are forgotten where they stand.
  ready_.clear();
  for (const auto& block : *blocks) {
    if (block->live_warps == 0) continue;
    for (RunningWarp& warp : block->warps) {
      if (warp.stack.valid()) KeepStack(&warp.stack);
    }
  }
}

// All warps wait. Perhaps for a block that has not started: a card runs many at the same time.
bool Worker::StartAnother(Launch* launch, Blocks* blocks) {
  if (launch->config->cooperative || launch->extent == Extent::kBlocks) return false;
  if (launch->next_block.load(std::memory_order_relaxed) >= launch->blocks) return false;
  // In place of a cluster that has ended, if there is one.
  const size_t size = launch->cluster_blocks;
  size_t place = 0;
  const auto runs = [&](const auto& block) { return block->live_warps != 0; };
  while (place < blocks->size() &&
         std::any_of(blocks->begin() + static_cast<ptrdiff_t>(place),
                     blocks->begin() + static_cast<ptrdiff_t>(place + size), runs)) {
    place += size;
  }
  if (place + size > std::max(kMaxResidentBlocks, size)) return false;
  const uint64_t index =
      launch->next_block.fetch_add(launch->blocks_at_once, std::memory_order_relaxed);
  if (index >= launch->blocks) return false;
  return StartCluster(launch, index, blocks, place);
}

void Worker::RunBlocks(Launch* launch) {
  const InterruptibleScope interruptible(launch);
  Blocks blocks;
  while (!launch->failed.load(std::memory_order_relaxed)) {
    const uint64_t index =
        launch->next_block.fetch_add(launch->blocks_at_once, std::memory_order_relaxed);
    if (index >= launch->blocks) break;
    if (!StartCluster(launch, index, &blocks, 0)) break;
    Schedule(launch, &blocks);
  }
  ready_.clear();
  // A few blocks are kept, with their memory, for the next launch.
  for (size_t k = 0; k < blocks.size() && spare_blocks_.size() < kMaxSpareBlocks; ++k) {
    spare_blocks_.push_back(std::move(blocks[k]));
  }
}

void Worker::RunTogether(Launch* launch, uint64_t first, uint64_t step) {
  if (launch->extent == Extent::kBlocks) return RunBlocks(launch);
  const InterruptibleScope interruptible(launch);
  Blocks blocks;
  const uint64_t clusters = launch->blocks / launch->cluster_blocks;
  for (uint64_t index = first; index < clusters; index += step) {
    if (!StartCluster(launch, index * launch->cluster_blocks, &blocks, blocks.size())) break;
  }
  Schedule(launch, &blocks);
  ready_.clear();
}

}  // namespace fargpu::softgpu
