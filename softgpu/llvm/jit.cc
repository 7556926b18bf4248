#include "softgpu/llvm/jit.h"

#include <atomic>
#include <cuda.h>
#include <utility>

#include "absl/strings/str_cat.h"
#include "llvm/ExecutionEngine/Orc/CompileUtils.h"
#include "llvm/ExecutionEngine/Orc/JITTargetMachineBuilder.h"
#include "llvm/ExecutionEngine/Orc/LLJIT.h"
#include "llvm/IR/LLVMContext.h"
#include "llvm/IR/Module.h"
#include "llvm/IR/Verifier.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Target/TargetMachine.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "softgpu/llvm/dispatch_emitter.h"
#include "softgpu/llvm/linear_emitter.h"

namespace fargpu::softgpu {
namespace {

absl::Status FromLlvm(llvm::Error error, absl::string_view what) {
  return absl::InternalError(absl::StrCat(what, ": ", llvm::toString(std::move(error))));
}

// Kernels longer than this get the short pipeline: O2 takes time that grows faster than the code.
constexpr size_t kLongKernel = 20000;

llvm::orc::JITTargetMachineBuilder HostMachine() {
  static const bool initialized = [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    return true;
  }();
  (void)initialized;
  auto builder = llvm::cantFail(llvm::orc::JITTargetMachineBuilder::detectHost());
  builder.setCodeGenOptLevel(llvm::CodeGenOptLevel::Default);
  builder.getOptions().AllowFPOpFusion = llvm::FPOpFusion::Strict;
  return builder;
}

void Optimize(llvm::Module* module, llvm::TargetMachine* machine, bool quick) {
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager calls;
  llvm::ModuleAnalysisManager modules;
  llvm::PipelineTuningOptions tuning;
  // The warp is the vector already; unrolling is the PTX compiler's business.
  tuning.LoopVectorization = false;
  tuning.SLPVectorization = false;
  tuning.LoopUnrolling = false;
  tuning.LoopInterleaving = false;
  llvm::PassBuilder builder(machine, tuning);
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(calls);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, calls, modules);
  builder
      .buildPerModuleDefaultPipeline(quick ? llvm::OptimizationLevel::O1
                                           : llvm::OptimizationLevel::O2)
      .run(*module, modules);
}

class OrcJit : public Jit {
 public:
  OrcJit(std::unique_ptr<llvm::orc::LLJIT> jit, llvm::orc::JITTargetMachineBuilder machine)
      : jit_(std::move(jit)), machine_(std::move(machine)) {
    avx512_ = machine_.getFeatures().getString().find("+avx512vl") != std::string::npos &&
              machine_.getFeatures().getString().find("+avx512dq") != std::string::npos;
  }

  absl::StatusOr<WarpFunction> Compile(const FlatKernel& kernel, Dim3 block) override {
    const std::string name = absl::StrCat("kernel_", next_name_.fetch_add(1));
    llvm::LLVMContext context;
    auto module = std::make_unique<llvm::Module>(name, context);
    auto machine = machine_.createTargetMachine();
    if (!machine) return FromLlvm(machine.takeError(), "the target machine");
    module->setDataLayout((*machine)->createDataLayout());
    module->setTargetTriple((*machine)->getTargetTriple().str());
    CompileOptions options;
    options.block = block;
    options.window = DeviceWindow();
    options.avx512 = avx512_;
    // FARGPU_SOFTGPU_DISPATCH=1 is for tests: the general way for every kernel.
    static const bool always_dispatch = std::getenv("FARGPU_SOFTGPU_DISPATCH") != nullptr;
    bool linear = false;
    if (!always_dispatch) {
      ASSIGN_OR_RETURN(linear, EmitLinearKernel(kernel, options, name, module.get()));
    }
    if (!linear) RETURN_IF_ERROR(EmitDispatchKernel(kernel, options, name, module.get()));
    const char* dump = std::getenv("FARGPU_SOFTGPU_DUMP");
    if (dump != nullptr && dump[0] == '1') module->print(llvm::errs(), nullptr);
    std::string problem;
    llvm::raw_string_ostream stream(problem);
    if (llvm::verifyModule(*module, &stream)) {
      return absl::InternalError(
          absl::StrCat("kernel ", kernel.name, ": malformed code: ", problem.substr(0, 500)));
    }
    size_t instructions = 0;
    for (const BasicBlock& b : kernel.blocks) instructions += b.instructions.size();
    Optimize(module.get(), machine->get(), instructions > kLongKernel);
    if (dump != nullptr && dump[0] == '2') module->print(llvm::errs(), nullptr);
    auto object = llvm::orc::SimpleCompiler(**machine)(*module);
    if (!object) return FromLlvm(object.takeError(), absl::StrCat("kernel ", kernel.name));
    if (dump != nullptr && dump[0] == '3') {
      llvm::errs() << (*object)->getBuffer();
    }
    if (llvm::Error error = jit_->addObjectFile(std::move(*object))) {
      return FromLlvm(std::move(error), absl::StrCat("kernel ", kernel.name));
    }
    auto symbol = jit_->lookup(name);
    if (!symbol) return FromLlvm(symbol.takeError(), absl::StrCat("kernel ", kernel.name));
    return symbol->toPtr<WarpFunction>();
  }

 private:
  std::unique_ptr<llvm::orc::LLJIT> jit_;
  llvm::orc::JITTargetMachineBuilder machine_;
  bool avx512_ = false;
  std::atomic<int> next_name_{0};
};

}  // namespace

absl::StatusOr<std::unique_ptr<Jit>> Jit::Create() {
  llvm::orc::JITTargetMachineBuilder machine = HostMachine();
  auto jit = llvm::orc::LLJITBuilder().setJITTargetMachineBuilder(machine).create();
  if (!jit) return FromLlvm(jit.takeError(), "the compiler's back end");
  return std::make_unique<OrcJit>(std::move(*jit), std::move(machine));
}

}  // namespace fargpu::softgpu
