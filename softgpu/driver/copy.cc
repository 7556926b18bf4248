#include "softgpu/driver/copy.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "softgpu/driver/capture.h"
#include "softgpu/driver/copy_params.h"

namespace fargpu::softgpu {
namespace {

// Copies up to this size run on the calling thread if the stream is idle, holding up other threads'
// submissions for some microseconds; waking a worker takes as long.
constexpr size_t kEagerBytes = 64 << 10;
// Unpinned sources up to this size are copied aside when the stream is busy; beyond it the call
// waits for the stream, as NVIDIA's driver does when its staging buffers are full.
constexpr size_t kStagedBytes = 1 << 20;

absl::Status Invalid(absl::string_view message) {
  return CudaError(CUDA_ERROR_INVALID_VALUE, message);
}

// Bytes from the first one touched to the last one; nullopt if that overflows.
std::optional<size_t> Extent(size_t width, size_t height, size_t depth, size_t pitch,
                             size_t slice) {
  size_t rows = 0, slices = 0, sum = 0;
  if (__builtin_mul_overflow(height - 1, pitch, &rows) ||
      __builtin_mul_overflow(depth - 1, slice, &slices) ||
      __builtin_add_overflow(rows, slices, &sum) || __builtin_add_overflow(sum, width, &sum)) {
    return std::nullopt;
  }
  return sum;
}

absl::Status CheckSide(const Driver& driver, absl::string_view what, uint64_t address, Side side,
                       size_t extent, Access access) {
  if (address == 0) return Invalid(absl::StrCat(what, " is null"));
  const bool in_window = driver.memory.InWindow(address);
  if (side != Side::kDevice && !in_window) return absl::OkStatus();
  // Registered memory is the device's too, at the program's own address.
  if (driver.memory.Accessible(address, extent, access) ||
      driver.registered.Covers(address, extent)) {
    return absl::OkStatus();
  }
  return Invalid(
      absl::StrCat(what, " 0x", absl::Hex(address), " + ", extent, " is not device memory"));
}

bool IsPageable(Driver& driver, uint64_t address, Side side) {
  return side != Side::kDevice && !driver.memory.InWindow(address) &&
         !driver.registered.Find(address);
}

size_t TotalBytes(const CopyPlan& plan) { return plan.width * plan.height * plan.depth; }

// Ours to write to or read from: later, only whether it exists is known.
Access Wanted(Access access, WhenToRun when) {
  return when == WhenToRun::kNow ? access : Access::kNone;
}

}  // namespace

absl::Status CheckCopy(Driver& driver, const CopyPlan& plan, WhenToRun when) {
  if ((plan.height > 1 &&
       (plan.destination_pitch < plan.width || plan.source_pitch < plan.width))) {
    return Invalid(absl::StrCat("rows of ", plan.width, " bytes, pitches ", plan.destination_pitch,
                                " and ", plan.source_pitch));
  }
  const auto destination =
      Extent(plan.width, plan.height, plan.depth, plan.destination_pitch, plan.destination_slice);
  const auto source =
      Extent(plan.width, plan.height, plan.depth, plan.source_pitch, plan.source_slice);
  if (!destination || !source) return Invalid("the copy wraps around the address space");
  RETURN_IF_ERROR(CheckSide(driver, "destination", plan.destination, plan.destination_side,
                            *destination, Wanted(Access::kReadWrite, when)));
  return CheckSide(driver, "source", plan.source, plan.source_side, *source,
                   Wanted(Access::kRead, when));
}

void RunCopy(const CopyPlan& plan) {
  for (size_t z = 0; z < plan.depth; ++z) {
    for (size_t y = 0; y < plan.height; ++y) {
      // memmove: copies within one allocation may overlap.
      std::memmove(reinterpret_cast<char*>(plan.destination) + z * plan.destination_slice +
                       y * plan.destination_pitch,
                   reinterpret_cast<const char*>(plan.source) + z * plan.source_slice +
                       y * plan.source_pitch,
                   plan.width);
    }
  }
}

namespace {

// Does the copy touch memory of a graph, which is only its when the graph runs?
bool TouchesGraphMemory(const Driver& driver, uint64_t address) {
  const auto found = driver.memory.Find(address);
  return found && found->kind == AllocationKind::kGraph;
}

// Memory of a graph gets its bytes when the stream comes to the node that allocates it, which may
// be on its way.
absl::Status WaitForGraphMemory(Context& context, Stream& stream) {
  return context.RunAndWait(
      stream, [] { return absl::OkStatus(); }, Context::Eager::kNo);
}

absl::Status CheckCopyNow(Driver& driver, Context& context, Stream& stream, const CopyPlan& plan) {
  const absl::Status now = CheckCopy(driver, plan, WhenToRun::kNow);
  if (now.ok() || !CheckCopy(driver, plan, WhenToRun::kLater).ok() ||
      !(TouchesGraphMemory(driver, plan.source) || TouchesGraphMemory(driver, plan.destination))) {
    return now;
  }
  RETURN_IF_ERROR(WaitForGraphMemory(context, stream));
  return CheckCopy(driver, plan, WhenToRun::kNow);
}

}  // namespace

absl::Status CopyNow(Driver& driver, Context& context, Stream& stream, const CopyPlan& plan) {
  if (plan.width == 0 || plan.height == 0 || plan.depth == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckCopyNow(driver, context, stream, plan));
  return context.RunAndWait(
      stream,
      [plan] {
        RunCopy(plan);
        return absl::OkStatus();
      },
      TotalBytes(plan) <= kEagerBytes ? Context::Eager::kYes : Context::Eager::kNo);
}

absl::Status CopyAsync(Driver& driver, Context& context, Stream& stream, const CopyPlan& plan) {
  if (plan.width == 0 || plan.height == 0 || plan.depth == 0) return absl::OkStatus();
  if (stream.is_capturing()) {
    RETURN_IF_ERROR(CheckCopy(driver, plan, WhenToRun::kLater));
    CopyNode node;
    node.params = ParamsOf(plan);
    node.plan = plan;
    return CaptureWork(driver, stream, std::move(node));
  }
  RETURN_IF_ERROR(CheckCopyNow(driver, context, stream, plan));
  const size_t bytes = TotalBytes(plan);
  if (IsPageable(driver, plan.destination, plan.destination_side)) {
    return CopyNow(driver, context, stream, plan);
  }
  if (IsPageable(driver, plan.source, plan.source_side)) {
    if (bytes > kStagedBytes || context.Idle(stream)) {
      return CopyNow(driver, context, stream, plan);
    }
    auto staged = std::make_shared<std::vector<char>>(bytes);
    CopyPlan aside = plan;
    aside.destination = reinterpret_cast<uint64_t>(staged->data());
    aside.destination_pitch = plan.width;
    aside.destination_slice = plan.width * plan.height;
    RunCopy(aside);
    CopyPlan queued = plan;
    queued.source = aside.destination;
    queued.source_pitch = aside.destination_pitch;
    queued.source_slice = aside.destination_slice;
    return context
        .Enqueue(
            stream,
            [queued, staged] {
              RunCopy(queued);
              return absl::OkStatus();
            },
            RunOn::kAnyThread)
        .status();
  }
  return context
      .Enqueue(
          stream,
          [plan] {
            RunCopy(plan);
            return absl::OkStatus();
          },
          RunOn::kAnyThread, Wake::kYes,
          bytes <= kEagerBytes ? Context::Eager::kYes : Context::Eager::kNo)
      .status();
}

absl::Status CheckFill(Driver& driver, const FillPlan& plan, WhenToRun when) {
  if (plan.element != 1 && plan.element != 2 && plan.element != 4) {
    return Invalid(absl::StrCat("elements of ", plan.element, " bytes: 1, 2 or 4"));
  }
  if (plan.destination % plan.element != 0) {
    return Invalid(absl::StrCat("0x", absl::Hex(plan.destination), " is not aligned to ",
                                plan.element, " bytes"));
  }
  if (plan.width == 0 || plan.height == 0) return absl::OkStatus();
  if (plan.width > std::numeric_limits<size_t>::max() / plan.element) {
    return Invalid(absl::StrCat(plan.width, " elements"));
  }
  const size_t row = plan.width * plan.element;
  if (plan.height > 1 && (plan.pitch < row || plan.pitch % plan.element != 0)) {
    return Invalid(absl::StrCat("rows of ", row, " bytes, pitch ", plan.pitch));
  }
  const auto extent = Extent(row, plan.height, 1, plan.pitch, 0);
  if (!extent) return Invalid("the fill wraps around the address space");
  return CheckSide(driver, "destination", plan.destination, Side::kDevice, *extent,
                   Wanted(Access::kReadWrite, when));
}

void RunFill(const FillPlan& plan) {
  for (size_t y = 0; y < plan.height; ++y) {
    char* const start = reinterpret_cast<char*>(plan.destination) + y * plan.pitch;
    if (plan.element == 1) {
      std::memset(start, static_cast<int>(plan.value & 0xff), plan.width);
    } else if (plan.element == 2) {
      std::fill_n(reinterpret_cast<uint16_t*>(start), plan.width,
                  static_cast<uint16_t>(plan.value));
    } else {
      std::fill_n(reinterpret_cast<uint32_t*>(start), plan.width, plan.value);
    }
  }
}

absl::Status FillAsync(Driver& driver, Context& context, Stream& stream, const FillPlan& plan) {
  const bool capturing = stream.is_capturing();
  if (!capturing && TouchesGraphMemory(driver, plan.destination) &&
      !CheckFill(driver, plan, WhenToRun::kNow).ok()) {
    RETURN_IF_ERROR(WaitForGraphMemory(context, stream));
  }
  RETURN_IF_ERROR(CheckFill(driver, plan, capturing ? WhenToRun::kLater : WhenToRun::kNow));
  if (plan.width == 0 || plan.height == 0) return absl::OkStatus();
  if (capturing) {
    FillNode node;
    node.params = {.dst = plan.destination,
                   .pitch = plan.pitch,
                   .value = plan.value,
                   .elementSize = static_cast<unsigned>(plan.element),
                   .width = plan.width,
                   .height = plan.height,
                   .ctx = nullptr};
    node.plan = plan;
    return CaptureWork(driver, stream, std::move(node));
  }
  const size_t bytes = plan.width * plan.element * plan.height;
  return context
      .Enqueue(
          stream,
          [plan] {
            RunFill(plan);
            return absl::OkStatus();
          },
          RunOn::kAnyThread, Wake::kYes,
          bytes <= kEagerBytes ? Context::Eager::kYes : Context::Eager::kNo)
      .status();
}

}  // namespace fargpu::softgpu
