#pragma once

#include <cstdint>
#include <cuda.h>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "client/cuda/graph.h"

namespace fargpu::client {

// A graph that can be launched. The worker has it whole; here is what its nodes do now, so that an
// update sends only what has changed and a launch only that it is one. All needs Graphs::mutex.
class GraphExec {
 public:
  // Checks the graph and sends it: one round trip. `result` says what was wrong.
  static absl::StatusOr<std::shared_ptr<GraphExec>> Instantiate(Session& session, Graph& graph,
                                                                uint64_t flags,
                                                                CUgraphInstantiateResult* result);

  // It is no longer in the table: the worker is told, and references to user objects end. Returns
  // the objects whose last it was.
  [[nodiscard]] std::vector<UserObject> Release();

  uint64_t flags() const { return flags_; }
  wire::GraphExecId id() const { return id_; }

  // One message.
  absl::Status Launch(wire::StreamId stream);
  // Takes over the parameters of all nodes of `graph`, which must have the same shape.
  absl::Status Update(const Graph& graph, CUgraphExecUpdateResultInfo* info);
  // Replaces what the copy of `node` does; the kind must stay. CUDA_ERROR_INVALID_VALUE if the node
  // is none of the graph's.
  absl::Status SetWork(CUgraphNode node, NodeWork work);
  absl::Status SetChild(CUgraphNode node, const Graph& child);
  absl::Status SetEnabled(CUgraphNode node, bool enabled);
  absl::StatusOr<bool> IsEnabled(CUgraphNode node) const;
  // The graph as nodes again: what a launch on a stream that is being captured becomes.
  absl::StatusOr<std::shared_ptr<Graph>> ToGraph() const;

 private:
  struct Node {
    CUgraphNode source = nullptr;  // the node it was made of
    NodeWork work;
    uint32_t parent = wire::GraphNode::kNoParent;
    uint32_t branch = 0;
    std::vector<uint32_t> dependencies;
    std::vector<CUgraphEdgeData> edges;
    bool enabled = true;
    uint64_t token = 0;  // of its part in this process
  };
  using Nodes = std::vector<Node>;
  // What becomes of a node: its position, and the work.
  using Changes = std::vector<std::pair<uint32_t, NodeWork>>;

  explicit GraphExec(Session& session, uint64_t flags) : session_(session), flags_(flags) {}
  static absl::Status Flatten(const Graph& graph, uint32_t parent, uint32_t branch, Nodes* nodes);
  static std::vector<uint32_t> Members(const Nodes& nodes, uint32_t parent, uint32_t branch);
  static CUgraphExecUpdateResult Compare(const Nodes& nodes, uint32_t parent, uint32_t branch,
                                         const Nodes& newer, uint32_t newer_parent,
                                         uint32_t newer_branch, Changes* changes,
                                         CUgraphNode* culprit);
  // kNotFound is Invalid().
  absl::StatusOr<uint32_t> PositionOf(CUgraphNode node) const;
  absl::Status Apply(Changes changes);
  absl::Status SendChanges(const std::vector<uint32_t>& positions);
  // Sends all nodes under a new id, which takes the place of the old one.
  absl::Status SendWhole();
  uint64_t NewToken(const NodeWork& work);
  void ForgetToken(uint64_t token);
  absl::Status AddTo(Graph& graph, uint32_t parent, uint32_t branch) const;

  Session& session_;
  const uint64_t flags_;
  wire::GraphExecId id_;
  std::shared_ptr<GraphSeed> seed_;  // of a graph with conditional handles
  Nodes nodes_;
  // References to user objects of the graph, which stay valid as long as this is.
  std::vector<std::pair<CUuserObject, uint64_t>> user_objects_;
  // Marks the graph as having an executable one (Graph::sole_exec).
  std::shared_ptr<void> mark_ = std::make_shared<int>();
};

}  // namespace fargpu::client
