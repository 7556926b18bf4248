#include "softgpu/passes/build_ssa.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"

namespace fargpu::softgpu {
namespace {

using ptx::Instruction;
using ptx::Operand;
using Kind = ptx::Operand::Kind;

// Carry in and out are uses and results of a register that no operand names; the emitter finds
// its number in these.
bool WritesCarry(const Instruction& i) { return i.Has("cc"); }
bool ReadsCarry(const Instruction& i) {
  return i.opcode == "addc" || i.opcode == "subc" || i.opcode == "madc";
}

void VisitRegisters(Operand* operand, const std::function<void(int*)>& visit) {
  if (operand->kind == Kind::kRegister) visit(&operand->index);
  for (Operand& part : operand->parts) VisitRegisters(&part, visit);
}

size_t ResultOperand(const Instruction& i) { return i.opcode == "call" ? 1 : 0; }

class Builder {
 public:
  Builder(FlatKernel* kernel, const ControlFlow& flow) : kernel_(*kernel), flow_(flow) {}

  Ssa Run() {
    const size_t blocks = kernel_.blocks.size();
    const size_t registers = kernel_.registers.size();
    ssa_.phis.resize(blocks);
    ssa_.previous.assign(registers, -1);
    FindLiveness();
    PlacePhis();
    stacks_.assign(registers, {});
    children_.resize(blocks);
    for (size_t b = 1; b < blocks; ++b)
      children_[flow_.dominator[b]].push_back(static_cast<int>(b));
    Rename();
    return std::move(ssa_);
  }

 private:
  // Sets of registers are bit sets: kernels have up to tens of thousands of them.
  using Set = std::vector<uint64_t>;
  static bool Contains(const Set& set, int r) {
    return (set[static_cast<size_t>(r) / 64] >> (r % 64) & 1) != 0;
  }
  static void Insert(Set* set, int r) {
    (*set)[static_cast<size_t>(r) / 64] |= uint64_t{1} << (r % 64);
  }

  void FindLiveness() {
    const size_t blocks = kernel_.blocks.size();
    const size_t words = kernel_.registers.size() / 64 + 1;
    live_in_.assign(blocks, Set(words));
    std::vector<Set> defined(blocks, Set(words));
    defs_.resize(kernel_.registers.size());
    for (size_t b = 0; b < blocks; ++b) {
      BasicBlock& block = kernel_.blocks[b];
      const auto use = [&](int* r) {
        if (!Contains(defined[b], *r)) Insert(&live_in_[b], *r);
      };
      for (Instruction& i : block.instructions) {
        ForEachUse(&i, kernel_, use);
        ForEachResult(&i, kernel_, [&](int* r) {
          if (i.guard >= 0) use(r);  // keeps the old value in some lanes
          if (!Contains(defined[b], *r)) defs_[*r].push_back(static_cast<int>(b));
          Insert(&defined[b], *r);
        });
      }
      if (block.end == BasicBlock::End::kBranch) use(&block.predicate);
    }
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t b = blocks; b-- > 0;) {
        for (const int s : kernel_.blocks[b].Successors()) {
          for (size_t w = 0; w < words; ++w) {
            const uint64_t more = live_in_[s][w] & ~defined[b][w] & ~live_in_[b][w];
            if (more == 0) continue;
            live_in_[b][w] |= more;
            changed = true;
          }
        }
      }
    }
  }

  void PlacePhis() {
    const size_t blocks = kernel_.blocks.size();
    std::vector<std::vector<int>> frontier(blocks);
    for (size_t b = 0; b < blocks; ++b) {
      if (flow_.predecessors[b].size() < 2) continue;
      for (int p : flow_.predecessors[b]) {
        while (p != flow_.dominator[b] && p >= 0) {
          if (std::find(frontier[p].begin(), frontier[p].end(), static_cast<int>(b)) ==
              frontier[p].end()) {
            frontier[p].push_back(static_cast<int>(b));
          }
          p = flow_.dominator[p];
        }
      }
    }
    // Where loops are left: (block outside, loop).
    std::vector<std::pair<int, int>> exits;
    for (size_t l = 0; l < flow_.loops.size(); ++l) {
      for (size_t b = 0; b < blocks; ++b) {
        if (!flow_.loops[l].contains[b]) continue;
        for (const int s : kernel_.blocks[b].Successors()) {
          if (!flow_.loops[l].contains[s]) exits.emplace_back(s, static_cast<int>(l));
        }
      }
    }
    std::vector<bool> has(blocks);
    for (size_t r = 0; r < defs_.size(); ++r) {
      if (defs_[r].empty()) continue;
      std::vector<int> work = defs_[r];
      std::fill(has.begin(), has.end(), false);
      const auto place = [&](int b) {
        if (has[b] || !Contains(live_in_[b], static_cast<int>(r))) return;
        has[b] = true;
        Phi phi;
        phi.result = static_cast<int>(r);
        for (const int p : flow_.predecessors[b]) phi.sources.emplace_back(p, static_cast<int>(r));
        ssa_.phis[b].push_back(std::move(phi));
        work.push_back(b);
      };
      for (size_t k = 0; k < work.size(); ++k) {
        const int b = work[k];
        for (const int f : frontier[b]) place(f);
        for (const auto& [exit, loop] : exits) {
          if (flow_.loops[loop].contains[b]) place(exit);
        }
      }
    }
  }

  int Fresh(int old) {
    kernel_.registers.push_back(kernel_.registers[old]);
    ssa_.previous.push_back(-1);
    return static_cast<int>(kernel_.registers.size()) - 1;
  }
  int Top(int r) const { return stacks_[r].empty() ? r : stacks_[r].back(); }

  void Rename() {
    // Over the dominator tree, without recursion.
    struct Visit {
      int block;
      size_t child;
      std::vector<int> pushed;
    };
    std::vector<Visit> path;
    path.push_back({0, 0, {}});
    Enter(&path.back().pushed, 0);
    while (!path.empty()) {
      Visit& v = path.back();
      if (v.child < children_[v.block].size()) {
        const int next = children_[v.block][v.child++];
        path.push_back({next, 0, {}});
        Enter(&path.back().pushed, next);
      } else {
        for (const int r : v.pushed) stacks_[r].pop_back();
        path.pop_back();
      }
    }
  }

  void Enter(std::vector<int>* pushed, int b) {
    BasicBlock& block = kernel_.blocks[b];
    for (Phi& phi : ssa_.phis[b]) {
      const int old = phi.result;
      phi.result = Fresh(old);
      stacks_[old].push_back(phi.result);
      pushed->push_back(old);
    }
    for (Instruction& i : block.instructions) {
      ForEachUse(&i, kernel_, [&](int* r) { *r = Top(*r); });
      ForEachResult(&i, kernel_, [&](int* r) {
        const int old = *r;
        const int before = Top(old);
        *r = Fresh(old);
        if (i.guard >= 0) ssa_.previous[*r] = before;
        stacks_[old].push_back(*r);
        pushed->push_back(old);
      });
    }
    if (block.end == BasicBlock::End::kBranch) block.predicate = Top(block.predicate);
    for (const int s : block.Successors()) {
      for (Phi& phi : ssa_.phis[s]) {
        for (auto& [p, r] : phi.sources) {
          if (p == b) r = Top(r);
        }
      }
    }
  }

  FlatKernel& kernel_;
  const ControlFlow& flow_;
  Ssa ssa_;
  std::vector<Set> live_in_;
  std::vector<std::vector<int>> defs_;
  std::vector<std::vector<int>> stacks_;
  std::vector<std::vector<int>> children_;
};

}  // namespace

bool HasResult(const Instruction& i) {
  static const auto* const kNone = new absl::flat_hash_set<absl::string_view>{"st",
                                                                              "red",
                                                                              "membar",
                                                                              "fence",
                                                                              "trap",
                                                                              "brkpt",
                                                                              "nanosleep",
                                                                              "prefetch",
                                                                              "prefetchu",
                                                                              "cp",
                                                                              "griddepcontrol",
                                                                              "pmevent",
                                                                              "exit",
                                                                              "ret",
                                                                              "bra",
                                                                              "sust",
                                                                              "sured",
                                                                              "discard",
                                                                              "applypriority",
                                                                              "stmatrix",
                                                                              "tensormap",
                                                                              "setmaxnreg"};
  if (i.opcode == "bar" || i.opcode == "barrier") return i.Has("red");
  if (i.opcode == "multimem") return i.Has("ld_reduce");
  if (i.opcode == "wmma") return !i.Has("store");
  if (i.opcode == "mbarrier") {
    return i.Has("arrive") || i.Has("arrive_drop") || i.Has("test_wait") || i.Has("try_wait") ||
           i.Has("pending_count");
  }
  return !kNone->contains(i.opcode);
}

void ForEachResult(Instruction* i, const FlatKernel& kernel,
                   const std::function<void(int*)>& visit) {
  if (HasResult(*i) && i->operands.size() > ResultOperand(*i)) {
    VisitRegisters(&i->operands[ResultOperand(*i)], visit);
  }
  if (WritesCarry(*i)) visit(&i->carry_out);
}

void ForEachUse(Instruction* i, const FlatKernel& kernel, const std::function<void(int*)>& visit) {
  if (i->guard >= 0) visit(&i->guard);
  for (size_t k = 0; k < i->operands.size(); ++k) {
    if (HasResult(*i) && k == ResultOperand(*i)) continue;
    VisitRegisters(&i->operands[k], visit);
  }
  if (ReadsCarry(*i)) visit(&i->carry_in);
}

Ssa BuildSsa(FlatKernel* kernel, const ControlFlow& flow) {
  for (BasicBlock& block : kernel->blocks) {
    for (Instruction& i : block.instructions) i.carry_in = i.carry_out = kernel->carry_register;
  }
  return Builder(kernel, flow).Run();
}

}  // namespace fargpu::softgpu
