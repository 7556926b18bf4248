#include "softgpu/driver/driver.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "protocol/driver_abi/context_storage.h"
#include "protocol/driver_abi/visible_devices.h"
#include "softgpu/driver/array.h"
#include "softgpu/driver/capture.h"
#include "softgpu/driver/compiler_standins.h"
#include "softgpu/driver/export_table_host.h"
#include "softgpu/driver/green_context.h"
#include "softgpu/driver/texture_object.h"
#include "softgpu/runtime/device_window.h"
#include "softgpu/runtime/work_queue.h"

namespace fargpu::softgpu {
namespace {

// How long the end of the process waits for kernels that still run.
constexpr std::chrono::milliseconds kExitPatience{2000};

// How long a context that is destroyed waits for what was queued. A card's driver waits too: what a
// short kernel prints still comes out.
constexpr std::chrono::milliseconds kDestroyPatience{5000};

std::atomic<Driver*> live_driver{nullptr};
// Set in a child that was forked after cuInit: threads and locks of the parent are gone, so nothing
// of the driver can be used there.
std::atomic<bool> forked{false};

// A pointer, not an object: the thread-local destructors of a library that is loaded late run
// before the last calls come in. A pthread key frees the stack when its thread ends.
thread_local std::vector<CUcontext>* current_contexts = nullptr;

void EndThread(void* stack) {
  current_contexts = nullptr;
  delete static_cast<std::vector<CUcontext>*>(stack);
  Driver* const driver = Driver::Get();
  if (driver == nullptr) return;
  for (const std::shared_ptr<Context>& context : driver->contexts.All()) {
    context->ForgetThread(ThreadNumber());
  }
}

pthread_key_t StackKey() {
  static const pthread_key_t key = [] {
    pthread_key_t created;
    pthread_key_create(&created, EndThread);
    return created;
  }();
  return key;
}

std::vector<uint64_t> Capacities(const DeviceConfig& config) {
  std::vector<uint64_t> capacities;
  for (const DeviceSpec& device : config.devices) capacities.push_back(device.memory_bytes);
  return capacities;
}

// The program's devices are those of the machine that `variable` names, in its order.
absl::Status KeepVisibleDevices(const char* variable, DeviceConfig* config) {
  std::vector<driver_abi::DeviceUuid> uuids;
  for (const DeviceSpec& device : config->devices) uuids.push_back(device.uuid);
  std::vector<DeviceSpec> kept;
  for (const int device : driver_abi::VisibleDevices(variable, uuids)) {
    kept.push_back(config->devices[device]);
  }
  if (kept.empty()) {
    return CudaError(CUDA_ERROR_NO_DEVICE,
                     absl::StrCat("CUDA_VISIBLE_DEVICES=\"", variable, "\" shows none of ",
                                  uuids.size(), " devices"));
  }
  config->devices = std::move(kept);
  return absl::OkStatus();
}

}  // namespace

std::vector<CUcontext>& CurrentContextStack() {
  if (current_contexts == nullptr) {
    current_contexts = new std::vector<CUcontext>;
    pthread_setspecific(StackKey(), current_contexts);
  }
  return *current_contexts;
}

CUcontext CurrentContextHandle() {
  return current_contexts == nullptr || current_contexts->empty() ? nullptr
                                                                  : current_contexts->back();
}

Driver* Driver::Get() {
  if (forked.load(std::memory_order_relaxed)) return nullptr;
  return live_driver.load(std::memory_order_acquire);
}

absl::Status Driver::Init() {
  static Mutex* const mutex = new Mutex;
  if (forked.load(std::memory_order_relaxed)) {
    return CudaError(CUDA_ERROR_NOT_INITIALIZED, "the process was forked after cuInit");
  }
  MutexLock lock(mutex);
  if (live_driver.load(std::memory_order_acquire) != nullptr) return absl::OkStatus();
  const char* const settings = std::getenv("FARGPU_SOFTGPU");
  absl::StatusOr<DeviceConfig> config =
      ReadDeviceConfig(settings == nullptr ? "" : settings, ReadHostFacts());
  if (!config.ok()) {
    // Whoever set the variable must learn of the mistake, and most programs print only "invalid
    // argument" or count no devices.
    std::fprintf(stderr, "fargpu: %s\n", std::string(config.status().message()).c_str());
    return CudaError(CUDA_ERROR_INVALID_VALUE, config.status().message());
  }
  RETURN_IF_ERROR(KeepVisibleDevices(std::getenv("CUDA_VISIBLE_DEVICES"), &*config));
  if (DeviceWindow().size == 0) {
    return CudaError(CUDA_ERROR_OUT_OF_MEMORY, "no address range for device memory");
  }
  live_driver.store(new Driver(*std::move(config)), std::memory_order_release);
  InstallExportTables();
  LoadCompilerStandIns();
  pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });
  std::atexit([] {
    if (Driver::Get() != nullptr) StopWorkers(kExitPatience);
  });
  return absl::OkStatus();
}

Driver::Driver(DeviceConfig config)
    : memory(DeviceMemoryRange(), Capacities(config)), config_(std::move(config)) {
  for (int device = 0; device < device_count(); ++device) {
    primaries.push_back(std::make_unique<PrimaryContext>());
    auto pool = std::make_shared<MemPool>();
    pool->handle = pools.NewHandle();
    pool->device = device;
    pool->is_default = true;
    pools.Insert(pool->handle, pool);
    auto device_pool = std::make_unique<DevicePools>();
    device_pool->default_pool = pool;
    {
      MutexLock lock(&device_pool->mutex);
      device_pool->current = pool;
    }
    device_pools.push_back(std::move(device_pool));
  }
}

absl::Status Driver::CheckDevice(CUdevice device) const {
  if (device >= 0 && device < device_count()) return absl::OkStatus();
  return CudaError(CUDA_ERROR_INVALID_DEVICE,
                   absl::StrCat("device ", device, " of ", device_count()));
}

int Driver::PrimaryDevice(CUcontext handle) const {
  for (int device = 0; device < device_count(); ++device) {
    if (primaries[device]->handle == handle) return device;
  }
  return -1;
}

bool Driver::IsContextHandle(CUcontext handle) {
  return contexts.Find(handle) != nullptr || PrimaryDevice(handle) >= 0;
}

absl::StatusOr<std::shared_ptr<Context>> Driver::FindContext(CUcontext handle) {
  if (std::shared_ptr<Context> context = contexts.Find(handle)) return context;
  return CudaError(CUDA_ERROR_INVALID_CONTEXT, "no such context, or one that is not active");
}

absl::StatusOr<std::shared_ptr<Context>> Driver::CurrentContext() {
  const CUcontext handle = CurrentContextHandle();
  if (handle == nullptr) return CudaError(CUDA_ERROR_INVALID_CONTEXT, "no context is current");
  if (std::shared_ptr<Context> context = contexts.Find(handle)) return context;
  if (const int device = PrimaryDevice(handle); device >= 0) {
    PrimaryContext& primary = *primaries[device];
    MutexLock lock(&primary.mutex);
    if (!primary.was_active) {
      return CudaError(CUDA_ERROR_INVALID_CONTEXT,
                       absl::StrCat("the primary context of device ", device, " is not active"));
    }
  }
  return CudaError(CUDA_ERROR_CONTEXT_IS_DESTROYED, "the current context was destroyed");
}

std::shared_ptr<Context> Driver::CreateContext(CUcontext handle, int device, unsigned flags,
                                               bool primary) {
  auto context = std::make_shared<Context>(handle, device, flags, primary);
  contexts.Insert(handle, context);
  return context;
}

void Driver::DestroyContext(const std::shared_ptr<Context>& context) {
  const bool ended = context->SynchronizeAllFor(kDestroyPatience);
  context->Cancel();
  if (!ended) InterruptLaunches(&context->interrupted);
  // The error of a failed context has been reported by now, or nobody asks for it any more.
  (void)context->SynchronizeAll();
  // Libraries clean up what they attached to the context while its handle is still valid.
  driver_abi::DestroyContextStorage(context->handle);
  // Green contexts know it by other handles.
  contexts.RemoveIf([&](const Context& other) { return &other == context.get(); });

  const auto belongs = [&](const auto& object) { return object.context.lock() == context; };
  EndCaptures(*this, *context);
  streams.RemoveIf(belongs);
  arrays.RemoveIf(belongs);
  mipmapped_arrays.RemoveIf(belongs);
  for (const auto& [handle, object] : textures.RemoveIf(belongs)) UnregisterTexture(handle);
  for (const auto& [handle, object] : surfaces.RemoveIf(belongs)) UnregisterSurface(handle);
  events.RemoveIf(belongs);
  functions.RemoveIf(belongs);
  modules.RemoveIf(belongs);
  for (const std::shared_ptr<Library>& library : libraries.All()) {
    MutexLock lock(&library->mutex);
    library->modules.erase(context->id);
  }
  // A call that was under way in another thread may have queued more since; none of it runs.
  (void)context->SynchronizeAll();
  ReleaseHeap(context->id);
  memory.FreeContext(context->id);
  registered.RemoveContext(context->id);
}

absl::StatusOr<std::shared_ptr<Stream>> Driver::FindStream(Context& context, CUstream handle,
                                                           bool per_thread) {
  if (handle == nullptr) handle = per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
  if (handle == CU_STREAM_LEGACY) return context.legacy_stream();
  if (handle == CU_STREAM_PER_THREAD) return context.PerThreadStream();
  if (std::shared_ptr<Stream> stream = streams.Find(handle)) return stream;
  return CudaError(CUDA_ERROR_INVALID_HANDLE, "not a stream");
}

absl::StatusOr<std::shared_ptr<Function>> Driver::FindFunction(CUfunction handle) {
  if (std::shared_ptr<Function> function = functions.Find(handle)) return function;
  if (std::shared_ptr<Kernel> kernel = kernels.Find(reinterpret_cast<CUkernel>(handle))) {
    ASSIGN_OR_RETURN(const std::shared_ptr<Context> context, CurrentContext());
    return FunctionOf(*kernel, *context);
  }
  return CudaError(CUDA_ERROR_INVALID_HANDLE, "neither a function nor a kernel");
}

absl::StatusOr<std::shared_ptr<Function>> Driver::FunctionOf(Kernel& kernel, Context& context) {
  if (!kernel.has_code) {
    return CudaError(CUDA_ERROR_NO_BINARY_FOR_GPU,
                     absl::StrCat("kernel ", kernel.info.name, ": the image holds no PTX"));
  }
  const std::shared_ptr<Library> library = kernel.library.lock();
  if (library == nullptr) return CudaError(CUDA_ERROR_INVALID_HANDLE, "the library was unloaded");
  ASSIGN_OR_RETURN(const std::shared_ptr<Module> module, LibraryModule(*library, context));
  return module->functions[kernel.index];
}

absl::Status Driver::LinkLibrary(const std::shared_ptr<Library>& library, std::string* log) {
  MutexLock lock(&library->mutex);
  if (library->linked) return library->link_status;
  library->linked = true;
  if (library->texts.empty()) return absl::OkStatus();
  std::string own_log;
  absl::StatusOr<std::unique_ptr<Program>> program =
      LinkProgram(library->texts, log == nullptr ? &own_log : log);
  library->link_status = program.status();
  if (!program.ok()) return program.status();
  library->spare = *std::move(program);
  library->variables = library->spare->variables();
  // Managed variables are there before any context is: the runtime asks for them at once.
  library->managed.assign(library->variables.size(), 0);
  for (size_t i = 0; i < library->variables.size(); ++i) {
    if (!library->variables[i].managed) continue;
    absl::StatusOr<uint64_t> address =
        PlaceManagedVariable(*this, *library->spare, i, /*device=*/0, /*context=*/0);
    if (!address.ok()) return library->link_status = address.status();
    library->managed[i] = *address;
  }
  for (size_t i = 0; i < library->spare->kernels().size(); ++i) {
    auto kernel = std::make_shared<Kernel>();
    kernel->handle = kernels.NewHandle();
    kernel->info = library->spare->kernels()[i];
    kernel->index = i;
    kernel->library = library;
    kernel->library_handle = library->handle;
    for (int device = 0; device < device_count(); ++device) {
      kernel->settings.push_back(std::make_shared<FunctionSettings>());
    }
    kernels.Insert(kernel->handle, kernel);
    library->kernels.push_back(std::move(kernel));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Module>> Driver::LibraryModule(Library& library, Context& context) {
  // Linked and placed under the library's mutex: a second thread that wants it waits for it.
  MutexLock lock(&library.mutex);
  if (const auto found = library.modules.find(context.id); found != library.modules.end()) {
    return found->second;
  }
  RETURN_IF_ERROR(library.link_status);
  std::unique_ptr<Program> program = std::move(library.spare);
  if (program == nullptr && !library.texts.empty()) {
    std::string log;
    ASSIGN_OR_RETURN(program, LinkProgram(library.texts, &log));
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<Module> module,
                   PlaceProgram(*this, std::move(program), context, library.managed));
  for (const std::shared_ptr<Function>& function : module->functions) {
    function->settings = library.kernels[function->index]->settings[context.device];
  }
  module->of_library = true;
  RegisterModule(module);
  library.modules.emplace(context.id, module);
  return module;
}

void Driver::RegisterModule(const std::shared_ptr<Module>& module) {
  module->handle = modules.NewHandle();
  for (const std::shared_ptr<Function>& function : module->functions) {
    function->handle = functions.NewHandle();
    function->module = module->handle;
    functions.Insert(function->handle, function);
  }
  modules.Insert(module->handle, module);
}

void Driver::UnloadModule(const std::shared_ptr<Module>& module) {
  modules.Remove(module->handle);
  for (const std::shared_ptr<Function>& function : module->functions) {
    functions.Remove(function->handle);
  }
  const std::shared_ptr<Context> context = module->context.lock();
  // A context that was destroyed took its memory along; the address may be another's by now.
  if (context == nullptr) return;
  (void)context->SynchronizeAll();
  if (module->variable_memory != 0) (void)memory.Free(module->variable_memory);
  for (uint64_t address : module->managed_memory) FreeManaged(address);
}

void Driver::FreeManaged(uint64_t address) {
  if (const auto allocation = memory.Find(address)) managed.Remove(address, allocation->size);
  (void)memory.Free(address);
}

void Driver::WaitForDevice(int device) {
  for (const std::shared_ptr<Context>& context : contexts.All()) {
    if (context->device == device) (void)context->SynchronizeAll();
  }
}

bool HostRangeReachable(uint64_t address, uint64_t bytes) {
  Driver* const driver = Driver::Get();
  return driver != nullptr && driver->registered.Covers(address, bytes);
}

}  // namespace fargpu::softgpu
