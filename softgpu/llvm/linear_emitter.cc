#include "softgpu/llvm/linear_emitter.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "common/status_macros.h"
#include "softgpu/llvm/warp_loops.h"
#include "softgpu/passes/build_ssa.h"
#include "softgpu/passes/control_flow.h"
#include "softgpu/passes/find_waiting_loops.h"
#include "softgpu/passes/track_lane_masks.h"

namespace fargpu::softgpu {
namespace {

// Rounds a warp waits in a loop for another warp before it lets others run.
constexpr uint32_t kSpins = 32;
// Emission starts again when an assumption about uniformity fails; it nearly always settles at
// once, and after this many times everything is taken for varying.
constexpr int kMaxAttempts = 40;

// What has been found out about the kernel, from one attempt to the next.
struct Facts {
  std::vector<bool> divergent;  // by block: its branch differs between lanes
  std::vector<bool> varying;    // by register: a phi that has no scalar form
  Turns turns = Turns::kIndependent;
};

class LinearEmitter : public WarpLoops {
 public:
  LinearEmitter(const FlatKernel& kernel, const ControlFlow& flow, const Ssa& ssa,
                const std::vector<bool>& waiting_loops, const CompileOptions& options,
                llvm::Module* module, Facts* facts)
      : WarpLoops(kernel, options, module),
        flow_(flow),
        ssa_(ssa),
        waiting_loops_(waiting_loops),
        facts_(*facts) {}

  enum class Outcome { kDone, kAgain, kUnfit };

  static void Erase(const std::string& name, llvm::Module* module) { EraseWarps(name, module); }

  absl::StatusOr<Outcome> Run(const std::string& name) {
    masks_ = TrackLaneMasks(kernel_, flow_, facts_.divergent);
    if (!Fits()) return Outcome::kUnfit;
    BeginWarps(facts_.turns, name);
    const uint64_t threads = uint64_t{options_.block.x} * options_.block.y * options_.block.z;
    full_ = threads != 0 && threads % kWarpSize == 0;
    slots_.resize(kernel_.registers.size());
    is_phi_.assign(kernel_.registers.size(), false);
    for (const std::vector<Phi>& phis : ssa_.phis) {
      for (const Phi& phi : phis) is_phi_[phi.result] = true;
    }
    llvm::Type* mask_type = VectorOf(builder_.getInt1Ty());
    const size_t n = kernel_.blocks.size();
    for (size_t b = 0; b < n; ++b) {
      blocks_.push_back(llvm::BasicBlock::Create(context_, "b" + std::to_string(b), function_));
      parked_.push_back(EntryAlloca(mask_type, "parked"));
      class_masks_.push_back(EntryAlloca(mask_type, "mask"));
    }
    spins_ = EntryAlloca(builder_.getInt32Ty(), "spins");
    builder_.CreateStore(Int32(0), spins_);
    for (llvm::AllocaInst* parked : parked_)
      builder_.CreateStore(llvm::Constant::getNullValue(mask_type), parked);
    llvm::Value* entry =
        full_ ? llvm::Constant::getAllOnesValue(mask_type) : MaskFromBits(active());
    builder_.CreateStore(entry, parked_[0]);
    builder_.CreateBr(blocks_[0]);
    for (size_t b = 0; b < n; ++b) {
      builder_.SetInsertPoint(blocks_[b]);
      RETURN_IF_ERROR(EmitBlock(static_cast<int>(b)));
    }
    if (NeededTurns() > facts_.turns) {
      facts_.turns = NeededTurns();
      again_ = true;
    }
    return again_ ? Outcome::kAgain : Outcome::kDone;
  }

 protected:
  LaneValue ReadRegister(int reg) override {
    Slot& slot = slots_[reg];
    if (!slot.written) {
      // Never written, or (a phi of a loop) not yet: zero.
      if (!is_phi_[reg]) return LaneValue::Uniform(llvm::Constant::getNullValue(RegisterType(reg)));
      LaneValue zero = LaneValue::Uniform(llvm::Constant::getNullValue(RegisterType(reg)));
      return zero;
    }
    if (slot.block == current_ && !is_phi_[reg]) return slot.direct;
    LaneValue value;
    value.offsets = slot.offsets;
    value.zero_bits = slot.zero_bits;
    value.value_bits = slot.value_bits;
    if (slot.constant != nullptr) {
      value.scalar = slot.constant;
    } else if (slot.scalar != nullptr) {
      value.scalar = builder_.CreateLoad(RegisterType(reg), slot.scalar);
    }
    if (slot.valid != nullptr) value.valid = builder_.CreateLoad(builder_.getInt1Ty(), slot.valid);
    if (slot.vector != nullptr)
      value.vector = builder_.CreateLoad(VectorOf(RegisterType(reg)), slot.vector);
    return value;
  }

  void WriteRegister(int reg, LaneValue value) override {
    if (guard() != nullptr) {
      const LaneValue old =
          ssa_.previous[reg] >= 0
              ? ReadRegister(ssa_.previous[reg])
              : LaneValue::Uniform(llvm::Constant::getNullValue(RegisterType(reg)));
      value = GuardedValue(value, old);
    }
    Slot& slot = slots_[reg];
    slot.written = true;
    slot.block = current_;
    slot.direct = value;
    Shape(reg, value);
    Store(reg, value);
  }

  llvm::Value* BlockMask() override { return mask_; }
  bool InLoopWithBarrier() override {
    const int loop = flow_.loop_of[static_cast<size_t>(current_)];
    if (loop < 0 || !kernel_.has_block_barrier) return false;
    for (size_t b = 0; b < kernel_.blocks.size(); ++b) {
      if (!flow_.loops[static_cast<size_t>(loop)].contains[b]) continue;
      for (const ptx::Instruction& i : kernel_.blocks[b].instructions) {
        if (MeetingAt(i) == Meeting::kBlock) return true;
      }
    }
    return false;
  }
  bool BlockMaskIsFull() override { return full_ && masks_.mask_class[current_] == 0; }

 private:
  // Where a value lives between blocks, in the form it was given first.
  struct Slot {
    bool written = false;
    int block = -1;
    LaneValue direct;  // within `block`
    llvm::Constant* constant = nullptr;
    llvm::AllocaInst* scalar = nullptr;
    llvm::AllocaInst* valid = nullptr;
    llvm::AllocaInst* vector = nullptr;
    const LaneOffsets* offsets = nullptr;
    unsigned zero_bits = 0;
    unsigned value_bits = 64;
  };

  void Shape(int reg, const LaneValue& value) {
    Slot& slot = slots_[reg];
    llvm::Type* type = RegisterType(reg);
    if (value.scalar != nullptr) {
      slot.constant = llvm::dyn_cast<llvm::Constant>(value.scalar);
      if (slot.constant == nullptr) slot.scalar = EntryAlloca(type, "s");
      slot.offsets = value.offsets;
      slot.zero_bits = value.zero_bits;
      slot.value_bits = value.value_bits;
    }
    if (value.valid != nullptr) slot.valid = EntryAlloca(builder_.getInt1Ty(), "valid");
    if (value.vector != nullptr) slot.vector = EntryAlloca(VectorOf(type), "v");
  }

  void Store(int reg, const LaneValue& value) {
    const Slot& slot = slots_[reg];
    if (slot.scalar != nullptr) builder_.CreateStore(value.scalar, slot.scalar);
    if (slot.valid != nullptr) builder_.CreateStore(value.valid, slot.valid);
    if (slot.vector != nullptr) builder_.CreateStore(AsVector(builder_, value), slot.vector);
  }

  // Can lanes of one warp, or part of a warp at a barrier, wait for others here?
  bool Fits() const {
    for (size_t b = 0; b < kernel_.blocks.size(); ++b) {
      for (const ptx::Instruction& i : kernel_.blocks[b].instructions) {
        if (i.opcode == "call" && i.Has("real")) return false;
        if (masks_.parked[b].empty()) continue;
        const Meeting meeting = MeetingAt(i);
        if (meeting == Meeting::kBlock) return false;
        // Lanes that are missing come later, by the same way or, if there is one, by another.
        if (meeting == Meeting::kMembers && MayMeetElsewhere(static_cast<int>(b))) return false;
      }
    }
    // Lanes that have left a loop wait for those inside, who must not wait for them.
    for (size_t l = 0; l < flow_.loops.size(); ++l) {
      if (waiting_loops_[l] && MayActBeforeBarrier(kernel_, masks_.parked[flow_.loops[l].latch]))
        return false;
    }
    return true;
  }

  // May lanes that wait while block b runs meet lanes of other blocks at an instruction that those
  // in b do not come to?
  bool MayMeetElsewhere(int b) const {
    const std::vector<bool> from_here = ReachedForward({b});
    const std::vector<bool> from_others = ReachedForward(masks_.parked[b]);
    for (size_t k = 0; k < kernel_.blocks.size(); ++k) {
      if (!from_others[k] || from_here[k]) continue;
      for (const ptx::Instruction& i : kernel_.blocks[k].instructions) {
        if (MeetingAt(i) == Meeting::kMembers) return true;
      }
    }
    return false;
  }

  // Blocks reached from some without going back.
  std::vector<bool> ReachedForward(std::vector<int> work) const {
    std::vector<bool> reached(kernel_.blocks.size(), false);
    while (!work.empty()) {
      const int b = work.back();
      work.pop_back();
      if (reached[b]) continue;
      reached[b] = true;
      for (const int s : kernel_.blocks[b].Successors()) {
        if (s > b) work.push_back(s);
      }
    }
    return reached;
  }

  absl::Status EmitBlock(int b) {
    current_ = b;
    llvm::Type* mask_type = VectorOf(builder_.getInt1Ty());
    const int leader = masks_.mask_class[b];
    if (leader == b || (b == 0)) {
      mask_ = builder_.CreateLoad(mask_type, parked_[b]);
      builder_.CreateStore(mask_, class_masks_[b]);
    } else if (leader == 0 && full_) {
      mask_ = llvm::Constant::getAllOnesValue(mask_type);
    } else {
      mask_ = builder_.CreateLoad(mask_type, class_masks_[leader]);
    }
    if (b == 0 && full_) mask_ = llvm::Constant::getAllOnesValue(mask_type);
    builder_.CreateStore(llvm::Constant::getNullValue(mask_type), parked_[b]);

    const BasicBlock& block = kernel_.blocks[b];
    GroupChecks(block.instructions);
    for (const ptx::Instruction& i : block.instructions) RETURN_IF_ERROR(Emit(i));
    YieldAtLatch(b);
    switch (block.end) {
      case BasicBlock::End::kExit:
      case BasicBlock::End::kReturn:
        Continue(b, {}, static_cast<int>(kernel_.blocks.size()));
        return absl::OkStatus();
      case BasicBlock::End::kJump:
        GoTo(b, block.target);
        return absl::OkStatus();
      case BasicBlock::End::kBranch:
        break;
    }
    if (block.target == block.fallthrough) {
      GoTo(b, block.target);
      return absl::OkStatus();
    }
    const LaneValue p = ReadPredicate(block.predicate, block.negated);
    if (p.uniform() && !facts_.divergent[b]) {
      auto* taken = llvm::BasicBlock::Create(context_, "taken", function_);
      auto* not_taken = llvm::BasicBlock::Create(context_, "not_taken", function_);
      builder_.CreateCondBr(p.scalar, taken, not_taken);
      builder_.SetInsertPoint(taken);
      GoTo(b, block.target);
      builder_.SetInsertPoint(not_taken);
      GoTo(b, block.fallthrough);
      return absl::OkStatus();
    }
    if (!facts_.divergent[b]) {
      facts_.divergent[b] = true;
      again_ = true;
    }
    llvm::Value* condition = AsVector(builder_, p);
    // Both ways' values are read before either is written: one may be the other's source.
    std::vector<int> added;
    std::vector<Copy> copies[2];
    const int successors[2] = {block.target, block.fallthrough};
    for (int k = 0; k < 2; ++k) {
      if (kernel_.blocks[successors[k]].IsExit()) continue;
      added.push_back(successors[k]);
      copies[k] = ReadCopies(b, successors[k]);
    }
    for (int k = 0; k < 2; ++k) {
      if (kernel_.blocks[successors[k]].IsExit()) continue;
      llvm::Value* lanes =
          builder_.CreateAnd(mask_, k == 0 ? condition : builder_.CreateNot(condition));
      Arrive(b, successors[k], lanes, copies[k]);
    }
    Continue(
        b, added,
        added.size() == 2 ? std::max(added[0], added[1]) : static_cast<int>(kernel_.blocks.size()));
    return absl::OkStatus();
  }

  // All lanes of block `from` go to `to`.
  void GoTo(int from, int to) {
    if (kernel_.blocks[to].IsExit()) {
      Continue(from, {}, static_cast<int>(kernel_.blocks.size()));
      return;
    }
    Arrive(from, to, mask_, ReadCopies(from, to));
    Continue(from, {to}, to);
  }

  // A loop that reads what other warps write must let them run.
  void YieldAtLatch(int b) {
    for (size_t l = 0; l < flow_.loops.size(); ++l) {
      if (flow_.loops[l].latch != b) continue;
      if (!waiting_loops_[l]) return;
      llvm::Value* spins =
          builder_.CreateAdd(builder_.CreateLoad(builder_.getInt32Ty(), spins_), Int32(1));
      auto* yield = llvm::BasicBlock::Create(context_, "yield", function_);
      auto* on = llvm::BasicBlock::Create(context_, "on", function_);
      builder_.CreateStore(spins, spins_);
      builder_.CreateCondBr(
          builder_.CreateICmpEQ(builder_.CreateURem(spins, Int32(kSpins)), Int32(0)), yield, on,
          ColdBranch());
      builder_.SetInsertPoint(yield);
      LetOthersRun();
      builder_.CreateBr(on);
      builder_.SetInsertPoint(on);
      return;
    }
  }

  struct Copy {
    int result;
    LaneValue value;
  };
  std::vector<Copy> ReadCopies(int from, int to) {
    std::vector<Copy> copies;
    for (const Phi& phi : ssa_.phis[to]) {
      for (const auto& [p, source] : phi.sources) {
        if (p == from) copies.push_back({phi.result, ReadRegister(source)});
      }
    }
    return copies;
  }

  // Lanes `lanes` go from `from` to `to`: they take the phis' values along and wait there. A write
  // to a phi may harm other lanes only if some wait at `to` already; those behind a loop have
  // phis of their own.
  void Arrive(int from, int to, llvm::Value* lanes, const std::vector<Copy>& copies) {
    const bool occupied = masks_.MayBeParked(from, to);
    for (const Copy& copy : copies) WritePhi(copy.result, copy.value, lanes, occupied);
    if (occupied) {
      llvm::Value* there = builder_.CreateLoad(lanes->getType(), parked_[to]);
      builder_.CreateStore(builder_.CreateOr(there, lanes), parked_[to]);
    } else {
      builder_.CreateStore(lanes, parked_[to]);
    }
  }

  static bool SameForm(const Slot& slot, const LaneValue& value) {
    if (slot.scalar == nullptr || value.scalar == nullptr) return false;
    const bool flat = slot.offsets == nullptr;
    if (flat != (value.offsets == nullptr)) return false;
    if (!flat && *slot.offsets != *value.offsets) return false;
    return (slot.valid != nullptr) || value.valid == nullptr;
  }

  void WritePhi(int reg, LaneValue value, llvm::Value* lanes, bool blend) {
    Slot& slot = slots_[reg];
    if (!slot.written) {
      slot.written = true;
      llvm::Type* type = RegisterType(reg);
      if (!facts_.varying[reg] && value.scalar != nullptr && !blend) {
        slot.scalar = EntryAlloca(type, "phi");
        slot.offsets = value.offsets;
        slot.zero_bits = 0;
        if (value.offsets != nullptr) {
          // Whatever comes later may hold only sometimes.
          slot.valid = EntryAlloca(builder_.getInt1Ty(), "phi_valid");
          slot.vector = EntryAlloca(VectorOf(type), "phi_vector");
        }
      } else {
        slot.vector = EntryAlloca(VectorOf(type), "phi");
        if (!facts_.varying[reg] && value.scalar != nullptr) facts_.varying[reg] = true;
      }
    }
    if (slot.scalar != nullptr && (blend || !SameForm(slot, value))) {
      facts_.varying[reg] = true;
      again_ = true;
      return;
    }
    if (slot.scalar != nullptr) {
      builder_.CreateStore(value.scalar, slot.scalar);
      if (slot.valid != nullptr) {
        builder_.CreateStore(value.valid != nullptr ? value.valid : builder_.getTrue(), slot.valid);
        builder_.CreateStore(AsVector(builder_, value), slot.vector);
      }
      return;
    }
    llvm::Value* vector = AsVector(builder_, value);
    if (blend) {
      vector =
          builder_.CreateSelect(lanes, vector, builder_.CreateLoad(vector->getType(), slot.vector));
    }
    builder_.CreateStore(vector, slot.vector);
  }

  // Goes to the lowest block for which lanes wait.
  void Continue(int from, const std::vector<int>& added, int certain) {
    const std::vector<int> next = NextCandidates(masks_.parked[from], added, certain);
    llvm::Type* mask_type = VectorOf(builder_.getInt1Ty());
    for (size_t k = 0; k < next.size(); ++k) {
      if (next[k] == certain) {
        builder_.CreateBr(blocks_[next[k]]);
        return;
      }
      auto* skip = llvm::BasicBlock::Create(context_, "skip", function_);
      builder_.CreateCondBr(Any(builder_.CreateLoad(mask_type, parked_[next[k]])), blocks_[next[k]],
                            skip);
      builder_.SetInsertPoint(skip);
    }
    builder_.CreateBr(end());
  }

  const ControlFlow& flow_;
  const Ssa& ssa_;
  const std::vector<bool>& waiting_loops_;
  Facts& facts_;
  LaneMasks masks_;
  bool full_ = false;
  bool again_ = false;
  int current_ = 0;
  llvm::Value* mask_ = nullptr;
  llvm::AllocaInst* spins_ = nullptr;
  std::vector<Slot> slots_;
  std::vector<bool> is_phi_;
  std::vector<llvm::BasicBlock*> blocks_;
  std::vector<llvm::AllocaInst*> parked_;
  std::vector<llvm::AllocaInst*> class_masks_;
};

}  // namespace

absl::StatusOr<LinearKernel> EmitLinearKernel(const FlatKernel& original,
                                              const CompileOptions& options,
                                              const std::string& name, llvm::Module* module) {
  if (!original.functions.empty()) return LinearKernel::kUnfit;
  FlatKernel kernel = original;
  ControlFlow flow;
  if (!OrderBlocks(&kernel, &flow)) return LinearKernel::kUnfit;
  const Ssa ssa = BuildSsa(&kernel, flow);
  const std::vector<bool> waiting_loops = FindWaitingLoops(&kernel, flow, ssa);
  Facts facts;
  facts.divergent.assign(kernel.blocks.size(), false);
  facts.varying.assign(kernel.registers.size(), false);
  if (kernel.has_block_barrier) facts.turns = Turns::kRounds;
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    if (attempt == kMaxAttempts - 2) {
      facts.divergent.assign(kernel.blocks.size(), true);
      facts.varying.assign(kernel.registers.size(), true);
    }
    LinearEmitter emitter(kernel, flow, ssa, waiting_loops, options, module, &facts);
    const absl::StatusOr<LinearEmitter::Outcome> outcome = emitter.Run(name);
    if (outcome.ok() && *outcome == LinearEmitter::Outcome::kDone) {
      switch (facts.turns) {
        case Turns::kIndependent:
        case Turns::kRounds:
          return LinearKernel::kBlocks;
        case Turns::kYieldingRounds:
          return LinearKernel::kBlock;
        case Turns::kFibers:
          return LinearKernel::kWarp;
      }
    }
    LinearEmitter::Erase(name, module);
    if (!outcome.ok()) return outcome.status();
    if (*outcome == LinearEmitter::Outcome::kUnfit) return LinearKernel::kUnfit;
  }
  return LinearKernel::kUnfit;
}

}  // namespace fargpu::softgpu
