#pragma once

#include <cstddef>
#include <cuda.h>

#include "absl/status/status.h"

#include "client/cuda/box_plan.h"
#include "client/cuda/session.h"

// Copies of boxes: slices of rows, of which each side may lie in the program's memory, in device
// memory or in an array.
namespace fargpu::client {

// One side, with the names and meanings of CUDA_MEMCPY3D's fields.
struct BoxSide {
  CUmemorytype type = CU_MEMORYTYPE_UNIFIED;
  const void* host = nullptr;
  CUdeviceptr device = 0;
  CUarray array = nullptr;
  size_t x_bytes = 0;
  size_t y = 0;
  size_t z = 0;
  size_t pitch = 0;  // 0: the rows lie close together
  size_t rows = 0;   // per slice; 0: the slices lie close together
  size_t level = 0;
};

enum class Waits { kNo, kYes };

// CUDA_ERROR_INVALID_VALUE for sides or sizes that cannot be right, CUDA_ERROR_INVALID_HANDLE for
// an array that is none.
absl::StatusOr<BoxPlan> PlanBox(Session& session, const BoxSide& to, const BoxSide& from,
                                const wire::BoxShape& shape);
wire::BoxPlace ToWire(const FoundSide& side);
// The copy as cuda.h has it, with addresses of the box itself.
CUDA_MEMCPY3D ParamsOf(const BoxPlan& plan);
// Adds a copy to the graph of a stream that is being captured.
absl::Status CaptureCopy(Session& session, wire::StreamId stream, const BoxPlan& plan);

// Fails as PlanBox() does. What a copy writes into the program's memory is there when this returns,
// with either `waits`; CUDA promises no more for memory that is not pinned.
absl::Status CopyBox(Session& session, const BoxSide& to, const BoxSide& from,
                     const wire::BoxShape& shape, wire::StreamId stream, Waits waits);

}  // namespace fargpu::client
