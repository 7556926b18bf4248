#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cuda.h>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "client/cuda/box_plan.h"
#include "common/mutex.h"
#include "protocol/wire/graph_node.h"

// Graphs as the program makes and changes them. They live here: the worker hears of one when it is
// instantiated (docs/design/010). All is guarded by Graphs::mutex.
namespace fargpu::client {

class Session;
struct Graph;
class GraphExec;
struct Capture;

// Device memory of nodes that allocate. It is there as long as a node, or an executable graph that
// has one.
class GraphMemory {
 public:
  GraphMemory(Session* session, wire::ContextId context, int of_device, uint64_t at, uint64_t size)
      : address(at), bytes(size), device(of_device), session_(*session), context_(context) {}
  ~GraphMemory();
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;

  const uint64_t address;
  const uint64_t bytes;
  const int device;
  bool live = false;  // a launch has allocated it and nothing has freed it since

 private:
  Session& session_;
  const wire::ContextId context_;
};

// What a node does, with all that cuGraph*GetParams tells of it.
struct EmptyWork {};
struct KernelWork {
  CUfunction given_function = nullptr;  // as the program named the kernel
  CUkernel given_kernel = nullptr;
  CUcontext given_context = nullptr;
  wire::ContextId context;  // where it runs
  wire::FunctionId function;
  std::string name;
  std::vector<uint32_t> param_offsets;
  std::array<unsigned, 3> grid = {};
  std::array<unsigned, 3> block = {};
  unsigned shared_bytes = 0;
  std::vector<char> params;
  std::map<int, CUlaunchAttributeValue> attributes;  // by CUlaunchAttributeID
};
struct CopyWork {
  CUDA_MEMCPY3D params = {};
  CUcontext given_context = nullptr;
  wire::ContextId context;
  BoxPlan plan;
};
struct FillWork {
  CUDA_MEMSET_NODE_PARAMS_v2 params = {};  // with the context as given
  wire::ContextId context;
};
struct HostWork {
  CUhostFn function = nullptr;
  void* data = nullptr;
};
struct ChildWork {
  std::shared_ptr<Graph> graph;
};
struct RecordWork {
  CUevent event = nullptr;
  wire::EventId id;
};
struct WaitWork {
  CUevent event = nullptr;
  wire::EventId id;
};
struct AllocWork {
  CUDA_MEM_ALLOC_NODE_PARAMS_v2 params = {};
  std::vector<CUmemAccessDesc> access;
  std::shared_ptr<GraphMemory> memory;  // shared by the graph and what was made of it
};
struct FreeWork {
  CUdeviceptr address = 0;
  std::shared_ptr<GraphMemory> memory;
};
struct ValueWork {
  CUcontext given_context = nullptr;
  wire::ContextId context;
  unsigned flags = 0;
  std::vector<CUstreamBatchMemOpParams> operations;
};
struct ConditionalWork {
  CUgraphConditionalHandle handle = 0;
  CUgraphConditionalNodeType type = CU_GRAPH_COND_TYPE_IF;
  wire::ContextId context;
  std::vector<std::shared_ptr<Graph>> bodies;
  std::vector<CUgraph> body_handles;  // what the program's phGraph_out points to
};
using NodeWork =
    std::variant<EmptyWork, KernelWork, CopyWork, FillWork, HostWork, ChildWork, RecordWork,
                 WaitWork, AllocWork, FreeWork, ValueWork, ConditionalWork>;

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
  std::vector<void*> param_pointers;  // what cuGraphKernelNodeGetParams points to
};

// The worker's graph for which it has made conditional handles. It is told when this goes.
class GraphSeed {
 public:
  GraphSeed(Session* session, wire::GraphId graph) : id(graph), session_(*session) {}
  ~GraphSeed();
  GraphSeed(const GraphSeed&) = delete;
  GraphSeed& operator=(const GraphSeed&) = delete;
  const wire::GraphId id;

 private:
  Session& session_;
};

struct Condition {
  CUgraphConditionalHandle handle = 0;
  std::shared_ptr<GraphSeed> seed;  // shared with clones and executable graphs
  bool used = false;                // by a node
};

struct UserObject {
  void* pointer = nullptr;
  CUhostFn destroy = nullptr;
  uint64_t references = 0;
};

struct Graph {
  CUgraph handle = nullptr;
  wire::GraphId id;
  CUgraph cloned_from = nullptr;
  // Not null: it is a child or the body of a condition, and not the program's to destroy.
  Graph* around = nullptr;
  bool of_node = false;
  // An executable graph exists although there are nodes that allocate: no second one may.
  std::weak_ptr<void> sole_exec;
  std::vector<std::shared_ptr<GraphNode>> nodes;  // in the order in which they were added
  std::vector<Condition> conditions;
  absl::flat_hash_map<CUuserObject, uint64_t> user_objects;

  bool HasMemoryNodes() const;
  // Of this graph's conditional handles and of those inside of it; nullptr if there are none.
  std::shared_ptr<GraphSeed> Seed() const;
  // Of this graph, or of one around it.
  Condition* FindCondition(CUgraphConditionalHandle handle);
};

// A stream as captures know it: of special streams there is one for each context, or thread.
struct StreamKey {
  uint64_t id = 0;
  uint64_t context = 0;
  uint32_t thread = 0;
  friend auto operator<=>(const StreamKey&, const StreamKey&) = default;
};

// By handle, so that a node which the program takes out of the graph meanwhile is only missing.
struct CaptureDependency {
  CUgraphNode node = nullptr;
  CUgraphEdgeData data = {};
};

// Where an event was recorded in a capture.
struct CapturedEvent {
  std::shared_ptr<Capture> capture;
  std::vector<CaptureDependency> after;
};

// All graphs of a session. Destroy() what Release... returns without the mutex.
class Graphs {
 public:
  explicit Graphs(Session* session) : session_(*session) {}
  ~Graphs();

  // Taken before the locks of memory tables and of the call stream.
  Mutex mutex;

  std::shared_ptr<Graph> New() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // CUDA_ERROR_INVALID_VALUE.
  absl::StatusOr<std::shared_ptr<Graph>> Find(CUgraph handle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  absl::StatusOr<std::shared_ptr<GraphNode>> FindNode(CUgraphNode handle)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  std::shared_ptr<GraphNode> NodeOrNull(CUgraphNode handle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // CUDA_ERROR_INVALID_VALUE for dependencies of another graph and for repeated ones.
  absl::StatusOr<GraphNode*> AddNode(Graph& graph, absl::Span<const GraphNode::Edge> dependencies,
                                     NodeWork work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void RemoveNode(GraphNode& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // A deep copy. CUDA_ERROR_NOT_SUPPORTED for graphs with memory nodes.
  absl::StatusOr<std::shared_ptr<Graph>> Clone(const Graph& graph)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Takes the graph and all that belongs to it out of the tables. Returns the user objects whose
  // last reference went with it.
  [[nodiscard]] std::vector<UserObject> Forget(const std::shared_ptr<Graph>& graph)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  CUuserObject NewUserObject(UserObject object) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  UserObject* FindUserObject(CUuserObject handle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Drops references; true if they were the last.
  absl::StatusOr<bool> ReleaseUserObject(CUuserObject handle, uint64_t count, UserObject* last)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  // Calls their destructors, in which CUDA is off limits.
  static void Destroy(const std::vector<UserObject>& objects);

  // Executable graphs.
  CUgraphExec AddExec(std::shared_ptr<GraphExec> exec) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  absl::StatusOr<std::shared_ptr<GraphExec>> FindExec(CUgraphExec handle)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  std::shared_ptr<GraphExec> RemoveExec(CUgraphExec handle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // Memory of nodes that allocate.
  struct MemoryUse {
    uint64_t current = 0;
    uint64_t high = 0;
  };
  void AddMemory(const std::shared_ptr<GraphMemory>& memory) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  std::shared_ptr<GraphMemory> FindMemory(uint64_t address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void SetLive(GraphMemory& memory, bool live) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  MemoryUse& UseOf(int device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) { return memory_use_[device]; }

  // Captures; capture.h works on them.
  std::atomic<int> capture_count{0};
  std::vector<std::shared_ptr<Capture>> captures ABSL_GUARDED_BY(mutex);
  std::map<StreamKey, std::shared_ptr<Capture>> capturing ABSL_GUARDED_BY(mutex);
  absl::flat_hash_map<uint64_t, CapturedEvent> captured_events ABSL_GUARDED_BY(mutex);  // by id
  std::atomic<bool> any_captured_event{false};

  // Is there anything that a call could be forbidden for?
  bool may_forbid() const {
    return capture_count.load(std::memory_order_acquire) > 0 ||
           any_captured_event.load(std::memory_order_acquire);
  }

  Session& session() { return session_; }
  // Never used again, so that a handle that is used after its object was destroyed is recognised.
  uint64_t NewHandle() { return next_handle_.fetch_add(16, std::memory_order_relaxed); }

 private:
  absl::Status CloneInto(const Graph& from, Graph& to) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  Session& session_;
  std::atomic<uint64_t> next_handle_{0x6600000000000010};
  absl::flat_hash_map<CUgraph, std::shared_ptr<Graph>> graphs_ ABSL_GUARDED_BY(mutex);
  absl::flat_hash_map<CUgraphNode, std::shared_ptr<GraphNode>> nodes_ ABSL_GUARDED_BY(mutex);
  absl::flat_hash_map<CUgraphExec, std::shared_ptr<GraphExec>> execs_ ABSL_GUARDED_BY(mutex);
  absl::flat_hash_map<CUuserObject, UserObject> user_objects_ ABSL_GUARDED_BY(mutex);
  absl::flat_hash_map<uint64_t, std::weak_ptr<GraphMemory>> memory_ ABSL_GUARDED_BY(mutex);
  std::map<int, MemoryUse> memory_use_ ABSL_GUARDED_BY(mutex);
};

// CUDA_ERROR_INVALID_VALUE if the edge exists.
absl::Status AddEdge(GraphNode& from, GraphNode& to, const CUgraphEdgeData& data);
// CUDA_ERROR_INVALID_VALUE if it does not.
absl::Status RemoveEdge(GraphNode& from, GraphNode& to, const CUgraphEdgeData* data);

// The graphs that belong to a node.
std::vector<std::shared_ptr<Graph>> InnerGraphs(const NodeWork& work);

// Nodes such that each comes after its dependencies, otherwise in the order in which they were
// added. Empty if there is a circle.
std::vector<GraphNode*> OrderOf(const Graph& graph);

// The text that cuGraphDebugDotPrint writes.
std::string DotOf(const Graph& graph, unsigned flags);

// Tells the thread-safety analysis, which does not follow a lambda to its caller; checks nothing.
inline void AssertHeld(const Graphs& graphs) ABSL_ASSERT_EXCLUSIVE_LOCK(graphs.mutex) {}

}  // namespace fargpu::client
