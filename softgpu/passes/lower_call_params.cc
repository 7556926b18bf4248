#include <algorithm>
#include <cuda.h>

#include "absl/strings/str_cat.h"

#include "softgpu/passes/flat_code.h"
#include "softgpu/passes/flatten_kernel.h"
#include "softgpu/passes/link_modules.h"

namespace fargpu::softgpu {

using ptx::Instruction;
using ptx::Operand;
using ptx::Type;
using ptx::Variable;
using Kind = ptx::Operand::Kind;

absl::Status LowerCallParams(FlatCode* code) {
  const auto param_access = [](const Instruction& i, Operand** address) {
    if ((i.opcode != "ld" && i.opcode != "st") || !i.Has("param")) return false;
    for (const Operand& o : i.operands) {
      if (o.kind == Kind::kAddress && o.parts[0].kind == Kind::kVariable && o.parts[0].index >= 0) {
        *address = const_cast<Operand*>(&o);
        return true;
      }
    }
    return false;
  };
  const auto lanes_of = [](const Instruction& i) -> uint32_t {
    return i.Has("v4") ? 4 : i.Has("v2") ? 2 : 1;
  };
  Operand* address = nullptr;
  for (const Instruction& i : code->body) {
    if (param_access(i, &address)) {
      const size_t place = i.opcode == "ld" ? 1 : 0;
      if (i.operands.size() != 2 || i.operands[place].kind != Kind::kAddress || i.type().bits < 8) {
        return KernelError(CUDA_ERROR_INVALID_PTX, code->kernel.name, i,
                           "needs a type, a value and an address");
      }
      const Operand& value = i.operands[1 - place];
      const size_t values = value.kind == Kind::kVector ? value.parts.size() : 1;
      if (values != lanes_of(i)) {
        return KernelError(CUDA_ERROR_INVALID_PTX, code->kernel.name, i,
                           absl::StrCat("has ", values, " values, not ", lanes_of(i)));
      }
      CallParam& param = code->params[address->parts[0].index];
      const uint32_t bits = i.type().bits;
      for (uint32_t k = 0; k < lanes_of(i); ++k) {
        param.slots.try_emplace(static_cast<uint64_t>(address->offset) + k * bits / 8, bits, -1);
        if (param.slots[static_cast<uint64_t>(address->offset) + k * bits / 8].first != bits) {
          param.in_memory = true;
        }
      }
    } else if (i.opcode != "call") {
      for (const Operand& o : i.operands) {
        if (o.kind == Kind::kVariable && o.index >= 0) code->params[o.index].in_memory = true;
      }
    }
  }
  for (CallParam& param : code->params) {
    uint64_t end = 0;
    for (auto& [offset, slot] : param.slots) {
      if (offset < end) param.in_memory = true;
      end = offset + slot.first / 8;
    }
    if (param.in_memory) {
      Variable v;
      v.size = param.size;
      v.alignment = param.alignment;
      param.local_offset = PlaceVariable(&code->local_bytes, v);
    } else {
      for (auto& [offset, slot] : param.slots) {
        slot.second = code->NewRegister({Type::kBits, 1, static_cast<uint16_t>(slot.first)});
      }
    }
  }
  // Labels keep their places through `moved`, as one access may become several moves.
  std::vector<Instruction> old = std::move(code->body);
  code->body.clear();
  std::vector<int> moved;
  moved.reserve(old.size() + 1);
  for (Instruction& i : old) {
    moved.push_back(static_cast<int>(code->body.size()));
    if (param_access(i, &address)) {
      CallParam& param = code->params[address->parts[0].index];
      if (param.in_memory) {
        std::replace(i.modifiers.begin(), i.modifiers.end(), absl::string_view("param"),
                     absl::string_view("local"));
        address->parts[0] = code->LocalOperand(param.local_offset);
        address->offset += address->parts[0].offset;
        address->parts[0].offset = 0;
        code->body.push_back(std::move(i));
        continue;
      }
      const bool load = i.opcode == "ld";
      const Operand& value = i.operands[load ? 0 : 1];
      for (uint32_t k = 0; k < lanes_of(i); ++k) {
        const auto& slot =
            param.slots[static_cast<uint64_t>(address->offset) + k * i.type().bits / 8];
        const Operand& element = value.kind == Kind::kVector ? value.parts[k] : value;
        const Operand reg = RegisterOperand(slot.second);
        if (load) {
          // As a load does it: a narrow value is extended to the register.
          Instruction move = MakeMove(element, reg, i.type(), i);
          move.modifiers = {"extend"};
          code->body.push_back(std::move(move));
        } else {
          code->body.push_back(MakeMove(reg, element, i.type(), i));
        }
      }
      continue;
    }
    for (Operand& o : i.operands) {
      if (o.kind != Kind::kVariable || o.index < 0) continue;
      CallParam& param = code->params[o.index];
      if (i.opcode == "call" &&
          !i.Has("real")) {  // arguments of runtime functions are single values
        const auto slot = param.slots.find(0);
        if (slot == param.slots.end()) {
          o = Operand{};
        } else if (param.in_memory) {
          return KernelError(CUDA_ERROR_NOT_SUPPORTED, code->kernel.name, i,
                             "an argument that is a structure");
        } else {
          o = RegisterOperand(slot->second.second);
        }
      } else {
        o = code->LocalOperand(param.local_offset + static_cast<uint64_t>(o.offset));
      }
    }
    code->body.push_back(std::move(i));
  }
  moved.push_back(static_cast<int>(code->body.size()));
  for (int& label : code->labels) {
    if (label >= 0) label = moved[label];
  }
  return absl::OkStatus();
}

}  // namespace fargpu::softgpu
