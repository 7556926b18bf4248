#include "softgpu/passes/flatten_kernel.h"

#include <algorithm>
#include <cuda.h>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "softgpu/passes/device_functions.h"
#include "softgpu/passes/flat_code.h"

namespace fargpu::softgpu {
namespace {

using ptx::Function;
using ptx::Instruction;
using ptx::Operand;
using ptx::Space;
using ptx::Type;
using ptx::Variable;
using Kind = ptx::Operand::Kind;

// Inlining more than this would make the compiler's time and memory explode.
constexpr size_t kMaxInstructions = 400000;
constexpr size_t kMaxDepth = 48;
// Of registers, variables, labels and the functions themselves, together over all inlined calls:
// they cost memory also where a function has no instructions.
constexpr size_t kMaxInlinedNames = 1 << 21;
constexpr size_t kNamesPerCall = 16;
// Local memory per thread for the frames of functions that are called for real.
constexpr uint64_t kCallStackBytes = 65536;

bool IsRuntimeFunction(absl::string_view name) {
  return name == "vprintf" || name == "__assertfail" || name == "malloc" || name == "free" ||
         FindDeviceFunction(name) != nullptr;
}

Instruction MakeJump(int label, ptx::Location location) {
  Instruction jump;
  jump.opcode = "bra";
  jump.location = location;
  Operand target;
  target.kind = Kind::kLabel;
  target.index = label;
  jump.operands.push_back(std::move(target));
  return jump;
}

// Places of static shared variables, the same in a kernel and the functions it calls.
struct SharedLayout {
  absl::flat_hash_map<const Variable*, uint64_t> places;
  uint64_t end = 0;
};

class Flattener {
 public:
  Flattener(const LinkedProgram& program, size_t kernel, SharedLayout* shared)
      : program_(program), kernel_info_(program.kernels()[kernel]), shared_(*shared) {
    code_.kernel.name = kernel_info_.name;
  }

  // Numbers of the functions that the code calls for real.
  const std::set<int>& needed_functions() const { return needed_functions_; }

  absl::StatusOr<FlatKernel> RunFunction(const SymbolRef& ref) {
    ASSIGN_OR_RETURN(const Function* const parsed, program_.ParsedFunction(ref));
    const Function& function = *parsed;
    code_.kernel.name = absl::StrCat(kernel_info_.name, ", function ", function.name);
    code_.kernel.is_function = true;
    code_.kernel.shared_bytes = kernel_info_.static_shared_bytes;
    const Type u64 = {Type::kUnsigned, 1, 64};
    code_.kernel.frame_register = code_.NewRegister(u64);
    Frame frame;
    frame.end_label = -1;
    std::vector<std::pair<int, int>> results;
    for (size_t i = 0; i < function.params.size() + function.returns.size(); ++i) {
      if (function.variables[i].is_register) {
        return CudaError(CUDA_ERROR_NOT_SUPPORTED,
                         absl::StrCat("kernel ", code_.kernel.name, ": parameters in registers"));
      }
      code_.kernel.param_registers.push_back(code_.NewRegister(u64));
      frame.variables.push_back(
          {Place::kCallerMemory, static_cast<uint64_t>(code_.kernel.param_registers.back())});
    }
    stack_.push_back(&function);
    RETURN_IF_ERROR(Inline(function, ref.module, std::move(frame), 0, 0));
    return Finish();
  }

  absl::StatusOr<FlatKernel> Run(const Function& function, int module) {
    code_.kernel.shared_bytes = kernel_info_.static_shared_bytes;
    Frame frame;
    frame.end_label = -1;
    uint64_t ignored = 0;
    for (const Variable& param : function.params) {
      frame.variables.push_back({Place::kKernelParam, PlaceVariable(&ignored, param)});
    }
    RETURN_IF_ERROR(Inline(function, module, std::move(frame), 0, 0));
    return Finish();
  }

  absl::StatusOr<FlatKernel> Finish() {
    RETURN_IF_ERROR(LowerCallParams(&code_));
    if (shared_.end > code_.kernel.shared_bytes) {
      return absl::InternalError(absl::StrCat("kernel ", code_.kernel.name, " needs ", shared_.end,
                                              " bytes of shared memory, not the estimated ",
                                              code_.kernel.shared_bytes));
    }
    code_.kernel.carry_register = code_.NewRegister({Type::kPred, 1, 1});
    code_.kernel.local_bytes = code_.kernel.frame_bytes = (code_.local_bytes + 15) / 16 * 16;
    CutIntoBlocks(&code_);
    return std::move(code_.kernel);
  }

 private:
  // Where a variable of a function (instance) lives.
  struct Place {
    enum Kind {
      kShared,
      kDynamicShared,
      kLocal,
      kKernelParam,
      kParam,
      kRegister,
      kCallerMemory
    } kind;
    uint64_t offset;  // or the id of a parameter (kParam), or a register
  };
  struct Frame {
    std::vector<Place> variables;
    int register_base = 0;
    int label_base = 0;
    int end_label = -1;  // where ret goes; -1 in the kernel itself
    int module = 0;
  };
  absl::Status Error(CUresult code, const Instruction& at, absl::string_view what) const {
    return KernelError(code, code_.kernel.name, at, what);
  }

  uint64_t SharedOffset(const Variable& variable) {
    const auto [it, added] = shared_.places.try_emplace(&variable, 0);
    if (added) it->second = PlaceVariable(&shared_.end, variable);
    return it->second;
  }
  int NewParam(const Variable& variable) {
    code_.params.push_back({variable.size, variable.alignment, false, 0, {}});
    return static_cast<int>(code_.params.size()) - 1;
  }

  absl::Status Inline(const Function& f, int module, Frame frame, uint64_t local_base,
                      size_t depth) {
    names_ += kNamesPerCall + f.registers.size() + f.variables.size() + f.labels.size();
    if (names_ > kMaxInlinedNames) {
      Instruction at;
      at.location = f.location;
      at.opcode = f.name;
      return Error(CUDA_ERROR_NOT_SUPPORTED, at,
                   absl::StrCat("the kernel has more than ", kMaxInlinedNames,
                                " registers, variables and labels with its functions inlined"));
    }
    frame.module = module;
    frame.register_base = static_cast<int>(code_.kernel.registers.size());
    code_.kernel.registers.insert(code_.kernel.registers.end(), f.registers.begin(),
                                  f.registers.end());
    frame.label_base = static_cast<int>(code_.labels.size());
    code_.labels.resize(code_.labels.size() + f.labels.size(), -1);
    // frame.variables already holds the parameters (and returns) that the caller bound.
    uint64_t local = local_base;
    for (size_t i = frame.variables.size(); i < f.variables.size(); ++i) {
      const Variable& v = f.variables[i];
      switch (v.space) {
        case Space::kLocal:
          frame.variables.push_back({Place::kLocal, PlaceVariable(&local, v)});
          break;
        case Space::kShared:
          if (v.is_extern) {
            frame.variables.push_back({Place::kDynamicShared, 0});
          } else {
            frame.variables.push_back({Place::kShared, SharedOffset(v)});
          }
          break;
        default:
          frame.variables.push_back({Place::kParam, static_cast<uint64_t>(NewParam(v))});
      }
    }
    local = (local + 15) / 16 * 16;
    code_.local_bytes = std::max(code_.local_bytes, local);
    std::vector<std::pair<int, int>> labels;  // position, label
    for (size_t i = 0; i < f.labels.size(); ++i) {
      labels.emplace_back(f.labels[i].position, static_cast<int>(i));
    }
    std::sort(labels.begin(), labels.end());
    size_t next_label = 0;
    for (int i = 0; i <= static_cast<int>(f.body.size()); ++i) {
      while (next_label < labels.size() && labels[next_label].first == i) {
        code_.labels[frame.label_base + labels[next_label++].second] =
            static_cast<int>(code_.body.size());
      }
      if (i == static_cast<int>(f.body.size())) break;
      if (code_.body.size() > kMaxInstructions) {
        return Error(CUDA_ERROR_NOT_SUPPORTED, f.body[i],
                     absl::StrCat("the kernel has more than ", kMaxInstructions,
                                  " instructions with its functions inlined"));
      }
      RETURN_IF_ERROR(Statement(f.body[i], frame, local, depth));
    }
    return absl::OkStatus();
  }

  absl::Status Statement(const Instruction& source, const Frame& frame, uint64_t local,
                         size_t depth) {
    if (source.opcode == "ret" && frame.end_label >= 0) {
      Instruction jump = MakeJump(frame.end_label, source.location);
      if (source.guard >= 0) jump.guard = source.guard + frame.register_base;
      jump.guard_negated = source.guard_negated;
      code_.body.push_back(std::move(jump));
      return absl::OkStatus();
    }
    if (source.opcode == "call") return Call(source, frame, local, depth);
    Instruction instruction = source;
    if (instruction.guard >= 0) instruction.guard += frame.register_base;
    const bool in_function = frame.end_label >= 0 || code_.kernel.is_function;
    if (in_function && source.Has("param") && (source.opcode == "ld" || source.opcode == "st")) {
      // Through a register, a device function's own parameter is meant; it lives in local memory.
      for (Operand& operand : instruction.operands) {
        const bool through_register =
            operand.kind == Kind::kAddress &&
            (operand.parts[0].kind == Kind::kRegister ||
             (operand.parts[0].kind == Kind::kVariable &&
              frame.variables[operand.parts[0].index].kind == Place::kCallerMemory));
        if (through_register) {
          std::replace(instruction.modifiers.begin(), instruction.modifiers.end(),
                       absl::string_view("param"), absl::string_view("local"));
        }
      }
    }
    for (Operand& operand : instruction.operands) {
      RETURN_IF_ERROR(Rewrite(&operand, frame, instruction));
    }
    code_.body.push_back(std::move(instruction));
    return absl::OkStatus();
  }

  absl::Status Rewrite(Operand* operand, const Frame& frame, const Instruction& at) {
    switch (operand->kind) {
      case Kind::kRegister:
        operand->index += frame.register_base;
        break;
      case Kind::kLabel:
        operand->index += frame.label_base;
        break;
      case Kind::kVariable: {
        const Place& place = frame.variables[operand->index];
        const auto immediate = [&](uint64_t value) {
          operand->kind = Kind::kImmediate;
          operand->bits = value + static_cast<uint64_t>(operand->offset);
          operand->offset = 0;
        };
        switch (place.kind) {
          case Place::kShared:
            immediate(place.offset);
            break;
          case Place::kLocal:
            *operand = code_.LocalOperand(place.offset + static_cast<uint64_t>(operand->offset));
            break;
          case Place::kCallerMemory:
            operand->kind = Kind::kRegister;
            operand->index = static_cast<int>(place.offset);
            break;
          case Place::kDynamicShared:
            immediate(DynamicSharedOffset());
            break;
          case Place::kKernelParam:
            operand->index = -1;
            operand->offset =
                static_cast<int64_t>(static_cast<uint64_t>(operand->offset) + place.offset);
            break;
          case Place::kParam:
            operand->index = static_cast<int>(place.offset);
            break;
          case Place::kRegister:
            operand->kind = Kind::kRegister;
            operand->index = static_cast<int>(place.offset);
            break;
        }
        break;
      }
      case Kind::kSymbol: {
        const SymbolRef ref = program_.Resolve(frame.module, operand->name);
        if (ref.kind == SymbolRef::Kind::kShared) {
          const Variable& v = program_.modules()[ref.module]->variables[ref.index];
          const uint64_t base = v.is_extern ? DynamicSharedOffset() : SharedOffset(v);
          operand->kind = Kind::kImmediate;
          operand->bits = base + static_cast<uint64_t>(operand->offset);
          operand->offset = 0;
        } else if (ref.kind == SymbolRef::Kind::kVariable) {
          operand->index = ref.program_variable;
        } else if (ref.kind == SymbolRef::Kind::kFunction) {
          operand->kind = Kind::kImmediate;
          operand->bits = LinkedProgram::FunctionAddress(program_.FunctionId(ref));
          operand->offset = 0;
        } else {
          return Error(CUDA_ERROR_INVALID_PTX, at,
                       absl::StrCat("'", operand->name, "' is not defined"));
        }
        break;
      }
      default:
        break;
    }
    for (Operand& part : operand->parts) RETURN_IF_ERROR(Rewrite(&part, frame, at));
    return absl::OkStatus();
  }

  uint64_t DynamicSharedOffset() const { return (kernel_info_.static_shared_bytes + 15) / 16 * 16; }

  absl::Status Call(const Instruction& source, const Frame& frame, uint64_t local, size_t depth) {
    // call (ret), name, (args);  call name, (args);  call name;
    size_t at = 0;
    const Operand* returns = nullptr;
    if (at < source.operands.size() && source.operands[at].kind == Kind::kList) {
      returns = &source.operands[at++];
    }
    if (at >= source.operands.size())
      return Error(CUDA_ERROR_INVALID_PTX, source, "call of nothing");
    const Operand& callee = source.operands[at++];
    const Operand* args = nullptr;
    if (at < source.operands.size() && source.operands[at].kind == Kind::kList) {
      args = &source.operands[at++];
    }
    const bool indirect = callee.kind != Kind::kSymbol;
    if (indirect && callee.kind != Kind::kRegister) {
      return Error(CUDA_ERROR_INVALID_PTX, source,
                   "the callee is neither a function nor a register");
    }
    const auto list = [](const Operand* o) {
      return o == nullptr ? std::vector<Operand>{} : o->parts;
    };
    std::vector<Operand> actual = list(args);
    const std::vector<Operand> returned = list(returns);
    const size_t arguments = actual.size();
    actual.insert(actual.end(), returned.begin(), returned.end());
    for (Operand& operand : actual) RETURN_IF_ERROR(Rewrite(&operand, frame, source));
    const int guard = source.guard < 0 ? -1 : source.guard + frame.register_base;
    int skip = -1;
    if (guard >= 0) {  // jump around the call where the guard is false
      skip = static_cast<int>(code_.labels.size());
      code_.labels.push_back(-1);
      Instruction jump = MakeJump(skip, source.location);
      jump.guard = guard;
      jump.guard_negated = !source.guard_negated;
      code_.body.push_back(std::move(jump));
    }
    const SymbolRef ref = indirect ? SymbolRef{} : program_.Resolve(frame.module, callee.name);
    const bool recursive = ref.kind == SymbolRef::Kind::kFunction &&
                           (depth >= kMaxDepth || std::count(stack_.begin(), stack_.end(),
                                                             &program_.FunctionOf(ref)) > 0);
    if (indirect || recursive) {
      Instruction call;
      call.opcode = "call";
      call.modifiers = {"real"};
      call.location = source.location;
      if (indirect) {
        call.operands.push_back(RegisterOperand(callee.index + frame.register_base));
        for (const int id : program_.AddressTakenFunctions()) {
          const Function& f = program_.FunctionOf(program_.FunctionRef(id));
          if (f.params.size() == arguments && f.returns.size() == returned.size())
            needed_functions_.insert(id);
        }
      } else {
        Operand address;
        address.kind = Kind::kImmediate;
        address.bits = LinkedProgram::FunctionAddress(program_.FunctionId(ref));
        call.operands.push_back(std::move(address));
        needed_functions_.insert(program_.FunctionId(ref));
      }
      for (const Operand& operand : actual) {
        if (operand.kind != Kind::kVariable || operand.index < 0) {
          return Error(CUDA_ERROR_NOT_SUPPORTED, source,
                       "an argument that is not a .param variable");
        }
        code_.params[operand.index].in_memory = true;
        call.operands.push_back(operand);
      }
      code_.body.push_back(std::move(call));
    } else if (ref.kind != SymbolRef::Kind::kFunction) {
      if (!IsRuntimeFunction(callee.name)) {
        return Error(CUDA_ERROR_NOT_SUPPORTED, source,
                     absl::StrCat("function ", callee.name, " has no body"));
      }
      Instruction call;
      call.opcode = "call";
      call.location = source.location;
      Operand name;
      name.kind = Kind::kSymbol;
      name.name = callee.name;
      call.operands.push_back(std::move(name));
      call.operands.emplace_back();
      if (arguments < actual.size()) call.operands[1] = actual[arguments];
      for (size_t k = 0; k < arguments; ++k) AddWords(actual[k], source, &call.operands);
      code_.body.push_back(std::move(call));
    } else {
      ASSIGN_OR_RETURN(const Function* const parsed, program_.ParsedFunction(ref));
      const Function& f = *parsed;
      if (arguments != f.params.size() || returned.size() != f.returns.size()) {
        return Error(CUDA_ERROR_INVALID_PTX, source,
                     absl::StrCat("function ", callee.name, " takes ", f.params.size(),
                                  " arguments and returns ", f.returns.size(), ", the call has ",
                                  arguments, " and ", returned.size()));
      }
      Frame inner;
      const int register_base = static_cast<int>(code_.kernel.registers.size());
      std::vector<std::pair<int, Operand>> results;
      for (size_t i = 0; i < f.params.size() + f.returns.size(); ++i) {
        const bool is_return = i >= f.params.size();
        const Variable& formal = f.variables[i];
        const Operand& given = actual[i];
        if (formal.is_register) {
          inner.variables.push_back({Place::kRegister, 0});
          const int to = register_base + formal.index;
          if (is_return) {
            results.emplace_back(to, given);
          } else {
            code_.body.push_back(MakeMove(RegisterOperand(to), given, formal.type, Instruction{}));
          }
        } else if (given.kind == Kind::kVariable && given.index >= 0) {
          inner.variables.push_back({Place::kParam, static_cast<uint64_t>(given.index)});
        } else {
          // A register or constant given for a .param: pass it through a parameter of its own.
          const int param = NewParam(formal);
          inner.variables.push_back({Place::kParam, static_cast<uint64_t>(param)});
          Instruction move;
          move.opcode = is_return ? "ld" : "st";
          move.location = source.location;
          move.modifiers = {"param"};
          move.types = {formal.type};
          Operand address;
          address.kind = Kind::kAddress;
          address.parts.emplace_back();
          address.parts[0].kind = Kind::kVariable;
          address.parts[0].index = param;
          if (is_return) {
            move.operands = {given, address};
            deferred_.push_back(std::move(move));
          } else {
            move.operands = {address, given};
            code_.body.push_back(std::move(move));
          }
        }
      }
      std::vector<Instruction> after = std::exchange(deferred_, {});
      inner.end_label = static_cast<int>(code_.labels.size());
      code_.labels.push_back(-1);
      const int end = inner.end_label;
      stack_.push_back(&f);
      RETURN_IF_ERROR(Inline(f, ref.module, std::move(inner), local, depth + 1));
      stack_.pop_back();
      code_.labels[end] = static_cast<int>(code_.body.size());
      for (const auto& [from, to] : results) {
        code_.body.push_back(
            MakeMove(to, RegisterOperand(from), code_.kernel.registers[from].type, Instruction{}));
      }
      for (Instruction& move : after) code_.body.push_back(std::move(move));
    }
    if (skip >= 0) code_.labels[skip] = static_cast<int>(code_.body.size());
    return absl::OkStatus();
  }

  // An argument for a function of the device's: itself, or if it is a structure its words, loaded
  // into registers.
  void AddWords(const Operand& argument, const Instruction& like, std::vector<Operand>* words) {
    const bool is_param = argument.kind == Kind::kVariable && argument.index >= 0;
    const uint64_t size = is_param ? code_.params[argument.index].size : 0;
    if (size <= 8) {
      words->push_back(argument);
      return;
    }
    for (uint64_t offset = 0; offset + 4 <= size; offset += 4) {
      const Type u32 = {Type::kUnsigned, 1, 32};
      Instruction load;
      load.opcode = "ld";
      load.location = like.location;
      load.modifiers = {"param"};
      load.types = {u32};
      Operand address;
      address.kind = Kind::kAddress;
      address.offset = static_cast<int64_t>(offset);
      address.parts.push_back(argument);
      words->push_back(RegisterOperand(code_.NewRegister(u32)));
      load.operands = {words->back(), address};
      code_.body.push_back(std::move(load));
    }
  }

  const LinkedProgram& program_;
  const KernelInfo& kernel_info_;
  FlatCode code_;
  std::vector<Instruction> deferred_;
  std::vector<const Function*> stack_;
  std::set<int> needed_functions_;
  SharedLayout& shared_;
  size_t names_ = 0;
};

}  // namespace

Operand RegisterOperand(int index) {
  Operand operand;
  operand.kind = Kind::kRegister;
  operand.index = index;
  return operand;
}

Instruction MakeMove(Operand to, Operand from, Type type, const Instruction& like) {
  Instruction move;
  move.opcode = "mov";
  move.location = like.location;
  move.guard = like.guard;
  move.guard_negated = like.guard_negated;
  move.types = {type};
  move.operands = {std::move(to), std::move(from)};
  return move;
}

Operand FlatCode::LocalOperand(uint64_t offset) const {
  Operand operand;
  if (kernel.is_function) {
    operand = RegisterOperand(kernel.frame_register);
    operand.offset = static_cast<int64_t>(offset);
  } else {
    operand.kind = Kind::kImmediate;
    operand.bits = offset;
  }
  return operand;
}

absl::Status KernelError(CUresult code, absl::string_view kernel, const Instruction& at,
                         absl::string_view what) {
  return CudaError(code, absl::StrCat("kernel ", kernel, ", line ", at.location.line, ", '",
                                      at.Name(), "': ", what));
}

absl::StatusOr<FlatKernel> FlattenKernel(const LinkedProgram& program, size_t kernel) {
  SharedLayout shared;
  Flattener flattener(program, kernel, &shared);
  ASSIGN_OR_RETURN(const Function* const entry, program.ParsedFunction(program.kernel_ref(kernel)));
  ASSIGN_OR_RETURN(FlatKernel flat, flattener.Run(*entry, program.kernel_module(kernel)));
  std::vector<int> work(flattener.needed_functions().begin(), flattener.needed_functions().end());
  while (!work.empty()) {
    const int id = work.back();
    work.pop_back();
    if (flat.functions.count(id) > 0) continue;
    Flattener inner(program, kernel, &shared);
    ASSIGN_OR_RETURN(FlatKernel function, inner.RunFunction(program.FunctionRef(id)));
    flat.has_block_barrier |= function.has_block_barrier;
    flat.functions[id] = std::make_shared<FlatKernel>(std::move(function));
    work.insert(work.end(), inner.needed_functions().begin(), inner.needed_functions().end());
  }
  if (!flat.functions.empty()) flat.local_bytes += kCallStackBytes;
  for (auto& [id, function] : flat.functions) function->local_bytes = flat.local_bytes;
  return flat;
}

}  // namespace fargpu::softgpu
