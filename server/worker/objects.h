#pragma once

#include <cstdint>
#include <cuda.h>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/mutex.h"
#include "memory/lease_ledger.h"
#include "protocol/driver_abi/image.h"
#include "protocol/wire/codec.h"
#include "server/worker/graphs.h"

namespace fargpu::server {

// More objects of one kind than any program has; what a hostile client can make us remember.
inline constexpr size_t kMaxObjects = 1 << 20;

// The driver's objects of one kind under the ids that the client chose (DESIGN D4). Ids come from
// the network: any id may be asked for. Thread-safe.
template <typename Id, typename Value>
class ObjectTable {
 public:
  // `unknown` is the result for ids that name nothing.
  explicit ObjectTable(const char* kind, CUresult unknown = CUDA_ERROR_INVALID_HANDLE)
      : kind_(kind), unknown_(unknown) {}

  // `context` owns the object and takes it along when it goes; {} for none. kAlreadyExists when the
  // id is taken: no client of ours does that.
  absl::Status Insert(Id id, Value value, wire::ContextId context = {}) {
    MutexLock lock(&mutex_);
    if (entries_.size() >= kMaxObjects) {
      return CudaError(CUDA_ERROR_OUT_OF_MEMORY,
                       absl::StrCat(kMaxObjects, " objects of kind ", kind_, ", the limit"));
    }
    if (!entries_.try_emplace(id, Entry{std::move(value), context}).second) {
      return absl::AlreadyExistsError(absl::StrCat(kind_, " id ", id.value, " is in use"));
    }
    return absl::OkStatus();
  }
  absl::Status Find(Id id, Value* value) const {
    MutexLock lock(&mutex_);
    const auto entry = entries_.find(id);
    if (entry == entries_.end()) {
      return CudaError(unknown_, absl::StrCat("no ", kind_, " with id ", id.value));
    }
    *value = entry->second.value;
    return absl::OkStatus();
  }
  bool Erase(Id id) {
    MutexLock lock(&mutex_);
    return entries_.erase(id) != 0;
  }
  void EraseContext(wire::ContextId context) {
    EraseIf([context](const Value&, wire::ContextId owner) { return owner == context; });
  }
  template <typename Predicate>
  void EraseIf(Predicate predicate) {
    MutexLock lock(&mutex_);
    for (auto entry = entries_.begin(); entry != entries_.end();) {
      const auto next = std::next(entry);
      if (predicate(entry->second.value, entry->second.context)) entries_.erase(entry);
      entry = next;
    }
  }
  size_t size() const {
    MutexLock lock(&mutex_);
    return entries_.size();
  }

 private:
  struct Entry {
    Value value;
    wire::ContextId context;
  };
  const char* const kind_;
  const CUresult unknown_;
  mutable Mutex mutex_;
  absl::flat_hash_map<Id, Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

struct Context {
  CUcontext handle = nullptr;
  int device = 0;  // of the lease
  bool primary = false;
  int retains = 0;  // of a primary context, by us
};

// A kernel as far as launching goes. The parameters' layout does not change.
struct Function {
  CUfunction handle = nullptr;  // or a CUkernel, which every call that we make takes instead
  bool is_kernel = false;       // of a library
  uint64_t owner = 0;           // id of the library or module
  struct Layout {
    std::vector<uint32_t> offsets, sizes;
    size_t bytes = 0;  // of the parameter block
  };
  std::shared_ptr<const Layout> layout;  // shared with the launches that are under way
};

// The image must stay as long as the library (CU_LIBRARY_BINARY_IS_PRESERVED), whose entry goes
// last.
struct Library {
  CUlibrary handle = nullptr;
  std::shared_ptr<driver_abi::ReassembledImage> image;  // shared with calls under way
};
struct Module {
  CUmodule handle = nullptr;
  std::shared_ptr<driver_abi::ReassembledImage> image;  // likewise
  uint64_t library = 0;  // not 0: it is that library's and is never unloaded by itself
};

// Physical memory of cuMemCreate. The charge ends with the last of handle and mappings.
struct PhysicalMemory {
  CUmemGenericAllocationHandle handle = 0;
  uint64_t bytes = 0;
  int device = 0;
  std::shared_ptr<memory::Reservation> charge;  // shared by handle and mappings
};

// A CUDA array, or a level of a mipmapped one. The charge ends with the array.
struct Array {
  CUarray handle = nullptr;
  uint64_t mipmapped_array = 0;                 // not 0: a level of that one
  std::shared_ptr<memory::Reservation> charge;  // shared with calls under way
};
struct MipmappedArray {
  CUmipmappedArray handle = nullptr;
  std::shared_ptr<memory::Reservation> charge;  // likewise
};

// A link in progress, with the buffers that the driver writes its logs to.
struct Link {
  CUlinkState handle = nullptr;
  std::vector<CUjit_option> options;
  std::vector<void*> values;
  std::string info_log, error_log;
  std::string input;            // the next one, as far as it has come
  const char* image = nullptr;  // the driver's, after cuLinkComplete
  size_t image_bytes = 0;
};

// Texture and surface objects, under the driver's own numbers, which kernels use.
using TextureNumber = wire::HandleId<struct TextureNumberTag>;
using SurfaceNumber = wire::HandleId<struct SurfaceNumberTag>;

// All that a session's client has named.
struct Objects {
  ObjectTable<wire::ContextId, Context> contexts{"context", CUDA_ERROR_INVALID_CONTEXT};
  ObjectTable<wire::StreamId, CUstream> streams{"stream"};
  ObjectTable<wire::EventId, CUevent> events{"event"};
  ObjectTable<wire::ModuleId, Module> modules{"module"};
  ObjectTable<wire::LibraryId, Library> libraries{"library"};
  ObjectTable<wire::FunctionId, Function> functions{"function"};
  ObjectTable<wire::MemAllocationId, PhysicalMemory> physical_memory{"memory allocation"};
  ObjectTable<wire::ArrayId, Array> arrays{"array"};
  ObjectTable<wire::MipmappedArrayId, MipmappedArray> mipmapped_arrays{"mipmapped array"};
  // Shared with calls under way.
  ObjectTable<wire::LinkId, std::shared_ptr<Link>> links{"link"};
  ObjectTable<TextureNumber, CUtexObject> textures{"texture", CUDA_ERROR_INVALID_VALUE};
  ObjectTable<SurfaceNumber, CUsurfObject> surfaces{"surface", CUDA_ERROR_INVALID_VALUE};
  // Shared with calls under way; seeds with the executable graphs that were made of them.
  ObjectTable<wire::GraphExecId, std::shared_ptr<GraphExec>> graph_execs{"executable graph",
                                                                         CUDA_ERROR_INVALID_VALUE};
  ObjectTable<wire::GraphId, std::shared_ptr<GraphSource>> graph_seeds{"graph",
                                                                       CUDA_ERROR_INVALID_VALUE};

  void EraseContext(wire::ContextId context) {
    streams.EraseContext(context);
    events.EraseContext(context);
    modules.EraseContext(context);
    functions.EraseContext(context);
    arrays.EraseContext(context);
    mipmapped_arrays.EraseContext(context);
    links.EraseContext(context);
    textures.EraseContext(context);
    surfaces.EraseContext(context);
    contexts.Erase(context);
  }
};

}  // namespace fargpu::server
