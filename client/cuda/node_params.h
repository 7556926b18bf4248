#pragma once

#include <cuda.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "client/cuda/graph.h"

// Between cuda.h's parameters of graph nodes and ours. Reading checks them as cuGraphAdd*Node does;
// a context of null is the current one. Those that touch graphs need Graphs::mutex.
namespace fargpu::client {

absl::StatusOr<NodeWork> ReadKernelParams(Session& session,
                                          const CUDA_KERNEL_NODE_PARAMS_v3* params);
absl::StatusOr<NodeWork> ReadCopyParams(Session& session, const CUDA_MEMCPY3D* params,
                                        CUcontext context);
absl::StatusOr<NodeWork> ReadFillParams(Session& session, const CUDA_MEMSET_NODE_PARAMS* params,
                                        CUcontext context);
absl::StatusOr<NodeWork> ReadHostParams(const CUDA_HOST_NODE_PARAMS* params);
absl::StatusOr<NodeWork> ReadEvent(Session& session, CUevent event, CUgraphNodeType type);
absl::StatusOr<NodeWork> ReadValueParams(Session& session,
                                         const CUDA_BATCH_MEM_OP_NODE_PARAMS* params);
// One round trip: the address is there from now on.
absl::StatusOr<NodeWork> ReadAllocParams(Session& session,
                                         const CUDA_MEM_ALLOC_NODE_PARAMS* params);
absl::StatusOr<NodeWork> ReadFreeParams(Session& session, CUdeviceptr address);
// The child is cloned, or moved if `ownership` says so.
absl::StatusOr<NodeWork> ReadChildParams(Session& session, CUgraph child,
                                         CUgraphChildGraphNodeOwnership ownership);
absl::StatusOr<NodeWork> ReadConditionalParams(Session& session, Graph& graph,
                                               const CUDA_CONDITIONAL_NODE_PARAMS& params);

// Any kind, for cuGraphAddNode and the like.
absl::StatusOr<NodeWork> ReadNodeParams(Session& session, Graph& graph,
                                        const CUgraphNodeParams& params);
// What cuGraphAddNode writes back: addresses and the handles of inner graphs.
void WriteNodeResults(NodeWork& work, CUgraphNodeParams* params);

// What cuGraphKernelNodeGetParams gives; pointers are into the node.
CUDA_KERNEL_NODE_PARAMS_v3 WriteKernelParams(GraphNode& node);

// cuMemAllocAsync and cuMemFreeAsync on a stream that is being captured.
absl::Status CaptureAlloc(Session& session, wire::StreamId stream, int device, size_t bytes,
                          CUdeviceptr* address);
absl::Status CaptureFree(Session& session, wire::StreamId stream, CUdeviceptr address);

}  // namespace fargpu::client
