#pragma once

#include <cuda.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "softgpu/driver/graph.h"

// Between cuda.h's parameters of graph nodes and ours. Reading checks them as cuGraphAdd*Node does;
// a context of null is the current one.
namespace fargpu::softgpu {

absl::StatusOr<NodeWork> ReadKernelParams(Driver& driver, const CUDA_KERNEL_NODE_PARAMS_v3* params);
absl::StatusOr<NodeWork> ReadCopyParams(Driver& driver, const CUDA_MEMCPY3D* params,
                                        CUcontext context);
absl::StatusOr<NodeWork> ReadFillParams(Driver& driver, const CUDA_MEMSET_NODE_PARAMS* params,
                                        CUcontext context);
absl::StatusOr<NodeWork> ReadHostParams(const CUDA_HOST_NODE_PARAMS* params);
absl::StatusOr<NodeWork> ReadEvent(Driver& driver, CUevent event, CUgraphNodeType type);
absl::StatusOr<NodeWork> ReadAllocParams(Driver& driver, const CUDA_MEM_ALLOC_NODE_PARAMS* params);
absl::StatusOr<NodeWork> ReadFreeParams(Driver& driver, CUdeviceptr address);
absl::StatusOr<NodeWork> ReadValueParams(Driver& driver,
                                         const CUDA_BATCH_MEM_OP_NODE_PARAMS* params);
// The child is cloned, or moved if `ownership` says so.
absl::StatusOr<NodeWork> ReadChildParams(Driver& driver, CUgraph child,
                                         CUgraphChildGraphNodeOwnership ownership)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver.graph_mutex);
absl::StatusOr<NodeWork> ReadConditionalParams(Driver& driver, Graph& graph,
                                               const CUDA_CONDITIONAL_NODE_PARAMS& params)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver.graph_mutex);

// Any kind, for cuGraphAddNode and the like.
absl::StatusOr<NodeWork> ReadNodeParams(Driver& driver, Graph& graph,
                                        const CUgraphNodeParams& params)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(driver.graph_mutex);
// What cuGraphAddNode writes back: addresses and the handles of inner graphs.
void WriteNodeResults(NodeWork& work, CUgraphNodeParams* params);

// What cuGraphKernelNodeGetParams gives; pointers are into the node.
CUDA_KERNEL_NODE_PARAMS_v3 WriteKernelParams(GraphNode& node);

// Checks one operation of cuStreamBatchMemOp.
absl::Status CheckValueOperation(Driver& driver, const CUstreamBatchMemOpParams& operation);

}  // namespace fargpu::softgpu
