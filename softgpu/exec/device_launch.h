#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/mutex.h"
#include "softgpu/compiler.h"

// Dynamic parallelism: grids that kernels launch, who waits for whom, and when all have ended
// (docs/design/008).
namespace fargpu::softgpu {

class DeviceRuntime;
struct DeviceGrid;
struct Launch;

// What the device runtime answers (its "CNP" errors). libcudadevrt turns them into errors of
// CUDA's.
enum class DeviceError : uint32_t {
  kNone = 0,
  kInvalidValue = 1,
  kMemoryAllocation = 4,
  kLaunchMaxDepthExceeded = 5,
  kLaunchOutOfResources = 6,
  kInvalidConfiguration = 7,
  kLaunchPendingCountExceeded = 12,
};

// A grid that a kernel asks for.
struct ChildLaunch {
  size_t kernel = 0;
  Dim3 grid;
  Dim3 block;
  uint32_t dynamic_shared_bytes = 0;
  std::vector<char> params;
};

// Streams that every grid has by itself, as handles.
inline constexpr uint64_t kNullStream = 0;
inline constexpr uint64_t kLegacyStream = 1;  // a synonym on the device
inline constexpr uint64_t kPerThreadStream = 2;
inline constexpr uint64_t kTailLaunchStream = 3;
inline constexpr uint64_t kFireAndForgetStream = 4;

// A launch nested deeper fails. Tail launches are no deeper than the grid that asks for them.
inline constexpr int kMaxLaunchDepth = 24;
// Launches that could start and have not: far beyond what a card holds, but they cost memory.
inline constexpr size_t kMaxReadyLaunches = size_t{1} << 20;

// Knows the kernels and runs their grids: the program.
class GridRunner {
 public:
  virtual ~GridRunner() = default;
  // The kernel whose address in device code that is; kNotFound.
  virtual absl::StatusOr<size_t> KernelAt(uint64_t address) const = 0;
  virtual const KernelInfo& Info(size_t kernel) const = 0;
  // Returns when the blocks of that grid have ended; what they launched may still run.
  virtual absl::Status RunChild(size_t kernel, const LaunchConfig& config, DeviceRuntime* runtime,
                                DeviceGrid* grid) = 0;
};

// Everything that one launch from the host sets going. Children start on threads of its own, when
// what their stream asks for has happened; they do not wait for their parent to end. All methods
// may be called from any thread.
class DeviceRuntime {
 public:
  // Both outlive this. `root` has no error yet.
  DeviceRuntime(GridRunner* runner, Launch* root);
  ~DeviceRuntime();
  DeviceRuntime(const DeviceRuntime&) = delete;
  DeviceRuntime& operator=(const DeviceRuntime&) = delete;

  DeviceGrid* root() { return root_grid_.get(); }
  GridRunner* runner() const { return runner_; }

  // Where in a grid a call comes from.
  struct Thread {
    DeviceGrid* grid = nullptr;
    uint64_t block = 0;
    uint32_t thread = 0;
  };

  DeviceError Launch(const Thread& from, uint64_t stream, ChildLaunch child);
  DeviceError CreateStream(DeviceGrid* grid, uint64_t* handle);
  DeviceError DestroyStream(DeviceGrid* grid, uint64_t handle);
  DeviceError CreateEvent(DeviceGrid* grid, uint64_t* handle);
  DeviceError RecordEvent(const Thread& from, uint64_t event, uint64_t stream);
  DeviceError WaitEvent(const Thread& from, uint64_t stream, uint64_t event);
  DeviceError DestroyEvent(uint64_t handle);

  // Of a thread, as cudaGetLastError sees it: numbers of CUDA's.
  void SetLastError(const Thread& of, uint32_t error);
  uint32_t LastError(const Thread& of);

  // Launches under way, so that an error of one ends all. Enter is false if there was one already.
  bool Enter(struct Launch* launch);
  void Leave(struct Launch* launch);

  // The root's blocks have ended, with `status`. Runs what is left and returns when all has ended,
  // with the first error.
  absl::Status Finish(absl::Status status);

 private:
  friend struct DeviceGrid;
  struct Stream;
  struct Ticket;
  struct Child;
  struct Item;
  struct Event;

  Stream* FindStream(const Thread& from, uint64_t handle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Advance(Stream* stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MakeReady(std::shared_ptr<Child> child) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // One of the things that `grid` waits for has happened; `grid` may be gone afterwards.
  void PartEnded(DeviceGrid* grid) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Over() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Runs children until all is over.
  void Work();

  GridRunner* const runner_;
  struct Launch* const root_launch_;
  const uint64_t pending_limit_;
  Mutex mutex_;
  CondVar changed_;
  std::unique_ptr<DeviceGrid> root_grid_;
  bool root_ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_handle_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, std::unique_ptr<Event>> events_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Child>> ready_ ABSL_GUARDED_BY(mutex_);
  // Children that have become ready and have not ended.
  std::map<DeviceGrid*, std::shared_ptr<Child>> live_ ABSL_GUARDED_BY(mutex_);
  size_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;  // launches that something else must precede
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;  // children that threads have taken
  size_t idle_ ABSL_GUARDED_BY(mutex_) = 0;     // threads without one
  std::vector<struct Launch*> launches_ ABSL_GUARDED_BY(mutex_);
  std::map<std::tuple<const DeviceGrid*, uint64_t, uint32_t>, uint32_t> errors_
      ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fargpu::softgpu
