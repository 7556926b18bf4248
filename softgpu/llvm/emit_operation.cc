// How an instruction hands its operands to kRuntimeOperation.
#include "common/status_macros.h"
#include "softgpu/llvm/instruction_emitter.h"

namespace fargpu::softgpu {

llvm::Value* InstructionEmitter::SlotAddress(unsigned slot) {
  if (slots_ == nullptr) {
    slots_ = EntryAlloca(
        llvm::ArrayType::get(llvm::FixedVectorType::get(builder_.getInt64Ty(), kWarpSize), kSlots),
        "slots");
    slots_->setAlignment(llvm::Align(64));
  }
  return builder_.CreateConstInBoundsGEP1_64(builder_.getInt8Ty(), slots_,
                                             uint64_t{slot} * kSlotBytes);
}

void InstructionEmitter::PutSlot(unsigned slot, llvm::Value* vector) {
  builder_.CreateAlignedStore(vector, SlotAddress(slot), llvm::Align(64));
}

llvm::Value* InstructionEmitter::GetSlot(unsigned slot, llvm::Type* element) {
  return builder_.CreateAlignedLoad(VectorOf(element), SlotAddress(slot), llvm::Align(64));
}

void InstructionEmitter::RunOperation(Operation operation, uint64_t code, const Instruction& at) {
  CallRuntime(
      kRuntimeOperation, builder_.getVoidTy(),
      {Int32(static_cast<uint32_t>(operation)), builder_.getInt64(code), MaskBits(ExecMask()),
       SlotAddress(0), Int32(static_cast<uint32_t>(at.location.line))});
}

absl::Status InstructionEmitter::PutOperand(const Instruction& i, const Operand& operand, Type type,
                                            unsigned slot) {
  ASSIGN_OR_RETURN(const LaneValue value, Get(i, operand, type));
  PutSlot(slot, AsVector(builder_, value));
  return absl::OkStatus();
}

}  // namespace fargpu::softgpu
