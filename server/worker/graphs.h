#pragma once

#include <cstdint>
#include <cuda.h>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "driver.h"
#include "protocol/wire/graph_node.h"
#include "server/worker/host_functions.h"

namespace fargpu::server {

// A node of a graph as the driver has it. A copy with the client's memory is two of the driver's
// nodes: the copy from or to a buffer of ours, and a host node that fills or empties the buffer.
struct GraphNode {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  uint32_t parent = wire::GraphNode::kNoParent;
  uint32_t branch = 0;
  CUgraphNode node = nullptr;
  CUgraphNode host = nullptr;  // the host node, also of nodes that are nothing else
  CUgraphNode first = nullptr, last = nullptr;  // of the two, in order
  std::shared_ptr<HostWork> work;               // shared with runs under way
  wire::GraphCopy::Host copy_host = wire::GraphCopy::kNone;
  bool enabled = true;
  std::vector<CUgraph> inner;  // the child, or the bodies of a condition
};

// The driver's graph that executable graphs are made of. The driver names the nodes of an
// executable graph by those of its source, so it stays as long as they do.
class GraphSource {
 public:
  GraphSource(Driver* driver, CUgraph graph) : driver_(*driver), graph_(graph) {}
  ~GraphSource() { driver_.cuGraphDestroy(graph_); }
  GraphSource(const GraphSource&) = delete;
  GraphSource& operator=(const GraphSource&) = delete;
  CUgraph graph() const { return graph_; }

  std::vector<GraphNode> nodes;
  // What a graph with conditional handles was built of: it can be built only once.
  std::string description;

 private:
  Driver& driver_;
  const CUgraph graph_;
};

// An executable graph, or one that is on its way.
class GraphExec {
 public:
  static constexpr size_t kMaxNodes = 1 << 20;

  explicit GraphExec(Driver* driver) : driver_(*driver) {}
  ~GraphExec() {
    if (exec != nullptr) driver_.cuGraphExecDestroy(exec);
  }
  GraphExec(const GraphExec&) = delete;
  GraphExec& operator=(const GraphExec&) = delete;

  // A node that the client sent; bodies are kept here.
  struct Part {
    wire::GraphNode node;
    std::string body;
  };
  std::vector<Part> parts;  // until it is instantiated

  CUgraphExec exec = nullptr;
  std::shared_ptr<GraphSource> source;  // shared by executable graphs of a graph with conditions
  std::vector<GraphNode> nodes;
  // What runs need of us; replaced, never changed, because runs under way hold it.
  std::shared_ptr<const std::vector<std::shared_ptr<HostWork>>> works;

 private:
  Driver& driver_;
};

}  // namespace fargpu::server
