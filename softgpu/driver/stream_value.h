#pragma once

#include <cuda.h>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace fargpu::softgpu {

class Context;

// The most operations that one cuStreamBatchMemOp takes.
inline constexpr unsigned kMostValueOperations = 256;

// Runs checked operations (node_params.h) on the calling thread: writes become visible in order,
// waits poll until the value is there, the context has failed or the process ends.
absl::Status RunValueOperations(const Context& context,
                                absl::Span<const CUstreamBatchMemOpParams> operations);

}  // namespace fargpu::softgpu
