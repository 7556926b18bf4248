#pragma once

#include <cuda.h>

#include "absl/status/status.h"

#include "protocol/wire/copy_box.h"
#include "server/worker/call.h"

namespace fargpu::server::handlers {

// A side of a copy that lies on the card. CUDA_ERROR_INVALID_HANDLE for an array that is none.
absl::Status SetBoxSource(Call& call, const wire::BoxPlace& place, CUDA_MEMCPY3D* box);
absl::Status SetBoxDestination(Call& call, const wire::BoxPlace& place, CUDA_MEMCPY3D* box);

// Is it a launch attribute without handles and pointers, whose value therefore means the same on
// both sides?
bool IsPlainAttribute(CUlaunchAttributeID id);

}  // namespace fargpu::server::handlers
