#include <algorithm>
#include <optional>
#include <utility>

#include "llvm/IR/LLVMContext.h"
#include "llvm/IR/Module.h"
#include "llvm/IR/Verifier.h"

#include "softgpu/llvm/dispatch_emitter.h"
#include "softgpu/llvm/jit.h"
#include "softgpu/passes/flatten_kernel.h"
#include "softgpu/passes/link_modules.h"
#include "softgpu/ptx/parser.h"
#include "tests/conformance/ptx/probe.h"
#include "tests/fuzz/fuzz_target.h"

// Input: the text of one PTX module, whose kernels are compiled as on their first launch, but not
// run. Mutations keep most of it valid (ptx_mutator.cc). Seeds: seeds/ptx.
//
// LLVM's part takes a hundred times as long as ours and is not what is tested: most inputs get no
// further than its verifier.
namespace fargpu::fuzz {
namespace {

using softgpu::CompileOptions;
using softgpu::Dim3;
using softgpu::FlatKernel;

// More kernels than this say nothing new.
constexpr size_t kMaxKernels = 3;
// One input of so many is compiled to the end.
constexpr uint32_t kCompiled = 64;

uint32_t Hash(const uint8_t* data, size_t size) {
  uint32_t hash = 2166136261u;
  for (size_t i = 0; i < size; ++i) hash = (hash ^ data[i]) * 16777619u;
  return hash;
}

void Emit(const FlatKernel& kernel, Dim3 block) {
  llvm::LLVMContext context;
  llvm::Module module("fuzz", context);
  CompileOptions options;
  options.block = block;
  options.window = softgpu::DeviceWindow();
  options.avx512 = kernel.blocks.size() % 2 == 0;
  if (!softgpu::EmitDispatchKernel(kernel, options, "kernel", &module).ok()) return;
  Require(!llvm::verifyModule(module, &llvm::errs()), "what is emitted is well-formed");
}

}  // namespace

// A kernel for each instruction form that programs use.
std::vector<Seed> Seeds() {
  std::vector<Seed> seeds = {
      {"empty_kernel",
       ".version 9.0\n.target sm_75\n.address_size 64\n.visible .entry k() { ret; }\n"}};
  for (const conformance::KnownForm& form : conformance::KnownForms()) {
    std::string text = conformance::ProbeModule(form.name);
    if (text.empty()) continue;
    std::string name = form.name;
    std::replace(name.begin(), name.end(), ':', '_');
    seeds.push_back({std::move(name), std::move(text)});
  }
  return seeds;
}

}  // namespace fargpu::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fargpu::fuzz;     // NOLINT: one function
  using namespace fargpu::softgpu;  // NOLINT
  const uint32_t hash = Hash(data, size);
  auto module = ptx::ParseModule(std::string(reinterpret_cast<const char*>(data), size),
                                 hash % 2 == 0 ? ptx::Bodies::kAtOnce : ptx::Bodies::kWhenUsed);
  if (!module.ok()) return 0;
  std::vector<std::unique_ptr<ptx::Module>> modules;
  modules.push_back(*std::move(module));
  const auto program = LinkedProgram::Link(std::move(modules));
  if (!program.ok()) return 0;
  // Code for one shape, or for all.
  const Dim3 shape = hash % 4 == 0 ? Dim3{0, 0, 0} : Dim3{32, 2, 1};
  for (size_t k = 0; k < (*program)->kernels().size() && k < kMaxKernels; ++k) {
    const auto kernel = FlattenKernel(**program, k);
    if (!kernel.ok()) continue;
    Emit(*kernel, shape);
    if (hash % kCompiled != 0) continue;
    const auto jit = Jit::Create();
    Require(jit.ok(), "there is a compiler for this machine");
    const Effort effort = hash / kCompiled % 2 == 0 ? Effort::kQuick : Effort::kFull;
    const auto function = (*jit)->Compile(*kernel, shape, effort, std::nullopt);
    Require(!function.ok() || function->function != nullptr, "code has an address");
  }
  return 0;
}
