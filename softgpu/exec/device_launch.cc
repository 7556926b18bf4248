#include "softgpu/exec/device_launch.h"

#include <algorithm>
#include <cuda.h>
#include <iterator>

#include "softgpu/exec/launch.h"
#include "softgpu/exec/worker.h"

namespace fargpu::softgpu {

// What an event was recorded behind; more than one stream may wait for it.
struct DeviceRuntime::Ticket {
  bool done = false;
  std::vector<Stream*> waiting;
};

struct DeviceRuntime::Child {
  ChildLaunch launch;
  std::unique_ptr<DeviceGrid> grid;
  DeviceGrid* parent = nullptr;
  Stream* stream = nullptr;  // null: fire and forget, or a tail launch
};

// What a stream does in turn: a child if there is one, else an event that is recorded or awaited.
struct DeviceRuntime::Item {
  std::shared_ptr<Child> child;
  std::shared_ptr<Ticket> recorded;
  std::shared_ptr<Ticket> awaited;
};

struct DeviceRuntime::Stream {
  std::deque<Item> items;
  bool started = false;    // the first one, a child
  bool destroyed = false;  // no more items come
};

struct DeviceRuntime::Event {
  DeviceGrid* grid = nullptr;
  std::shared_ptr<Ticket> last;  // null: never recorded
};

// A grid of a kernel that launches or was launched. Lives until it, its children and its tail
// launches have ended.
struct DeviceGrid {
  DeviceGrid* parent = nullptr;
  int depth = 0;
  size_t parts = 1;  // its own blocks, children, a tail launch
  std::deque<std::shared_ptr<DeviceRuntime::Child>> tails;
  // By handle, block and thread; the last two tell the implicit ones apart.
  std::map<std::tuple<uint64_t, uint64_t, uint32_t>, std::unique_ptr<DeviceRuntime::Stream>>
      streams;
};

DeviceRuntime::DeviceRuntime(GridRunner* runner, struct Launch* root)
    : runner_(runner),
      root_launch_(root),
      pending_limit_([&] {
        uint64_t limit = 2048;  // CUDA's default
        if (root->config->queries != nullptr) {
          root->config->queries->Limit(CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, &limit);
        }
        return limit;
      }()),
      root_grid_(std::make_unique<DeviceGrid>()),
      next_handle_(0x100) {  // no handle of a stream that a grid has by itself
  launches_.push_back(root);
}

DeviceRuntime::~DeviceRuntime() = default;

DeviceRuntime::Stream* DeviceRuntime::FindStream(const Thread& from, uint64_t handle) {
  std::tuple<uint64_t, uint64_t, uint32_t> key = {handle, 0, 0};
  if (handle == kNullStream || handle == kLegacyStream) {
    key = {kNullStream, from.block, 0};
  } else if (handle == kPerThreadStream) {
    key = {kPerThreadStream, from.block, from.thread};
  } else {
    const auto at = from.grid->streams.find(key);
    return at == from.grid->streams.end() || at->second->destroyed ? nullptr : at->second.get();
  }
  std::unique_ptr<Stream>& stream = from.grid->streams[key];
  if (stream == nullptr) stream = std::make_unique<Stream>();
  return stream.get();
}

DeviceError DeviceRuntime::Launch(const Thread& from, uint64_t stream, ChildLaunch launch) {
  const KernelInfo& info = runner_->Info(launch.kernel);
  const uint64_t threads = uint64_t{launch.block.x} * launch.block.y * launch.block.z;
  if (threads == 0 || threads > info.max_threads_per_block || launch.block.x > 1024 ||
      launch.block.y > 1024 || launch.block.z > 64 ||
      uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z == 0) {
    return DeviceError::kInvalidConfiguration;
  }
  const Dim3 cluster = info.cluster.x == 0 ? Dim3{} : info.cluster;
  if (info.needs_cluster || launch.grid.x % cluster.x != 0 || launch.grid.y % cluster.y != 0 ||
      launch.grid.z % cluster.z != 0) {
    return DeviceError::kInvalidConfiguration;
  }
  if (launch.grid.y > 65535 || launch.grid.z > 65535 || launch.grid.x > 0x7fffffff) {
    return DeviceError::kInvalidConfiguration;
  }
  if (uint64_t{info.static_shared_bytes} + launch.dynamic_shared_bytes > (227u << 10)) {
    return DeviceError::kLaunchOutOfResources;
  }
  const bool tail = stream == kTailLaunchStream;
  MutexLock lock(&mutex_);
  if (!status_.ok()) return DeviceError::kNone;  // all ends; nothing is started any more
  auto child = std::make_shared<Child>();
  child->launch = std::move(launch);
  child->parent = from.grid;
  child->grid = std::make_unique<DeviceGrid>();
  child->grid->parent = from.grid;
  child->grid->depth = from.grid->depth + (tail ? 0 : 1);
  if (child->grid->depth > kMaxLaunchDepth) return DeviceError::kLaunchMaxDepthExceeded;
  if (tail) {
    if (waiting_ >= pending_limit_) return DeviceError::kLaunchPendingCountExceeded;
    ++waiting_;
    from.grid->tails.push_back(std::move(child));
    return DeviceError::kNone;
  }
  if (ready_.size() >= kMaxReadyLaunches) return DeviceError::kLaunchPendingCountExceeded;
  if (stream == kFireAndForgetStream) {
    ++from.grid->parts;
    MakeReady(std::move(child));
    return DeviceError::kNone;
  }
  Stream* const in = FindStream(from, stream);
  if (in == nullptr) return DeviceError::kInvalidValue;
  if (!in->items.empty()) {
    if (waiting_ >= pending_limit_) return DeviceError::kLaunchPendingCountExceeded;
  }
  child->stream = in;
  ++from.grid->parts;
  ++waiting_;
  in->items.push_back({std::move(child), nullptr, nullptr});
  if (in->items.size() == 1) Advance(in);
  return DeviceError::kNone;
}

void DeviceRuntime::Advance(Stream* first) {
  // Without recursion: a chain of events may be long.
  std::vector<Stream*> todo = {first};
  while (!todo.empty()) {
    Stream* const stream = todo.back();
    todo.pop_back();
    while (!stream->items.empty()) {
      Item& item = stream->items.front();
      if (item.child != nullptr) {
        if (!stream->started) {
          stream->started = true;
          --waiting_;
          MakeReady(item.child);
        }
        break;
      }
      if (item.recorded != nullptr) {
        item.recorded->done = true;
        todo.insert(todo.end(), item.recorded->waiting.begin(), item.recorded->waiting.end());
        item.recorded->waiting.clear();
      } else if (!item.awaited->done) {
        std::vector<Stream*>& waiting = item.awaited->waiting;
        if (std::count(waiting.begin(), waiting.end(), stream) == 0) waiting.push_back(stream);
        break;
      }
      stream->items.pop_front();
    }
  }
}

void DeviceRuntime::MakeReady(std::shared_ptr<Child> child) {
  live_[child->grid.get()] = child;
  ready_.push_back(std::move(child));
  if (idle_ >= ready_.size()) {
    changed_.Signal();
  } else if (threads_.size() < WorkerCount()) {
    threads_.emplace_back([this] { Work(); });
  }
}

void DeviceRuntime::PartEnded(DeviceGrid* grid) {
  while (grid != nullptr) {
    if (--grid->parts > 0) return;
    if (!grid->tails.empty()) {
      const std::shared_ptr<Child> tail = std::move(grid->tails.front());
      grid->tails.pop_front();
      --waiting_;
      grid->parts = 1;
      MakeReady(tail);
      return;
    }
    if (grid == root_grid_.get()) {
      root_ended_ = true;
      changed_.SignalAll();
      return;
    }
    // Frees the grid when it goes out of scope.
    const auto self = live_.find(grid);
    const std::shared_ptr<Child> child = std::move(self->second);
    live_.erase(self);
    errors_.erase(errors_.lower_bound({grid, 0, 0}),
                  errors_.upper_bound({grid, ~uint64_t{0}, ~0u}));
    for (auto at = events_.begin(); at != events_.end();) {
      at = at->second->grid == grid ? events_.erase(at) : std::next(at);
    }
    if (child->stream != nullptr) {
      child->stream->items.pop_front();
      child->stream->started = false;
      Advance(child->stream);
    }
    grid = child->parent;
  }
}

DeviceError DeviceRuntime::CreateStream(DeviceGrid* grid, uint64_t* handle) {
  MutexLock lock(&mutex_);
  *handle = next_handle_++;
  grid->streams[{*handle, 0, 0}] = std::make_unique<Stream>();
  return DeviceError::kNone;
}

DeviceError DeviceRuntime::DestroyStream(DeviceGrid* grid, uint64_t handle) {
  MutexLock lock(&mutex_);
  const auto at = grid->streams.find({handle, 0, 0});
  if (handle <= kFireAndForgetStream || at == grid->streams.end() || at->second->destroyed) {
    return DeviceError::kInvalidValue;
  }
  // What is in it still runs; it goes with the grid.
  at->second->destroyed = true;
  if (at->second->items.empty()) grid->streams.erase(at);
  return DeviceError::kNone;
}

DeviceError DeviceRuntime::CreateEvent(DeviceGrid* grid, uint64_t* handle) {
  MutexLock lock(&mutex_);
  *handle = next_handle_++;
  auto event = std::make_unique<Event>();
  event->grid = grid;
  events_[*handle] = std::move(event);
  return DeviceError::kNone;
}

DeviceError DeviceRuntime::RecordEvent(const Thread& from, uint64_t event, uint64_t stream) {
  MutexLock lock(&mutex_);
  const auto at = events_.find(event);
  Stream* const in = FindStream(from, stream);
  if (at == events_.end() || in == nullptr) return DeviceError::kInvalidValue;
  at->second->last = std::make_shared<Ticket>();
  in->items.push_back({nullptr, at->second->last, nullptr});
  if (in->items.size() == 1) Advance(in);
  return DeviceError::kNone;
}

DeviceError DeviceRuntime::WaitEvent(const Thread& from, uint64_t stream, uint64_t event) {
  MutexLock lock(&mutex_);
  const auto at = events_.find(event);
  Stream* const in = FindStream(from, stream);
  if (at == events_.end() || in == nullptr) return DeviceError::kInvalidValue;
  if (at->second->last == nullptr || at->second->last->done) return DeviceError::kNone;
  in->items.push_back({nullptr, nullptr, at->second->last});
  if (in->items.size() == 1) Advance(in);
  return DeviceError::kNone;
}

DeviceError DeviceRuntime::DestroyEvent(uint64_t handle) {
  MutexLock lock(&mutex_);
  return events_.erase(handle) > 0 ? DeviceError::kNone : DeviceError::kInvalidValue;
}

void DeviceRuntime::SetLastError(const Thread& of, uint32_t error) {
  MutexLock lock(&mutex_);
  if (error == 0) {
    errors_.erase({of.grid, of.block, of.thread});
  } else {
    errors_[{of.grid, of.block, of.thread}] = error;
  }
}

uint32_t DeviceRuntime::LastError(const Thread& of) {
  MutexLock lock(&mutex_);
  const auto at = errors_.find({of.grid, of.block, of.thread});
  return at == errors_.end() ? 0 : at->second;
}

bool DeviceRuntime::Enter(struct Launch* launch) {
  MutexLock lock(&mutex_);
  if (!status_.ok()) return false;
  launches_.push_back(launch);
  return true;
}

void DeviceRuntime::Leave(struct Launch* launch) {
  MutexLock lock(&mutex_);
  launches_.erase(std::remove(launches_.begin(), launches_.end(), launch), launches_.end());
}

void DeviceRuntime::Fail(const absl::Status& status) {
  if (!status_.ok()) return;
  status_ = status;
  for (struct Launch* launch : launches_) launch->Fail(status);
  changed_.SignalAll();
}

bool DeviceRuntime::Over() const { return status_.ok() ? root_ended_ : running_ == 0; }

void DeviceRuntime::Work() {
  mutex_.Lock();
  while (!Over()) {
    if (ready_.empty() || !status_.ok()) {
      ++idle_;
      changed_.WaitFor(&mutex_, std::chrono::seconds(1));
      --idle_;
      continue;
    }
    const std::shared_ptr<Child> child = std::move(ready_.front());
    ready_.pop_front();
    ++running_;
    mutex_.Unlock();
    LaunchConfig config;
    config.grid = child->launch.grid;
    config.block = child->launch.block;
    config.dynamic_shared_bytes = child->launch.dynamic_shared_bytes;
    config.params = child->launch.params;
    // A kernel that says how large its clusters are gets those; one that must be told cannot start.
    const KernelInfo& info = runner_->Info(child->launch.kernel);
    if (info.cluster.x != 0) {
      config.cluster = info.cluster;
      config.explicit_cluster = true;
    }
    config.heap = root_launch_->config->heap;
    config.heap_bytes = root_launch_->config->heap_bytes;
    config.stack_bytes = root_launch_->config->stack_bytes;
    config.interrupted = root_launch_->config->interrupted;
    config.queries = root_launch_->config->queries;
    config.printf_sink = [this](absl::string_view text) { root_launch_->Print(text); };
    config.error_sink = [this](absl::string_view text) { root_launch_->PrintError(text); };
    const absl::Status status =
        runner_->RunChild(child->launch.kernel, config, this, child->grid.get());
    mutex_.Lock();
    --running_;
    if (!status.ok()) Fail(status);
    if (status_.ok()) {
      PartEnded(child->grid.get());
    } else if (Over()) {
      changed_.SignalAll();
    }
  }
  changed_.SignalAll();
  mutex_.Unlock();
}

absl::Status DeviceRuntime::Finish(absl::Status status) {
  {
    MutexLock lock(&mutex_);
    launches_.erase(std::remove(launches_.begin(), launches_.end(), root_launch_), launches_.end());
    if (!status.ok()) Fail(status);
    if (status_.ok()) PartEnded(root_grid_.get());
  }
  Work();
  // Nothing is ready or runs, so no thread is added any more.
  std::vector<std::thread> threads;
  {
    MutexLock lock(&mutex_);
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
  MutexLock lock(&mutex_);
  return status_;
}

}  // namespace fargpu::softgpu
