#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"

#include "common/mutex.h"
#include "softgpu/compiler.h"
#include "softgpu/ptx/ast.h"

namespace fargpu::softgpu {

// Where a name of one module leads.
struct SymbolRef {
  enum class Kind { kNone, kFunction, kVariable, kShared } kind = Kind::kNone;
  int module = -1;
  int index = -1;             // in the module's functions or variables
  int program_variable = -1;  // for kVariable: index in LinkedProgram::variables
};

// Memory that a kernel needs beyond its registers; the callees' is included.
struct MemoryNeeds {
  uint64_t local_bytes = 0;
  uint64_t shared_bytes = 0;  // static only
  bool recursive = false;
};

// PTX modules whose names are resolved against each other. Immutable, but for bodies of functions
// that are parsed late.
class LinkedProgram {
 public:
  static absl::StatusOr<std::unique_ptr<LinkedProgram>> Link(
      std::vector<std::unique_ptr<ptx::Module>> modules);

  const std::vector<std::unique_ptr<ptx::Module>>& modules() const { return modules_; }
  const std::vector<KernelInfo>& kernels() const { return kernels_; }
  const std::vector<VariableInfo>& variables() const { return variables_; }

  const SymbolRef& kernel_ref(size_t kernel) const { return kernel_refs_[kernel]; }
  int kernel_module(size_t kernel) const { return kernel_refs_[kernel].module; }
  const SymbolRef& variable_ref(size_t variable) const { return variable_refs_[variable]; }

  // Functions are numbered through the program; a function's "address" is made of its number and
  // lies outside the device window.
  int FunctionId(const SymbolRef& ref) const { return first_function_[ref.module] + ref.index; }
  SymbolRef FunctionRef(int id) const;
  const ptx::Function& FunctionOf(const SymbolRef& ref) const {
    return modules_[ref.module]->functions[ref.index];
  }
  static uint64_t FunctionAddress(int id) { return 0x10000 + 16 * static_cast<uint64_t>(id); }
  // The same with its body, which is parsed when it is first asked for. CUDA_ERROR_INVALID_PTX,
  // with line and column, if that fails. Any thread.
  absl::StatusOr<const ptx::Function*> ParsedFunction(const SymbolRef& ref) const;
  // Functions whose address is taken anywhere: what a call through a pointer may reach.
  std::vector<int> AddressTakenFunctions() const;

  // kNone if no module defines it. An extern function without a body is kNone.
  SymbolRef Resolve(int module, absl::string_view name) const;

 private:
  explicit LinkedProgram(std::vector<std::unique_ptr<ptx::Module>> modules)
      : modules_(std::move(modules)) {}
  absl::Status Build();
  absl::Status CheckNames(int module) const;
  absl::Status Define(int module, absl::string_view name, bool visible, bool weak, SymbolRef ref);
  absl::Status DefineAliases(int module);
  MemoryNeeds Needs(const ptx::Function& function, int module);

  std::vector<std::unique_ptr<ptx::Module>> modules_;
  std::vector<KernelInfo> kernels_;
  std::vector<SymbolRef> kernel_refs_;
  std::vector<int> first_function_;  // by module
  std::vector<VariableInfo> variables_;
  std::vector<SymbolRef> variable_refs_;
  struct Definition {
    SymbolRef ref;
    bool weak = false;
  };
  absl::flat_hash_map<std::string, Definition> global_;                   // visible everywhere
  std::vector<absl::flat_hash_map<absl::string_view, SymbolRef>> local_;  // by module
  mutable Mutex parse_mutex_;  // held while a body is parsed
  mutable absl::flat_hash_map<const ptx::Function*, absl::Status> parse_errors_
      ABSL_GUARDED_BY(parse_mutex_);
};

// The layout of a function's own .local and .shared variables, shared by the estimate above and
// by flatten_kernel. Returns the end of `size` bytes placed at `*cursor`, and the place.
inline uint64_t PlaceVariable(uint64_t* cursor, const ptx::Variable& variable) {
  const uint64_t alignment = variable.alignment == 0 ? 1 : variable.alignment;
  const uint64_t at = (*cursor + alignment - 1) / alignment * alignment;
  *cursor = at + variable.size;
  return at;
}

}  // namespace fargpu::softgpu
