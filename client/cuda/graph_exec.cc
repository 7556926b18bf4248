#include "client/cuda/graph_exec.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

#include "client/cuda/box_copy.h"
#include "client/cuda/launch_params.h"
#include "client/cuda/session.h"

namespace fargpu::client {
namespace {

// Nodes travel in messages of about so many bytes.
constexpr size_t kPartBytes = 256 << 10;

absl::Status Invalid(absl::string_view message) {
  return CudaError(CUDA_ERROR_INVALID_VALUE, message);
}

// A node as it travels: `token` names its part in this process.
struct EncodedWork {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  std::vector<char> body;
};

template <typename Message>
EncodedWork Encoded(CUgraphNodeType type, const Message& message) {
  EncodedWork encoded;
  encoded.type = type;
  wire::EncodeMessage(message, &encoded.body);
  return encoded;
}

bool IsHost(const FoundSide& side) { return side.kind == FoundSide::Kind::kHost; }

EncodedWork EncodeCopy(const CopyWork& copy, uint64_t token) {
  const BoxPlan& plan = copy.plan;
  if (plan.empty()) return {};
  if (IsHost(plan.to) && IsHost(plan.from)) {
    return Encoded(CU_GRAPH_NODE_TYPE_HOST, wire::GraphHost{.token = token});
  }
  wire::GraphCopy message;
  message.context = copy.context;
  message.shape = plan.shape;
  message.token = token;
  if (IsHost(plan.from)) {
    message.host = wire::GraphCopy::kSource;
  } else {
    message.from = ToWire(plan.from);
  }
  if (IsHost(plan.to)) {
    message.host = wire::GraphCopy::kDestination;
  } else {
    message.to = ToWire(plan.to);
  }
  return Encoded(CU_GRAPH_NODE_TYPE_MEMCPY, message);
}

EncodedWork Encode(const NodeWork& work, uint64_t token) {
  const CUgraphNodeType type = TypeOf(work);
  if (const auto* kernel = std::get_if<KernelWork>(&work)) {
    wire::GraphKernel message;
    message.context = kernel->context;
    message.function = kernel->function;
    std::copy(kernel->grid.begin(), kernel->grid.end(), message.grid);
    std::copy(kernel->block.begin(), kernel->block.end(), message.block);
    message.shared_bytes = kernel->shared_bytes;
    message.attributes = TravellingAttributes(kernel->attributes);
    message.params = kernel->params;
    return Encoded(type, message);
  }
  if (const auto* copy = std::get_if<CopyWork>(&work)) return EncodeCopy(*copy, token);
  if (const auto* fill = std::get_if<FillWork>(&work)) {
    return Encoded(type, wire::GraphFill{.context = fill->context,
                                         .address = fill->params.dst,
                                         .pitch = fill->params.pitch,
                                         .value = fill->params.value,
                                         .element_bytes = fill->params.elementSize,
                                         .width = fill->params.width,
                                         .height = fill->params.height});
  }
  if (std::holds_alternative<HostWork>(work)) {
    return Encoded(type, wire::GraphHost{.token = token});
  }
  if (const auto* record = std::get_if<RecordWork>(&work)) {
    return Encoded(type, wire::GraphEvent{.event = record->id});
  }
  if (const auto* wait = std::get_if<WaitWork>(&work)) {
    return Encoded(type, wire::GraphEvent{.event = wait->id});
  }
  if (const auto* values = std::get_if<ValueWork>(&work)) {
    return Encoded(type, wire::GraphValues{.context = values->context,
                                           .flags = values->flags,
                                           .operations = values->operations});
  }
  if (const auto* conditional = std::get_if<ConditionalWork>(&work)) {
    return Encoded(
        type, wire::GraphConditional{.context = conditional->context,
                                     .handle = conditional->handle,
                                     .type = static_cast<uint32_t>(conditional->type),
                                     .bodies = static_cast<uint32_t>(conditional->bodies.size())});
  }
  if (std::holds_alternative<ChildWork>(work)) return Encoded(type, wire::GraphEmpty{});
  // The memory of nodes that allocate is there all the time (docs/design/010).
  return {};
}

// What of a node's work lies in this process; empty if nothing.
std::string LocalPart(const NodeWork& work) {
  const auto number = [](const auto* pointer) { return reinterpret_cast<uintptr_t>(pointer); };
  if (const auto* host = std::get_if<HostWork>(&work)) {
    return absl::StrCat("call ", reinterpret_cast<uintptr_t>(host->function), " ",
                        number(host->data));
  }
  const auto* copy = std::get_if<CopyWork>(&work);
  if (copy == nullptr || copy->plan.empty()) return "";
  std::string part;
  for (const FoundSide* side : {&copy->plan.to, &copy->plan.from}) {
    if (!IsHost(*side)) continue;
    absl::StrAppend(&part, side == &copy->plan.to ? "to " : "from ", side->address, " ",
                    side->pitch, " ", side->slice, " ");
  }
  if (part.empty()) return part;
  const wire::BoxShape& shape = copy->plan.shape;
  return absl::StrCat(part, shape.width, " ", shape.height, " ", shape.depth);
}

bool IsSame(const NodeWork& one, const NodeWork& other) {
  const EncodedWork a = Encode(one, 0);
  const EncodedWork b = Encode(other, 0);
  return a.type == b.type && a.body == b.body && LocalPart(one) == LocalPart(other);
}

// Can the worker take over this work without making the graph anew? Attributes of kernels and the
// direction of a copy are part of the graph's structure.
bool IsUpdate(const NodeWork& one, const NodeWork& other) {
  if (Encode(one, 0).type != Encode(other, 0).type) return false;
  if (const auto* copy = std::get_if<CopyWork>(&one)) {
    const BoxPlan& a = copy->plan;
    const BoxPlan& b = std::get<CopyWork>(other).plan;
    return IsHost(a.to) == IsHost(b.to) && IsHost(a.from) == IsHost(b.from);
  }
  if (const auto* kernel = std::get_if<KernelWork>(&one)) {
    const auto bytes = [](const KernelWork& work) {
      const std::vector<CUlaunchAttribute> list = TravellingAttributes(work.attributes);
      return std::string(reinterpret_cast<const char*>(list.data()),
                         list.size() * sizeof(CUlaunchAttribute));
    };
    return bytes(*kernel) == bytes(std::get<KernelWork>(other));
  }
  return true;
}

// What of a node's parameters must stay when an executable graph takes new ones.
CUgraphExecUpdateResult CompareWork(const NodeWork& old_work, const NodeWork& new_work) {
  if (old_work.index() != new_work.index()) return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
  if (const auto* kernel = std::get_if<KernelWork>(&old_work)) {
    if (kernel->context != std::get<KernelWork>(new_work).context) {
      return CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE;
    }
  } else if (const auto* alloc = std::get_if<AllocWork>(&old_work)) {
    if (alloc->params.dptr != std::get<AllocWork>(new_work).params.dptr) {
      return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
    }
  } else if (const auto* free = std::get_if<FreeWork>(&old_work)) {
    if (free->address != std::get<FreeWork>(new_work).address) {
      return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
    }
  } else if (const auto* conditional = std::get_if<ConditionalWork>(&old_work)) {
    const auto& other = std::get<ConditionalWork>(new_work);
    if (conditional->type != other.type || conditional->bodies.size() != other.bodies.size()) {
      return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
    }
  } else if (const auto* fill = std::get_if<FillWork>(&old_work)) {
    // cuda.h: only memsets of one dimension, which stay that.
    if ((fill->params.height > 1) != (std::get<FillWork>(new_work).params.height > 1)) {
      return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
    }
  }
  return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

// The conditions of the graph and of those inside of its nodes.
std::vector<Condition> AllConditions(const Graph& graph) {
  std::vector<Condition> all = graph.conditions;
  for (const std::shared_ptr<GraphNode>& node : graph.nodes) {
    for (const std::shared_ptr<Graph>& inner : InnerGraphs(node->work)) {
      const std::vector<Condition> more = AllConditions(*inner);
      all.insert(all.end(), more.begin(), more.end());
    }
  }
  return all;
}

bool IsPlain(const CUgraphEdgeData& data) {
  return data.from_port == 0 && data.to_port == 0 && data.type == 0;
}

}  // namespace

absl::Status GraphExec::Flatten(const Graph& graph, uint32_t parent, uint32_t branch,
                                Nodes* nodes) {
  const std::vector<client::GraphNode*> order = OrderOf(graph);
  if (order.size() != graph.nodes.size()) return Invalid("the graph has a circle");
  absl::flat_hash_map<const client::GraphNode*, uint32_t> positions;
  for (const client::GraphNode* const from : order) {
    const auto position = static_cast<uint32_t>(nodes->size());
    positions[from] = position;
    Node node;
    node.source = from->handle;
    node.work = from->work;
    node.parent = parent;
    node.branch = branch;
    bool plain = true;
    for (const client::GraphNode::Edge& edge : from->dependencies) {
      node.dependencies.push_back(positions.at(edge.node));
      node.edges.push_back(edge.data);
      plain = plain && IsPlain(edge.data);
    }
    if (plain) node.edges.clear();
    nodes->push_back(std::move(node));
    uint32_t inner_branch = 0;
    for (const std::shared_ptr<Graph>& inner : InnerGraphs(from->work)) {
      RETURN_IF_ERROR(Flatten(*inner, position, inner_branch++, nodes));
    }
  }
  return absl::OkStatus();
}

std::vector<uint32_t> GraphExec::Members(const Nodes& nodes, uint32_t parent, uint32_t branch) {
  std::vector<uint32_t> members;
  for (uint32_t i = 0; i < nodes.size(); ++i) {
    if (nodes[i].parent == parent && nodes[i].branch == branch) members.push_back(i);
  }
  return members;
}

uint64_t GraphExec::NewToken(const NodeWork& work) {
  CallStream& calls = session_.calls();
  if (const auto* host = std::get_if<HostWork>(&work)) {
    return calls.host_functions().AddRepeated(
        [function = host->function, data = host->data] { function(data); });
  }
  const auto* copy = std::get_if<CopyWork>(&work);
  if (copy == nullptr || copy->plan.empty()) return 0;
  const BoxPlan& plan = copy->plan;
  if (IsHost(plan.to) && IsHost(plan.from)) {
    return calls.host_functions().AddRepeated(
        [plan] { CopyInMemory(plan.to, plan.from, plan.shape); });
  }
  if (IsHost(plan.from)) {
    return calls.host_functions().AddSource(HostBoxOf(plan.from, plan.shape),
                                            HostFunctions::Fetched::kRepeatedly);
  }
  if (IsHost(plan.to)) {
    return calls.deliveries().ExpectRepeatedly(HostBoxOf(plan.to, plan.shape));
  }
  return 0;
}

void GraphExec::ForgetToken(uint64_t token) {
  if (HostFunctions::IsToken(token)) {
    session_.calls().host_functions().Gone(token);
  } else if (token != 0) {
    session_.calls().deliveries().Gone(token);
  }
}

absl::Status GraphExec::SendWhole() {
  const wire::GraphExecId old_id = std::exchange(id_, {session_.NewId()});
  std::vector<EncodedWork> encoded(nodes_.size());
  std::vector<uint64_t> tokens;
  absl::Status status;
  wire::GraphPartRequest part{.exec = id_};
  size_t bytes = 0;
  for (size_t i = 0; i < nodes_.size() && status.ok(); ++i) {
    const Node& node = nodes_[i];
    tokens.push_back(NewToken(node.work));
    encoded[i] = Encode(node.work, tokens.back());
    part.nodes.push_back({.type = static_cast<uint32_t>(encoded[i].type),
                          .parent = node.parent,
                          .branch = node.branch,
                          .dependencies = node.dependencies,
                          .edges = node.edges,
                          .body = encoded[i].body});
    bytes += encoded[i].body.size() + 64 + 16 * node.dependencies.size();
    if (bytes < kPartBytes && i + 1 < nodes_.size()) continue;
    status = session_.Send(part);
    part.nodes.clear();
    bytes = 0;
  }
  constexpr uint64_t kOurs =
      CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
  if (status.ok()) {
    wire::GraphInstantiateReply reply;
    status = session_.Call(
        wire::GraphInstantiateRequest{.exec = id_,
                                      .flags = flags_ & ~kOurs,
                                      .seed = seed_ != nullptr ? seed_->id : wire::GraphId()},
        &reply);
  }
  if (!status.ok()) {
    for (uint64_t token : tokens) ForgetToken(token);
    id_ = old_id;
    return status;
  }
  for (size_t i = 0; i < nodes_.size(); ++i) {
    nodes_[i].token = tokens[i];
    if (nodes_[i].enabled) continue;
    RETURN_IF_ERROR(session_.Send(wire::GraphEnableRequest{
        .exec = id_, .position = static_cast<uint32_t>(i), .enabled = false}));
  }
  if (old_id.value == 0) return absl::OkStatus();
  return session_.Send(wire::GraphExecDestroyRequest{.exec = old_id});
}

absl::StatusOr<std::shared_ptr<GraphExec>> GraphExec::Instantiate(
    Session& session, Graph& graph, uint64_t flags, CUgraphInstantiateResult* result) {
  *result = CUDA_GRAPH_INSTANTIATE_ERROR;
  constexpr uint64_t kKnown =
      CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
      CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
  if ((flags & ~kKnown) != 0) return Invalid(absl::StrCat("flags 0x", absl::Hex(flags)));
  if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0) {
    return CudaError(CUDA_ERROR_NOT_SUPPORTED, "graphs that the device launches");
  }
  const std::vector<Condition> conditions = AllConditions(graph);
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
  // Not make_shared: the constructor is private.
  std::shared_ptr<GraphExec> exec(new GraphExec(session, flags));
  if (absl::Status flat = Flatten(graph, wire::GraphNode::kNoParent, 0, &exec->nodes_);
      !flat.ok()) {
    *result = CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE;
    return flat;
  }
  if (!conditions.empty()) exec->seed_ = conditions.front().seed;
  RETURN_IF_ERROR(exec->SendWhole());
  AssertHeld(session.graphs());
  for (const auto& [object, count] : graph.user_objects) {
    session.graphs().FindUserObject(object)->references += count;
    exec->user_objects_.emplace_back(object, count);
  }
  if (has_memory) graph.sole_exec = exec->mark_;
  *result = CUDA_GRAPH_INSTANTIATE_SUCCESS;
  return exec;
}

std::vector<UserObject> GraphExec::Release() {
  // Runs under way have what they need. After the end of the session there is nobody to tell.
  session_.Send(wire::GraphExecDestroyRequest{.exec = id_}).IgnoreError();
  AssertHeld(session_.graphs());
  std::vector<UserObject> ended;
  for (const auto& [object, count] : user_objects_) {
    UserObject last;
    const absl::StatusOr<bool> gone = session_.graphs().ReleaseUserObject(object, count, &last);
    if (gone.ok() && *gone) ended.push_back(last);
  }
  user_objects_.clear();
  nodes_.clear();
  seed_ = nullptr;
  mark_ = nullptr;
  return ended;
}

absl::Status GraphExec::Launch(wire::StreamId stream) {
  Graphs& graphs = session_.graphs();
  AssertHeld(graphs);
  const bool auto_free = (flags_ & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0;
  for (const Node& node : nodes_) {
    if (const auto* alloc = std::get_if<AllocWork>(&node.work); alloc != nullptr) {
      if (alloc->memory->live && !auto_free) {
        return Invalid(absl::StrCat("the graph's memory at 0x", absl::Hex(alloc->params.dptr),
                                    " was not freed since the last launch"));
      }
    }
  }
  RETURN_IF_ERROR(session_.CurrentActive().status());
  for (const Node& node : nodes_) {
    if (const auto* alloc = std::get_if<AllocWork>(&node.work)) {
      graphs.SetLive(*alloc->memory, true);
    } else if (const auto* free = std::get_if<FreeWork>(&node.work)) {
      graphs.SetLive(*free->memory, false);
    } else if (node.token != 0 && node.enabled) {
      if (HostFunctions::IsToken(node.token)) {
        session_.calls().host_functions().Expect(node.token);
      } else {
        session_.calls().deliveries().Due(node.token);
      }
    }
  }
  return session_.Send(wire::GraphLaunchRequest{.exec = id_, .hStream = stream});
}

CUgraphExecUpdateResult GraphExec::Compare(const Nodes& nodes, uint32_t parent, uint32_t branch,
                                           const Nodes& newer, uint32_t newer_parent,
                                           uint32_t newer_branch, Changes* changes,
                                           CUgraphNode* culprit) {
  const std::vector<uint32_t> members = Members(nodes, parent, branch);
  const std::vector<uint32_t> newer_members = Members(newer, newer_parent, newer_branch);
  if (members.size() != newer_members.size()) {
    // The first node that has no partner.
    if (newer_members.size() > members.size()) {
      *culprit = newer[newer_members[members.size()]].source;
    }
    return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  }
  // Positions within the lists, so that lists can lie anywhere.
  absl::flat_hash_map<uint32_t, uint32_t> place, newer_place;
  for (uint32_t i = 0; i < members.size(); ++i) {
    place[members[i]] = i;
    newer_place[newer_members[i]] = i;
  }
  for (uint32_t i = 0; i < members.size(); ++i) {
    const Node& old_node = nodes[members[i]];
    const Node& new_node = newer[newer_members[i]];
    *culprit = new_node.source;
    if (old_node.work.index() != new_node.work.index()) {
      return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
    }
    bool same = old_node.dependencies.size() == new_node.dependencies.size();
    for (size_t k = 0; same && k < old_node.dependencies.size(); ++k) {
      same = place[old_node.dependencies[k]] == newer_place[new_node.dependencies[k]];
    }
    if (!same) return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    const CUgraphExecUpdateResult compared = CompareWork(old_node.work, new_node.work);
    if (compared != CU_GRAPH_EXEC_UPDATE_SUCCESS) return compared;
    // The condition stays the executable graph's own.
    if (!std::holds_alternative<ConditionalWork>(old_node.work) &&
        !std::holds_alternative<ChildWork>(old_node.work)) {
      changes->emplace_back(members[i], new_node.work);
    }
    const size_t inner = InnerGraphs(old_node.work).size();
    for (uint32_t k = 0; k < inner; ++k) {
      const CUgraphExecUpdateResult result =
          Compare(nodes, members[i], k, newer, newer_members[i], k, changes, culprit);
      if (result != CU_GRAPH_EXEC_UPDATE_SUCCESS) return result;
    }
  }
  *culprit = nullptr;
  return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

absl::Status GraphExec::Apply(Changes changes) {
  std::vector<uint32_t> positions;
  bool whole = false;
  for (auto& [position, work] : changes) {
    Node& node = nodes_[position];
    if (!IsSame(node.work, work)) {
      positions.push_back(position);
      // Drivers do not take parameters for a node of a child.
      whole = whole || !IsUpdate(node.work, work) ||
              (node.parent != wire::GraphNode::kNoParent && seed_ == nullptr);
    }
    node.work = std::move(work);
  }
  if (positions.empty()) return absl::OkStatus();
  return whole ? SendWhole() : SendChanges(positions);
}

absl::Status GraphExec::SendChanges(const std::vector<uint32_t>& positions) {
  wire::GraphUpdateRequest update{.exec = id_};
  std::vector<EncodedWork> encoded(positions.size());
  size_t bytes = 0;
  for (size_t i = 0; i < positions.size(); ++i) {
    Node& node = nodes_[positions[i]];
    // The old token goes when the worker says that no run names it any more.
    node.token = NewToken(node.work);
    encoded[i] = Encode(node.work, node.token);
    if (encoded[i].type != CU_GRAPH_NODE_TYPE_EMPTY) {
      update.positions.push_back(positions[i]);
      update.bodies.push_back(encoded[i].body);
      bytes += encoded[i].body.size() + 16;
    }
    if (update.positions.empty() || (bytes < kPartBytes && i + 1 < positions.size())) continue;
    RETURN_IF_ERROR(session_.Send(update));
    update.positions.clear();
    update.bodies.clear();
    bytes = 0;
  }
  return absl::OkStatus();
}

absl::Status GraphExec::Update(const Graph& graph, CUgraphExecUpdateResultInfo* info) {
  *info = {.result = CU_GRAPH_EXEC_UPDATE_ERROR, .errorNode = nullptr, .errorFromNode = nullptr};
  constexpr uint32_t kTop = wire::GraphNode::kNoParent;
  Nodes newer;
  RETURN_IF_ERROR(Flatten(graph, kTop, 0, &newer));
  Changes changes;
  info->result = Compare(nodes_, kTop, 0, newer, kTop, 0, &changes, &info->errorNode);
  if (info->result != CU_GRAPH_EXEC_UPDATE_SUCCESS) {
    return CudaError(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
                     absl::StrCat("the graphs differ, result ", static_cast<int>(info->result)));
  }
  return Apply(std::move(changes));
}

absl::StatusOr<uint32_t> GraphExec::PositionOf(CUgraphNode node) const {
  for (uint32_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].source == node) return i;
  }
  return Invalid("the executable graph has no such node");
}

absl::Status GraphExec::SetWork(CUgraphNode node, NodeWork work) {
  ASSIGN_OR_RETURN(const uint32_t position, PositionOf(node));
  const NodeWork& old_work = nodes_[position].work;
  if (CompareWork(old_work, work) != CU_GRAPH_EXEC_UPDATE_SUCCESS) {
    return Invalid("the node cannot become that");
  }
  if (auto* kernel = std::get_if<KernelWork>(&work)) {
    kernel->attributes = std::get<KernelWork>(old_work).attributes;
  }
  Changes changes;
  changes.emplace_back(position, std::move(work));
  return Apply(std::move(changes));
}

absl::Status GraphExec::SetChild(CUgraphNode node, const Graph& child) {
  Nodes newer;
  RETURN_IF_ERROR(Flatten(child, wire::GraphNode::kNoParent, 0, &newer));
  ASSIGN_OR_RETURN(const uint32_t position, PositionOf(node));
  if (!std::holds_alternative<ChildWork>(nodes_[position].work)) {
    return Invalid("the node has no child");
  }
  Changes changes;
  CUgraphNode culprit = nullptr;
  if (Compare(nodes_, position, 0, newer, wire::GraphNode::kNoParent, 0, &changes, &culprit) !=
      CU_GRAPH_EXEC_UPDATE_SUCCESS) {
    return Invalid("the new child has another shape");
  }
  return Apply(std::move(changes));
}

absl::Status GraphExec::SetEnabled(CUgraphNode node, bool enabled) {
  ASSIGN_OR_RETURN(const uint32_t position, PositionOf(node));
  Node& found = nodes_[position];
  if (!std::holds_alternative<KernelWork>(found.work) &&
      !std::holds_alternative<FillWork>(found.work) &&
      !std::holds_alternative<CopyWork>(found.work)) {
    return Invalid("only kernels, fills and copies can be disabled");
  }
  if (found.enabled == enabled) return absl::OkStatus();
  found.enabled = enabled;
  if (Encode(found.work, 0).type == CU_GRAPH_NODE_TYPE_EMPTY) return absl::OkStatus();
  return session_.Send(
      wire::GraphEnableRequest{.exec = id_, .position = position, .enabled = enabled});
}

absl::StatusOr<bool> GraphExec::IsEnabled(CUgraphNode node) const {
  ASSIGN_OR_RETURN(const uint32_t position, PositionOf(node));
  return nodes_[position].enabled;
}

absl::Status GraphExec::AddTo(Graph& graph, uint32_t parent, uint32_t branch) const {
  Graphs& graphs = session_.graphs();
  AssertHeld(graphs);
  absl::flat_hash_map<uint32_t, client::GraphNode*> made;
  for (uint32_t position : Members(nodes_, parent, branch)) {
    const Node& node = nodes_[position];
    NodeWork work = node.work;
    if (!node.enabled) work = EmptyWork{};
    if (std::holds_alternative<AllocWork>(work) || std::holds_alternative<FreeWork>(work) ||
        std::holds_alternative<ConditionalWork>(work)) {
      return CudaError(CUDA_ERROR_NOT_SUPPORTED,
                       "a graph with memory or conditional nodes cannot become a child");
    }
    if (auto* child = std::get_if<ChildWork>(&work)) {
      child->graph = graphs.New();
      child->graph->of_node = true;
      RETURN_IF_ERROR(AddTo(*child->graph, position, 0));
    }
    std::vector<client::GraphNode::Edge> edges;
    for (uint32_t dependency : node.dependencies) edges.push_back({made.at(dependency), {}});
    ASSIGN_OR_RETURN(made[position], graphs.AddNode(graph, edges, std::move(work)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Graph>> GraphExec::ToGraph() const {
  Graphs& graphs = session_.graphs();
  AssertHeld(graphs);
  const std::shared_ptr<Graph> graph = graphs.New();
  if (absl::Status added = AddTo(*graph, wire::GraphNode::kNoParent, 0); !added.ok()) {
    (void)graphs.Forget(graph);
    return added;
  }
  return graph;
}

}  // namespace fargpu::client
