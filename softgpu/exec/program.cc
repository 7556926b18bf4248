#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "common/cuda_error.h"
#include "common/log.h"
#include "common/mutex.h"
#include "common/status_macros.h"
#include "softgpu/compiler.h"
#include "softgpu/exec/launch.h"
#include "softgpu/exec/param_blocks.h"
#include "softgpu/exec/worker.h"
#include "softgpu/llvm/jit.h"
#include "softgpu/passes/flatten_kernel.h"
#include "softgpu/passes/link_modules.h"
#include "softgpu/ptx/parser.h"

namespace fargpu::softgpu {
namespace {

// A kernel launched with more block shapes than this gets code for any shape.
constexpr int kMaxShapes = 8;

// Kernels are compiled quickly first, and once more at full length when launches have run for this
// many times as long as the quick compilation took: about as long as the other one will take. So
// nothing waits more than twice as long as it would have, had we known.
constexpr double kPatience = 3;

// FARGPU_SOFTGPU_EFFORT=quick or full: all kernels are compiled once, like that.
std::optional<Effort> FixedEffort() {
  static const std::optional<Effort> effort = [] {
    const char* const value = std::getenv("FARGPU_SOFTGPU_EFFORT");
    const absl::string_view name = value == nullptr ? "" : value;
    if (name == "quick") return std::optional<Effort>(Effort::kQuick);
    if (name == "full") return std::optional<Effort>(Effort::kFull);
    if (!name.empty()) {
      FARGPU_LOG(kWarning, "softgpu: FARGPU_SOFTGPU_EFFORT=", name, " is neither quick nor full");
    }
    return std::optional<Effort>();
  }();
  return effort;
}

// Shared memory per block that cooperative groups use for themselves.
constexpr uint64_t kReservedSharedBytes = 1024;

// A warp's stack holds the frames of 32 threads, with registers as wide as they are, and what the
// compiler adds.
size_t StackBytes(uint64_t bytes_per_thread) {
  constexpr uint64_t kFrameGrowth = 4;
  constexpr uint64_t kPage = 4096;
  const uint64_t wanted = bytes_per_thread * kWarpSize * kFrameGrowth;
  return std::max<uint64_t>(FiberStack::kUsualBytes, (wanted + kPage - 1) / kPage * kPage);
}

class CompiledProgram : public Program, public GridRunner {
 public:
  CompiledProgram(std::unique_ptr<LinkedProgram> linked)
      : linked_(std::move(linked)), entries_(linked_->kernels().size()) {
    for (const std::unique_ptr<ptx::Module>& module : linked_->modules()) {
      reserves_shared_ =
          reserves_shared_ || module->source->find("%reserved_smem_offset") != std::string::npos;
    }
  }

  const std::vector<KernelInfo>& kernels() const override { return linked_->kernels(); }
  const std::vector<VariableInfo>& variables() const override { return linked_->variables(); }

  void BindVariables(absl::Span<const uint64_t> addresses) override {
    addresses_.assign(addresses.begin(), addresses.end());
    addresses_.resize(linked_->variables().size());
  }

  std::vector<char> InitialContents(size_t variable) const override {
    const SymbolRef& ref = linked_->variable_ref(variable);
    const ptx::Variable& v = linked_->modules()[ref.module]->variables[ref.index];
    std::vector<char> bytes = v.initializer.bytes;
    bytes.resize(v.size);
    for (const ptx::Initializer::Address& a : v.initializer.addresses) {
      const SymbolRef target = linked_->Resolve(ref.module, a.symbol);
      if (target.kind == SymbolRef::Kind::kFunction) {
        const uint64_t address = LinkedProgram::FunctionAddress(linked_->FunctionId(target));
        if (a.position + a.bytes <= bytes.size()) {
          std::memcpy(bytes.data() + a.position, &address, std::min<size_t>(a.bytes, 8));
        }
        continue;
      }
      if (target.kind != SymbolRef::Kind::kVariable ||
          static_cast<size_t>(target.program_variable) >= addresses_.size()) {
        continue;
      }
      const uint64_t address =
          addresses_[target.program_variable] + static_cast<uint64_t>(a.addend);
      const uint64_t shifted = address >> a.shift;
      if (a.position + a.bytes <= bytes.size()) {
        std::memcpy(bytes.data() + a.position, &shifted, std::min<size_t>(a.bytes, 8));
      }
    }
    return bytes;
  }

  absl::Status Launch(size_t kernel, const LaunchConfig& config) override {
    return Run(kernel, config, nullptr, nullptr);
  }

  absl::StatusOr<size_t> KernelAt(uint64_t address) const override {
    for (size_t k = 0; k < kernels().size(); ++k) {
      if (LinkedProgram::FunctionAddress(linked_->FunctionId(linked_->kernel_ref(k))) == address) {
        return k;
      }
    }
    return absl::NotFoundError(absl::StrFormat("0x%x is the address of no kernel", address));
  }
  const KernelInfo& Info(size_t kernel) const override { return kernels()[kernel]; }
  absl::Status RunChild(size_t kernel, const LaunchConfig& config, DeviceRuntime* runtime,
                        DeviceGrid* grid) override {
    return Run(kernel, config, runtime, grid);
  }

 private:
  // `runtime` and `grid`: of a grid that a kernel launched, else null.
  absl::Status Run(size_t kernel, const LaunchConfig& config, DeviceRuntime* runtime,
                   DeviceGrid* grid) {
    if (kernel >= kernels().size()) {
      return CudaError(
          CUDA_ERROR_INVALID_HANDLE,
          absl::StrCat("kernel ", kernel, " of a program that has ", kernels().size()));
    }
    const KernelInfo& info = kernels()[kernel];
    const uint64_t threads = uint64_t{config.block.x} * config.block.y * config.block.z;
    if (threads == 0 || threads > info.max_threads_per_block || config.block.x > 1024 ||
        config.block.y > 1024) {
      return CudaError(CUDA_ERROR_INVALID_VALUE,
                       absl::StrCat("kernel ", info.name, ": blocks of ", config.block.x, " x ",
                                    config.block.y, " x ", config.block.z, " threads; at most ",
                                    info.max_threads_per_block, " are allowed"));
    }
    if (config.params.size() < info.param_bytes || config.params.size() > kParamBlockBytes) {
      return CudaError(CUDA_ERROR_INVALID_VALUE,
                       absl::StrCat("kernel ", info.name, ": ", config.params.size(),
                                    " bytes of parameters, not ", info.param_bytes));
    }
    fargpu::softgpu::Launch launch;
    launch.blocks = uint64_t{config.grid.x} * config.grid.y * config.grid.z;
    if (launch.blocks == 0) {
      return CudaError(CUDA_ERROR_INVALID_VALUE,
                       absl::StrCat("kernel ", info.name, ": the grid is empty"));
    }
    ASSIGN_OR_RETURN(const Choice choice, CodeFor(kernel, config.block));
    const CompiledKernel& code = choice.code;
    launch.cluster = config.cluster;
    launch.cluster_blocks = config.cluster.x * config.cluster.y * config.cluster.z;
    launch.explicit_cluster = config.explicit_cluster;
    if (launch.cluster_blocks == 0 || config.grid.x % config.cluster.x != 0 ||
        config.grid.y % config.cluster.y != 0 || config.grid.z % config.cluster.z != 0) {
      return CudaError(
          CUDA_ERROR_INVALID_CLUSTER_SIZE,
          absl::StrCat("kernel ", info.name, ": a grid of ", config.grid.x, " x ", config.grid.y,
                       " x ", config.grid.z, " blocks in clusters of ", config.cluster.x, " x ",
                       config.cluster.y, " x ", config.cluster.z));
    }
    launch.config = &config;
    launch.kernel_name = info.name;
    launch.function = code.function;
    launch.extent = code.extent;
    launch.local_bytes = code.local_bytes;
    launch.stack_bytes = StackBytes(config.stack_bytes);
    launch.variables = addresses_.data();
    const uint64_t static_bytes = info.static_shared_bytes;
    launch.shared_bytes = config.dynamic_shared_bytes == 0
                              ? static_bytes
                              : (static_bytes + 15) / 16 * 16 + config.dynamic_shared_bytes;
    launch.total_shared_bytes = static_cast<uint32_t>(launch.shared_bytes);
    if (reserves_shared_) {
      launch.reserved_shared_offset =
          static_cast<uint32_t>((launch.shared_bytes + 127) / 128 * 128);
      launch.shared_bytes = launch.reserved_shared_offset + kReservedSharedBytes;
    }
    launch.params = ParamBlocks::Get().Take();
    if (launch.params == 0) {
      return CudaError(CUDA_ERROR_OUT_OF_MEMORY, "no room in the device window for parameters");
    }
    if (!config.params.empty()) {
      std::memcpy(reinterpret_cast<void*>(launch.params), config.params.data(),
                  config.params.size());
    }
    launch.grid_workspace = launch.params + kParamBlockBytes;
    std::memset(reinterpret_cast<void*>(launch.grid_workspace), 0, ParamBlocks::kWorkspaceBytes);
    static std::atomic<uint64_t> next_grid{1};
    launch.grid_number = next_grid.fetch_add(1, std::memory_order_relaxed);
    launch.runner = this;
    launch.grid = grid;
    launch.device_runtime.store(runtime, std::memory_order_relaxed);
    const absl::Time start = absl::Now();
    absl::Status status;
    // False: an error of another grid of the same launch has ended all.
    const bool runs = runtime == nullptr || runtime->Enter(&launch);
    if (runs) status = RunGrid(&launch);
    if (code.effort == Effort::kQuick) NoteRun(kernel, choice.shape, absl::Now() - start);
    if (runtime == nullptr) {
      DeviceRuntime* const own = launch.device_runtime.load(std::memory_order_acquire);
      if (own != nullptr) status = own->Finish(status);
    } else if (runs) {
      runtime->Leave(&launch);
    }
    ParamBlocks::Get().Give(launch.params);
    return status;
  }

  using Shape = std::tuple<uint32_t, uint32_t, uint32_t>;
  struct Code {
    absl::StatusOr<CompiledKernel> kernel;
    absl::Duration run_time;  // of launches that used quickly made code
  };
  struct Entry {
    Mutex mutex;
    bool flattened ABSL_GUARDED_BY(mutex) = false;
    absl::Status status ABSL_GUARDED_BY(mutex);  // of flattening
    FlatKernel flat ABSL_GUARDED_BY(mutex);
    std::map<Shape, Code> code ABSL_GUARDED_BY(mutex);
  };
  struct Choice {
    CompiledKernel code;
    Shape shape;
  };

  absl::StatusOr<Choice> CodeFor(size_t kernel, Dim3 block) {
    Entry& entry = entries_[kernel];
    MutexLock lock(&entry.mutex);
    Shape shape = {block.x, block.y, block.z};
    auto it = entry.code.find(shape);
    if (it == entry.code.end() && entry.code.size() >= kMaxShapes) {
      block = {0, 0, 0};
      shape = {0, 0, 0};
      it = entry.code.find(shape);
    }
    if (it == entry.code.end()) {
      it = entry.code.emplace(shape, Code{MakeCode(kernel, block, &entry), absl::ZeroDuration()})
               .first;
    }
    Code& code = it->second;
    RETURN_IF_ERROR(code.kernel.status());
    if (code.kernel->effort == Effort::kQuick && FixedEffort() != Effort::kQuick &&
        code.run_time > kPatience * absl::Milliseconds(code.kernel->compile_ms)) {
      const absl::StatusOr<CompiledKernel> better =
          CompileCode(kernel, block, Effort::kFull, &entry);
      if (better.ok()) {
        code.kernel = better;
      } else {
        FARGPU_LOG(kWarning, "softgpu: kernel ", kernels()[kernel].name,
                   " stays as it is: ", better.status().message());
        code.kernel->effort = Effort::kFull;
      }
    }
    return Choice{*code.kernel, shape};
  }

  void NoteRun(size_t kernel, const Shape& shape, absl::Duration time) {
    Entry& entry = entries_[kernel];
    MutexLock lock(&entry.mutex);
    entry.code.find(shape)->second.run_time += time;
  }

  absl::StatusOr<CompiledKernel> MakeCode(size_t kernel, Dim3 block, Entry* entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(entry->mutex) {
    ASSIGN_OR_RETURN(Jit * jit, GetJit());
    for (const Effort effort : {Effort::kFull, Effort::kQuick}) {
      if (FixedEffort().value_or(effort) != effort) continue;
      const std::optional<CodeCache::Key> key =
          jit->CacheKey(TextHash(), kernels()[kernel].name, block, effort);
      if (!key.has_value()) break;
      const std::optional<CompiledKernel> cached = jit->Load(*key, effort);
      if (cached.has_value()) return *cached;
    }
    return CompileCode(kernel, block, FixedEffort().value_or(Effort::kQuick), entry);
  }

  absl::StatusOr<CompiledKernel> CompileCode(size_t kernel, Dim3 block, Effort effort, Entry* entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(entry->mutex) {
    ASSIGN_OR_RETURN(Jit * jit, GetJit());
    if (!entry->flattened) {
      entry->flattened = true;
      absl::StatusOr<FlatKernel> flat = FlattenKernel(*linked_, kernel);
      entry->status = flat.status();
      if (flat.ok()) entry->flat = *std::move(flat);
    }
    RETURN_IF_ERROR(entry->status);
    return jit->Compile(entry->flat, block, effort,
                        jit->CacheKey(TextHash(), kernels()[kernel].name, block, effort));
  }

  // Of everything that was linked: all that code depends on, as far as the program goes.
  const CodeCache::Key& TextHash() {
    MutexLock lock(&mutex_);
    if (!text_hash_.has_value()) {
      CodeCacheHash hash;
      for (const std::unique_ptr<ptx::Module>& module : linked_->modules())
        hash.Add(*module->source);
      text_hash_ = hash.Finish();
    }
    return *text_hash_;
  }

  absl::StatusOr<Jit*> GetJit() {
    MutexLock lock(&mutex_);
    if (jit_ == nullptr) {
      ASSIGN_OR_RETURN(jit_, Jit::Create());
    }
    return jit_.get();
  }

  std::unique_ptr<LinkedProgram> linked_;
  std::vector<Entry> entries_;
  std::vector<uint64_t> addresses_;
  bool reserves_shared_ = false;  // a kernel may use kReservedSharedBytes
  Mutex mutex_;
  std::unique_ptr<Jit> jit_ ABSL_GUARDED_BY(mutex_);
  std::optional<CodeCache::Key> text_hash_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<Program>> Program::Link(absl::Span<const std::string> ptx_modules,
                                                       std::string* log) {
  std::vector<std::unique_ptr<ptx::Module>> modules;
  const auto fail = [&](const absl::Status& status) {
    if (log != nullptr) absl::StrAppend(log, status.message(), "\n");
    return status;
  };
  for (size_t k = 0; k < ptx_modules.size(); ++k) {
    absl::StatusOr<std::unique_ptr<ptx::Module>> module = ptx::ParseModule(ptx_modules[k]);
    if (!module.ok()) {
      const std::string prefix = ptx_modules.size() > 1 ? absl::StrCat("module ", k + 1, ": ") : "";
      return fail(
          CudaError(CUDA_ERROR_INVALID_PTX, absl::StrCat(prefix, module.status().message())));
    }
    modules.push_back(*std::move(module));
  }
  absl::StatusOr<std::unique_ptr<LinkedProgram>> linked = LinkedProgram::Link(std::move(modules));
  if (!linked.ok()) return fail(CudaError(CUDA_ERROR_INVALID_PTX, linked.status().message()));
  return std::make_unique<CompiledProgram>(*std::move(linked));
}

}  // namespace fargpu::softgpu
