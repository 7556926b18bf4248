#pragma once

#include <cuda.h>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/mutex.h"
#include "softgpu/driver/graph.h"

// Graphs that can be launched. A launch is one item of its stream, in which the nodes run one after
// another in an order that their dependencies allow; the kernels spread over all cores anyway.
namespace fargpu::softgpu {

struct ExecNode;
// In an order in which they may run. Never changed: whoever sets a parameter makes a new list,
// while launches that are under way keep theirs.
using ExecList = std::vector<std::shared_ptr<const ExecNode>>;

struct ExecNode {
  CUgraphNode source = nullptr;      // the node it was made of
  NodeWork work;                     // ChildNode and ConditionalNode: see `inner`
  std::vector<size_t> dependencies;  // positions in the list
  bool enabled = true;
  std::vector<ExecList> inner;  // the child, or the bodies of the condition
};

class GraphExec {
 public:
  // Checks the graph and copies what it does. `result` says what was wrong.
  static absl::StatusOr<std::shared_ptr<GraphExec>> Instantiate(Driver& driver, Graph& graph,
                                                                uint64_t flags,
                                                                CUgraphInstantiateResult* result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver.graph_mutex);
  ~GraphExec();

  const CUgraphExec handle;
  const uint64_t flags;

  // Queues a run behind the stream's work and behind earlier runs of this graph.
  absl::Status Launch(Driver& driver, Context& context, Stream& stream);

  // Takes over the parameters of all nodes of `graph`, which must have the same shape.
  absl::Status Update(Driver& driver, const Graph& graph, CUgraphExecUpdateResultInfo* info)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver.graph_mutex);
  // Replaces what the copy of `node` does; the kind must stay. CUDA_ERROR_INVALID_VALUE if the node
  // is none of the graph's.
  absl::Status SetWork(CUgraphNode node, NodeWork work);
  absl::Status SetChild(Driver& driver, CUgraphNode node, const Graph& child)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver.graph_mutex);
  absl::Status SetEnabled(CUgraphNode node, bool enabled);
  absl::StatusOr<bool> IsEnabled(CUgraphNode node) const;

  // The graph as nodes again: what a launch on a stream that is being captured becomes.
  absl::StatusOr<std::shared_ptr<Graph>> ToGraph(Driver& driver) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver.graph_mutex);

 private:
  GraphExec(Driver& driver, uint64_t exec_flags);
  std::shared_ptr<const ExecList> list() const;

  Driver& driver_;
  std::vector<Condition> conditions_;
  // References to user objects of the graph, which stay valid as long as this is.
  std::vector<std::pair<CUuserObject, uint64_t>> user_objects_;
  // Marks the graph as having an executable one (Graph::sole_exec).
  std::shared_ptr<void> token_ = std::make_shared<int>();

  mutable Mutex mutex_;
  std::shared_ptr<const ExecList> list_ ABSL_GUARDED_BY(mutex_);
  // The latest run.
  std::shared_ptr<WorkQueue> last_queue_ ABSL_GUARDED_BY(mutex_);
  uint64_t last_position_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace fargpu::softgpu
