#include "softgpu/passes/control_flow.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace fargpu::softgpu {
namespace {

// Larger kernels are not worth the quadratic tables.
constexpr size_t kMaxBlocks = 3000;

std::vector<std::vector<int>> Predecessors(const FlatKernel& kernel) {
  std::vector<std::vector<int>> result(kernel.blocks.size());
  for (size_t b = 0; b < kernel.blocks.size(); ++b) {
    for (const int s : kernel.blocks[b].Successors()) result[s].push_back(static_cast<int>(b));
  }
  return result;
}

std::vector<int> ReversePostorder(const FlatKernel& kernel) {
  std::vector<int> order;
  std::vector<int> next(kernel.blocks.size(), 0);
  std::vector<bool> seen(kernel.blocks.size(), false);
  std::vector<int> stack = {0};
  seen[0] = true;
  while (!stack.empty()) {
    const int b = stack.back();
    const std::vector<int> successors = kernel.blocks[b].Successors();
    if (next[b] < static_cast<int>(successors.size())) {
      const int s = successors[next[b]++];
      if (!seen[s]) {
        seen[s] = true;
        stack.push_back(s);
      }
    } else {
      order.push_back(b);
      stack.pop_back();
    }
  }
  std::reverse(order.begin(), order.end());
  return order;
}

// Immediate dominators by iteration over the reverse postorder.
std::vector<int> Dominators(const FlatKernel& kernel,
                            const std::vector<std::vector<int>>& predecessors) {
  const std::vector<int> order = ReversePostorder(kernel);
  std::vector<int> position(kernel.blocks.size(), -1);
  for (size_t i = 0; i < order.size(); ++i) position[order[i]] = static_cast<int>(i);
  std::vector<int> dominator(kernel.blocks.size(), -1);
  dominator[0] = 0;
  for (bool changed = true; changed;) {
    changed = false;
    for (const int b : order) {
      if (b == 0) continue;
      int best = -1;
      for (int p : predecessors[b]) {
        if (dominator[p] < 0) continue;
        if (best < 0) {
          best = p;
          continue;
        }
        int q = best;
        while (p != q) {
          while (position[p] > position[q]) p = dominator[p];
          while (position[q] > position[p]) q = dominator[q];
        }
        best = p;
      }
      if (best >= 0 && dominator[b] != best) {
        dominator[b] = best;
        changed = true;
      }
    }
  }
  dominator[0] = -1;
  return dominator;
}

bool DominatesUnordered(const std::vector<int>& dominator, int a, int b) {
  while (b >= 0 && b != a) b = dominator[b];
  return b == a;
}

void Redirect(BasicBlock* block, int from, int to) {
  if (block->target == from) block->target = to;
  if (block->fallthrough == from) block->fallthrough = to;
}

// The blocks from which `latch` is reached without passing `header`.
std::vector<bool> LoopBody(int header, int latch,
                           const std::vector<std::vector<int>>& predecessors) {
  std::vector<bool> body(predecessors.size(), false);
  body[header] = true;
  std::vector<int> work = {latch};
  while (!work.empty()) {
    const int b = work.back();
    work.pop_back();
    if (body[b]) continue;
    body[b] = true;
    for (const int p : predecessors[b]) work.push_back(p);
  }
  return body;
}

class Orderer {
 public:
  Orderer(FlatKernel* kernel, ControlFlow* flow) : kernel_(*kernel), flow_(*flow) {}

  bool Run() {
    if (kernel_.blocks.size() > kMaxBlocks) return false;
    if (!FindLoops()) return false;
    std::vector<int> order;
    OrderRegion(-1, &order);
    Renumber(order);
    // Tables in the new numbers.
    if (!FindLoops()) return false;
    return FindPostdominators();
  }

 private:
  // Makes latches and fills predecessors, dominator, loops, loop_of.
  bool FindLoops() {
    flow_.predecessors = Predecessors(kernel_);
    flow_.dominator = Dominators(kernel_, flow_.predecessors);
    const std::vector<int> order = ReversePostorder(kernel_);
    std::vector<int> position(kernel_.blocks.size(), -1);
    for (size_t i = 0; i < order.size(); ++i) position[order[i]] = static_cast<int>(i);
    std::vector<std::vector<int>> back(kernel_.blocks.size());
    for (const int b : order) {
      for (const int s : kernel_.blocks[b].Successors()) {
        if (position[s] > position[b]) continue;
        if (!DominatesUnordered(flow_.dominator, s, b)) return false;  // two entries
        back[s].push_back(b);
      }
    }
    bool added = false;
    const size_t count = kernel_.blocks.size();
    for (size_t h = 0; h < count; ++h) {
      if (back[h].size() < 2) continue;
      const int latch = static_cast<int>(kernel_.blocks.size());
      BasicBlock block;
      block.target = static_cast<int>(h);
      block.location = kernel_.blocks[h].location;
      kernel_.blocks.push_back(std::move(block));
      for (const int b : back[h]) Redirect(&kernel_.blocks[b], static_cast<int>(h), latch);
      added = true;
    }
    if (added) return FindLoops();
    flow_.loops.clear();
    for (const int h : order) {  // outer headers come first
      if (back[h].empty()) continue;
      Loop loop;
      loop.header = h;
      loop.latch = back[h][0];
      loop.contains = LoopBody(h, loop.latch, flow_.predecessors);
      for (int k = static_cast<int>(flow_.loops.size()) - 1; k >= 0 && loop.parent < 0; --k) {
        if (flow_.loops[k].contains[h]) loop.parent = k;
      }
      flow_.loops.push_back(std::move(loop));
    }
    flow_.loop_of.assign(kernel_.blocks.size(), -1);
    for (size_t k = 0; k < flow_.loops.size(); ++k) {
      for (size_t b = 0; b < kernel_.blocks.size(); ++b) {
        if (flow_.loops[k].contains[b]) flow_.loop_of[b] = static_cast<int>(k);
      }
    }
    return true;
  }

  // The node of `region` (a loop, or -1 for all) in which block b lies: itself, or a loop's header.
  int NodeOf(int region, int b) const {
    int loop = flow_.loop_of[b];
    if (loop == region) return b;
    while (flow_.loops[loop].parent != region) loop = flow_.loops[loop].parent;
    return flow_.loops[loop].header;
  }
  bool InRegion(int region, int b) const { return region < 0 || flow_.loops[region].contains[b]; }

  void OrderRegion(int region, std::vector<int>* order) {
    const int first = region < 0 ? 0 : flow_.loops[region].header;
    const int start = region < 0 ? NodeOf(region, 0) : first;
    // Edges between the nodes of this region.
    std::vector<std::vector<int>> edges(kernel_.blocks.size());
    for (size_t b = 0; b < kernel_.blocks.size(); ++b) {
      if (!InRegion(region, static_cast<int>(b))) continue;
      for (const int s : kernel_.blocks[b].Successors()) {
        if (!InRegion(region, s) || (region >= 0 && s == first)) continue;
        const int from = NodeOf(region, static_cast<int>(b));
        const int to = NodeOf(region, s);
        if (from != to) edges[from].push_back(to);
      }
    }
    std::vector<int> postorder;
    std::vector<bool> seen(kernel_.blocks.size(), false);
    std::vector<std::pair<int, size_t>> stack = {{start, 0}};
    seen[start] = true;
    while (!stack.empty()) {
      auto& [node, next] = stack.back();
      if (next < edges[node].size()) {
        const int to = edges[node][next++];
        if (!seen[to]) {
          seen[to] = true;
          stack.emplace_back(to, 0);
        }
      } else {
        postorder.push_back(node);
        stack.pop_back();
      }
    }
    for (auto node = postorder.rbegin(); node != postorder.rend(); ++node) {
      const int loop = flow_.loop_of[*node];
      if (loop == region) {
        order->push_back(*node);
        continue;
      }
      int child = loop;
      while (flow_.loops[child].parent != region) child = flow_.loops[child].parent;
      OrderRegion(child, order);
    }
  }

  void Renumber(const std::vector<int>& order) {
    std::vector<int> number(kernel_.blocks.size(), -1);
    for (size_t i = 0; i < order.size(); ++i) number[order[i]] = static_cast<int>(i);
    std::vector<BasicBlock> blocks;
    blocks.reserve(order.size());
    for (const int b : order) {
      BasicBlock& block = kernel_.blocks[b];
      if (block.target >= 0) block.target = number[block.target];
      if (block.fallthrough >= 0) block.fallthrough = number[block.fallthrough];
      blocks.push_back(std::move(block));
    }
    kernel_.blocks = std::move(blocks);
  }

  bool FindPostdominators() {
    const size_t n = kernel_.blocks.size();
    flow_.postdominators.assign(n, std::vector<bool>(n, true));
    std::vector<bool> ends(n, false);
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t i = n; i-- > 0;) {
        std::vector<bool> meet(n, false);
        bool any = false;
        const std::vector<int> successors = kernel_.blocks[i].Successors();
        bool reaches = successors.empty();
        for (const int s : successors) {
          reaches = reaches || ends[s];
          if (!any) {
            meet = flow_.postdominators[s];
          } else {
            for (size_t k = 0; k < n; ++k) meet[k] = meet[k] && flow_.postdominators[s][k];
          }
          any = true;
        }
        meet[i] = true;
        if (reaches && !ends[i]) {
          ends[i] = true;
          changed = true;
        }
        if (meet != flow_.postdominators[i]) {
          flow_.postdominators[i] = std::move(meet);
          changed = true;
        }
      }
    }
    return std::all_of(ends.begin(), ends.end(), [](bool end) { return end; });
  }

  FlatKernel& kernel_;
  ControlFlow& flow_;
};

}  // namespace

bool OrderBlocks(FlatKernel* kernel, ControlFlow* flow) { return Orderer(kernel, flow).Run(); }

}  // namespace fargpu::softgpu
