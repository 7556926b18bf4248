#include "softgpu/passes/link_modules.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"

#include "common/status_macros.h"

namespace fargpu::softgpu {
namespace {

using ptx::Function;
using ptx::Instruction;
using ptx::Module;
using ptx::Operand;
using ptx::Space;
using ptx::Variable;

template <typename Visit>
void ForEachOperand(const Operand& operand, const Visit& visit) {
  visit(operand);
  for (const Operand& part : operand.parts) ForEachOperand(part, visit);
}

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
  // A GPU's allocator needs far fewer registers than PTX names: a rough figure for attributes.
  uint32_t words = 0;
  for (const ptx::Register& r : function.registers) words += r.type.bits > 32 ? 2 : 1;
  info.registers = std::min<uint32_t>(255, 10 + words / 6);
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
  return absl::OkStatus();
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
      for (const Instruction& instruction : f.body) {
        if (instruction.opcode == "call") continue;
        for (const Operand& operand : instruction.operands) {
          ForEachOperand(operand, [&](const Operand& o) {
            if (o.kind == Operand::Kind::kSymbol) note(o.name);
          });
        }
      }
    }
  }
  std::vector<int> sorted(taken.begin(), taken.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

MemoryNeeds LinkedProgram::Needs(const Function& function, int module) {
  MemoryNeeds needs;
  absl::flat_hash_set<const void*> shared_seen;
  struct Walk {
    LinkedProgram* program;
    MemoryNeeds* needs;
    absl::flat_hash_set<const void*>* shared_seen;
    absl::flat_hash_map<const Function*, uint64_t> done;

    uint64_t Visit(const Function& f, int m, int depth) {
      if (depth > kMaxCallDepth) {
        needs->recursive = true;
        return 0;
      }
      if (const auto it = done.find(&f); it != done.end()) return it->second;
      uint64_t local = 0;
      for (const Variable& v : f.variables) {
        if (v.space == Space::kLocal) PlaceVariable(&local, v);
        if (v.space == Space::kShared && !v.is_extern && shared_seen->insert(&v).second) {
          PlaceVariable(&needs->shared_bytes, v);
        }
      }
      local = (local + 15) / 16 * 16;
      uint64_t deepest = 0;
      for (const Instruction& instruction : f.body) {
        for (const Operand& operand : instruction.operands) {
          ForEachOperand(operand, [&](const Operand& o) {
            if (o.kind != Operand::Kind::kSymbol) return;
            const SymbolRef ref = program->Resolve(m, o.name);
            if (ref.kind == SymbolRef::Kind::kShared) {
              const Variable& v = program->modules_[ref.module]->variables[ref.index];
              if (!v.is_extern && shared_seen->insert(&v).second) {
                PlaceVariable(&needs->shared_bytes, v);
              }
            } else if (ref.kind == SymbolRef::Kind::kFunction && instruction.opcode == "call") {
              deepest = std::max(deepest, Visit(program->modules_[ref.module]->functions[ref.index],
                                                ref.module, depth + 1));
            }
          });
        }
      }
      return done[&f] = local + deepest;
    }
  };
  Walk walk{this, &needs, &shared_seen, {}};
  needs.local_bytes = walk.Visit(function, module, 0);
  return needs;
}

}  // namespace fargpu::softgpu
