#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda.h>

#include "absl/status/status.h"

#include "softgpu/driver/driver.h"

namespace fargpu::softgpu {

// Whether an address belongs to the program or to a device. kUnified: look it up.
enum class Side { kHost, kDevice, kUnified };

// Where in a CUDA array a side of a copy lies: for reporting only, its address is in the plan.
struct ArrayPlace {
  CUarray array = nullptr;
  size_t x_bytes = 0;
  size_t y = 0;
  size_t z = 0;
};

// A copy of `depth` slices of `height` rows of `width` bytes. One row is a plain copy.
struct CopyPlan {
  uint64_t destination = 0;
  uint64_t source = 0;
  Side destination_side = Side::kUnified;
  Side source_side = Side::kUnified;
  size_t width = 0;
  size_t height = 1;
  size_t depth = 1;
  size_t destination_pitch = 0;  // bytes from row to row; of no use with one row
  size_t source_pitch = 0;
  size_t destination_slice = 0;  // bytes from slice to slice
  size_t source_slice = 0;
  ArrayPlace destination_array;
  ArrayPlace source_array;
};

// Checks the addresses, then copies and waits. CUDA_ERROR_INVALID_VALUE for device addresses that
// are not memory and for null.
absl::Status CopyNow(Driver& driver, Context& context, Stream& stream, const CopyPlan& plan);
// Checks the addresses, then queues the copy. Memory of the program that is not pinned is read
// before this returns, and is written before this returns, as CUDA promises.
absl::Status CopyAsync(Driver& driver, Context& context, Stream& stream, const CopyPlan& plan);

// Writes `height` rows of `width` elements of `element` bytes (1, 2 or 4) each.
struct FillPlan {
  uint64_t destination = 0;
  size_t pitch = 0;
  uint32_t value = 0;
  size_t element = 1;
  size_t width = 0;
  size_t height = 1;
};
absl::Status FillAsync(Driver& driver, Context& context, Stream& stream, const FillPlan& plan);

// kLater: memory of graphs counts although it may have no bytes yet.
enum class WhenToRun { kNow, kLater };
absl::Status CheckCopy(Driver& driver, const CopyPlan& plan, WhenToRun when);
absl::Status CheckFill(Driver& driver, const FillPlan& plan, WhenToRun when);
// What was checked, on the calling thread.
void RunCopy(const CopyPlan& plan);
void RunFill(const FillPlan& plan);

}  // namespace fargpu::softgpu
