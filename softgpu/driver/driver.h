#pragma once

#include <atomic>
#include <cuda.h>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/mutex.h"
#include "protocol/driver_abi/managed_ranges.h"
#include "softgpu/driver/context.h"
#include "softgpu/driver/handle_table.h"
#include "softgpu/driver/host_registry.h"
#include "softgpu/driver/mem_pool.h"
#include "softgpu/driver/module.h"
#include "softgpu/driver/user_object.h"
#include "softgpu/runtime/device_config.h"
#include "softgpu/runtime/device_memory.h"

namespace fargpu::softgpu {

inline constexpr int kDriverVersion = 13000;

struct Array;
struct Capture;
struct Graph;
struct GreenContext;
struct ResourceDescription;
class GraphExec;
struct GraphNode;
struct LinkState;
struct MipmappedArray;
struct SurfaceObject;
struct TextureObject;

// The primary context of a device. Its handle never changes; the context behind it comes with the
// first retain and goes with the last release or a reset.
struct PrimaryContext {
  CUcontext handle = HandleTable<Context, CUcontext>::NewHandle();

  Mutex mutex;
  unsigned flags ABSL_GUARDED_BY(mutex) = 0;
  uint64_t references ABSL_GUARDED_BY(mutex) = 0;
  bool was_active ABSL_GUARDED_BY(mutex) = false;
};

// Everything the process knows of its software devices. Made by cuInit and never destroyed: calls
// come in until the process has ended, after static destructors have run.
class Driver {
 public:
  // The driver, or nullptr before a successful cuInit and in a child that was forked after it.
  static Driver* Get();
  // cuInit: makes the driver from FARGPU_SOFTGPU and CUDA_VISIBLE_DEVICES. Repeating it is
  // harmless.
  static absl::Status Init();

  explicit Driver(DeviceConfig config);

  const DeviceConfig& config() const { return config_; }
  int device_count() const { return static_cast<int>(config_.devices.size()); }
  absl::Status CheckDevice(CUdevice device) const;

  DeviceMemory memory;
  HostRegistry registered;
  driver_abi::ManagedRanges managed;
  HandleTable<Context, CUcontext> contexts;
  HandleTable<GreenContext, CUgreenCtx> green_contexts;
  HandleTable<ResourceDescription, CUdevResourceDesc> resource_descriptions;
  HandleTable<Stream, CUstream> streams;
  HandleTable<Event, CUevent> events;
  HandleTable<Module, CUmodule> modules;
  HandleTable<Function, CUfunction> functions;
  HandleTable<Library, CUlibrary> libraries;
  HandleTable<Kernel, CUkernel> kernels;
  HandleTable<LinkState, CUlinkState> links;
  HandleTable<MemPool, CUmemoryPool> pools;
  HandleTable<Array, CUarray> arrays;
  HandleTable<MipmappedArray, CUmipmappedArray> mipmapped_arrays;
  HandleTable<TextureObject, CUtexObject> textures;
  HandleTable<SurfaceObject, CUsurfObject> surfaces;

  // Guards all graphs, their nodes and the captures that build some. Taken before all other mutexes
  // but an Event's; never held while work runs.
  Mutex graph_mutex;
  HandleTable<Graph, CUgraph> graphs;
  HandleTable<GraphNode, CUgraphNode> graph_nodes;
  HandleTable<GraphExec, CUgraphExec> graph_execs;
  absl::flat_hash_map<CUuserObject, UserObject> user_objects ABSL_GUARDED_BY(graph_mutex);
  std::vector<std::shared_ptr<Capture>> captures ABSL_GUARDED_BY(graph_mutex);  // in progress
  std::atomic<int> capture_count{0};                                            // how many
  std::vector<std::unique_ptr<PrimaryContext>> primaries;                       // by device
  std::vector<std::unique_ptr<DevicePools>> device_pools;                       // by device

  // The context behind a handle that a call was given; CUDA_ERROR_INVALID_CONTEXT for what is none
  // (any more).
  absl::StatusOr<std::shared_ptr<Context>> FindContext(CUcontext handle);
  // Whether `handle` may be made current: a live context, or a primary one, active or not.
  bool IsContextHandle(CUcontext handle);
  // The device a primary context's handle belongs to, or -1.
  int PrimaryDevice(CUcontext handle) const;
  // The calling thread's context. CUDA_ERROR_INVALID_CONTEXT if there is none (or it is not active
  // yet), CUDA_ERROR_CONTEXT_IS_DESTROYED if it is one no more.
  absl::StatusOr<std::shared_ptr<Context>> CurrentContext();

  std::shared_ptr<Context> CreateContext(CUcontext handle, int device, unsigned flags,
                                         bool primary);
  // Waits a little for what was queued in the context, ends what runs on, then frees all that
  // belongs to it.
  void DestroyContext(const std::shared_ptr<Context>& context);

  // Resolves a stream argument; `context` is current. NULL means what `per_thread` says.
  absl::StatusOr<std::shared_ptr<Stream>> FindStream(Context& context, CUstream stream,
                                                     bool per_thread);
  // The function that a CUfunction argument means: it may be a CUkernel.
  absl::StatusOr<std::shared_ptr<Function>> FindFunction(CUfunction function);
  // The function of `kernel` in `context`.
  absl::StatusOr<std::shared_ptr<Function>> FunctionOf(Kernel& kernel, Context& context);

  // Links the library if that has not been done; its kernels and variables are then known.
  absl::Status LinkLibrary(const std::shared_ptr<Library>& library, std::string* log = nullptr);
  // The library placed into `context`.
  absl::StatusOr<std::shared_ptr<Module>> LibraryModule(Library& library, Context& context);
  void RegisterModule(const std::shared_ptr<Module>& module);
  // Drops the module's handles and variables, after the work that uses them.
  void UnloadModule(const std::shared_ptr<Module>& module);

  // Frees managed memory that nothing uses any more.
  void FreeManaged(uint64_t address);

  // Waits for all work on all contexts of a device, as freeing memory does.
  void WaitForDevice(int device);

 private:
  const DeviceConfig config_;
};

// The calling thread's stack of current contexts, innermost last. Handles, not contexts: what was
// destroyed stays current until it is popped.
std::vector<CUcontext>& CurrentContextStack();
// The innermost handle, or nullptr. Cheap, and never makes a stack.
CUcontext CurrentContextHandle();

}  // namespace fargpu::softgpu
