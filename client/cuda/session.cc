#include "client/cuda/session.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "client/cuda/capture.h"
#include "client/cuda/driver_limits.h"
#include "client/cuda/functions.h"
#include "common/fd.h"
#include "common/log.h"

namespace fargpu::client {
namespace {

// What a kernel prints goes where the program's own output goes, in the order of its calls. The
// thread that has locked the file may be printing managed memory, which waits for a reply that this
// thread would have to take: after a while it is done without the lock.
void Print(wire::PrintStream stream, absl::Span<const char> text) {
  std::FILE* const file = stream == wire::PrintStream::kOut ? stdout : stderr;
  constexpr absl::Duration kLongestWait = absl::Seconds(1);
  const absl::Time deadline = absl::Now() + kLongestWait;
  while (ftrylockfile(file) != 0) {
    if (absl::Now() > deadline) {
      const int fd = stream == wire::PrintStream::kOut ? STDOUT_FILENO : STDERR_FILENO;
      WriteFully(fd, text, deadline + kLongestWait).IgnoreError();
      return;
    }
    absl::SleepFor(absl::Milliseconds(1));
  }
  std::fwrite(text.data(), 1, text.size(), file);
  funlockfile(file);
}

absl::Status BadHandle(const char* what, const void* handle) {
  return CudaError(CUDA_ERROR_INVALID_HANDLE,
                   absl::StrCat(what, " 0x", absl::Hex(reinterpret_cast<uintptr_t>(handle)),
                                " is none of ours"));
}

// Errors after which CUDA refuses everything in the context.
bool BreaksContext(CUresult result) {
  switch (result) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_EXTERNAL_DEVICE:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
    case CUDA_ERROR_CONTAINED:
      return true;
    default:
      return false;
  }
}

template <typename Handle>
Handle AsHandle(HandleSlot* slot) {
  return reinterpret_cast<Handle>(slot);
}

void Publish(HandleSlot* slot, HandleKind kind, uint64_t id, void* object) {
  slot->id = id;
  slot->object = object;
  slot->flags = 0;
  slot->priority = 0;
  slot->context = CurrentThread().current();
  slot->kind.store(kind, std::memory_order_release);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Session>> Session::Create(SessionParts parts) {
  ASSIGN_OR_RETURN(std::unique_ptr<HandleArena> arena, HandleArena::Create());
  ASSIGN_OR_RETURN(AddressWindow window,
                   AddressWindow::Reserve(parts.welcome.window_base, parts.welcome.window_bytes));
  std::unique_ptr<Session> session(
      new Session(std::move(parts), std::move(arena), std::move(window)));
  RETURN_IF_ERROR(session->MakePrimaryContexts());
  return session;
}

Session::Session(SessionParts parts, std::unique_ptr<HandleArena> arena, AddressWindow window)
    : welcome_(std::move(parts.welcome)),
      devices_(welcome_.devices),
      arena_(std::move(arena)),
      window_(std::move(window)),
      control_(std::move(parts.control)),
      pools_(devices_.count()),
      calls_(std::move(parts.connection), parts.link_options, &Print) {
  calls_.CountRoundTrip();  // the handshake
  // Host functions see what the work before them has written, and work after them what they wrote.
  calls_.host_functions().SetAround([this] { shared_.BeforeHostFunction(); },
                                    [this] { shared_.AfterHostFunction(); });
}

Session::~Session() = default;

absl::Status Session::MakePrimaryContexts() {
  for (CUdevice device = 0; device < devices_.count(); ++device) {
    ASSIGN_OR_RETURN(Context * context, AddContext(device));
    context->primary = true;
    primaries_.push_back(context);
  }
  return absl::OkStatus();
}

absl::StatusOr<HandleSlot*> Session::NewSlot() const {
  HandleSlot* slot = arena_->Allocate();
  if (slot == nullptr) return CudaError(CUDA_ERROR_OUT_OF_MEMORY, "all handles are in use");
  return slot;
}

absl::Status Session::ToWire(CUstream stream, DefaultStream default_stream,
                             wire::StreamId* id) const {
  if (stream == nullptr && default_stream == DefaultStream::kPerThread) {
    stream = CU_STREAM_PER_THREAD;
  }
  if (stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) {
    id->value = reinterpret_cast<uintptr_t>(stream);
    return absl::OkStatus();
  }
  const HandleSlot* slot = FindStream(stream);
  if (slot == nullptr) return BadHandle("stream", stream);
  id->value = slot->id;
  return absl::OkStatus();
}

absl::Status Session::ToWire(CUevent event, wire::EventId* id) const {
  const HandleSlot* slot = arena_->Find(event, HandleKind::kEvent);
  if (slot == nullptr) return BadHandle("event", event);
  id->value = slot->id;
  return absl::OkStatus();
}

absl::Status Session::ToWire(CUcontext context, wire::ContextId* id) const {
  ASSIGN_OR_RETURN(const Context* found, FindContext(context));
  *id = found->id;
  return absl::OkStatus();
}

absl::Status Session::ToWire(CUmodule module, wire::ModuleId* id) const {
  ASSIGN_OR_RETURN(const Module* found, FindModule(module));
  *id = found->id;
  return absl::OkStatus();
}

absl::Status Session::ToWire(CUlibrary library, wire::LibraryId* id) const {
  ASSIGN_OR_RETURN(const Library* found, FindLibrary(library));
  *id = found->id;
  return absl::OkStatus();
}

absl::Status Session::ToWire(CUfunction function, wire::FunctionId* id) const {
  ASSIGN_OR_RETURN(const Function* found, FindFunction(function));
  *id = found->id;
  return absl::OkStatus();
}

absl::Status Session::Create(CUstream* stream, wire::StreamId* id) {
  ASSIGN_OR_RETURN(HandleSlot * slot, NewSlot());
  id->value = NewId();
  Publish(slot, HandleKind::kStream, id->value, nullptr);
  *stream = AsHandle<CUstream>(slot);
  return absl::OkStatus();
}

absl::Status Session::Create(CUevent* event, wire::EventId* id) {
  ASSIGN_OR_RETURN(HandleSlot * slot, NewSlot());
  id->value = NewId();
  Publish(slot, HandleKind::kEvent, id->value, nullptr);
  *event = AsHandle<CUevent>(slot);
  return absl::OkStatus();
}

void Session::Destroy(CUstream stream) {
  if (HandleSlot* slot = arena_->Find(stream, HandleKind::kStream)) {
    ForgetCaptureOf(*this, {slot->id});
    stream_attributes_.Forget({.id = slot->id});
    arena_->Free(slot);
  }
}

void Session::Destroy(CUevent event) {
  if (HandleSlot* slot = arena_->Find(event, HandleKind::kEvent)) {
    ForgetCapturedEvent(*this, {slot->id});
    arena_->Free(slot);
  }
}

absl::Status Session::FillHeader(bool needs_context, wire::CallHeader* header) const {
  const ThreadState& thread = CurrentThread();
  header->thread = thread.number;
  const CUcontext current = thread.current();
  if (needs_context) {
    ASSIGN_OR_RETURN(const Context* context, CurrentActive());
    header->context = context->id;
    return absl::OkStatus();
  }
  if (current == nullptr) return absl::OkStatus();
  if (const HandleSlot* slot = arena_->Find(current, HandleKind::kContext)) {
    const auto* context = static_cast<const Context*>(slot->object);
    if (context->active.load(std::memory_order_acquire)) header->context = context->id;
  }
  return absl::OkStatus();
}

void Session::NoteBroken(CUresult result) {
  if (!BreaksContext(result)) return;
  const absl::StatusOr<Context*> current = CurrentActive();
  if (current.ok()) (*current)->broken.store(result, std::memory_order_relaxed);
}

bool Session::HasOneActiveContext() {
  MutexLock lock(&context_mutex_);
  int active = 0;
  for (const auto& context : contexts_) active += context->active.load() ? 1 : 0;
  return active == 1;
}

absl::Status Session::ResultOf(const char* name, const PendingReply& pending) {
  if (pending.result != CUDA_SUCCESS) {
    NoteBroken(pending.result);
    return CudaError(pending.result, name);
  }
  const CUresult deferred = calls_.TakeDeferredError();
  if (deferred != CUDA_SUCCESS) {
    // Whose it was is not known if there are several contexts; the next call in it will tell.
    if (BreaksContext(deferred) && HasOneActiveContext()) NoteBroken(deferred);
    return CudaError(deferred, absl::StrCat("a call before ", name, " that was not waited for"));
  }
  return absl::OkStatus();
}

absl::Status Session::AfterBulk(absl::Span<const transport::SendTicket> tickets,
                                absl::Status status) {
  if (!tickets.empty()) {
    const absl::Status sent = calls_.WaitSent(tickets.back());
    if (status.ok()) status = sent;
  }
  return status;
}

absl::StatusOr<Context*> Session::FindContext(CUcontext context) const {
  HandleSlot* slot = arena_->Find(context, HandleKind::kContext);
  if (slot == nullptr) {
    return CudaError(CUDA_ERROR_INVALID_CONTEXT,
                     absl::StrCat("context 0x", absl::Hex(reinterpret_cast<uintptr_t>(context)),
                                  " is none of ours"));
  }
  return static_cast<Context*>(slot->object);
}

absl::StatusOr<Context*> Session::CurrentActive() const {
  const CUcontext current = CurrentThread().current();
  if (current == nullptr) {
    return CudaError(CUDA_ERROR_INVALID_CONTEXT, "the thread has no current context");
  }
  HandleSlot* slot = arena_->Find(current, HandleKind::kContext);
  if (slot == nullptr) {
    return CudaError(CUDA_ERROR_CONTEXT_IS_DESTROYED, "the current context was destroyed");
  }
  auto* context = static_cast<Context*>(slot->object);
  if (!context->active.load(std::memory_order_acquire)) {
    return CudaError(CUDA_ERROR_CONTEXT_IS_DESTROYED,
                     "the current context is a primary one that nobody retains");
  }
  if (const CUresult broken = context->broken.load(std::memory_order_relaxed);
      broken != CUDA_SUCCESS) {
    return CudaError(broken, "the context is broken since an earlier error");
  }
  return context;
}

absl::StatusOr<Context*> Session::AddContext(CUdevice device) {
  ASSIGN_OR_RETURN(HandleSlot * slot, NewSlot());
  auto context = std::make_unique<Context>();
  context->id.value = NewId();
  context->device = device;
  context->handle = AsHandle<CUcontext>(slot);
  Context* added = context.get();
  {
    MutexLock lock(&context_mutex_);
    contexts_.push_back(std::move(context));
  }
  Publish(slot, HandleKind::kContext, added->id.value, added);
  return added;
}

void Session::RemoveContext(Context* context) {
  context->active.store(false, std::memory_order_release);
  DropObjectsOf(*context);
  if (HandleSlot* slot = arena_->Find(context->handle, HandleKind::kContext)) arena_->Free(slot);
}

absl::StatusOr<Module*> Session::FindModule(CUmodule module) const {
  HandleSlot* slot = arena_->Find(module, HandleKind::kModule);
  if (slot == nullptr) return BadHandle("module", module);
  return static_cast<Module*>(slot->object);
}

absl::StatusOr<Library*> Session::FindLibrary(CUlibrary library) const {
  HandleSlot* slot = arena_->Find(library, HandleKind::kLibrary);
  if (slot == nullptr) return BadHandle("library", library);
  return static_cast<Library*>(slot->object);
}

absl::StatusOr<Function*> Session::FindFunction(CUfunction function) const {
  HandleSlot* slot = arena_->Find(function, HandleKind::kFunction);
  if (slot == nullptr) return BadHandle("function", function);
  return static_cast<Function*>(slot->object);
}

absl::StatusOr<Module*> Session::NewModule() {
  ASSIGN_OR_RETURN(HandleSlot * slot, NewSlot());
  auto module = std::make_unique<Module>();
  module->id.value = NewId();
  module->handle = AsHandle<CUmodule>(slot);
  module->context = CurrentThread().current();
  module->functions.module = module->handle;
  Module* made = module.get();
  {
    MutexLock lock(&owned_mutex_);
    modules_[made] = std::move(module);
  }
  Publish(slot, HandleKind::kModule, made->id.value, made);
  return made;
}

absl::StatusOr<Library*> Session::NewLibrary() {
  ASSIGN_OR_RETURN(HandleSlot * slot, NewSlot());
  auto library = std::make_unique<Library>();
  library->id.value = NewId();
  library->handle = AsHandle<CUlibrary>(slot);
  library->functions.library = library->handle;
  Library* made = library.get();
  {
    MutexLock lock(&owned_mutex_);
    libraries_[made] = std::move(library);
  }
  Publish(slot, HandleKind::kLibrary, made->id.value, made);
  return made;
}

void Session::FreeHandlesOf(FunctionSet* set) {
  MutexLock lock(&set->mutex);
  if (set->pending != nullptr) calls_.Abandon(std::move(set->pending));
  for (const auto& function : set->functions) {
    if (HandleSlot* slot = arena_->Find(function->handle, HandleKind::kFunction)) {
      arena_->Free(slot);
    }
  }
}

void Session::Delete(Module* module) {
  shared_.RemoveVariables(module);
  if (HandleSlot* slot = arena_->Find(module->handle, HandleKind::kModule)) arena_->Free(slot);
  FreeHandlesOf(&module->functions);
  MutexLock lock(&owned_mutex_);
  modules_.erase(module);
}

void Session::Delete(Library* library) {
  shared_.RemoveVariables(library);
  if (HandleSlot* slot = arena_->Find(library->handle, HandleKind::kLibrary)) arena_->Free(slot);
  CUmodule module = nullptr;
  {
    MutexLock lock(&library->mutex);
    module = library->module;
  }
  if (HandleSlot* slot = arena_->Find(module, HandleKind::kModule)) {
    Delete(static_cast<Module*>(slot->object));
  }
  FreeHandlesOf(&library->functions);
  MutexLock lock(&owned_mutex_);
  libraries_.erase(library);
}

absl::StatusOr<Array*> Session::FindArray(CUarray array) const {
  HandleSlot* slot = arena_->Find(array, HandleKind::kArray);
  if (slot == nullptr) return BadHandle("array", array);
  return static_cast<Array*>(slot->object);
}

absl::StatusOr<MipmappedArray*> Session::FindMipmappedArray(CUmipmappedArray array) const {
  HandleSlot* slot = arena_->Find(array, HandleKind::kMipmappedArray);
  if (slot == nullptr) return BadHandle("mipmapped array", array);
  return static_cast<MipmappedArray*>(slot->object);
}

absl::StatusOr<Array*> Session::NewArray(wire::ArrayId id) {
  ASSIGN_OR_RETURN(HandleSlot * slot, NewSlot());
  auto array = std::make_unique<Array>();
  array->id = id;
  array->handle = AsHandle<CUarray>(slot);
  array->context = CurrentThread().current();
  Array* made = array.get();
  {
    MutexLock lock(&owned_mutex_);
    arrays_[made] = std::move(array);
  }
  Publish(slot, HandleKind::kArray, id.value, made);
  return made;
}

absl::StatusOr<MipmappedArray*> Session::NewMipmappedArray() {
  ASSIGN_OR_RETURN(HandleSlot * slot, NewSlot());
  auto array = std::make_unique<MipmappedArray>();
  array->id.value = NewId();
  array->handle = AsHandle<CUmipmappedArray>(slot);
  array->context = CurrentThread().current();
  MipmappedArray* made = array.get();
  {
    MutexLock lock(&owned_mutex_);
    mipmapped_arrays_[made] = std::move(array);
  }
  Publish(slot, HandleKind::kMipmappedArray, made->id.value, made);
  return made;
}

void Session::Delete(Array* array) {
  if (HandleSlot* slot = arena_->Find(array->handle, HandleKind::kArray)) arena_->Free(slot);
  MutexLock lock(&owned_mutex_);
  arrays_.erase(array);
}

void Session::Delete(MipmappedArray* array) {
  for (Array* level : array->levels) Delete(level);
  if (HandleSlot* slot = arena_->Find(array->handle, HandleKind::kMipmappedArray)) {
    arena_->Free(slot);
  }
  MutexLock lock(&owned_mutex_);
  mipmapped_arrays_.erase(array);
}

absl::StatusOr<Link*> Session::FindLink(CUlinkState link) const {
  HandleSlot* slot = arena_->Find(link, HandleKind::kLink);
  if (slot == nullptr) return BadHandle("link", link);
  return static_cast<Link*>(slot->object);
}

absl::StatusOr<Link*> Session::NewLink() {
  ASSIGN_OR_RETURN(HandleSlot * slot, NewSlot());
  auto link = std::make_unique<Link>();
  link->id.value = NewId();
  link->handle = AsHandle<CUlinkState>(slot);
  link->context = CurrentThread().current();
  Link* made = link.get();
  {
    MutexLock lock(&owned_mutex_);
    links_[made] = std::move(link);
  }
  Publish(slot, HandleKind::kLink, made->id.value, made);
  return made;
}

void Session::Delete(Link* link) {
  if (HandleSlot* slot = arena_->Find(link->handle, HandleKind::kLink)) arena_->Free(slot);
  MutexLock lock(&owned_mutex_);
  links_.erase(link);
}

void Session::DropObjectsOf(const Context& context) {
  shared_.RemoveContext(context.handle);
  host_memory_.RemoveShared(context.handle);
  device_memory_.RemoveContext(context.handle);
  textures_.RemoveContext(context.handle);
  surfaces_.RemoveContext(context.handle);
  std::vector<Module*> modules;
  std::vector<Array*> arrays;
  std::vector<MipmappedArray*> mipmapped_arrays;
  {
    MutexLock lock(&owned_mutex_);
    for (const auto& [key, module] : modules_) {
      if (module->context == context.handle) modules.push_back(module.get());
    }
    for (const auto& [key, array] : arrays_) {
      if (array->context == context.handle && !array->of_mipmap) arrays.push_back(array.get());
    }
    for (const auto& [key, array] : mipmapped_arrays_) {
      if (array->context == context.handle) mipmapped_arrays.push_back(array.get());
    }
  }
  for (Module* module : modules) Delete(module);
  for (Array* array : arrays) Delete(array);
  for (MipmappedArray* array : mipmapped_arrays) Delete(array);
}

absl::StatusOr<Function*> Session::AddFunction(FunctionSet* set, const wire::FunctionInfo& info,
                                               wire::FunctionId id) {
  if (info.param_offsets.size() != info.param_sizes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("function ", info.name, " has ", info.param_offsets.size(),
                     " parameter offsets and ", info.param_sizes.size(), " sizes"));
  }
  auto function = std::make_unique<Function>();
  function->id = id;
  function->name = info.name;
  function->module = set->module;
  function->library = set->library;
  function->param_offsets = info.param_offsets;
  function->param_sizes = info.param_sizes;
  for (size_t i = 0; i < info.param_sizes.size(); ++i) {
    // In 64 bits: both numbers are the worker's.
    const uint64_t end = uint64_t{info.param_offsets[i]} + info.param_sizes[i];
    if (end > kMaxParameterBytes) {
      return absl::InvalidArgumentError(absl::StrCat("parameter ", i, " of function ", info.name,
                                                     " ends at byte ", end, " of at most ",
                                                     kMaxParameterBytes));
    }
    function->param_bytes = std::max<size_t>(function->param_bytes, end);
  }
  function->attribute_count = static_cast<int>(info.attributes.size());
  function->attributes = std::make_unique<std::atomic<int32_t>[]>(info.attributes.size());
  for (size_t i = 0; i < info.attributes.size(); ++i) {
    function->attributes[i].store(info.attributes[i], std::memory_order_relaxed);
  }
  ASSIGN_OR_RETURN(HandleSlot * slot, NewSlot());
  function->handle = AsHandle<CUfunction>(slot);
  Publish(slot, HandleKind::kFunction, id.value, function.get());
  Function* added = function.get();
  set->functions.push_back(std::move(function));
  set->by_name[added->name] = added;
  return added;
}

absl::Status Session::EnsureLoaded(FunctionSet* set) {
  if (set->pending != nullptr) {
    calls_.CountRoundTrip();
    const absl::Status waited = calls_.Wait(set->pending.get());
    const std::unique_ptr<PendingReply> pending = std::move(set->pending);
    if (!waited.ok()) {
      set->load_result = ToCuResult(waited);
      return waited;
    }
    set->load_result = pending->result;
    if (set->load_result == CUDA_SUCCESS) {
      wire::LibraryLoadDataReply reply;
      RETURN_IF_ERROR(DecodeReply(*pending, &reply));
      RETURN_IF_ERROR(AddListedFunctions(*this, set, reply.functions));
    }
  }
  return FromCuResult(set->load_result, "cuLibraryLoadData of this library");
}

bool Session::IsDeviceAddress(uintptr_t address) const {
  // A module's variables may lie outside: the driver, not the worker, places them.
  if (window_.Contains(address)) {
    const std::optional<MemoryRange> pinned = host_memory_.Find(address);
    return !pinned.has_value();
  }
  return device_memory_.Find(address).has_value();
}

void Session::SayGoodbye() { calls_.SayGoodbye(absl::Milliseconds(200)); }

void Session::AbandonAfterFork() {
  shared_.AbandonAfterFork();
  if (control_ != nullptr) control_->AbandonAfterFork();
  calls_.AbandonAfterFork();
}

}  // namespace fargpu::client
