#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "softgpu/compiler.h"
#include "softgpu/llvm/code_cache.h"
#include "softgpu/llvm/warp_context.h"
#include "softgpu/passes/flat_kernel.h"

namespace fargpu::softgpu {

using WarpFunction = void (*)(WarpContext*);

// How much of a grid a call of a kernel's function runs.
enum class Extent {
  kWarp,
  kBlock,
  kBlocks,  // WarpContext::block_count, which wait for nothing outside
};

// How long the compiler may take for how fast a kernel. kQuick takes a quarter of the time of kFull
// for a long kernel, half of it for a short one, and grows with the length of the kernel only.
enum class Effort { kQuick, kFull };

struct CompiledKernel {
  WarpFunction function = nullptr;
  Effort effort = Effort::kFull;
  double compile_ms = 0;  // that it took to make this code, whenever that was
  Extent extent = Extent::kWarp;
  uint64_t local_bytes = 0;  // per thread
};

// Machine code for kernels, made by LLVM for this CPU. One per program; its code goes with it.
// Compile may be called from several threads.
class Jit {
 public:
  static absl::StatusOr<std::unique_ptr<Jit>> Create();
  virtual ~Jit() = default;

  // What kernel `name` of the program with texts hashed to `program` is cached under; null if
  // nothing is cached.
  virtual std::optional<CodeCache::Key> CacheKey(const CodeCache::Key& program,
                                                 absl::string_view name, Dim3 block,
                                                 Effort effort) = 0;
  // Code that an earlier process compiled, if there is any.
  virtual std::optional<CompiledKernel> Load(const CodeCache::Key& key, Effort effort) = 0;

  // Code that runs one warp of `kernel`, specialised for blocks of the shape `block` (all zero: any
  // shape), and puts it into the cache under `key`. Errors as by Program::Launch.
  virtual absl::StatusOr<CompiledKernel> Compile(const FlatKernel& kernel, Dim3 block,
                                                 Effort effort,
                                                 const std::optional<CodeCache::Key>& key) = 0;
};

}  // namespace fargpu::softgpu
