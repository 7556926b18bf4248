#pragma once

#include <cuda.h>

#include "absl/status/statusor.h"

#include "softgpu/driver/copy.h"

// Between cuda.h's descriptions of copies and ours.
namespace fargpu::softgpu {

// Arrays are looked up and the copied part must lie inside of them (CUDA_ERROR_INVALID_VALUE);
// addresses are checked later (copy.h).
absl::StatusOr<CopyPlan> PlanOf(Driver& driver, const CUDA_MEMCPY3D& params);
absl::StatusOr<CopyPlan> PlanOf(Driver& driver, const CUDA_MEMCPY2D& params);
absl::StatusOr<CopyPlan> PlanOf(Driver& driver, const CUDA_MEMCPY3D_PEER& params);

// A plan as a node of a graph reports it.
CUDA_MEMCPY3D ParamsOf(const CopyPlan& plan);

}  // namespace fargpu::softgpu
