// Pinned and registered host memory is memory of this process; the card gets memory for it when a
// kernel needs it (shared_memory.h). What the program may ask about it is kept, and which copies
// may overtake the program is decided by it.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "absl/strings/str_cat.h"

#include "client/cuda/arguments.h"
#include "client/cuda/copying.h"
#include "client/cuda/edge.h"
#include "client/cuda/session.h"
#include "client_api.h"

namespace fargpu::client::api {
namespace {

size_t RoundUpToPage(size_t bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

void GiveBack(Session& session, const MemoryRange& range) {
  if (range.shared) {
    session.shared().Free(range.begin);
  } else {
    session.shared().Unmap(range.begin);
    munmap(reinterpret_cast<void*>(range.begin), RoundUpToPage(range.bytes));
  }
}

absl::Status AllocateHost(Session& session, void** pp, size_t bytesize, unsigned flags) {
  RETURN_IF_ERROR(NotNull(pp, "pp"));
  constexpr unsigned kKnown =
      CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
  if (bytesize == 0 || (flags & ~kKnown) != 0) {
    return CudaError(CUDA_ERROR_INVALID_VALUE,
                     absl::StrCat(bytesize, " bytes with flags 0x", absl::Hex(flags)));
  }
  ASSIGN_OR_RETURN(const Context* context, session.CurrentActive());
  MemoryRange range{.bytes = bytesize,
                    .context = context->handle,
                    .device = context->device,
                    // All of it is mapped, as unified addressing has it.
                    .flags = flags | CU_MEMHOSTALLOC_DEVICEMAP,
                    .ours = true};
  // At an address that the card can have too, or else anywhere: then it has two.
  const absl::StatusOr<uintptr_t> shared = session.shared().AllocatePinned(bytesize);
  if (shared.ok()) {
    range.begin = *shared;
    range.shared = true;
  } else {
    RETURN_IF_ERROR(session.calls().status());
    const size_t mapped = RoundUpToPage(bytesize);
    void* memory = mapped < bytesize ? MAP_FAILED
                                     : mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      return CudaError(CUDA_ERROR_OUT_OF_MEMORY, absl::StrCat(bytesize, " bytes of host memory"));
    }
    range.begin = reinterpret_cast<uintptr_t>(memory);
  }
  absl::Status made = session.host_memory().Insert(range);
  // What asks to be mapped is reachable from kernels by pointers that they find in memory, too.
  if (made.ok() && (flags & CU_MEMHOSTALLOC_DEVICEMAP) != 0) {
    made = session.shared().Map(range.begin, range.begin, bytesize).status();
    if (!made.ok()) session.host_memory().Remove(range.begin);
  }
  if (!made.ok()) {
    GiveBack(session, range);
    return made;
  }
  *pp = reinterpret_cast<void*>(range.begin);
  return absl::OkStatus();
}

// Takes memory out of the table, after everything that the card still writes into it has come.
absl::StatusOr<MemoryRange> Withdraw(Session& session, void* p, bool ours, CUresult none) {
  const std::optional<MemoryRange> range =
      session.host_memory().Find(reinterpret_cast<uintptr_t>(p));
  if (!range.has_value() || range->begin != reinterpret_cast<uintptr_t>(p) || range->ours != ours) {
    return CudaError(none, absl::StrCat("0x", absl::Hex(reinterpret_cast<uintptr_t>(p)),
                                        " begins no such host memory"));
  }
  SettleHostMemory(session, p, range->bytes);
  // Kernels that still run may write to it. A broken context says so elsewhere.
  if (session.shared().active()) SynchronizeContext(session).IgnoreError();
  session.host_memory().Remove(range->begin);
  return *range;
}

// One attribute of a pointer. The program's memory is written through memcpy: it need not be
// aligned for what we think the type is.
template <typename T>
absl::Status Give(void* data, T value) {
  std::memcpy(data, &value, sizeof(value));
  return absl::OkStatus();
}

// The runtime passes an int that it has not set for what cuda.h calls a boolean.
absl::Status GiveBoolean(void* data, bool value) { return Give<unsigned>(data, value ? 1 : 0); }

struct PointerFacts {
  std::optional<MemoryRange> device;
  std::optional<MemoryRange> host;
  const std::optional<MemoryRange>& range() const { return device.has_value() ? device : host; }
};

PointerFacts Look(Session& session, CUdeviceptr ptr) {
  PointerFacts facts{.device = session.device_memory().Find(ptr),
                     .host = session.host_memory().Find(ptr)};
  // Device memory that no call of ours made: a module's variables, what kernels allocate.
  if (!facts.device.has_value() && !facts.host.has_value() && session.window().known() &&
      session.window().Contains(ptr)) {
    facts.device = MemoryRange{.begin = ptr, .bytes = 1, .context = session.current_context()};
  }
  return facts;
}

// CUDA_ERROR_INVALID_VALUE: this attribute has no value for this pointer.
absl::Status PointerAttribute(Session& session, const PointerFacts& facts,
                              CUpointer_attribute attribute, CUdeviceptr ptr, void* data) {
  const std::optional<MemoryRange>& range = facts.range();
  const auto none = [&] {
    return CudaError(
        CUDA_ERROR_INVALID_VALUE,
        absl::StrCat("0x", absl::Hex(ptr), " has no attribute ", static_cast<int>(attribute)));
  };
  if (!range.has_value()) return none();
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return Give(data, range->context);
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return Give<unsigned>(data,
                            facts.device.has_value() ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: {
      if (facts.device.has_value() || facts.host->shared) return Give(data, ptr);
      // Memory of the program's has another address on the card, from when it is asked for.
      ASSIGN_OR_RETURN(const CUdeviceptr mapped,
                       session.shared().Map(ptr, range->begin, range->bytes));
      return Give(data, mapped);
    }
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (facts.device.has_value() && !range->managed) return none();
      return Give(data, reinterpret_cast<void*>(ptr));
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return GiveBoolean(data, range->managed);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return GiveBoolean(data, false);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      // Both tables count for themselves.
      return Give<unsigned long long>(data, range->number * 2 + (facts.device.has_value() ? 1 : 0));
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return Give<int>(data, range->device);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return Give<CUdeviceptr>(data, range->begin);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return Give<size_t>(data, range->bytes);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return GiveBoolean(data, true);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return Give<unsigned long long>(data, 0);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return Give<unsigned>(data, CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return Give<CUmemoryPool>(data, nullptr);
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      return CudaError(CUDA_ERROR_NOT_SUPPORTED, "tokens for peers of this machine");
  }
  return none();
}

// What cuPointerGetAttributes writes where there is no value.
absl::Status NoValue(CUpointer_attribute attribute, void* data) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return Give<unsigned>(data, 0);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return Give<int>(data, CU_DEVICE_INVALID);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return GiveBoolean(data, false);
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return Give<unsigned>(data, CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE);
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      return CudaError(CUDA_ERROR_NOT_SUPPORTED, "tokens for peers of this machine");
    default:
      return Give<uint64_t>(data, 0);
  }
}

}  // namespace

CUresult cuMemAllocHost_v2(void** pp, size_t bytesize) {
  return AtCudaEdge("cuMemAllocHost_v2", [&](Session& session) -> absl::Status {
    return AllocateHost(session, pp, bytesize, 0);
  });
}

CUresult cuMemHostAlloc(void** pp, size_t bytesize, unsigned int Flags) {
  return AtCudaEdge("cuMemHostAlloc", [&](Session& session) -> absl::Status {
    return AllocateHost(session, pp, bytesize, Flags);
  });
}

CUresult cuMemFreeHost(void* p) {
  return AtCudaEdge("cuMemFreeHost", [&](Session& session) -> absl::Status {
    if (p == nullptr) return absl::OkStatus();
    ASSIGN_OR_RETURN(const MemoryRange range,
                     Withdraw(session, p, /*ours=*/true, CUDA_ERROR_INVALID_VALUE));
    GiveBack(session, range);
    return absl::OkStatus();
  });
}

CUresult cuMemHostRegister_v2(void* p, size_t bytesize, unsigned int Flags) {
  return AtCudaEdge("cuMemHostRegister_v2", [&](Session& session) -> absl::Status {
    constexpr unsigned kKnown = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                                CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;
    const auto begin = reinterpret_cast<uintptr_t>(p);
    if (p == nullptr || bytesize == 0 || begin + bytesize < begin || (Flags & ~kKnown) != 0) {
      return CudaError(CUDA_ERROR_INVALID_VALUE,
                       absl::StrCat(bytesize, " bytes with flags 0x", absl::Hex(Flags)));
    }
    if ((Flags & (CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY)) != 0) {
      return CudaError(CUDA_ERROR_NOT_SUPPORTED, absl::StrCat("flags 0x", absl::Hex(Flags)));
    }
    ASSIGN_OR_RETURN(const Context* context, session.CurrentActive());
    return session.host_memory().Insert({.begin = begin,
                                         .bytes = bytesize,
                                         .context = context->handle,
                                         .device = context->device,
                                         .flags = Flags,
                                         .ours = false});
  });
}

CUresult cuMemHostUnregister(void* p) {
  return AtCudaEdge("cuMemHostUnregister", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(p, "p"));
    ASSIGN_OR_RETURN(const MemoryRange range,
                     Withdraw(session, p, /*ours=*/false, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED));
    session.shared().Unmap(range.begin);
    return absl::OkStatus();
  });
}

CUresult cuMemHostRegister(void* p, size_t bytesize, unsigned int Flags) {
  return api::cuMemHostRegister_v2(p, bytesize, Flags);
}

CUresult cuMemHostGetFlags(unsigned int* pFlags, void* p) {
  return AtCudaEdge("cuMemHostGetFlags", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(pFlags, "pFlags"));
    const std::optional<MemoryRange> range =
        session.host_memory().Find(reinterpret_cast<uintptr_t>(p));
    if (!range.has_value()) {
      return CudaError(CUDA_ERROR_INVALID_VALUE, "no pinned host memory lies there");
    }
    *pFlags = range->flags;
    return absl::OkStatus();
  });
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* pdptr, void* p, unsigned int Flags) {
  return AtCudaEdge("cuMemHostGetDevicePointer_v2", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(pdptr, "pdptr"));
    RETURN_IF_ERROR(NotNull(p, "p"));
    if (Flags != 0) return CudaError(CUDA_ERROR_INVALID_VALUE, "flags must be 0");
    const auto address = reinterpret_cast<uintptr_t>(p);
    const std::optional<MemoryRange> range = session.host_memory().Find(address);
    if (!range.has_value()) {
      return CudaError(CUDA_ERROR_INVALID_VALUE,
                       absl::StrCat("0x", absl::Hex(address), " is not pinned host memory"));
    }
    ASSIGN_OR_RETURN(*pdptr, session.shared().Map(address, range->begin, range->bytes));
    return absl::OkStatus();
  });
}

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  return AtCudaEdge("cuPointerGetAttribute", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(data, "data"));
    return PointerAttribute(session, Look(session, ptr), attribute, ptr, data);
  });
}

CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute* attributes,
                                void** data, CUdeviceptr ptr) {
  return AtCudaEdge("cuPointerGetAttributes", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(attributes, "attributes"));
    RETURN_IF_ERROR(NotNull(data, "data"));
    const PointerFacts facts = Look(session, ptr);
    for (unsigned i = 0; i < numAttributes; ++i) {
      RETURN_IF_ERROR(NotNull(data[i], "data[i]"));
      absl::Status given = PointerAttribute(session, facts, attributes[i], ptr, data[i]);
      // Pointers that nobody knows are no error here: the runtime asks about any.
      if (ToCuResult(given) == CUDA_ERROR_INVALID_VALUE) given = NoValue(attributes[i], data[i]);
      RETURN_IF_ERROR(given);
    }
    return absl::OkStatus();
  });
}

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr ptr) {
  return AtCudaEdge("cuPointerSetAttribute", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(value, "value"));
    // The only one that can be set. Synchronous copies are synchronous already.
    if (attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS ||
        !session.device_memory().Find(ptr).has_value()) {
      return CudaError(
          CUDA_ERROR_INVALID_VALUE,
          absl::StrCat("attribute ", static_cast<int>(attribute), " of 0x", absl::Hex(ptr)));
    }
    return absl::OkStatus();
  });
}

}  // namespace fargpu::client::api
