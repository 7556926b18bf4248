#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cuda.h>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

#include "client/cuda/call_stream.h"
#include "common/mutex.h"
#include "protocol/wire/codec.h"

// What stands behind handles of kinds that need more than a slot.
namespace fargpu::client {

struct Context {
  wire::ContextId id;
  CUcontext handle = nullptr;
  CUdevice device = 0;
  bool primary = false;
  // A primary context's handle is known before the first retain; it can be made current, but not
  // used.
  std::atomic<bool> active{false};
  // Once a kernel broke the context, every later call in it gets the same error, until it is reset
  // or destroyed.
  std::atomic<CUresult> broken{CUDA_SUCCESS};
  std::atomic<unsigned> flags{0};
  std::atomic<CUfunc_cache> cache_config{CU_FUNC_CACHE_PREFER_NONE};
  std::atomic<CUsharedconfig> shared_config{CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE};
  unsigned retained = 0;  // primary contexts; guarded by the session's context mutex
};

// A kernel or function. What the program may ask of it is answered from here.
struct Function {
  wire::FunctionId id;
  std::string name;
  CUfunction handle = nullptr;
  CUmodule module = nullptr;  // one of the two is set
  CUlibrary library = nullptr;
  std::vector<uint32_t> param_offsets;
  std::vector<uint32_t> param_sizes;
  size_t param_bytes = 0;  // of the whole block
  std::unique_ptr<std::atomic<int32_t>[]> attributes;
  int attribute_count = 0;

  // 0 for what the worker did not tell.
  int attribute(int which) const {
    return which >= 0 && which < attribute_count ? attributes[which].load(std::memory_order_relaxed)
                                                 : 0;
  }
};

// The functions of a module or library. Those of a library are known only when the reply to its
// load has come, which is waited for as late as possible.
struct FunctionSet {
  wire::FunctionId first;  // function i of the load's reply has the id first + i
  CUmodule module = nullptr;
  CUlibrary library = nullptr;

  Mutex mutex;
  std::unique_ptr<PendingReply> pending ABSL_GUARDED_BY(mutex);  // until the reply was taken
  CUresult load_result ABSL_GUARDED_BY(mutex) = CUDA_SUCCESS;
  std::vector<std::unique_ptr<Function>> functions ABSL_GUARDED_BY(mutex);
  size_t listed ABSL_GUARDED_BY(mutex) = 0;  // the first so many came with the load
  // Views of the names inside `functions`.
  absl::flat_hash_map<absl::string_view, Function*> by_name ABSL_GUARDED_BY(mutex);
};

struct Module {
  wire::ModuleId id;
  CUmodule handle = nullptr;
  CUcontext context = nullptr;  // where it was loaded, and with which it ends
  CUlibrary library =
      nullptr;  // set if it is the module of a library, which then owns the functions
  FunctionSet functions;
};

struct Library {
  wire::LibraryId id;
  CUlibrary handle = nullptr;
  FunctionSet functions;
  Mutex mutex;
  CUmodule module ABSL_GUARDED_BY(mutex) = nullptr;  // cuLibraryGetModule's, once asked for
};

// A CUDA array, or a level of a mipmapped one.
struct Array {
  wire::ArrayId id;
  CUarray handle = nullptr;
  CUcontext context = nullptr;  // where it was made, and with which it ends
  CUDA_ARRAY3D_DESCRIPTOR descriptor = {};
  size_t element_bytes = 0;
  bool of_mipmap = false;  // goes with its mipmapped array

  size_t row_bytes() const { return descriptor.Width * element_bytes; }
  size_t rows() const { return std::max<size_t>(descriptor.Height, 1); }
  size_t slices() const { return std::max<size_t>(descriptor.Depth, 1); }
};

struct MipmappedArray {
  wire::MipmappedArrayId id;
  CUmipmappedArray handle = nullptr;
  CUcontext context = nullptr;
  CUDA_ARRAY3D_DESCRIPTOR descriptor = {};
  std::vector<Array*> levels;
};

// A link in progress (CUlinkState).
struct Link {
  wire::LinkId id;
  CUlinkState handle = nullptr;
  CUcontext context = nullptr;
  // The program's, as given to cuLinkCreate: they say where the logs go, and stay until the link is
  // destroyed.
  unsigned option_count = 0;
  CUjit_option* options = nullptr;
  void** values = nullptr;
  std::vector<char> image;  // that cuLinkComplete gave; valid until then, too
};

// A texture or surface object, which the card numbers itself because kernels use the number.
struct TextureObject {
  CUcontext context = nullptr;
  CUDA_RESOURCE_DESC resource = {};
  CUDA_TEXTURE_DESC texture = {};
  bool has_view = false;
  CUDA_RESOURCE_VIEW_DESC view = {};
};

// Texture and surface objects by their numbers. Any thread.
class TextureTable {
 public:
  void Insert(uint64_t object, TextureObject texture) {
    MutexLock lock(&mutex_);
    objects_[object] = texture;
  }
  std::optional<TextureObject> Find(uint64_t object) const {
    MutexLock lock(&mutex_);
    const auto found = objects_.find(object);
    if (found == objects_.end()) return std::nullopt;
    return found->second;
  }
  bool Remove(uint64_t object) {
    MutexLock lock(&mutex_);
    return objects_.erase(object) != 0;
  }
  void RemoveContext(CUcontext context) {
    MutexLock lock(&mutex_);
    absl::erase_if(objects_, [&](const auto& entry) { return entry.second.context == context; });
  }

 private:
  mutable Mutex mutex_;
  absl::flat_hash_map<uint64_t, TextureObject> objects_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fargpu::client
