#pragma once

#include <cstdint>
#include <cuda.h>
#include <vector>

#include "protocol/wire/codec.h"
#include "protocol/wire/copy_box.h"

// A graph on its way to the worker, which gets it whole when it is instantiated: a list of nodes,
// each after those that it depends on and after the node that it lies in. What a node does is the
// encoding of one of the structs below, so that a client can tell by the bytes what has changed.
namespace fargpu::wire {

using GraphId = HandleId<struct GraphTag>;
using GraphExecId = HandleId<struct GraphExecTag>;

struct GraphNode {
  static constexpr uint32_t kNoParent = UINT32_MAX;

  uint32_t type = 0;                   // CUgraphNodeType
  uint32_t parent = kNoParent;         // position of the child or conditional node that it lies in
  uint32_t branch = 0;                 // which body of a conditional node
  std::vector<uint32_t> dependencies;  // positions
  std::vector<CUgraphEdgeData> edges;  // none, or one for each dependency
  Bytes body;

  template <typename Visitor>
  void VisitFields(Visitor& visitor) {
    visitor(type);
    visitor(parent);
    visitor(branch);
    visitor(dependencies);
    visitor(edges);
    visitor(body);
  }
};

// Empty nodes, those that allocate and free (the client's business), and child graphs.
struct GraphEmpty {
  static constexpr char kName[] = "an empty node of a graph";
  template <typename Visitor>
  void VisitFields(Visitor&) {}
};

struct GraphKernel {
  static constexpr char kName[] = "a kernel node of a graph";
  ContextId context;
  FunctionId function;
  uint32_t grid[3] = {};
  uint32_t block[3] = {};
  uint32_t shared_bytes = 0;
  std::vector<CUlaunchAttribute> attributes;
  Bytes params;

  template <typename Visitor>
  void VisitFields(Visitor& visitor) {
    visitor(context);
    visitor(function);
    for (uint32_t& value : grid) visitor(value);
    for (uint32_t& value : block) visitor(value);
    visitor(shared_bytes);
    visitor(attributes);
    visitor(params);
  }
};

// A copy. A side in the client's memory is `token`'s; its rows lie close together on the way.
struct GraphCopy {
  static constexpr char kName[] = "a copy node of a graph";
  enum Host : uint32_t { kNone = 0, kSource = 1, kDestination = 2 };
  ContextId context;
  uint32_t host = kNone;
  uint64_t token = 0;
  BoxPlace to;
  BoxPlace from;
  BoxShape shape;

  template <typename Visitor>
  void VisitFields(Visitor& visitor) {
    visitor(context);
    visitor(host);
    visitor(token);
    visitor(to);
    visitor(from);
    visitor(shape);
  }
};

struct GraphFill {
  static constexpr char kName[] = "a memset node of a graph";
  ContextId context;
  uint64_t address = 0;
  uint64_t pitch = 0;
  uint32_t value = 0;
  uint32_t element_bytes = 0;
  uint64_t width = 0;
  uint64_t height = 0;

  template <typename Visitor>
  void VisitFields(Visitor& visitor) {
    visitor(context);
    visitor(address);
    visitor(pitch);
    visitor(value);
    visitor(element_bytes);
    visitor(width);
    visitor(height);
  }
};

// A function of the program, or a copy within its memory.
struct GraphHost {
  static constexpr char kName[] = "a host node of a graph";
  uint64_t token = 0;
  template <typename Visitor>
  void VisitFields(Visitor& visitor) {
    visitor(token);
  }
};

struct GraphEvent {
  static constexpr char kName[] = "an event node of a graph";
  EventId event;
  template <typename Visitor>
  void VisitFields(Visitor& visitor) {
    visitor(event);
  }
};

struct GraphValues {
  static constexpr char kName[] = "a memory operation node of a graph";
  ContextId context;
  uint32_t flags = 0;
  std::vector<CUstreamBatchMemOpParams> operations;
  template <typename Visitor>
  void VisitFields(Visitor& visitor) {
    visitor(context);
    visitor(flags);
    visitor(operations);
  }
};

struct GraphConditional {
  static constexpr char kName[] = "a conditional node of a graph";
  ContextId context;
  uint64_t handle = 0;
  uint32_t type = 0;  // CUgraphConditionalNodeType
  uint32_t bodies = 0;
  template <typename Visitor>
  void VisitFields(Visitor& visitor) {
    visitor(context);
    visitor(handle);
    visitor(type);
    visitor(bodies);
  }
};

}  // namespace fargpu::wire
