#pragma once

#include <cuda.h>
#include <vector>

#include "absl/status/status.h"

#include "server/worker/call.h"
#include "server/worker/graphs.h"

// Between graphs as the client describes them and the driver's.
namespace fargpu::server::handlers {

// Adds what `parts` describe to the driver's empty `graph`. Malformed() for positions that are
// none; the driver's error, or CUDA_ERROR_INVALID_HANDLE, for what it refuses.
absl::Status BuildGraph(Call& call, const std::vector<GraphExec::Part>& parts, CUgraph graph,
                        std::vector<GraphNode>* nodes);

// Gives a node of an executable graph what `body` says.
absl::Status UpdateGraphNode(Call& call, GraphExec& graph, uint32_t position, wire::Bytes body);

absl::Status EnableGraphNode(Call& call, GraphExec& graph, uint32_t position, bool enabled);

// Collects the works of the nodes anew.
void CollectWorks(GraphExec& graph);

}  // namespace fargpu::server::handlers
