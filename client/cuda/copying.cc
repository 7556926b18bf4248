#include "client/cuda/copying.h"

#include <cstring>
#include <deque>

#include "absl/strings/str_cat.h"

#include "client/cuda/box_copy.h"
#include "client/cuda/capture.h"
#include "common/log.h"

namespace fargpu::client {
namespace {

bool IsPinned(Session& session, const void* memory, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  const std::optional<MemoryRange> range = session.host_memory().Find(begin);
  return range.has_value() && bytes <= range->end() - begin;
}

// Adds a copy of one run of bytes to the graph of a stream that is being captured.
absl::Status CaptureRun(Session& session, wire::StreamId stream, FoundSide::Kind to_kind,
                        uint64_t to, FoundSide::Kind from_kind, uint64_t from, size_t bytes) {
  const auto side = [&](FoundSide::Kind kind, uint64_t address) {
    FoundSide found;
    found.kind = kind;
    found.address = address;
    found.pitch = bytes;
    found.slice = bytes;
    return found;
  };
  return CaptureCopy(session, stream,
                     {.to = side(to_kind, to),
                      .from = side(from_kind, from),
                      .shape = {.width = bytes, .height = 1, .depth = 1}});
}

wire::StreamId ToStream(DefaultStream default_stream) {
  const CUstream handle =
      default_stream == DefaultStream::kPerThread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
  return {reinterpret_cast<uint64_t>(handle)};
}

absl::Status CheckHostPointer(const void* memory) {
  if (memory != nullptr) return absl::OkStatus();
  return CudaError(CUDA_ERROR_INVALID_VALUE, "the host pointer is null");
}

// Host memory that the card has too: then the card copies, see OnCard().
CUdeviceptr OnCard(Session& session, const void* host, size_t bytes) {
  return session.shared().OnCard(reinterpret_cast<uintptr_t>(host), bytes);
}

}  // namespace

absl::Status SynchronizeContext(Session& session) {
  const RelaxedScope relaxed;  // the program has not asked for this
  wire::CtxSynchronizeRequest request;
  wire::CtxSynchronizeReply reply;
  return session.Call(request, &reply);
}

absl::Status SettleShared(Session& session, CUdeviceptr address, size_t bytes) {
  if (!session.shared().Holds(address, bytes)) return absl::OkStatus();
  return SynchronizeContext(session);
}

void SettleDeliveries(Session& session, const void* memory, size_t bytes) {
  if (!session.calls().deliveries().Overlaps(memory, bytes)) return;
  if (const absl::Status settled = SynchronizeContext(session); !settled.ok()) {
    FARGPU_LOG(kDebug, "waiting for copies into host memory: ", settled.ToString());
  }
  // What still has not come belongs to a copy that failed, or to another context.
  session.calls().deliveries().Cancel(memory, bytes);
}

void SettleHostMemory(Session& session, const void* memory, size_t bytes) {
  HostFunctions& sources = session.calls().host_functions();
  if (sources.Reads(memory, bytes)) {
    if (const absl::Status settled = SynchronizeContext(session); !settled.ok()) {
      FARGPU_LOG(kDebug, "waiting for copies out of host memory: ", settled.ToString());
    }
    // What is still to come belongs to a copy that failed, or to another context.
    sources.GiveUp(memory, bytes);
  }
  SettleDeliveries(session, memory, bytes);
}

absl::Status SettleSource(Session& session, const void* memory, size_t bytes,
                          wire::StreamId stream) {
  SettleDeliveries(session, memory, bytes);
  if (!session.calls().host_functions().any_pending()) return absl::OkStatus();
  return SynchronizeStream(session, stream);
}

bool MustPull(Session& session, const void* memory, size_t bytes) {
  CallStream& calls = session.calls();
  return (calls.host_functions().any_pending() || calls.deliveries().Overlaps(memory, bytes)) &&
         IsPinned(session, memory, bytes);
}

absl::Status PullBox(Session& session, const wire::BoxPlace& to, const HostBox& from,
                     wire::StreamId stream) {
  HostFunctions& sources = session.calls().host_functions();
  const uint64_t token = sources.AddSource(from, HostFunctions::Fetched::kOnce);
  const absl::Status sent = session.Send(
      wire::CopyBoxPullRequest{.to = to, .shape = from.shape, .stream = stream, .token = token});
  if (!sent.ok()) sources.Forget(token);
  return sent;
}

absl::Status CheckDeviceRange(Session& session, CUdeviceptr address, size_t bytes) {
  // Pinned memory has the same address on the card, and memory there from now on.
  if (const std::optional<MemoryRange> pinned = session.host_memory().Find(address);
      pinned.has_value() && pinned->shared) {
    if (bytes > pinned->end() - address) {
      return CudaError(CUDA_ERROR_INVALID_VALUE,
                       absl::StrCat(bytes, " bytes at 0x", absl::Hex(address), " end after the ",
                                    pinned->bytes, " bytes of pinned memory there"));
    }
    return session.shared().Map(address, pinned->begin, pinned->bytes).status();
  }
  if (const std::optional<MemoryRange> range = session.device_memory().Find(address)) {
    if (range->reserved || bytes <= range->end() - address) return absl::OkStatus();
    return CudaError(CUDA_ERROR_INVALID_VALUE,
                     absl::StrCat(bytes, " bytes at 0x", absl::Hex(address), " end after the ",
                                  range->bytes, " bytes at 0x", absl::Hex(range->begin)));
  }
  // Variables of modules and memory that kernels allocate are not known here, but lie inside.
  if (!session.window().known()) return absl::OkStatus();
  const CUdeviceptr last = address + (bytes > 0 ? bytes - 1 : 0);
  if (last >= address && session.window().Contains(address) && session.window().Contains(last)) {
    return absl::OkStatus();
  }
  return CudaError(CUDA_ERROR_INVALID_VALUE,
                   absl::StrCat("0x", absl::Hex(address), " is no device memory"));
}

absl::Status CopyHostToDevice(Session& session, CUdeviceptr to, const void* from, size_t bytes,
                              DefaultStream default_stream) {
  if (const CUdeviceptr on_card = OnCard(session, from, bytes)) {
    return CopyDeviceToDevice(session, to, on_card, bytes, default_stream);
  }
  RETURN_IF_ERROR(session.CurrentActive().status());
  if (bytes == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckHostPointer(from));
  RETURN_IF_ERROR(CheckDeviceRange(session, to, bytes));
  RETURN_IF_ERROR(SettleSource(session, from, bytes, ToStream(default_stream)));
  RETURN_IF_ERROR(session.SendBulk(
      absl::MakeConstSpan(static_cast<const char*>(from), bytes), [&](size_t offset, size_t size) {
        return wire::MemcpyHtoDV2Request{.dstDevice = to + offset,
                                         .ByteCount = size,
                                         .per_thread = default_stream == DefaultStream::kPerThread};
      }));
  return SettleShared(session, to, bytes);
}

absl::Status CopyDeviceToHost(Session& session, void* to, CUdeviceptr from, size_t bytes,
                              DefaultStream default_stream) {
  if (const CUdeviceptr on_card = OnCard(session, to, bytes)) {
    return CopyDeviceToDevice(session, on_card, from, bytes, default_stream);
  }
  RETURN_IF_ERROR(session.CurrentActive().status());
  if (bytes == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckHostPointer(to));
  RETURN_IF_ERROR(CheckDeviceRange(session, from, bytes));
  // All chunks are asked for at once, so that however long the copy is, it waits for one round
  // trip. The deque keeps what is in it where it is.
  std::deque<PendingReply> chunks;
  absl::Status status;
  for (size_t offset = 0; offset < bytes && status.ok(); offset += Session::kChunkBytes) {
    const size_t size = std::min(Session::kChunkBytes, bytes - offset);
    PendingReply& chunk = chunks.emplace_back();
    chunk.bulk = absl::MakeSpan(static_cast<char*>(to) + offset, size);
    status = session.Send(
        wire::MemcpyDtoHV2Request{.srcDevice = from + offset,
                                  .ByteCount = size,
                                  .per_thread = default_stream == DefaultStream::kPerThread},
        &chunk);
    if (!status.ok()) chunks.pop_back();
  }
  session.calls().CountRoundTrip();
  // Every chunk is waited for, whatever became of the others: its reply writes into our caller's
  // memory.
  for (PendingReply& chunk : chunks) {
    absl::Status waited = session.calls().Wait(&chunk);
    if (waited.ok()) waited = session.ResultOf("cuMemcpyDtoH_v2", chunk);
    if (status.ok()) status = waited;
  }
  if (!status.ok()) return status;
  // The program knows that what it queued before is done.
  return session.AfterWait(wire::MemcpyDtoHV2Request::kOp);
}

absl::Status CopyDeviceToDevice(Session& session, CUdeviceptr to, CUdeviceptr from, size_t bytes,
                                DefaultStream default_stream) {
  RETURN_IF_ERROR(session.CurrentActive().status());
  if (bytes == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckDeviceRange(session, to, bytes));
  RETURN_IF_ERROR(CheckDeviceRange(session, from, bytes));
  const wire::StreamId stream = ToStream(default_stream);
  if (IsCapturing(session, stream)) {
    return CaptureRun(session, stream, FoundSide::Kind::kDevice, to, FoundSide::Kind::kDevice, from,
                      bytes);
  }
  RETURN_IF_ERROR(session.Send(
      wire::MemcpyDtoDV2Request{.dstDevice = to,
                                .srcDevice = from,
                                .ByteCount = bytes,
                                .per_thread = default_stream == DefaultStream::kPerThread}));
  return SettleShared(session, to, bytes);
}

absl::Status CopyHostToDeviceAsync(Session& session, CUdeviceptr to, const void* from, size_t bytes,
                                   wire::StreamId stream) {
  if (const CUdeviceptr on_card = OnCard(session, from, bytes)) {
    return CopyDeviceToDeviceAsync(session, to, on_card, bytes, stream);
  }
  RETURN_IF_ERROR(session.CurrentActive().status());
  if (bytes == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckHostPointer(from));
  RETURN_IF_ERROR(CheckDeviceRange(session, to, bytes));
  if (IsCapturing(session, stream)) {
    return CaptureRun(session, stream, FoundSide::Kind::kDevice, to, FoundSide::Kind::kHost,
                      reinterpret_cast<uint64_t>(from), bytes);
  }
  if (MustPull(session, from, bytes)) {
    char* const memory = const_cast<char*>(static_cast<const char*>(from));
    wire::BoxPlace place;
    place.address = to;
    place.pitch = bytes;
    place.rows = 1;
    return PullBox(session, place,
                   {.address = memory,
                    .pitch = bytes,
                    .slice = bytes,
                    .shape = {.width = bytes, .height = 1, .depth = 1}},
                   stream);
  }
  RETURN_IF_ERROR(SettleSource(session, from, bytes, stream));
  return session.SendBulk(absl::MakeConstSpan(static_cast<const char*>(from), bytes),
                          [&](size_t offset, size_t size) {
                            return wire::MemcpyHtoDAsyncV2Request{
                                .dstDevice = to + offset, .ByteCount = size, .hStream = stream};
                          });
}

absl::Status CopyDeviceToHostAsync(Session& session, void* to, CUdeviceptr from, size_t bytes,
                                   wire::StreamId stream) {
  if (const CUdeviceptr on_card = OnCard(session, to, bytes)) {
    return CopyDeviceToDeviceAsync(session, on_card, from, bytes, stream);
  }
  RETURN_IF_ERROR(session.CurrentActive().status());
  if (bytes == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckHostPointer(to));
  RETURN_IF_ERROR(CheckDeviceRange(session, from, bytes));
  if (IsCapturing(session, stream)) {
    return CaptureRun(session, stream, FoundSide::Kind::kHost, reinterpret_cast<uint64_t>(to),
                      FoundSide::Kind::kDevice, from, bytes);
  }
  // CUDA promises that a copy into pageable memory is complete when the call returns: a program may
  // free the memory right away.
  const bool pinned = IsPinned(session, to, bytes);
  const uint64_t token = session.calls().deliveries().Expect(to, bytes);
  absl::Status status;
  for (size_t offset = 0; offset < bytes && status.ok(); offset += Session::kChunkBytes) {
    const size_t size = std::min(Session::kChunkBytes, bytes - offset);
    status = session.Send(wire::MemcpyDtoHAsyncV2Request{.srcDevice = from + offset,
                                                         .ByteCount = size,
                                                         .hStream = stream,
                                                         .delivery = token,
                                                         .offset = offset});
  }
  if (status.ok() && !pinned) status = SynchronizeStream(session, stream);
  if (!status.ok()) session.calls().deliveries().Cancel(to, bytes);
  return status;
}

absl::Status CopyDeviceToDeviceAsync(Session& session, CUdeviceptr to, CUdeviceptr from,
                                     size_t bytes, wire::StreamId stream) {
  RETURN_IF_ERROR(session.CurrentActive().status());
  if (bytes == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckDeviceRange(session, to, bytes));
  RETURN_IF_ERROR(CheckDeviceRange(session, from, bytes));
  if (IsCapturing(session, stream)) {
    return CaptureRun(session, stream, FoundSide::Kind::kDevice, to, FoundSide::Kind::kDevice, from,
                      bytes);
  }
  return session.Send(wire::MemcpyDtoDAsyncV2Request{
      .dstDevice = to, .srcDevice = from, .ByteCount = bytes, .hStream = stream});
}

absl::Status CopyUnifiedAsync(Session& session, CUdeviceptr to, CUdeviceptr from, size_t bytes,
                              wire::StreamId stream) {
  const auto host = [](CUdeviceptr address) { return reinterpret_cast<void*>(address); };
  const bool to_device = session.IsDeviceAddress(to);
  const bool from_device = session.IsDeviceAddress(from);
  if (to_device && from_device) return CopyDeviceToDeviceAsync(session, to, from, bytes, stream);
  if (to_device) return CopyHostToDeviceAsync(session, to, host(from), bytes, stream);
  if (from_device) return CopyDeviceToHostAsync(session, host(to), from, bytes, stream);
  RETURN_IF_ERROR(session.CurrentActive().status());
  if (bytes == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckHostPointer(host(to)));
  RETURN_IF_ERROR(CheckHostPointer(host(from)));
  if (IsCapturing(session, stream)) {
    return CaptureRun(session, stream, FoundSide::Kind::kHost, to, FoundSide::Kind::kHost, from,
                      bytes);
  }
  // In the order of the stream: what it wrote before must be here.
  RETURN_IF_ERROR(SynchronizeStream(session, stream));
  std::memmove(host(to), host(from), bytes);
  return absl::OkStatus();
}

absl::Status CaptureFill(Session& session, wire::StreamId stream,
                         const CUDA_MEMSET_NODE_PARAMS_v2& params) {
  ASSIGN_OR_RETURN(const Context* context, session.CurrentActive());
  FillWork work;
  work.params = params;
  work.context = context->id;
  return CaptureWork(session, stream, std::move(work));
}

absl::Status SynchronizeStream(Session& session, wire::StreamId stream) {
  wire::StreamSynchronizeRequest request{.hStream = stream};
  wire::StreamSynchronizeReply reply;
  return session.Call(request, &reply);
}

}  // namespace fargpu::client
