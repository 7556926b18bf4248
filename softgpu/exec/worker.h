#pragma once

#include <cstdlib>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "softgpu/exec/fiber.h"
#include "softgpu/exec/launch.h"
#include "softgpu/llvm/warp_context.h"

namespace fargpu::softgpu {

class Worker;
struct RunningBlock;

// A warp of a block that runs now.
struct RunningWarp {
  enum class State { kReady, kWaiting, kDone };

  WarpContext context;
  RunningBlock* block = nullptr;
  FiberStack stack;
  void* saved = nullptr;  // stack pointer while it does not run; null before the first run
  State state = State::kReady;
  bool yielded = false;  // stopped of its own will: put it behind the others
  // What it has at barriers: by barrier, the lanes that wait there and what they count for.
  struct Arrival {
    uint32_t lanes = 0;
    uint32_t threads = 0;
    BarrierOp op = BarrierOp::kSync;
  };
  Arrival arrivals[kBarriers + 1];
  uint32_t arrival_set = 0;          // barriers where lanes wait
  uint32_t released = 0;             // lanes that are through
  uint32_t results[kWarpSize] = {};  // of bar.red, for those
  uint32_t cluster_phase = 0;        // that it has arrived in
};

// Memory in which a warp that waits keeps its values, aligned for vectors. Grows only.
class FrameMemory {
 public:
  // Null when there is no memory. What it held is lost.
  void* Ensure(uint64_t bytes);

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;
  uint64_t bytes_ = 0;
};

// A grow-only range of the device window.
class WindowArena {
 public:
  WindowArena() = default;
  ~WindowArena();
  WindowArena(const WindowArena&) = delete;
  WindowArena& operator=(const WindowArena&) = delete;
  // False when the window is exhausted. What the arena held is lost.
  bool Ensure(uint64_t bytes);
  uint64_t address() const { return address_; }

 private:
  uint64_t address_ = 0;
  uint64_t bytes_ = 0;
};

struct RunningBlock {
  struct Barrier {
    uint32_t arrived = 0;   // threads; a warp that is there as a whole counts for kWarpSize
    uint32_t expected = 0;  // threads; 0: all that live
    uint32_t lanes = 0;     // that gave a predicate
    uint32_t true_lanes = 0;
    uint32_t phase = 0;  // how often it has been completed
  };

  Launch* launch = nullptr;
  uint64_t index = 0;
  std::vector<RunningWarp> warps;
  uint32_t live_warps = 0;
  Barrier barriers[kBarriers + 1];
  WindowArena shared;
  WindowArena local;
  std::vector<FrameMemory> frames;  // by warp
  // Barrier `id` as the block sees it: the cluster's may be another block's.
  Barrier& BarrierOf(uint32_t id);

  // The blocks of its cluster, by rank, itself among them. The first has the cluster's barrier, and
  // shared memory for all.
  std::vector<RunningBlock*> cluster;
};

// A thread's equipment for running blocks: fibers, arenas, the stack for signals. Made once per
// thread; while it exists and a fiber runs, faults of the thread end the launch.
class Worker {
 public:
  // `number` is what the kernels that it runs see as %smid, below WorkerCount().
  explicit Worker(uint32_t number);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // The worker of the calling thread while it runs a fiber, else null. Async-signal-safe.
  static Worker* Current();

  // Takes blocks of `launch` and runs them, as long as there are any.
  void RunBlocks(Launch* launch);
  // Runs clusters first, first + step, ... all at the same time.
  void RunTogether(Launch* launch, uint64_t first, uint64_t step);

  // Called on fibers.
  RunningWarp* warp() const { return running_; }
  void Suspend();               // back to the scheduler, to be resumed later
  [[noreturn]] void Abandon();  // ... for good

  // The launch of the running fiber is to end. Async-signal-safe.
  bool MustStop() const {
    return running_ != nullptr && running_->block->launch->failed.load(std::memory_order_relaxed);
  }
  // Called by the signal handler: where the scheduler's context was saved.
  void* scheduler_context() const { return scheduler_; }
  bool InStackGuard(const void* address) const {
    return running_ != nullptr && running_->stack.InGuard(address);
  }
  struct Fault {
    bool happened = false;
    int signal = 0;
    const void* address = nullptr;
    bool in_guard = false;
    bool interrupted = false;  // by InterruptLaunches, not by an address
  };
  Fault fault;

  // Barriers (barrier.cc). Enter notes that `lanes` of the running warp, or all of it, arrive and
  // wait; Wait suspends it until some of its lanes are through.
  void Arrive(uint32_t id, uint32_t threads, uint32_t count);
  void Enter(uint32_t id, uint32_t threads, uint32_t lanes, uint32_t count, BarrierOp op,
             uint32_t predicates);
  void Wait();
  void ReleaseBarrier(RunningBlock* block, uint32_t id);

 private:
  // Blocks on this thread, cluster by cluster.
  using Blocks = std::vector<std::unique_ptr<RunningBlock>>;
  bool StartAnother(Launch* launch, Blocks* blocks);
  // Starts the blocks of a cluster, from `index` on, in `blocks` from `place` on.
  bool StartCluster(Launch* launch, uint64_t index, Blocks* blocks, size_t place);
  bool StartBlock(Launch* launch, uint64_t index, RunningBlock* block);
  void MakeRoom(Blocks* blocks, size_t count);
  void PrepareWarp(RunningBlock* block, uint64_t warp);
  static void SetBlockIndex(const Launch& launch, uint64_t index, WarpContext* context);
  static void RunIndependentBlocks(RunningWarp* warp);
  void Schedule(Launch* launch, Blocks* blocks);
  // Runs fibers, `first` to begin with, until one comes back here; returns which.
  RunningWarp* Resume(RunningWarp* first);
  void EndWarp(RunningWarp* warp);
  static void FiberMain(void* argument);
  FiberStack TakeStack(size_t bytes);
  void KeepStack(FiberStack* stack);

  const uint32_t number_;
  std::vector<FiberStack> free_stacks_;
  std::deque<RunningWarp*> ready_;
  RunningWarp* running_ = nullptr;
  void* scheduler_ = nullptr;
  void* scheduler_fiber_ = nullptr;  // as FiberStack::tracked
  std::vector<std::unique_ptr<RunningBlock>> spare_blocks_;
  void* signal_stack_ = nullptr;
};

// Threads that run blocks of one grid at the same time, at most.
uint32_t WorkerCount();

// Installs the process-wide handler of SIGSEGV and SIGBUS, once. Faults that no kernel caused go
// to the handler that was there before.
void InstallFaultHandler();

// The functions that compiled code calls, by RuntimeFunction.
void* const* RuntimeTable();

}  // namespace fargpu::softgpu
