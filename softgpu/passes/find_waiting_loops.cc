#include "softgpu/passes/find_waiting_loops.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

namespace fargpu::softgpu {
namespace {

using ptx::Instruction;
using ptx::Operand;
using Kind = ptx::Operand::Kind;

class Finder {
 public:
  Finder(FlatKernel* kernel, const ControlFlow& flow, const Ssa& ssa)
      : kernel_(*kernel), flow_(flow), ssa_(ssa) {}

  std::vector<bool> Run() {
    std::vector<bool> result;
    for (const Loop& loop : flow_.loops) result.push_back(Waits(loop));
    return result;
  }

 private:
  bool Waits(const Loop& loop) {
    blocks_.clear();
    definitions_.clear();
    from_others_.clear();
    for (size_t b = 0; b < kernel_.blocks.size(); ++b) {
      if (loop.contains[b]) blocks_.push_back(static_cast<int>(b));
    }
    for (const int b : blocks_) {
      for (const Phi& phi : ssa_.phis[b]) definitions_[phi.result] = nullptr;
      for (Instruction& i : kernel_.blocks[b].instructions) {
        if (i.opcode == "nanosleep") return true;
        ForEachResult(&i, kernel_, [&](int* r) { definitions_[*r] = &i; });
      }
    }
    bool any = false;
    for (const int b : blocks_) {
      for (Instruction& i : kernel_.blocks[b].instructions) {
        if (!TellsOfOthers(i)) continue;
        any = true;
        ForEachResult(&i, kernel_, [&](int* r) { from_others_.insert(*r); });
      }
    }
    if (!any) return false;
    Spread(loop);
    for (const int b : blocks_) {
      if (!DependsAt(b)) continue;
      for (const int s : kernel_.blocks[b].Successors()) {
        if (!loop.contains[s]) return true;
      }
    }
    return false;
  }

  // The branch at the end of block b depends on other threads.
  bool DependsAt(int b) const {
    const BasicBlock& block = kernel_.blocks[b];
    return block.end == BasicBlock::End::kBranch && block.target != block.fallthrough &&
           from_others_.contains(block.predicate);
  }

  // Is the operand the same in every round of the loop?
  bool IsInvariant(const Operand& operand, int depth = 0) const {
    if (operand.kind != Kind::kRegister) return operand.kind != Kind::kVector;
    const auto definition = definitions_.find(operand.index);
    if (definition == definitions_.end()) return true;
    const Instruction* i = definition->second;
    return i != nullptr && i->opcode == "mov" && i->operands.size() == 2 && depth < 8 &&
           IsInvariant(i->operands[1], depth + 1);
  }

  // Does the result say what other threads have done, such that asking again without an effect of
  // one's own may be waiting for them?
  bool TellsOfOthers(const Instruction& i) const {
    if (i.opcode == "ld") return i.Has("volatile") || i.Has("acquire") || i.Has("relaxed");
    if (i.opcode == "mbarrier") return i.Has("test_wait") || i.Has("try_wait");
    if (i.opcode != "atom" || i.operands.size() < 3) return false;
    if (i.Has("cas")) return IsInvariant(i.operands[2]);
    if (i.Has("add") || i.Has("inc") || i.Has("dec")) {
      // Each call moves on, except an addition of nothing, which is a load.
      return i.operands[2].kind == Kind::kImmediate && i.operands[2].bits == 0;
    }
    return true;
  }

  // Follows what depends on other threads, through values and through branches.
  void Spread(const Loop& loop) {
    std::vector<bool> after_branch(kernel_.blocks.size(), false);
    for (bool changed = true; changed;) {
      changed = false;
      const auto add = [&](int reg) { changed = from_others_.insert(reg).second || changed; };
      for (const int b : blocks_) {
        for (const Phi& phi : ssa_.phis[b]) {
          bool depends = false;
          bool differ = false;
          for (const auto& [p, source] : phi.sources) {
            depends = depends || from_others_.contains(source);
            differ = differ || source != phi.sources.front().second;
          }
          // Which way lanes came decides the value.
          if (depends || (differ && after_branch[b] && b != loop.header)) add(phi.result);
        }
        for (Instruction& i : kernel_.blocks[b].instructions) {
          bool depends = false;
          ForEachUse(&i, kernel_, [&](int* r) { depends = depends || from_others_.contains(*r); });
          if (depends) ForEachResult(&i, kernel_, [&](int* r) { add(*r); });
        }
        if (DependsAt(b)) {
          changed = MarkAfter(b, loop, &after_branch) || changed;
          SpreadToInnerLoops(b, loop, add);
        }
      }
    }
  }

  bool MarkAfter(int branch, const Loop& loop, std::vector<bool>* after_branch) const {
    bool changed = false;
    std::vector<int> work = kernel_.blocks[branch].Successors();
    while (!work.empty()) {
      const int b = work.back();
      work.pop_back();
      if (!loop.contains[b] || b == loop.header || (*after_branch)[b]) continue;
      (*after_branch)[b] = true;
      changed = true;
      for (const int s : kernel_.blocks[b].Successors()) work.push_back(s);
    }
    return changed;
  }

  // How often an inner loop ran is in all that it counts.
  template <typename Add>
  void SpreadToInnerLoops(int branch, const Loop& loop, const Add& add) const {
    for (const Loop& inner : flow_.loops) {
      if (inner.header == loop.header || !loop.contains[inner.header] || !inner.contains[branch]) {
        continue;
      }
      for (const int s : kernel_.blocks[branch].Successors()) {
        if (inner.contains[s]) continue;
        for (const Phi& phi : ssa_.phis[inner.header]) add(phi.result);
      }
    }
  }

  FlatKernel& kernel_;
  const ControlFlow& flow_;
  const Ssa& ssa_;
  std::vector<int> blocks_;                                   // of the loop at hand
  absl::flat_hash_map<int, const Instruction*> definitions_;  // null: a phi
  absl::flat_hash_set<int> from_others_;
};

// Does other threads' memory, or what they wait at, change by it?
bool Acts(const Instruction& i) {
  static const auto* const kNothing = new absl::flat_hash_set<absl::string_view>{
      "membar", "fence", "nanosleep", "prefetch", "prefetchu", "pmevent", "discard"};
  if (i.opcode == "atom" || i.opcode == "call" || i.opcode == "mbarrier") return true;
  // Waiting changes nothing for others; arriving does.
  if (i.opcode == "bar" || i.opcode == "barrier") return !i.Has("warp");
  return !HasResult(i) && !kNothing->contains(i.opcode);
}

// A barrier that no thread of the block passes before all have come.
bool IsWholeBarrier(const Instruction& i) {
  return MeetingAt(i) == Meeting::kBlock && i.Has("sync") && i.guard < 0 && i.operands.size() == 1;
}

}  // namespace

bool MayActBeforeBarrier(const FlatKernel& kernel, std::vector<int> blocks) {
  std::vector<bool> seen(kernel.blocks.size(), false);
  while (!blocks.empty()) {
    const int b = blocks.back();
    blocks.pop_back();
    if (seen[b]) continue;
    seen[b] = true;
    bool stopped = false;
    for (const Instruction& i : kernel.blocks[b].instructions) {
      stopped = IsWholeBarrier(i);
      if (stopped) break;
      if (Acts(i)) return true;
    }
    if (stopped) continue;
    for (const int s : kernel.blocks[b].Successors()) blocks.push_back(s);
  }
  return false;
}

std::vector<bool> FindWaitingLoops(FlatKernel* kernel, const ControlFlow& flow, const Ssa& ssa) {
  return Finder(kernel, flow, ssa).Run();
}

}  // namespace fargpu::softgpu
