#include "softgpu/passes/link_modules.h"

#include <algorithm>
#include <cuda.h>
#include <functional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "softgpu/ptx/parser.h"

namespace fargpu::softgpu {
namespace {

using ptx::Function;
using ptx::Instruction;
using ptx::Module;
using ptx::Operand;
using ptx::Space;
using ptx::Variable;

// Longer chains than this are treated as recursion; real programs stay below 20.
constexpr int kMaxCallDepth = 64;
// Of PTX; a launch keeps the block in a place of a fixed size.
constexpr uint64_t kMaxParamBytes = 32764;

KernelInfo MakeKernelInfo(const Module& module, const Function& function) {
  KernelInfo info;
  info.name = std::string(function.name);
  uint64_t cursor = 0;
  for (const Variable& param : function.params) {
    const uint64_t at = PlaceVariable(&cursor, param);
    info.params.push_back({static_cast<uint32_t>(at), static_cast<uint32_t>(param.size)});
  }
  info.param_bytes = static_cast<uint32_t>(cursor);
  if (function.max_threads[0] != 0) {
    uint64_t threads = 1;
    for (const uint32_t n : function.max_threads) threads = std::min<uint64_t>(threads * n, 1024);
    info.max_threads_per_block = static_cast<uint32_t>(threads);
  }
  info.cluster = {function.cluster[0], function.cluster[1], function.cluster[2]};
  info.needs_cluster = function.explicit_cluster;
  info.max_cluster_blocks = function.max_cluster_blocks;
  info.blocks_are_clusters = function.blocks_are_clusters;
  // A GPU's allocator needs far fewer registers than PTX names: a rough figure for attributes.
  info.registers =
      static_cast<uint32_t>(std::min<uint64_t>(255, 10 + function.summary.register_words / 6));
  info.ptx_version = module.target;
  info.binary_version = module.target;
  return info;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LinkedProgram>> LinkedProgram::Link(
    std::vector<std::unique_ptr<Module>> modules) {
  auto program = std::unique_ptr<LinkedProgram>(new LinkedProgram(std::move(modules)));
  RETURN_IF_ERROR(program->Build());
  return program;
}

absl::Status LinkedProgram::Define(int module, absl::string_view name, bool visible, bool weak,
                                   SymbolRef ref) {
  local_[module][name] = ref;
  if (!visible) return absl::OkStatus();
  const auto [it, added] = global_.try_emplace(std::string(name), Definition{ref, weak});
  if (added) return absl::OkStatus();
  if (!weak && !it->second.weak) {
    return absl::InvalidArgumentError(absl::StrCat("'", name, "' is defined in module ",
                                                   it->second.ref.module + 1, " and in module ",
                                                   module + 1));
  }
  if (it->second.weak && !weak) it->second = {ref, weak};
  return absl::OkStatus();
}

absl::Status LinkedProgram::Build() {
  local_.resize(modules_.size());
  const bool several = modules_.size() > 1;
  int functions = 0;
  for (const auto& module : modules_) {
    first_function_.push_back(functions);
    functions += static_cast<int>(module->functions.size());
  }
  for (int m = 0; m < static_cast<int>(modules_.size()); ++m) {
    const Module& module = *modules_[m];
    for (int i = 0; i < static_cast<int>(module.variables.size()); ++i) {
      const Variable& v = module.variables[i];
      SymbolRef ref{SymbolRef::Kind::kVariable, m, i, -1};
      if (v.space == Space::kShared) {
        // Extern shared memory is the dynamic part, the same in every module.
        ref.kind = SymbolRef::Kind::kShared;
        if (v.is_extern) {
          local_[m][v.name] = ref;
          continue;
        }
      } else if (v.is_extern) {
        continue;
      }
      if (v.space != Space::kShared && v.space != Space::kGlobal && v.space != Space::kConst) {
        return absl::InvalidArgumentError(absl::StrCat("line ", v.location.line, ", column ",
                                                       v.location.column, ": variable ", v.name,
                                                       " has no place at module level"));
      }
      RETURN_IF_ERROR(Define(m, v.name, v.is_visible && several, v.is_weak, ref));
    }
    for (int i = 0; i < static_cast<int>(module.functions.size()); ++i) {
      const Function& f = module.functions[i];
      if (!f.has_body) continue;
      RETURN_IF_ERROR(Define(m, f.name, f.is_visible && several, f.is_weak,
                             {SymbolRef::Kind::kFunction, m, i, -1}));
    }
  }
  for (int m = 0; m < static_cast<int>(modules_.size()); ++m) RETURN_IF_ERROR(DefineAliases(m));
  // Of several weak definitions only the chosen one exists.
  for (int m = 0; m < static_cast<int>(modules_.size()); ++m) {
    Module& module = *modules_[m];
    for (int i = 0; i < static_cast<int>(module.variables.size()); ++i) {
      const Variable& v = module.variables[i];
      const SymbolRef ref = Resolve(m, v.name);
      if (ref.kind != SymbolRef::Kind::kVariable || ref.module != m || ref.index != i) continue;
      VariableInfo info;
      info.name = std::string(v.name);
      info.space = v.space == Space::kConst ? VariableSpace::kConst : VariableSpace::kGlobal;
      info.size = v.size;
      info.alignment = v.alignment;
      info.managed = v.is_managed;
      const int id = static_cast<int>(variables_.size());
      variables_.push_back(std::move(info));
      variable_refs_.push_back(ref);
      local_[m][v.name].program_variable = id;
      if (const auto it = global_.find(v.name); it != global_.end() && it->second.ref.module == m) {
        it->second.ref.program_variable = id;
      }
    }
  }
  for (int m = 0; m < static_cast<int>(modules_.size()); ++m) {
    const Module& module = *modules_[m];
    uint64_t const_bytes = 0;
    for (const Variable& v : module.variables) {
      if (v.space == Space::kConst && !v.is_extern) PlaceVariable(&const_bytes, v);
    }
    for (int i = 0; i < static_cast<int>(module.functions.size()); ++i) {
      const Function& f = module.functions[i];
      if (!f.is_entry || !f.has_body) continue;
      const SymbolRef ref = Resolve(m, f.name);
      if (ref.module != m || ref.index != i) continue;
      uint64_t param_bytes = 0;
      for (const Variable& param : f.params) PlaceVariable(&param_bytes, param);
      if (param_bytes > kMaxParamBytes) {
        return absl::InvalidArgumentError(absl::StrCat(
            "line ", f.location.line, ", column ", f.location.column, ": kernel ", f.name, " has ",
            param_bytes, " bytes of parameters, limit ", kMaxParamBytes));
      }
      KernelInfo info = MakeKernelInfo(module, f);
      const MemoryNeeds needs = Needs(f, m);
      info.local_bytes = static_cast<uint32_t>(std::min<uint64_t>(needs.local_bytes, UINT32_MAX));
      info.static_shared_bytes =
          static_cast<uint32_t>(std::min<uint64_t>(needs.shared_bytes, UINT32_MAX));
      info.const_bytes = static_cast<uint32_t>(const_bytes);
      kernels_.push_back(std::move(info));
      kernel_refs_.push_back(ref);
    }
  }
  for (int m = 0; m < static_cast<int>(modules_.size()); ++m) RETURN_IF_ERROR(CheckNames(m));
  return absl::OkStatus();
}

// Names in bodies that are parsed already; the others' mistakes show when they are used.
absl::Status LinkedProgram::CheckNames(int module) const {
  absl::flat_hash_set<absl::string_view> declared;
  for (const Variable& v : modules_[module]->variables) declared.insert(v.name);
  for (const Function& f : modules_[module]->functions) declared.insert(f.name);
  const Instruction* at = nullptr;
  const std::function<absl::Status(const Operand&)> check =
      [&](const Operand& operand) -> absl::Status {
    if (operand.kind == Operand::Kind::kSymbol && !declared.contains(operand.name) &&
        Resolve(module, operand.name).kind == SymbolRef::Kind::kNone) {
      return absl::InvalidArgumentError(absl::StrCat("line ", at->location.line, ", column ",
                                                     at->location.column, ": ", operand.name,
                                                     " is not declared"));
    }
    for (const Operand& part : operand.parts) RETURN_IF_ERROR(check(part));
    return absl::OkStatus();
  };
  for (const Function& function : modules_[module]->functions) {
    if (!function.is_parsed) continue;
    for (const Instruction& i : function.body) {
      at = &i;
      // Prototypes of calls and tables of branches are names of their own kind.
      if (i.opcode == "call" || i.opcode == "brx") continue;
      for (const Operand& operand : i.operands) RETURN_IF_ERROR(check(operand));
    }
  }
  return absl::OkStatus();
}

absl::Status LinkedProgram::DefineAliases(int module) {
  for (const Module::Alias& alias : modules_[module]->aliases) {
    const SymbolRef target = Resolve(module, alias.target);
    if (target.kind != SymbolRef::Kind::kFunction) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", alias.location.line, ", column ", alias.location.column, ": alias ",
                       alias.name, " stands for ", alias.target, ", which is no function"));
    }
    RETURN_IF_ERROR(Define(module, alias.name, modules_.size() > 1, /*weak=*/false, target));
  }
  return absl::OkStatus();
}

absl::StatusOr<const Function*> LinkedProgram::ParsedFunction(const SymbolRef& ref) const {
  Function& function = modules_[ref.module]->functions[ref.index];
  MutexLock lock(&parse_mutex_);
  if (!function.is_parsed) {
    const absl::Status status = ptx::ParseBody(*modules_[ref.module], &function);
    if (!status.ok()) {
      parse_errors_[&function] = CudaError(
          CUDA_ERROR_INVALID_PTX, absl::StrCat("function ", function.name, ": ", status.message()));
    }
  }
  if (const auto it = parse_errors_.find(&function); it != parse_errors_.end()) return it->second;
  return &function;
}

SymbolRef LinkedProgram::Resolve(int module, absl::string_view name) const {
  const auto local = local_[module].find(name);
  const auto global = global_.find(name);
  // A weak definition of this module may have lost against another module's.
  if (global != global_.end() &&
      (local == local_[module].end() ||
       (local->second.kind == SymbolRef::Kind::kFunction
            ? modules_[module]->functions[local->second.index].is_visible
            : modules_[module]->variables[local->second.index].is_visible))) {
    return global->second.ref;
  }
  return local == local_[module].end() ? SymbolRef{} : local->second;
}

SymbolRef LinkedProgram::FunctionRef(int id) const {
  const auto after = std::upper_bound(first_function_.begin(), first_function_.end(), id);
  const int module = static_cast<int>(after - first_function_.begin()) - 1;
  return {SymbolRef::Kind::kFunction, module, id - first_function_[module], -1};
}

std::vector<int> LinkedProgram::AddressTakenFunctions() const {
  absl::flat_hash_set<int> taken;
  for (int m = 0; m < static_cast<int>(modules_.size()); ++m) {
    const auto note = [&](absl::string_view name) {
      const SymbolRef ref = Resolve(m, name);
      if (ref.kind == SymbolRef::Kind::kFunction) taken.insert(FunctionId(ref));
    };
    for (const Variable& v : modules_[m]->variables) {
      for (const auto& address : v.initializer.addresses) note(address.symbol);
    }
    for (const Function& f : modules_[m]->functions) {
      for (const absl::string_view name : f.summary.names) note(name);
    }
  }
  std::vector<int> sorted(taken.begin(), taken.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

MemoryNeeds LinkedProgram::Needs(const Function& function, int module) {
  MemoryNeeds needs;
  absl::flat_hash_set<const void*> shared_seen;
  std::vector<const Variable*> shared;
  struct Walk {
    LinkedProgram* program;
    MemoryNeeds* needs;
    absl::flat_hash_set<const void*>* shared_seen;
    std::vector<const Variable*>* shared;
    absl::flat_hash_map<const Function*, uint64_t> done;

    uint64_t Visit(const Function& f, int m, int depth) {
      if (depth > kMaxCallDepth) {
        needs->recursive = true;
        return 0;
      }
      if (const auto it = done.find(&f); it != done.end()) return it->second;
      uint64_t local = 0;
      for (const Variable& v : f.summary.local) PlaceVariable(&local, v);
      for (const Variable& v : f.summary.shared) {
        if (shared_seen->insert(&v).second) shared->push_back(&v);
      }
      local = (local + 15) / 16 * 16;
      uint64_t deepest = 0;
      const auto follow = [&](absl::string_view name, bool is_call) {
        const SymbolRef ref = program->Resolve(m, name);
        if (ref.kind == SymbolRef::Kind::kShared) {
          const Variable& v = program->modules_[ref.module]->variables[ref.index];
          if (!v.is_extern && shared_seen->insert(&v).second) shared->push_back(&v);
        } else if (ref.kind == SymbolRef::Kind::kFunction && is_call) {
          deepest = std::max(deepest, Visit(program->FunctionOf(ref), ref.module, depth + 1));
        }
      };
      for (const absl::string_view name : f.summary.names) follow(name, false);
      for (const absl::string_view name : f.summary.calls) follow(name, true);
      return done[&f] = local + deepest;
    }
  };
  Walk walk{this, &needs, &shared_seen, &shared, {}};
  needs.local_bytes = walk.Visit(function, module, 0);
  // Code places them in the order in which it uses them, which is not known yet: so much is enough
  // in any order.
  uint64_t alignment = 1;
  for (const Variable* v : shared) alignment = std::max<uint64_t>(alignment, v->alignment);
  for (const Variable* v : shared) {
    needs.shared_bytes +=
        shared.size() == 1 ? v->size : (v->size + alignment - 1) / alignment * alignment;
  }
  return needs;
}

}  // namespace fargpu::softgpu
