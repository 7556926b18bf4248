#include "softgpu/passes/track_lane_masks.h"

#include <algorithm>
#include <set>

namespace fargpu::softgpu {
namespace {

class Tracker {
 public:
  Tracker(const FlatKernel& kernel, const ControlFlow& flow, const std::vector<bool>& divergent)
      : kernel_(kernel), flow_(flow), divergent_(divergent) {}

  LaneMasks Run() {
    FindParked();
    FindClasses();
    return std::move(masks_);
  }

 private:
  void Flow(int from, const std::vector<int>& added, int certain, std::set<int>* work) {
    std::set<int> waiting(parked_[from].begin(), parked_[from].end());
    waiting.insert(added.begin(), added.end());
    for (const int next : waiting) {
      bool changed = false;
      for (auto it = waiting.upper_bound(next); it != waiting.end(); ++it) {
        changed = parked_[next].insert(*it).second || changed;
      }
      if (changed || !reached_[next]) {
        reached_[next] = true;
        work->insert(next);
      }
      if (next >= certain) break;
    }
  }

  void FindParked() {
    const size_t n = kernel_.blocks.size();
    parked_.resize(n);
    reached_.assign(n, false);
    reached_[0] = true;
    std::set<int> work = {0};
    while (!work.empty()) {
      const int b = *work.begin();
      work.erase(work.begin());
      const BasicBlock& block = kernel_.blocks[b];
      const std::vector<int> successors = block.Successors();
      const int none = static_cast<int>(n);
      if (successors.empty()) {
        // Lanes end here; the others go on, if any.
        Flow(b, {}, none, &work);
      } else if (divergent_[b] && successors.size() == 2) {
        std::vector<int> added;
        for (const int s : successors) {
          if (!kernel_.blocks[s].IsExit()) added.push_back(s);
        }
        // With one way out of two leading to the end, perhaps all lanes took it.
        Flow(b, added, added.size() == 2 ? std::max(added[0], added[1]) : none, &work);
      } else {
        for (const int s : successors) {
          if (kernel_.blocks[s].IsExit()) {
            Flow(b, {}, none, &work);
          } else {
            Flow(b, {s}, s, &work);
          }
        }
      }
    }
    for (const std::set<int>& set : parked_) masks_.parked.emplace_back(set.begin(), set.end());
  }

  // Every lane that is in `from` comes to `to` before `from` runs again.
  bool AllComeTo(int from, int to) const {
    if (!flow_.postdominators[from][to]) return false;
    const int loop = flow_.loop_of[from];
    if (loop != flow_.loop_of[to]) return false;
    if (loop < 0) return true;
    // Is there a way round the loop that leaves `to` out?
    std::vector<bool> seen(kernel_.blocks.size(), false);
    std::vector<int> work = {from};
    while (!work.empty()) {
      const int b = work.back();
      work.pop_back();
      if (seen[b] || b == to) continue;
      seen[b] = true;
      for (const int s : kernel_.blocks[b].Successors()) {
        if (s == flow_.loops[loop].header) return false;
        work.push_back(s);
      }
    }
    return true;
  }

  bool UniformEnd(int b) const {
    return !divergent_[b] || kernel_.blocks[b].Successors().size() < 2;
  }

  void FindClasses() {
    const size_t n = kernel_.blocks.size();
    // Loops whose lanes stay together, until the opposite is found.
    std::vector<bool> together(flow_.loops.size(), true);
    std::vector<int> loop_at(n, -1);  // by header
    for (size_t l = 0; l < flow_.loops.size(); ++l)
      loop_at[flow_.loops[l].header] = static_cast<int>(l);
    std::vector<int> rejoins(n, -1);
    for (size_t b = 1; b < n; ++b) {
      const int d = flow_.dominator[b];
      if (d >= 0 && loop_at[b] < 0 && AllComeTo(d, static_cast<int>(b))) rejoins[b] = d;
    }
    std::vector<int>& classes = masks_.mask_class;
    for (bool changed = true; changed;) {
      changed = false;
      classes.assign(n, -1);
      classes[0] = 0;
      for (size_t b = 1; b < n; ++b)
        classes[b] = ClassOf(static_cast<int>(b), loop_at, rejoins, together);
      for (size_t l = 0; l < flow_.loops.size(); ++l) {
        if (!together[l]) continue;
        const Loop& loop = flow_.loops[l];
        bool stays = classes[loop.latch] == classes[loop.header] && UniformEnd(loop.latch);
        for (size_t b = 0; b < n && stays; ++b) {
          if (!loop.contains[b]) continue;
          for (const int s : kernel_.blocks[b].Successors()) {
            if (!loop.contains[s] &&
                (!UniformEnd(static_cast<int>(b)) || classes[b] != classes[loop.header]))
              stays = false;
          }
        }
        if (!stays) {
          together[l] = false;
          changed = true;
        }
      }
    }
  }

  int ClassOf(int b, const std::vector<int>& loop_at, const std::vector<int>& rejoins,
              const std::vector<bool>& together) const {
    const std::vector<int>& classes = masks_.mask_class;
    if (rejoins[b] >= 0) return classes[rejoins[b]];
    const int loop = loop_at[b];
    if (loop >= 0 && !together[loop]) return b;
    int common = -1;
    for (const int p : flow_.predecessors[b]) {
      if (loop >= 0 && p == flow_.loops[loop].latch) continue;
      if (!UniformEnd(p)) return b;
      // Lanes that came another way may wait here already.
      if (masks_.MayBeParked(p, b)) return b;
      if (common >= 0 && classes[p] != common) return b;
      common = classes[p];
    }
    return common < 0 ? b : common;
  }

  const FlatKernel& kernel_;
  const ControlFlow& flow_;
  const std::vector<bool>& divergent_;
  std::vector<std::set<int>> parked_;
  std::vector<bool> reached_;
  LaneMasks masks_;
};

}  // namespace

bool LaneMasks::MayBeParked(int running, int block) const {
  return std::binary_search(parked[running].begin(), parked[running].end(), block);
}

std::vector<int> NextCandidates(const std::vector<int>& parked, const std::vector<int>& added,
                                int certain) {
  std::set<int> waiting(parked.begin(), parked.end());
  waiting.insert(added.begin(), added.end());
  std::vector<int> result;
  for (const int next : waiting) {
    result.push_back(next);
    if (next >= certain) break;
  }
  return result;
}

LaneMasks TrackLaneMasks(const FlatKernel& kernel, const ControlFlow& flow,
                         const std::vector<bool>& divergent) {
  return Tracker(kernel, flow, divergent).Run();
}

}  // namespace fargpu::softgpu
