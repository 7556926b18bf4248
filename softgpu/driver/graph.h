#pragma once

#include <cuda.h>
#include <map>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "softgpu/compiler.h"
#include "softgpu/driver/copy.h"
#include "softgpu/driver/module.h"

// Graphs: what is to be done, in which order. Everything here is guarded by Driver::graph_mutex,
// also the nodes; what runs is a copy (graph_exec.h).
namespace fargpu::softgpu {

struct Graph;

// What a node does, with all that cuGraph*GetParams tells of it.
struct EmptyNode {};
struct KernelNode {
  CUfunction given_function = nullptr;  // as the program named the kernel
  CUkernel given_kernel = nullptr;
  CUcontext given_context = nullptr;
  std::shared_ptr<Function> function;
  Dim3 grid;
  Dim3 block;
  unsigned shared_bytes = 0;
  std::vector<char> params;                          // laid out as KernelInfo::params says
  std::map<int, CUlaunchAttributeValue> attributes;  // by CUlaunchAttributeID
};
struct CopyNode {
  CUDA_MEMCPY3D params = {};
  CUcontext context = nullptr;
  CopyPlan plan;
};
struct FillNode {
  CUDA_MEMSET_NODE_PARAMS_v2 params = {};
  FillPlan plan;
};
struct HostNode {
  CUhostFn function = nullptr;
  void* data = nullptr;
};
struct ChildNode {
  std::shared_ptr<Graph> graph;
};
struct RecordNode {
  CUevent event = nullptr;
};
struct WaitNode {
  CUevent event = nullptr;
};
// Memory whose address is there as long as a node that allocates it, or an executable graph that
// has one; its bytes are there from the run of that node to that of one that frees it.
class GraphAllocation {
 public:
  GraphAllocation(DeviceMemory& memory, uint64_t address) : memory_(memory), address_(address) {}
  ~GraphAllocation() { memory_.DropGraphRange(address_); }
  GraphAllocation(const GraphAllocation&) = delete;
  GraphAllocation& operator=(const GraphAllocation&) = delete;
  uint64_t address() const { return address_; }

 private:
  DeviceMemory& memory_;
  const uint64_t address_;
};
struct AllocNode {
  CUDA_MEM_ALLOC_NODE_PARAMS_v2 params = {};
  std::vector<CUmemAccessDesc> access;
  std::shared_ptr<GraphAllocation> allocation;  // shared: by the graph and what was made of it
};
struct FreeNode {
  CUdeviceptr address = 0;
};
struct ValueNode {
  CUcontext context = nullptr;
  unsigned flags = 0;
  std::vector<CUstreamBatchMemOpParams> operations;
};
struct ConditionalNode {
  CUgraphConditionalHandle handle = 0;
  CUgraphConditionalNodeType type = CU_GRAPH_COND_TYPE_IF;
  CUcontext context = nullptr;
  std::vector<std::shared_ptr<Graph>> bodies;
  std::vector<CUgraph> body_handles;  // what the program's phGraph_out points to
};
using NodeWork =
    std::variant<EmptyNode, KernelNode, CopyNode, FillNode, HostNode, ChildNode, RecordNode,
                 WaitNode, AllocNode, FreeNode, ValueNode, ConditionalNode>;

CUgraphNodeType TypeOf(const NodeWork& work);
const char* TypeName(CUgraphNodeType type);

struct GraphNode {
  struct Edge {
    GraphNode* node = nullptr;
    CUgraphEdgeData data = {};
  };
  CUgraphNode handle = nullptr;
  Graph* graph = nullptr;
  CUgraphNode cloned_from = nullptr;
  NodeWork work;
  std::vector<Edge> dependencies;
  std::vector<Edge> dependents;
  // What cuGraphKernelNodeGetParams points to.
  std::vector<void*> param_pointers;
};

// A condition that a kernel sets; its handle is the address of the value in device memory.
struct Condition {
  CUgraphConditionalHandle handle = 0;
  CUcontext context = nullptr;
  unsigned default_value = 0;
  bool assign_default = false;
  bool used = false;  // by a node
};

struct Graph {
  CUgraph handle = nullptr;
  CUgraph cloned_from = nullptr;
  // The node it belongs to, if it is a child or the body of a condition: not the program's to
  // destroy.
  bool of_node = false;
  // An executable graph exists although there are nodes that allocate: no second one may.
  std::weak_ptr<void> sole_exec;
  std::vector<std::shared_ptr<GraphNode>> nodes;  // in the order in which they were added
  std::vector<Condition> conditions;
  absl::flat_hash_map<CUuserObject, uint64_t> user_objects;

  bool HasMemoryNodes() const;
};

// Adds a node. CUDA_ERROR_INVALID_VALUE for dependencies of another graph and for repeated ones.
absl::StatusOr<GraphNode*> AddNode(Driver& driver, Graph& graph,
                                   absl::Span<const GraphNode::Edge> dependencies, NodeWork work)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver.graph_mutex);
// CUDA_ERROR_INVALID_VALUE if the edge exists.
absl::Status AddEdge(GraphNode& from, GraphNode& to, const CUgraphEdgeData& data);
// CUDA_ERROR_INVALID_VALUE if it does not.
absl::Status RemoveEdge(GraphNode& from, GraphNode& to, const CUgraphEdgeData* data);
void RemoveNode(Driver& driver, GraphNode& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver.graph_mutex);

std::shared_ptr<Graph> NewGraph(Driver& driver) ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver.graph_mutex);
// A deep copy; children and bodies too. CUDA_ERROR_NOT_SUPPORTED for graphs with memory nodes.
absl::StatusOr<std::shared_ptr<Graph>> CloneGraph(Driver& driver, const Graph& graph)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver.graph_mutex);
// Takes the graph and all that belongs to it out of the tables. Returns the user objects whose last
// reference went with it: they are destroyed without the mutex (DestroyUserObjects).
std::vector<UserObject> ForgetGraph(Driver& driver, const std::shared_ptr<Graph>& graph)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver.graph_mutex);
void DestroyUserObjects(const std::vector<UserObject>& objects);
// Drops `count` references; true if they were the last, and the object is in the table no more.
absl::StatusOr<bool> ReleaseUserObject(Driver& driver, CUuserObject handle, uint64_t count,
                                       UserObject* last)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver.graph_mutex);

// Nodes such that each comes after its dependencies, otherwise in the order in which they were
// added. Empty if there is a circle.
std::vector<GraphNode*> OrderOf(const Graph& graph);

// CUDA_ERROR_INVALID_VALUE.
absl::StatusOr<std::shared_ptr<Graph>> FindGraph(Driver& driver, CUgraph handle)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver.graph_mutex);
absl::StatusOr<std::shared_ptr<GraphNode>> FindNode(Driver& driver, CUgraphNode handle)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver.graph_mutex);

// Tells the thread-safety analysis, which does not follow a lambda to its caller; checks nothing.
inline void AssertGraphsHeld(const Driver& driver) ABSL_ASSERT_EXCLUSIVE_LOCK(driver.graph_mutex) {}

// The text that cuGraphDebugDotPrint writes.
std::string DotOf(const Graph& graph, unsigned flags);

}  // namespace fargpu::softgpu
