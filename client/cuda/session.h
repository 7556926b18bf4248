#pragma once

#include <algorithm>
#include <cstdint>
#include <cuda.h>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "client/cuda/call_stream.h"
#include "client/cuda/capture_rules.h"
#include "client/cuda/default_stream.h"
#include "client/cuda/device_table.h"
#include "client/cuda/graph.h"
#include "client/cuda/handle_arena.h"
#include "client/cuda/mem_pools.h"
#include "client/cuda/memory_tables.h"
#include "client/cuda/objects.h"
#include "client/cuda/shared_memory.h"
#include "client/cuda/stream_attributes.h"
#include "client/cuda/thread_state.h"
#include "common/cuda_error.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "messages.h"
#include "protocol/driver_abi/managed_ranges.h"
#include "protocol/handshake.h"
#include "transport/connection.h"
#include "transport/link.h"

namespace fargpu::client {

// Keeps the control socket open, whose end tells the daemon that this process is gone.
class ControlHold {
 public:
  virtual ~ControlHold() = default;
  // In the child of a fork: closes its copy.
  virtual void AbandonAfterFork() = 0;
};

// What connecting gives.
struct SessionParts {
  Welcome welcome;
  std::unique_ptr<transport::Connection> connection;
  std::unique_ptr<ControlHold> control;  // may be null in tests
  transport::LinkOptions link_options;
};

// A program's session with one worker: its devices, the objects it made there and the calls on
// their way. Edge functions reach it through AtCudaEdge(). Any thread may call anything.
class Session {
 public:
  // Ids below are CUDA's special stream handles.
  static constexpr uint64_t kFirstId = 16;
  // Ids kept free for the functions of one load.
  static constexpr uint64_t kFunctionsOfALoad = 65536;
  // Bulk bytes travel in pieces of at most so many.
  static constexpr size_t kChunkBytes = 1 << 20;

  static absl::StatusOr<std::unique_ptr<Session>> Create(SessionParts parts);
  ~Session();

  // Ids of handles: CUDA_ERROR_INVALID_HANDLE, or CUDA_ERROR_INVALID_CONTEXT for a context.
  absl::Status ToWire(CUstream stream, DefaultStream default_stream, wire::StreamId* id) const;
  absl::Status ToWire(CUevent event, wire::EventId* id) const;
  absl::Status ToWire(CUcontext context, wire::ContextId* id) const;
  absl::Status ToWire(CUmodule module, wire::ModuleId* id) const;
  absl::Status ToWire(CUlibrary library, wire::LibraryId* id) const;
  absl::Status ToWire(CUfunction function, wire::FunctionId* id) const;

  // A new handle and the id that names it on the wire. The current context owns it.
  absl::Status Create(CUstream* stream, wire::StreamId* id);
  absl::Status Create(CUevent* event, wire::EventId* id);
  void Destroy(CUstream stream);
  void Destroy(CUevent event);

  // Sends a call that nobody waits for.
  template <typename Request>
  absl::Status Send(const Request& request) {
    RETURN_IF_ERROR(PrepareMemory<Request>());
    wire::CallHeader header;
    RETURN_IF_ERROR(FillHeader(Request::kNeedsContext, &header));
    RETURN_IF_ERROR(CheckCaptures(request));
    return calls_.Send(header, request);
  }
  // Sends a call whose reply WaitFor() takes later.
  template <typename Request>
  absl::Status Send(const Request& request, PendingReply* pending) {
    RETURN_IF_ERROR(PrepareMemory<Request>());
    wire::CallHeader header;
    RETURN_IF_ERROR(FillHeader(Request::kNeedsContext, &header));
    RETURN_IF_ERROR(CheckCaptures(request));
    return calls_.Send(header, request, pending);
  }
  // One waiting round trip.
  template <typename Request>
  absl::Status Call(const Request& request, typename Request::Reply* reply) {
    PendingReply pending;
    RETURN_IF_ERROR(Send(request, &pending));
    calls_.CountRoundTrip();
    RETURN_IF_ERROR(calls_.Wait(&pending));
    RETURN_IF_ERROR(ResultOf(Request::kName, pending));
    RETURN_IF_ERROR(DecodeReply(pending, reply));
    if constexpr (MaySynchronize(Request::kOp)) return AfterWait(WaitKey(request));
    return absl::OkStatus();
  }
  // The program has waited for what `key` names: what kernels have written into memory of this
  // process is brought.
  absl::Status AfterWait(uint64_t key) {
    return shared_.active() ? shared_.AfterWait(key) : absl::OkStatus();
  }
  template <typename Reply>
  absl::Status DecodeReply(const PendingReply& pending, Reply* reply) {
    absl::Status decoded = wire::DecodePayload(absl::MakeConstSpan(pending.payload), reply);
    if (decoded.ok()) return decoded;
    calls_.Distrust(decoded);
    return calls_.status();
  }
  // The CUresult that a program sees for a call whose reply has come: its own, or else the first of
  // calls before it that nobody waited for.
  absl::Status ResultOf(const char* name, const PendingReply& pending);

  // Cuts `bytes` into chunks and sends each as the bulk of one call, which `request(offset, size)`
  // makes. Small runs are copied, large ones wait until they have left.
  template <typename MakeRequest>
  absl::Status SendBulk(absl::Span<const char> bytes, MakeRequest request) {
    RETURN_IF_ERROR((PrepareMemory<std::invoke_result_t<MakeRequest, size_t, size_t>>()));
    wire::CallHeader header;
    RETURN_IF_ERROR(
        FillHeader(std::invoke_result_t<MakeRequest, size_t, size_t>::kNeedsContext, &header));
    RETURN_IF_ERROR(CheckCaptures(request(0, 0)));
    const auto how =
        bytes.size() <= kCopiedBytes ? CallStream::Bulk::kCopied : CallStream::Bulk::kBorrowed;
    std::vector<transport::SendTicket> tickets;
    for (size_t offset = 0; offset < bytes.size(); offset += kChunkBytes) {
      const size_t size = std::min(kChunkBytes, bytes.size() - offset);
      const absl::StatusOr<transport::SendTicket> ticket =
          calls_.SendBulk(header, request(offset, size), bytes.subspan(offset, size), how);
      if (!ticket.ok()) return AfterBulk(tickets, ticket.status());
      if (how == CallStream::Bulk::kCopied) continue;
      tickets.push_back(*ticket);
      if (tickets.size() >= kBorrowedChunks) {
        RETURN_IF_ERROR(calls_.WaitSent(tickets[tickets.size() - kBorrowedChunks]));
      }
    }
    return AfterBulk(tickets, absl::OkStatus());
  }

  // Contexts. The current one belongs to the thread.
  CUcontext current_context() const { return CurrentThread().current(); }
  // CUDA_ERROR_INVALID_CONTEXT.
  absl::StatusOr<Context*> FindContext(CUcontext context) const;
  // The current one, which must be active: CUDA_ERROR_INVALID_CONTEXT or _CONTEXT_IS_DESTROYED.
  absl::StatusOr<Context*> CurrentActive() const;
  Context* primary(CUdevice device) { return primaries_[device]; }
  absl::StatusOr<Context*> AddContext(CUdevice device);
  void RemoveContext(Context* context);
  Mutex& context_mutex() ABSL_LOCK_RETURNED(context_mutex_) { return context_mutex_; }

  // Modules, libraries, functions.
  absl::StatusOr<Module*> FindModule(CUmodule module) const;
  absl::StatusOr<Library*> FindLibrary(CUlibrary library) const;
  absl::StatusOr<Function*> FindFunction(CUfunction function) const;
  // The session owns them; Delete() ends their handles and those of their functions.
  absl::StatusOr<Module*> NewModule();
  absl::StatusOr<Library*> NewLibrary();
  void Delete(Module* module);
  void Delete(Library* library);
  // Arrays. The session owns them; Delete() ends their handles, of a mipmapped array the levels'
  // too. CUDA_ERROR_INVALID_HANDLE.
  absl::StatusOr<Array*> FindArray(CUarray array) const;
  absl::StatusOr<MipmappedArray*> FindMipmappedArray(CUmipmappedArray array) const;
  absl::StatusOr<Array*> NewArray(wire::ArrayId id);
  absl::StatusOr<MipmappedArray*> NewMipmappedArray();
  void Delete(Array* array);
  void Delete(MipmappedArray* array);
  // Links in progress. CUDA_ERROR_INVALID_HANDLE.
  absl::StatusOr<Link*> FindLink(CUlinkState link) const;
  absl::StatusOr<Link*> NewLink();
  void Delete(Link* link);
  MemPools& pools() { return pools_; }
  Graphs& graphs() { return graphs_; }
  StreamAttributes& stream_attributes() { return stream_attributes_; }
  TextureTable& textures() { return textures_; }
  TextureTable& surfaces() { return surfaces_; }
  // What ends with a context: its modules and arrays, and what is known of its memory.
  void DropObjectsOf(const Context& context);
  // Adds what a worker told of a function. CUDA_ERROR_OUT_OF_MEMORY when handles have run out.
  absl::StatusOr<Function*> AddFunction(FunctionSet* set, const wire::FunctionInfo& info,
                                        wire::FunctionId id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(set->mutex);
  // Waits for the reply to a library's load if it has not been taken yet. The load's own result.
  absl::Status EnsureLoaded(FunctionSet* set) ABSL_EXCLUSIVE_LOCKS_REQUIRED(set->mutex);

  uint64_t NewId() { return next_id_.fetch_add(1, std::memory_order_relaxed); }
  wire::ArrayId NewArrayIds(unsigned count) {
    return {next_id_.fetch_add(count, std::memory_order_relaxed)};
  }
  wire::FunctionId NewFunctionIds() {
    return {next_id_.fetch_add(kFunctionsOfALoad, std::memory_order_relaxed)};
  }
  // The context that owns the object; of a default stream, the current one. nullptr: none.
  CUcontext ContextOf(CUstream stream) const {
    const HandleSlot* slot = FindStream(stream);
    return slot != nullptr ? slot->context : CurrentThread().current();
  }
  CUcontext ContextOf(CUevent event) const {
    const HandleSlot* slot = arena_->Find(event, HandleKind::kEvent);
    return slot != nullptr ? slot->context : nullptr;
  }
  const HandleSlot* FindStream(CUstream stream) const {
    return arena_->Find(stream, HandleKind::kStream);
  }
  HandleSlot* MutableStream(CUstream stream) { return arena_->Find(stream, HandleKind::kStream); }

  const DeviceTable& devices() const { return devices_; }
  MemoryTable& device_memory() { return device_memory_; }
  MemoryTable& host_memory() { return host_memory_; }
  PhysicalMemoryTable& physical_memory() { return physical_memory_; }
  const AddressWindow& window() const { return window_; }
  CallStream& calls() { return calls_; }
  SharedMemory& shared() { return shared_; }
  driver_abi::ManagedRanges& managed_ranges() { return managed_ranges_; }
  const Welcome& welcome() const { return welcome_; }

  // Is this address the card's: inside the window, or known as device memory?
  bool IsDeviceAddress(uintptr_t address) const;

  void SayGoodbye();
  void PrepareFork() { shared_.PrepareFork(); }
  void ParentAfterFork() { shared_.ParentAfterFork(); }
  void AbandonAfterFork();

 private:
  // Up to here a copy costs less than waiting for the bytes to leave.
  static constexpr size_t kCopiedBytes = 64 << 10;
  static constexpr size_t kBorrowedChunks = 16;

  Session(SessionParts parts, std::unique_ptr<HandleArena> arena, AddressWindow window);
  absl::Status MakePrimaryContexts();

  // Work on the card must find what the host has written.
  template <typename Request>
  absl::Status PrepareMemory() {
    if constexpr (MayTouchMemory(Request::kOp)) {
      if (shared_.active()) return shared_.BeforeWork();
    }
    return absl::OkStatus();
  }
  // What a call waits for: its kind, and the stream or event that it names.
  template <typename Request>
  static uint64_t WaitKey(const Request& request) {
    uint64_t id = 0;
    if constexpr (requires { request.hStream.value; }) id = request.hStream.value;
    if constexpr (requires { request.hEvent.value; }) id = request.hEvent.value;
    return uint64_t{Request::kOp} << 48 | (id & 0xffff'ffff'ffff);
  }

  template <typename Request>
  absl::Status CheckCaptures(const Request& request) {
    if (!graphs_.may_forbid()) return absl::OkStatus();
    return CheckAgainstCaptures(*this, request);
  }
  // Marks the current context if `result` is an error that breaks one.
  void NoteBroken(CUresult result);
  bool HasOneActiveContext();
  absl::Status FillHeader(bool needs_context, wire::CallHeader* header) const;
  // No memory of the caller is borrowed any more when this returns.
  absl::Status AfterBulk(absl::Span<const transport::SendTicket> tickets, absl::Status status);
  absl::StatusOr<HandleSlot*> NewSlot() const;
  void FreeHandlesOf(FunctionSet* set);

  const Welcome welcome_;
  const DeviceTable devices_;
  const std::unique_ptr<HandleArena> arena_;
  AddressWindow window_;
  std::unique_ptr<ControlHold> control_;
  std::atomic<uint64_t> next_id_{kFirstId};
  MemoryTable device_memory_;
  MemoryTable host_memory_;
  driver_abi::ManagedRanges managed_ranges_;
  PhysicalMemoryTable physical_memory_;
  // Taken before the locks of function sets.
  Mutex owned_mutex_;
  absl::flat_hash_map<const Module*, std::unique_ptr<Module>> modules_
      ABSL_GUARDED_BY(owned_mutex_);
  absl::flat_hash_map<const Library*, std::unique_ptr<Library>> libraries_
      ABSL_GUARDED_BY(owned_mutex_);
  absl::flat_hash_map<const Array*, std::unique_ptr<Array>> arrays_ ABSL_GUARDED_BY(owned_mutex_);
  absl::flat_hash_map<const MipmappedArray*, std::unique_ptr<MipmappedArray>> mipmapped_arrays_
      ABSL_GUARDED_BY(owned_mutex_);
  absl::flat_hash_map<const Link*, std::unique_ptr<Link>> links_ ABSL_GUARDED_BY(owned_mutex_);
  MemPools pools_;
  StreamAttributes stream_attributes_;
  TextureTable textures_;
  TextureTable surfaces_;
  // Contexts are few and stay: a thread may look at one while another destroys it. Taken before the
  // locks of calls_.
  Mutex context_mutex_;
  std::vector<std::unique_ptr<Context>> contexts_ ABSL_GUARDED_BY(context_mutex_);
  std::vector<Context*> primaries_;  // by device
  CallStream calls_;
  Graphs graphs_{this};        // goes before the calls with which it gives back memory
  SharedMemory shared_{this};  // goes first: its thread makes calls
};

}  // namespace fargpu::client
