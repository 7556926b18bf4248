#include "softgpu/llvm/jit.h"

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <cuda.h>
#include <utility>

#include "absl/strings/str_cat.h"
#include "llvm/Config/llvm-config.h"
#include "llvm/ExecutionEngine/Orc/CompileUtils.h"
#include "llvm/ExecutionEngine/Orc/JITTargetMachineBuilder.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/IR/Module.h"
#include "llvm/IR/Verifier.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Target/TargetMachine.h"

#include "common/cuda_error.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "softgpu/llvm/cut_long_blocks.h"
#include "softgpu/llvm/dispatch_emitter.h"
#include "softgpu/llvm/linear_emitter.h"
#include "softgpu/llvm/warp_loops.h"

namespace fargpu::softgpu {
namespace {

absl::Status FromLlvm(llvm::Error error, absl::string_view what) {
  return absl::InternalError(absl::StrCat(what, ": ", llvm::toString(std::move(error))));
}

llvm::orc::JITTargetMachineBuilder HostMachine() {
  static const bool initialized = [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    return true;
  }();
  (void)initialized;
  auto builder = llvm::cantFail(llvm::orc::JITTargetMachineBuilder::detectHost());
  builder.setCodeGenOptLevel(llvm::CodeGenOptLevel::Default);
  // LLVM 19 takes a >= b on vectors of halves for a <= b where both occur: it exchanges the
  // operands of VCMPPH without exchanging the predicate. Without the feature it compares in single
  // precision.
  builder.getFeatures().AddFeature("avx512fp16", false);
  builder.getOptions().AllowFPOpFusion = llvm::FPOpFusion::Strict;
  return builder;
}

// Of LLVM's passes only those that find something in what the emitters write. O2 takes three times
// as long and gains nothing measurable; its inliner and loop passes (the warp is the vector
// already, and unrolling is the PTX compiler's business) have nothing to do here.
//
// First, slots become registers, and coroutines are split. Not later: InstCombine moves arithmetic
// to where its result is used, behind a barrier if need be, and then all operands would have to
// be kept over the barrier instead of one result.
constexpr char kSplitPasses[] =
    "coro-early,function(sroa,early-cse<memssa>,simplifycfg,adce),cgscc(coro-split),coro-cleanup";
// Then checks and masks that repeat go, and what is the same for all warps leaves the loops.
constexpr char kPasses[] =
    "function(early-cse<memssa>,instcombine<max-iterations=1;no-verify-fixpoint>,jump-threading,"
    "correlated-propagation,simplifycfg,loop-mssa(licm),gvn,dse,adce,simplifycfg,"
    "instcombine<max-iterations=1;no-verify-fixpoint>)";
// Effort::kQuick: one round of what pays most. Nothing that takes time that grows faster than the
// code.
constexpr char kQuickPasses[] =
    "function(early-cse<memssa>,instcombine<max-iterations=1;no-verify-fixpoint>,simplifycfg,adce)";
// The dispatcher's kernels keep their registers in memory (see DispatchEmitter): what makes LLVM's
// registers of that, or moves code out of the loop that all is in, would only make work for the
// register allocator; DSE's time is quadratic here.
constexpr char kDispatchPasses[] =
    "function(early-cse<memssa>,instcombine<max-iterations=1;no-verify-fixpoint>,simplifycfg,adce)";

absl::Status Optimize(llvm::Module* module, llvm::TargetMachine* machine, const char* pipeline) {
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager calls;
  llvm::ModuleAnalysisManager modules;
  llvm::PassBuilder builder(machine);
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(calls);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, calls, modules);
  llvm::ModulePassManager passes;
  if (llvm::Error error = builder.parsePassPipeline(passes, pipeline)) {
    return FromLlvm(std::move(error), "LLVM's passes");
  }
  passes.run(*module, modules);
  return absl::OkStatus();
}

// What the cache keeps of a kernel, in front of its object file.
struct CodeHeader {
  double compile_ms = 0;
  uint64_t local_bytes = 0;
  uint64_t extent = 0;  // Extent
};

// The function's name in every object; each has a library of its own.
constexpr char kEntry[] = "fargpu_kernel";

const CodeCache& Cache() {
  static const CodeCache* const cache = new CodeCache(CodeCache::FromEnvironment());
  return *cache;
}

bool AlwaysDispatch() {
  // FARGPU_SOFTGPU_DISPATCH=1 is for tests: the general way for every kernel.
  static const bool always = std::getenv("FARGPU_SOFTGPU_DISPATCH") != nullptr;
  return always;
}

// FARGPU_SOFTGPU_DUMP=1, 2 or 3: the code before and after LLVM's passes, or the object file.
char DumpStage() {
  static const char* const dump = std::getenv("FARGPU_SOFTGPU_DUMP");
  return dump == nullptr ? 0 : dump[0];
}

// Milliseconds of this thread's processor time from one call to the next: on a busy machine the
// clock on the wall says little about the compiler.
class Stopwatch {
 public:
  double Lap() {
    const double now = Now();
    return now - std::exchange(last_, now);
  }

 private:
  static double Now() {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
  }
  double last_ = Now();
};

class OrcJit : public Jit {
 public:
  OrcJit(std::unique_ptr<llvm::orc::LLJIT> jit, llvm::orc::JITTargetMachineBuilder machine)
      : jit_(std::move(jit)), machine_(std::move(machine)) {
    avx512_ = machine_.getFeatures().getString().find("+avx512vl") != std::string::npos &&
              machine_.getFeatures().getString().find("+avx512dq") != std::string::npos;
  }

  std::optional<CodeCache::Key> CacheKey(const CodeCache::Key& program, absl::string_view name,
                                         Dim3 block, Effort effort) override {
    static const std::string* const compiler = new std::string(CompilerBuildId());
    if (!Cache().enabled() || compiler->empty() || DumpStage() != 0) return std::nullopt;
    const AddressWindow window = DeviceWindow();
    return CodeCacheHash()
        .Add(absl::string_view(reinterpret_cast<const char*>(program.data()), program.size()))
        .Add(name)
        .Add(block.x)
        .Add(block.y)
        .Add(block.z)
        .Add(window.base)
        .Add(window.size)
        .Add(uint64_t{AlwaysDispatch()})
        .Add(static_cast<uint64_t>(effort))
        .Add(kAbiVersion)
        .Add(*compiler)
        .Add(LLVM_VERSION_STRING)
        .Add(machine_.getCPU())
        .Add(machine_.getFeatures().getString())
        .Finish();
  }

  std::optional<CompiledKernel> Load(const CodeCache::Key& key, Effort effort) override {
    const std::optional<std::string> contents = Cache().Find(key);
    CodeHeader header;
    if (!contents || contents->size() < sizeof header) return std::nullopt;
    std::memcpy(&header, contents->data(), sizeof header);
    absl::StatusOr<WarpFunction> function = Link(llvm::MemoryBuffer::getMemBufferCopy(
        llvm::StringRef(*contents).drop_front(sizeof header), "cached"));
    if (!function.ok()) {
      FARGPU_LOG(kWarning, "softgpu: cached code is not usable: ", function.status().message());
      return std::nullopt;
    }
    return CompiledKernel{*function, effort, header.compile_ms, static_cast<Extent>(header.extent),
                          header.local_bytes};
  }

  absl::StatusOr<CompiledKernel> Compile(const FlatKernel& kernel, Dim3 block, Effort effort,
                                         const std::optional<CodeCache::Key>& key) override {
    Stopwatch watch;
    llvm::LLVMContext context;
    auto module = std::make_unique<llvm::Module>(kernel.name, context);
    auto machine = machine_.createTargetMachine();
    if (!machine) return FromLlvm(machine.takeError(), "the target machine");
    module->setDataLayout((*machine)->createDataLayout());
    module->setTargetTriple((*machine)->getTargetTriple().str());
    CompileOptions options;
    options.block = block;
    options.window = DeviceWindow();
    options.avx512 = avx512_;
    LinearKernel linear = LinearKernel::kUnfit;
    if (!AlwaysDispatch()) {
      ASSIGN_OR_RETURN(linear, EmitLinearKernel(kernel, options, kEntry, module.get()));
    }
    if (linear == LinearKernel::kUnfit) {
      RETURN_IF_ERROR(EmitDispatchKernel(kernel, options, kEntry, module.get()));
    }
    if (DumpStage() == '1') module->print(llvm::errs(), nullptr);
    std::string problem;
    llvm::raw_string_ostream stream(problem);
    if (llvm::verifyModule(*module, &stream)) {
      return absl::InternalError(
          absl::StrCat("kernel ", kernel.name, ": malformed code: ", problem.substr(0, 500)));
    }
    size_t instructions = 0;
    for (const BasicBlock& b : kernel.blocks) instructions += b.instructions.size();
    const double emit_ms = watch.Lap();
    // The register allocator, which takes most of the time otherwise, then works block by block.
    if (effort == Effort::kQuick) (*machine)->setOptLevel(llvm::CodeGenOptLevel::None);
    if (linear == LinearKernel::kUnfit) {
      RETURN_IF_ERROR(Optimize(module.get(), machine->get(), kDispatchPasses));
    } else {
      RETURN_IF_ERROR(Optimize(module.get(), machine->get(), kSplitPasses));
      DropCoroutineEnds(module.get());
      RETURN_IF_ERROR(Optimize(module.get(), machine->get(),
                               effort == Effort::kQuick ? kQuickPasses : kPasses));
    }
    CutLongBlocks(module.get());
    const double optimize_ms = watch.Lap();
    if (DumpStage() == '2') module->print(llvm::errs(), nullptr);
    auto object = llvm::orc::SimpleCompiler(**machine)(*module);
    if (!object) return FromLlvm(object.takeError(), absl::StrCat("kernel ", kernel.name));
    const double generate_ms = watch.Lap();
    if (DumpStage() == '3') llvm::errs() << (*object)->getBuffer();
    CompiledKernel result;
    result.effort = effort;
    result.compile_ms = emit_ms + optimize_ms + generate_ms;
    result.extent = linear == LinearKernel::kBlocks  ? Extent::kBlocks
                    : linear == LinearKernel::kBlock ? Extent::kBlock
                                                     : Extent::kWarp;
    result.local_bytes = kernel.local_bytes;
    if (key.has_value()) {
      CodeHeader header;
      header.compile_ms = result.compile_ms;
      header.local_bytes = result.local_bytes;
      header.extent = static_cast<uint64_t>(result.extent);
      const llvm::StringRef code = (*object)->getBuffer();
      std::string contents(reinterpret_cast<const char*>(&header), sizeof header);
      contents.append(code.data(), code.size());
      Cache().Store(*key, contents);
    }
    const size_t code_bytes = (*object)->getBufferSize();
    ASSIGN_OR_RETURN(result.function, Link(std::move(*object)));
    FARGPU_LOG(kDebug, "softgpu: compiled ", kernel.name, " for blocks of ", block.x, " x ",
               block.y, " x ", block.z, effort == Effort::kQuick ? " quickly: " : ": ",
               instructions, " instructions, ", code_bytes, " bytes of code; ms to emit ", emit_ms,
               ", optimise ", optimize_ms, ", generate ", generate_ms, ", store and link ",
               watch.Lap());
    return result;
  }

 private:
  absl::StatusOr<WarpFunction> Link(std::unique_ptr<llvm::MemoryBuffer> object) {
    auto library = jit_->createJITDylib(absl::StrCat("kernel_", next_library_.fetch_add(1)));
    if (!library) return FromLlvm(library.takeError(), "a library for the code");
    library->addToLinkOrder(jit_->getMainJITDylib());
    if (llvm::Error error = jit_->addObjectFile(*library, std::move(object))) {
      return FromLlvm(std::move(error), "the object file");
    }
    auto symbol = jit_->lookup(*library, kEntry);
    if (!symbol) return FromLlvm(symbol.takeError(), "the kernel's entry");
    return symbol->toPtr<WarpFunction>();
  }

  std::unique_ptr<llvm::orc::LLJIT> jit_;
  llvm::orc::JITTargetMachineBuilder machine_;
  bool avx512_ = false;
  std::atomic<int> next_library_{0};
};

}  // namespace

absl::StatusOr<std::unique_ptr<Jit>> Jit::Create() {
  llvm::orc::JITTargetMachineBuilder machine = HostMachine();
  auto jit = llvm::orc::LLJITBuilder().setJITTargetMachineBuilder(machine).create();
  if (!jit) return FromLlvm(jit.takeError(), "the compiler's back end");
  return std::make_unique<OrcJit>(std::move(*jit), std::move(machine));
}

}  // namespace fargpu::softgpu
