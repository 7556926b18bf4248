#include "softgpu/driver/graph_exec.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "softgpu/driver/copy.h"
#include "softgpu/driver/driver.h"
#include "softgpu/driver/launch.h"
#include "softgpu/driver/stream_value.h"

namespace fargpu::softgpu {
namespace {

absl::Status Invalid(absl::string_view message) {
  return CudaError(CUDA_ERROR_INVALID_VALUE, message);
}

// One launch under way.
struct GraphRun {
  Driver& driver;
  const Context& context;
  // Made for the events that nodes record, so that they can be waited for before they are reached.
  std::map<CUevent, std::shared_ptr<EventRecord>> records;
};

absl::Status RunList(GraphRun& run, const ExecList& list);

// Runs what one node does; nothing here depends on other nodes.
struct NodeRunner {
  GraphRun& run;
  const ExecNode& node;

  absl::Status operator()(const EmptyNode&) { return absl::OkStatus(); }
  absl::Status operator()(const KernelNode& kernel) { return RunKernel(run.driver, kernel); }
  absl::Status operator()(const CopyNode& copy) {
    // Memory may have been freed since the graph was made; a copy must not fault on it.
    if (!CheckCopy(run.driver, copy.plan, WhenToRun::kNow).ok()) {
      return CudaError(CUDA_ERROR_ILLEGAL_ADDRESS, "a graph copies from or to memory that is gone");
    }
    RunCopy(copy.plan);
    return absl::OkStatus();
  }
  absl::Status operator()(const FillNode& fill) {
    if (!CheckFill(run.driver, fill.plan, WhenToRun::kNow).ok()) {
      return CudaError(CUDA_ERROR_ILLEGAL_ADDRESS, "a graph fills memory that is gone");
    }
    RunFill(fill.plan);
    return absl::OkStatus();
  }
  absl::Status operator()(const HostNode& host) {
    HostFunctionScope scope;
    host.function(host.data);
    return absl::OkStatus();
  }
  absl::Status operator()(const ChildNode&) { return RunList(run, node.inner[0]); }
  absl::Status operator()(const RecordNode& record) {
    const std::shared_ptr<EventRecord>& made = run.records[record.event];
    made->time_ns.store(NowNs(), std::memory_order_release);
    made->reached.store(true, std::memory_order_release);
    return absl::OkStatus();
  }
  absl::Status operator()(const WaitNode& wait) {
    std::shared_ptr<EventRecord> record;
    if (const auto own = run.records.find(wait.event); own != run.records.end()) {
      record = own->second;
    } else if (const auto event = run.driver.events.Find(wait.event)) {
      MutexLock lock(&event->mutex);
      record = event->record;
    }
    // A record of this run is reached, or lies in a part that does not come before this node.
    if (record != nullptr && !record->Done() && record->queue != nullptr) {
      record->queue->Wait(record->position);
    }
    return absl::OkStatus();
  }
  absl::Status operator()(const AllocNode& alloc) {
    return run.driver.memory.CommitGraphRange(alloc.params.dptr);
  }
  absl::Status operator()(const FreeNode& free) {
    return run.driver.memory.DecommitGraphRange(free.address);
  }
  absl::Status operator()(const ValueNode& value) {
    return RunValueOperations(run.context, value.operations);
  }
  absl::Status operator()(const ConditionalNode& conditional) {
    const auto value = [&] {
      return __atomic_load_n(reinterpret_cast<const uint32_t*>(conditional.handle),
                             __ATOMIC_ACQUIRE);
    };
    switch (conditional.type) {
      case CU_GRAPH_COND_TYPE_IF:
        if (value() != 0) return RunList(run, node.inner[0]);
        return node.inner.size() > 1 ? RunList(run, node.inner[1]) : absl::OkStatus();
      case CU_GRAPH_COND_TYPE_WHILE:
        while (value() != 0) {
          if (run.context.skips_work() || WorkersStopped()) return absl::OkStatus();
          RETURN_IF_ERROR(RunList(run, node.inner[0]));
        }
        return absl::OkStatus();
      case CU_GRAPH_COND_TYPE_SWITCH: {
        const uint32_t index = value();
        return index < node.inner.size() ? RunList(run, node.inner[index]) : absl::OkStatus();
      }
    }
    return absl::OkStatus();
  }
};

absl::Status RunList(GraphRun& run, const ExecList& list) {
  for (const std::shared_ptr<const ExecNode>& node : list) {
    if (!node->enabled) continue;
    // As everywhere in a context that has failed or is going away, what is left is not done.
    if (run.context.skips_work()) return absl::OkStatus();
    RETURN_IF_ERROR(std::visit(NodeRunner{run, *node}, node->work));
  }
  return absl::OkStatus();
}

void ForEachNode(const ExecList& list, const std::function<void(const ExecNode&)>& visit) {
  for (const std::shared_ptr<const ExecNode>& node : list) {
    visit(*node);
    for (const ExecList& inner : node->inner) ForEachNode(inner, visit);
  }
}

absl::StatusOr<ExecList> MakeList(const Graph& graph) {
  const std::vector<GraphNode*> order = OrderOf(graph);
  if (order.size() != graph.nodes.size()) return Invalid("the graph has a circle");
  absl::flat_hash_map<const GraphNode*, size_t> positions;
  ExecList list;
  for (size_t i = 0; i < order.size(); ++i) {
    const GraphNode& node = *order[i];
    positions[&node] = i;
    auto exec = std::make_shared<ExecNode>();
    exec->source = node.handle;
    exec->work = node.work;
    for (const GraphNode::Edge& edge : node.dependencies) {
      exec->dependencies.push_back(positions.at(edge.node));
    }
    if (const auto* child = std::get_if<ChildNode>(&node.work)) {
      ASSIGN_OR_RETURN(ExecList inner, MakeList(*child->graph));
      exec->inner.push_back(std::move(inner));
    } else if (const auto* conditional = std::get_if<ConditionalNode>(&node.work)) {
      for (const std::shared_ptr<Graph>& body : conditional->bodies) {
        ASSIGN_OR_RETURN(ExecList inner, MakeList(*body));
        exec->inner.push_back(std::move(inner));
      }
    }
    list.push_back(std::move(exec));
  }
  return list;
}

// What of a node's parameters must stay when an executable graph takes new ones.
CUgraphExecUpdateResult CompareWork(const NodeWork& old_work, const NodeWork& new_work) {
  if (old_work.index() != new_work.index()) return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
  if (const auto* kernel = std::get_if<KernelNode>(&old_work)) {
    if (kernel->function->context_id != std::get<KernelNode>(new_work).function->context_id) {
      return CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE;
    }
  } else if (const auto* alloc = std::get_if<AllocNode>(&old_work)) {
    if (alloc->params.dptr != std::get<AllocNode>(new_work).params.dptr) {
      return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
    }
  } else if (const auto* free = std::get_if<FreeNode>(&old_work)) {
    if (free->address != std::get<FreeNode>(new_work).address) {
      return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
    }
  } else if (const auto* conditional = std::get_if<ConditionalNode>(&old_work)) {
    const auto& other = std::get<ConditionalNode>(new_work);
    if (conditional->type != other.type || conditional->bodies.size() != other.bodies.size()) {
      return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
    }
  } else if (const auto* fill = std::get_if<FillNode>(&old_work)) {
    // cuda.h: only memsets of one dimension, which stay that.
    if ((fill->plan.height > 1) != (std::get<FillNode>(new_work).plan.height > 1)) {
      return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
    }
  }
  return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

// `list` with the parameters of `newer`, which has other source nodes.
CUgraphExecUpdateResult UpdateList(const ExecList& list, const ExecList& newer, ExecList* out,
                                   CUgraphNode* culprit) {
  if (list.size() != newer.size()) {
    // The first node that has no partner.
    if (newer.size() > list.size()) *culprit = newer[list.size()]->source;
    return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  }
  for (size_t i = 0; i < list.size(); ++i) {
    *culprit = newer[i]->source;
    if (list[i]->work.index() != newer[i]->work.index()) {
      return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
    }
    if (list[i]->dependencies != newer[i]->dependencies) {
      return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    }
    const CUgraphExecUpdateResult compared = CompareWork(list[i]->work, newer[i]->work);
    if (compared != CU_GRAPH_EXEC_UPDATE_SUCCESS) return compared;
    auto node = std::make_shared<ExecNode>(*list[i]);
    // The condition stays the executable graph's own.
    if (!std::holds_alternative<ConditionalNode>(node->work)) node->work = newer[i]->work;
    for (size_t k = 0; k < node->inner.size(); ++k) {
      ExecList inner;
      const CUgraphExecUpdateResult result =
          UpdateList(list[i]->inner[k], newer[i]->inner[k], &inner, culprit);
      if (result != CU_GRAPH_EXEC_UPDATE_SUCCESS) return result;
      node->inner[k] = std::move(inner);
    }
    out->push_back(std::move(node));
  }
  *culprit = nullptr;
  return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

// A copy of `list` in which `change` was applied to the node made of `source`; empty if there is
// none.
absl::StatusOr<ExecList> WithChange(const ExecList& list, CUgraphNode source,
                                    const std::function<absl::Status(ExecNode&)>& change) {
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i]->source == source) {
      auto changed = std::make_shared<ExecNode>(*list[i]);
      RETURN_IF_ERROR(change(*changed));
      ExecList copy = list;
      copy[i] = std::move(changed);
      return copy;
    }
    for (size_t k = 0; k < list[i]->inner.size(); ++k) {
      ASSIGN_OR_RETURN(ExecList inner, WithChange(list[i]->inner[k], source, change));
      if (inner.empty()) continue;
      auto outer = std::make_shared<ExecNode>(*list[i]);
      outer->inner[k] = std::move(inner);
      ExecList copy = list;
      copy[i] = std::move(outer);
      return copy;
    }
  }
  return ExecList{};
}

// The conditions of the graph and of those inside of its nodes.
std::vector<Condition> AllConditions(const Graph& graph) {
  std::vector<Condition> all = graph.conditions;
  for (const std::shared_ptr<GraphNode>& node : graph.nodes) {
    std::vector<std::shared_ptr<Graph>> inner;
    if (const auto* child = std::get_if<ChildNode>(&node->work)) inner = {child->graph};
    if (const auto* conditional = std::get_if<ConditionalNode>(&node->work)) {
      inner = conditional->bodies;
    }
    for (const std::shared_ptr<Graph>& graph_of_node : inner) {
      const std::vector<Condition> more = AllConditions(*graph_of_node);
      all.insert(all.end(), more.begin(), more.end());
    }
  }
  return all;
}

}  // namespace

GraphExec::GraphExec(Driver& driver, uint64_t exec_flags)
    : handle(HandleTable<GraphExec, CUgraphExec>::NewHandle()),
      flags(exec_flags),
      driver_(driver) {}

GraphExec::~GraphExec() {
  std::vector<UserObject> ended;
  {
    MutexLock lock(&driver_.graph_mutex);
    for (const auto& [object, count] : user_objects_) {
      UserObject last;
      const absl::StatusOr<bool> gone = ReleaseUserObject(driver_, object, count, &last);
      if (gone.ok() && *gone) ended.push_back(last);
    }
  }
  DestroyUserObjects(ended);
}

std::shared_ptr<const ExecList> GraphExec::list() const {
  MutexLock lock(&mutex_);
  return list_;
}

absl::StatusOr<std::shared_ptr<GraphExec>> GraphExec::Instantiate(
    Driver& driver, Graph& graph, uint64_t flags, CUgraphInstantiateResult* result) {
  *result = CUDA_GRAPH_INSTANTIATE_ERROR;
  constexpr uint64_t kKnown =
      CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
      CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
  if ((flags & ~kKnown) != 0) return Invalid(absl::StrCat("flags 0x", absl::Hex(flags)));
  if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0) {
    return CudaError(CUDA_ERROR_NOT_SUPPORTED, "graphs that the device launches");
  }
  std::vector<Condition> conditions = AllConditions(graph);
  if (std::any_of(conditions.begin(), conditions.end(),
                  [](const Condition& condition) { return !condition.used; })) {
    *result = CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED;
    return Invalid("a conditional handle of the graph has no node");
  }
  const bool has_memory = graph.HasMemoryNodes();
  if (has_memory && !graph.sole_exec.expired()) {
    return CudaError(CUDA_ERROR_NOT_SUPPORTED,
                     "a graph that allocates memory can be instantiated only once at a time");
  }
  absl::StatusOr<ExecList> list = MakeList(graph);
  if (!list.ok()) {
    *result = CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE;
    return list.status();
  }
  // Not make_shared: the constructor is private.
  std::shared_ptr<GraphExec> exec(new GraphExec(driver, flags));
  {
    MutexLock lock(&exec->mutex_);
    exec->list_ = std::make_shared<const ExecList>(*std::move(list));
  }
  exec->conditions_ = std::move(conditions);
  for (const auto& [object, count] : graph.user_objects) {
    driver.user_objects.at(object).references += count;
    exec->user_objects_.emplace_back(object, count);
  }
  if (has_memory) graph.sole_exec = exec->token_;
  driver.graph_execs.Insert(exec->handle, exec);
  *result = CUDA_GRAPH_INSTANTIATE_SUCCESS;
  return exec;
}

absl::Status GraphExec::Launch(Driver& driver, Context& context, Stream& stream) {
  const std::shared_ptr<const ExecList> nodes = list();
  GraphRun run{.driver = driver, .context = context, .records = {}};
  const bool auto_free = (flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
  std::vector<uint64_t> to_free;
  ForEachNode(*nodes, [&](const ExecNode& node) {
    if (const auto* record = std::get_if<RecordNode>(&node.work)) {
      auto made = std::make_shared<EventRecord>();
      made->queue = stream.queue;
      run.records.emplace(record->event, std::move(made));
    } else if (const auto* alloc = std::get_if<AllocNode>(&node.work)) {
      if (auto_free) to_free.push_back(alloc->params.dptr);
    }
  });
  const auto records = run.records;
  uint64_t position = 0;
  {
    MutexLock lock(&mutex_);
    std::vector<WorkQueue::Dependency> after;
    if (last_queue_ != nullptr) after.push_back({last_queue_, last_position_});
    auto work = [nodes, run = std::move(run), conditions = conditions_, to_free]() mutable {
      // Memory that the previous run left is given back; it may have been freed meanwhile.
      for (uint64_t address : to_free) (void)run.driver.memory.DecommitGraphRange(address);
      for (const Condition& condition : conditions) {
        if (!condition.assign_default) continue;
        __atomic_store_n(reinterpret_cast<uint32_t*>(condition.handle), condition.default_value,
                         __ATOMIC_RELEASE);
      }
      return RunList(run, *nodes);
    };
    ASSIGN_OR_RETURN(position, context.Enqueue(stream, std::move(work), RunOn::kWorker, Wake::kYes,
                                               Context::Eager::kNo, std::move(after)));
    last_queue_ = stream.queue;
    last_position_ = position;
  }
  for (const auto& [event_handle, record] : records) {
    record->position = position;
    if (const std::shared_ptr<Event> event = driver.events.Find(event_handle)) {
      MutexLock lock(&event->mutex);
      event->record = record;
    }
  }
  return absl::OkStatus();
}

absl::Status GraphExec::Update(Driver& driver, const Graph& graph,
                               CUgraphExecUpdateResultInfo* info) {
  *info = {.result = CU_GRAPH_EXEC_UPDATE_ERROR, .errorNode = nullptr, .errorFromNode = nullptr};
  ASSIGN_OR_RETURN(const ExecList newer, MakeList(graph));
  MutexLock lock(&mutex_);
  ExecList updated;
  info->result = UpdateList(*list_, newer, &updated, &info->errorNode);
  if (info->result != CU_GRAPH_EXEC_UPDATE_SUCCESS) {
    return CudaError(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
                     absl::StrCat("the graphs differ, result ", static_cast<int>(info->result)));
  }
  list_ = std::make_shared<const ExecList>(std::move(updated));
  return absl::OkStatus();
}

absl::Status GraphExec::SetWork(CUgraphNode node, NodeWork work) {
  MutexLock lock(&mutex_);
  ASSIGN_OR_RETURN(ExecList changed, WithChange(*list_, node, [&](ExecNode& exec) -> absl::Status {
                     if (CompareWork(exec.work, work) != CU_GRAPH_EXEC_UPDATE_SUCCESS) {
                       return Invalid("the node cannot become that");
                     }
                     exec.work = std::move(work);
                     return absl::OkStatus();
                   }));
  if (changed.empty()) return Invalid("the executable graph has no such node");
  list_ = std::make_shared<const ExecList>(std::move(changed));
  return absl::OkStatus();
}

absl::Status GraphExec::SetChild(Driver& driver, CUgraphNode node, const Graph& child) {
  ASSIGN_OR_RETURN(const ExecList newer, MakeList(child));
  MutexLock lock(&mutex_);
  ASSIGN_OR_RETURN(
      ExecList changed, WithChange(*list_, node, [&](ExecNode& exec) -> absl::Status {
        if (!std::holds_alternative<ChildNode>(exec.work)) {
          return Invalid("the node has no child");
        }
        ExecList updated;
        CUgraphNode culprit = nullptr;
        if (UpdateList(exec.inner[0], newer, &updated, &culprit) != CU_GRAPH_EXEC_UPDATE_SUCCESS) {
          return Invalid("the new child has another shape");
        }
        exec.inner[0] = std::move(updated);
        return absl::OkStatus();
      }));
  if (changed.empty()) return Invalid("the executable graph has no such node");
  list_ = std::make_shared<const ExecList>(std::move(changed));
  return absl::OkStatus();
}

absl::Status GraphExec::SetEnabled(CUgraphNode node, bool enabled) {
  MutexLock lock(&mutex_);
  ASSIGN_OR_RETURN(ExecList changed, WithChange(*list_, node, [&](ExecNode& exec) -> absl::Status {
                     if (!std::holds_alternative<KernelNode>(exec.work) &&
                         !std::holds_alternative<FillNode>(exec.work) &&
                         !std::holds_alternative<CopyNode>(exec.work)) {
                       return Invalid("only kernels, fills and copies can be disabled");
                     }
                     exec.enabled = enabled;
                     return absl::OkStatus();
                   }));
  if (changed.empty()) return Invalid("the executable graph has no such node");
  list_ = std::make_shared<const ExecList>(std::move(changed));
  return absl::OkStatus();
}

absl::StatusOr<bool> GraphExec::IsEnabled(CUgraphNode node) const {
  bool found = false;
  bool enabled = false;
  ForEachNode(*list(), [&](const ExecNode& exec) {
    if (exec.source != node) return;
    found = true;
    enabled = exec.enabled;
  });
  if (!found) return Invalid("the executable graph has no such node");
  return enabled;
}

namespace {

absl::Status AddList(Driver& driver, const ExecList& list, Graph& graph)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver.graph_mutex) {
  std::vector<GraphNode*> made;
  for (const std::shared_ptr<const ExecNode>& exec : list) {
    NodeWork work = exec->work;
    if (!exec->enabled) work = EmptyNode{};
    if (std::holds_alternative<AllocNode>(work) || std::holds_alternative<FreeNode>(work) ||
        std::holds_alternative<ConditionalNode>(work)) {
      return CudaError(CUDA_ERROR_NOT_SUPPORTED,
                       "a graph with memory or conditional nodes cannot become a child");
    }
    if (auto* child = std::get_if<ChildNode>(&work)) {
      child->graph = NewGraph(driver);
      child->graph->of_node = true;
      RETURN_IF_ERROR(AddList(driver, exec->inner[0], *child->graph));
    }
    std::vector<GraphNode::Edge> edges;
    for (size_t position : exec->dependencies) edges.push_back({made[position], {}});
    ASSIGN_OR_RETURN(GraphNode * node, AddNode(driver, graph, edges, std::move(work)));
    made.push_back(node);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<Graph>> GraphExec::ToGraph(Driver& driver) const {
  const std::shared_ptr<Graph> graph = NewGraph(driver);
  if (absl::Status added = AddList(driver, *list(), *graph); !added.ok()) {
    (void)ForgetGraph(driver, graph);
    return added;
  }
  return graph;
}

}  // namespace fargpu::softgpu
