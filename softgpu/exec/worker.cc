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

FiberStack Worker::TakeStack() {
  if (free_stacks_.empty()) return FiberStack();
  FiberStack stack = std::move(free_stacks_.back());
  free_stacks_.pop_back();
  return stack;
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
    fargpu_fiber_switch(&self->saved, next->saved);
    return;
  }
  fargpu_fiber_switch(&self->saved, scheduler_);
}

void Worker::Abandon() { fargpu_fiber_abandon(scheduler_); }

RunningWarp* Worker::Resume(RunningWarp* first) {
  running_ = first;
  fault = Fault{};
  t_worker = this;
  fargpu_fiber_switch(&scheduler_, first->saved);
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
        CudaError(CUDA_ERROR_LAUNCH_FAILED, absl::StrCat(where, ": stack overflow")));
  } else {
    warp->block->launch->Fail(
        CudaError(CUDA_ERROR_ILLEGAL_ADDRESS,
                  absl::StrFormat("%s: access to address %p, where nothing is allocated", where,
                                  fault.address)));
  }
  return warp;
}

bool Worker::StartBlock(Launch* launch, uint64_t index, RunningBlock* block) {
  const LaunchConfig& config = *launch->config;
  const uint64_t threads = uint64_t{config.block.x} * config.block.y * config.block.z;
  const uint64_t warps = (threads + kWarpSize - 1) / kWarpSize;
  const uint64_t local_per_warp = launch->local_bytes * kWarpSize;
  if (!block->shared.Ensure(launch->shared_bytes) || !block->local.Ensure(warps * local_per_warp)) {
    launch->Fail(CudaError(
        CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
        absl::StrCat("kernel ", launch->kernel_name, ": no room for ", launch->shared_bytes,
                     " bytes of shared and ", warps * local_per_warp, " bytes of local memory")));
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
  c.shared_base = block->shared.address();
  c.shared_bytes = launch.shared_bytes;
  c.local_base = block->local.address() + index * launch.local_bytes * kWarpSize;
  c.variables = launch.variables;
  c.runtime = RuntimeTable();
  SetBlockIndex(config, block->index, &c);
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

void Worker::SetBlockIndex(const LaunchConfig& config, uint64_t index, WarpContext* c) {
  c->block_index[0] = static_cast<uint32_t>(index % config.grid.x);
  c->block_index[1] = static_cast<uint32_t>(index / config.grid.x % config.grid.y);
  c->block_index[2] = static_cast<uint32_t>(index / config.grid.x / config.grid.y);
}

// On a fiber, the only one of its worker: this block and all that can be had after it.
void Worker::RunIndependentBlocks(RunningWarp* warp) {
  Launch* launch = warp->block->launch;
  uint64_t index = warp->block->index;
  uint64_t count = std::min<uint64_t>(launch->blocks_at_once, launch->blocks - index);
  while (true) {
    SetBlockIndex(*launch->config, index, &warp->context);
    warp->context.block_count = static_cast<uint32_t>(count);
    launch->function(&warp->context);
    if (launch->failed.load(std::memory_order_relaxed)) return;
    index = launch->next_block.fetch_add(launch->blocks_at_once, std::memory_order_relaxed);
    if (index >= launch->blocks) return;
    count = std::min<uint64_t>(launch->blocks_at_once, launch->blocks - index);
  }
}

void Worker::EndWarp(RunningWarp* warp) {
  if (free_stacks_.size() < kMaxFreeStacks) free_stacks_.push_back(std::move(warp->stack));
  RunningBlock* block = warp->block;
  --block->live_warps;
  // Whoever waits only for this warp goes on.
  for (uint32_t id = 0; id <= kBarriers; ++id) ReleaseBarrier(block, id);
}

void Worker::Schedule(Launch* launch, std::vector<std::unique_ptr<RunningBlock>>* blocks) {
  uint64_t idle_rounds = 0;
  int idle_times = 0;  // since a warp last did anything but wait
  size_t round = ready_.size();
  while (!ready_.empty() && !launch->failed.load(std::memory_order_relaxed)) {
    RunningWarp* warp = ready_.front();
    ready_.pop_front();
    if (warp->saved == nullptr) {
      warp->stack = TakeStack();
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
      if (warp.stack.valid() && free_stacks_.size() < kMaxFreeStacks) {
        free_stacks_.push_back(std::move(warp.stack));
      }
    }
  }
}

// All warps wait. Perhaps for a block that has not started: a card runs many at the same time.
bool Worker::StartAnother(Launch* launch, std::vector<std::unique_ptr<RunningBlock>>* blocks) {
  if (launch->config->cooperative || launch->extent == Extent::kBlocks) return false;
  const auto ended = std::find_if(blocks->begin(), blocks->end(),
                                  [](const auto& block) { return block->live_warps == 0; });
  if (ended == blocks->end() && blocks->size() >= kMaxResidentBlocks) return false;
  if (launch->next_block.load(std::memory_order_relaxed) >= launch->blocks) return false;
  const uint64_t index = launch->next_block.fetch_add(1, std::memory_order_relaxed);
  if (index >= launch->blocks) return false;
  RunningBlock* block = nullptr;
  if (ended != blocks->end()) {
    block = ended->get();
  } else {
    blocks->push_back(std::make_unique<RunningBlock>());
    block = blocks->back().get();
  }
  return StartBlock(launch, index, block);
}

void Worker::RunBlocks(Launch* launch) {
  const InterruptibleScope interruptible(launch);
  std::vector<std::unique_ptr<RunningBlock>> one;
  if (spare_blocks_.empty()) spare_blocks_.push_back(std::make_unique<RunningBlock>());
  one.push_back(std::move(spare_blocks_.back()));
  spare_blocks_.pop_back();
  while (!launch->failed.load(std::memory_order_relaxed)) {
    const uint64_t index =
        launch->next_block.fetch_add(launch->blocks_at_once, std::memory_order_relaxed);
    if (index >= launch->blocks) break;
    if (!StartBlock(launch, index, one[0].get())) break;
    Schedule(launch, &one);
    one.resize(1);
  }
  ready_.clear();
  spare_blocks_.push_back(std::move(one[0]));
}

void Worker::RunTogether(Launch* launch, uint64_t first, uint64_t step) {
  if (launch->extent == Extent::kBlocks) return RunBlocks(launch);
  const InterruptibleScope interruptible(launch);
  std::vector<std::unique_ptr<RunningBlock>> blocks;
  for (uint64_t index = first; index < launch->blocks; index += step) {
    blocks.push_back(std::make_unique<RunningBlock>());
    if (!StartBlock(launch, index, blocks.back().get())) break;
  }
  Schedule(launch, &blocks);
  ready_.clear();
}

}  // namespace fargpu::softgpu
