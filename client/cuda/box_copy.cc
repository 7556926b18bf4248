#include "client/cuda/box_copy.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"

#include "client/cuda/capture.h"
#include "client/cuda/copying.h"

namespace fargpu::client {
namespace {

absl::Status Invalid(absl::string_view message) {
  return CudaError(CUDA_ERROR_INVALID_VALUE, message);
}

bool Inside(uint64_t begin, uint64_t count, uint64_t size) {
  return begin <= size && count <= size - begin;
}

absl::StatusOr<FoundSide> PlaceInArray(Session& session, const BoxSide& side,
                                       const wire::BoxShape& shape) {
  ASSIGN_OR_RETURN(const Array* array, session.FindArray(side.array));
  if (!Inside(side.x_bytes, shape.width, array->row_bytes()) ||
      !Inside(side.y, shape.height, array->rows()) ||
      !Inside(side.z, shape.depth, array->slices())) {
    return Invalid(absl::StrCat("a box of ", shape.width, "x", shape.height, "x", shape.depth,
                                " at ", side.x_bytes, ",", side.y, ",", side.z, " of an array of ",
                                array->row_bytes(), "x", array->rows(), "x", array->slices()));
  }
  FoundSide place;
  place.kind = FoundSide::Kind::kArray;
  place.array = array->id;
  place.array_handle = side.array;
  place.x_bytes = side.x_bytes;
  place.y = side.y;
  place.z = side.z;
  return place;
}

absl::StatusOr<FoundSide> PlaceSide(Session& session, const BoxSide& side,
                                    const wire::BoxShape& shape) {
  if (side.level != 0) return Invalid(absl::StrCat("level ", side.level, "; it must be 0"));
  FoundSide place;
  switch (side.type) {
    case CU_MEMORYTYPE_HOST:
      place.address = reinterpret_cast<uint64_t>(side.host);
      break;
    case CU_MEMORYTYPE_DEVICE:
      place.address = side.device;
      place.kind = FoundSide::Kind::kDevice;
      break;
    case CU_MEMORYTYPE_UNIFIED:
      place.address = side.device;
      if (session.IsDeviceAddress(side.device)) place.kind = FoundSide::Kind::kDevice;
      break;
    case CU_MEMORYTYPE_ARRAY:
      return PlaceInArray(session, side, shape);
    default:
      return Invalid(absl::StrCat("memory type ", static_cast<int>(side.type)));
  }
  // Host memory that the card has too is copied by the card, see SharedMemory::OnCard().
  if (place.kind == FoundSide::Kind::kHost && place.address != 0) {
    if (const CUdeviceptr on_card = session.shared().OnCard(place.address, 1)) {
      place.address = on_card;
      place.kind = FoundSide::Kind::kDevice;
    }
  }
  place.pitch = side.pitch == 0 ? shape.width : side.pitch;
  place.slice = place.pitch * (side.rows == 0 ? shape.height : side.rows);
  if (place.address != 0) {
    place.address += side.x_bytes + side.y * place.pitch + side.z * place.slice;
  }
  return place;
}

// Bytes from the box's first to its last; nullopt if it wraps around.
std::optional<uint64_t> Extent(const FoundSide& place, const wire::BoxShape& shape) {
  uint64_t rows = 0, slices = 0, sum = 0;
  if (__builtin_mul_overflow(shape.height - 1, place.pitch, &rows) ||
      __builtin_mul_overflow(shape.depth - 1, place.slice, &slices) ||
      __builtin_add_overflow(rows, slices, &sum) ||
      __builtin_add_overflow(sum, shape.width, &sum) || place.address + sum < place.address) {
    return std::nullopt;
  }
  return sum;
}

absl::Status CheckPlace(Session& session, const FoundSide& place, const wire::BoxShape& shape) {
  if (place.kind == FoundSide::Kind::kArray) return absl::OkStatus();
  if (place.address == 0) return Invalid("a side of the copy is null");
  if (shape.height > 1 && place.pitch < shape.width) {
    return Invalid(absl::StrCat("rows of ", shape.width, " bytes, pitch ", place.pitch));
  }
  const std::optional<uint64_t> extent = Extent(place, shape);
  if (!extent.has_value()) return Invalid("the copy wraps around the address space");
  if (place.kind == FoundSide::Kind::kHost) return absl::OkStatus();
  return CheckDeviceRange(session, place.address, *extent);
}

// Do the rows of the box lie close together?
bool IsClose(const FoundSide& place, const wire::BoxShape& shape) {
  return place.kind != FoundSide::Kind::kArray &&
         (shape.height == 1 || place.pitch == shape.width) &&
         (shape.depth == 1 || place.slice == shape.width * shape.height);
}

// A part of a box, and where in it it begins.
struct Part {
  wire::BoxShape shape;
  uint64_t x_bytes = 0, y = 0, z = 0;
};

FoundSide At(const FoundSide& place, const Part& part) {
  FoundSide moved = place;
  if (place.kind == FoundSide::Kind::kArray) {
    moved.x_bytes += part.x_bytes;
    moved.y += part.y;
    moved.z += part.z;
  } else {
    moved.address += part.x_bytes + part.y * place.pitch + part.z * place.slice;
  }
  return moved;
}

// Cuts the box into parts of at most a chunk: whole slices, or whole rows of one, or a piece of a
// row.
absl::Status ForEachPart(const wire::BoxShape& box,
                         absl::FunctionRef<absl::Status(const Part&)> visit) {
  constexpr uint64_t kChunk = Session::kChunkBytes;
  const uint64_t width = std::min<uint64_t>(box.width, kChunk);
  const uint64_t height =
      width < box.width ? 1 : std::min<uint64_t>(box.height, std::max<uint64_t>(1, kChunk / width));
  const uint64_t depth =
      height < box.height
          ? 1
          : std::min<uint64_t>(box.depth, std::max<uint64_t>(1, kChunk / (width * height)));
  Part part;
  for (part.z = 0; part.z < box.depth; part.z += depth) {
    part.shape.depth = std::min(depth, box.depth - part.z);
    for (part.y = 0; part.y < box.height; part.y += height) {
      part.shape.height = std::min(height, box.height - part.y);
      for (part.x_bytes = 0; part.x_bytes < box.width; part.x_bytes += width) {
        part.shape.width = std::min(width, box.width - part.x_bytes);
        RETURN_IF_ERROR(visit(part));
      }
    }
  }
  return absl::OkStatus();
}

size_t BytesOf(const wire::BoxShape& shape) { return shape.width * shape.height * shape.depth; }

// The same box with its rows close together at `memory`.
FoundSide CloseAt(const void* memory, const wire::BoxShape& shape) {
  FoundSide place;
  place.address = reinterpret_cast<uint64_t>(memory);
  place.pitch = shape.width;
  place.slice = shape.width * shape.height;
  return place;
}

absl::Status CopyIn(Session& session, const FoundSide& to, const FoundSide& from,
                    const wire::BoxShape& shape, wire::StreamId stream) {
  if (MustPull(session, from.host(), *Extent(from, shape))) {
    return PullBox(session, ToWire(to), HostBoxOf(from, shape), stream);
  }
  RETURN_IF_ERROR(SettleSource(session, from.host(), *Extent(from, shape), stream));
  std::vector<char> gathered;
  return ForEachPart(shape, [&](const Part& part) {
    const FoundSide source = At(from, part);
    const char* bytes = source.host();
    if (!IsClose(source, part.shape)) {
      gathered.resize(BytesOf(part.shape));
      CopyInMemory(CloseAt(gathered.data(), part.shape), source, part.shape);
      bytes = gathered.data();
    }
    // One chunk, whose bytes have left or are copied when this returns.
    return session.SendBulk(absl::MakeConstSpan(bytes, BytesOf(part.shape)), [&](size_t, size_t) {
      return wire::CopyBoxInRequest{
          .to = ToWire(At(to, part)), .shape = part.shape, .stream = stream};
    });
  });
}

absl::Status CopyOut(Session& session, const FoundSide& to, const FoundSide& from,
                     const wire::BoxShape& shape, wire::StreamId stream) {
  struct Chunk {
    Part part;
    std::vector<char> gathered;  // if the destination's rows do not lie close together
    PendingReply reply;
  };
  std::deque<Chunk> chunks;
  SettleDeliveries(session, to.host(), *Extent(to, shape));
  absl::Status status = ForEachPart(shape, [&](const Part& part) {
    const FoundSide destination = At(to, part);
    Chunk& chunk = chunks.emplace_back();
    chunk.part = part;
    char* bytes = destination.host();
    if (!IsClose(destination, part.shape)) {
      chunk.gathered.resize(BytesOf(part.shape));
      bytes = chunk.gathered.data();
    }
    chunk.reply.bulk = absl::MakeSpan(bytes, BytesOf(part.shape));
    const absl::Status sent = session.Send(
        wire::CopyBoxOutRequest{
            .from = ToWire(At(from, part)), .shape = part.shape, .stream = stream},
        &chunk.reply);
    if (!sent.ok()) chunks.pop_back();
    return sent;
  });
  session.calls().CountRoundTrip();
  // Every chunk is waited for, whatever became of the others: its reply writes into our memory.
  for (Chunk& chunk : chunks) {
    absl::Status waited = session.calls().Wait(&chunk.reply);
    if (waited.ok()) waited = session.ResultOf("CopyBoxOut", chunk.reply);
    if (waited.ok() && !chunk.gathered.empty()) {
      CopyInMemory(At(to, chunk.part), CloseAt(chunk.gathered.data(), chunk.part.shape),
                   chunk.part.shape);
    }
    if (status.ok()) status = waited;
  }
  return status;
}

// What needs no box: one run of bytes on either side. Host memory that is pinned is then written
// while the program goes on.
absl::Status CopyRun(Session& session, const FoundSide& to, const FoundSide& from, size_t bytes,
                     wire::StreamId stream, Waits waits) {
  if (to.kind == FoundSide::Kind::kDevice && from.kind == FoundSide::Kind::kDevice) {
    return CopyDeviceToDeviceAsync(session, to.address, from.address, bytes, stream);
  }
  if (to.kind == FoundSide::Kind::kDevice) {
    return CopyHostToDeviceAsync(session, to.address, from.host(), bytes, stream);
  }
  RETURN_IF_ERROR(CopyDeviceToHostAsync(session, to.host(), from.address, bytes, stream));
  return waits == Waits::kYes ? SynchronizeStream(session, stream) : absl::OkStatus();
}

}  // namespace

wire::BoxPlace ToWire(const FoundSide& place) {
  return {.array = place.array,
          .address = place.address,
          .pitch = place.pitch,
          .rows = place.pitch == 0 ? 0 : place.slice / place.pitch,
          .x_bytes = place.x_bytes,
          .y = place.y,
          .z = place.z};
}

absl::StatusOr<BoxPlan> PlanBox(Session& session, const BoxSide& to, const BoxSide& from,
                                const wire::BoxShape& shape) {
  RETURN_IF_ERROR(session.CurrentActive().status());
  BoxPlan plan;
  ASSIGN_OR_RETURN(plan.from, PlaceSide(session, from, shape));
  ASSIGN_OR_RETURN(plan.to, PlaceSide(session, to, shape));
  plan.shape = shape;
  if (plan.empty()) return plan;
  RETURN_IF_ERROR(CheckPlace(session, plan.to, shape));
  RETURN_IF_ERROR(CheckPlace(session, plan.from, shape));
  return plan;
}

absl::Status CopyBox(Session& session, const BoxSide& to_side, const BoxSide& from_side,
                     const wire::BoxShape& shape, wire::StreamId stream, Waits waits) {
  if (waits == Waits::kYes) {
    RETURN_IF_ERROR(CheckImplicitCapture(session, stream));
    RETURN_IF_ERROR(CheckAllowedDuringCapture(session));
  }
  ASSIGN_OR_RETURN(const BoxPlan plan, PlanBox(session, to_side, from_side, shape));
  if (waits == Waits::kNo && IsCapturing(session, stream)) {
    if (plan.empty()) return absl::OkStatus();
    return CaptureCopy(session, stream, plan);
  }
  if (plan.empty()) return absl::OkStatus();
  const FoundSide& to = plan.to;
  const FoundSide& from = plan.from;
  const bool to_host = to.kind == FoundSide::Kind::kHost;
  const bool from_host = from.kind == FoundSide::Kind::kHost;
  if (to_host && from_host) {
    // In the order of the stream: what it wrote before must be here.
    RETURN_IF_ERROR(SynchronizeStream(session, stream));
    CopyInMemory(to, from, shape);
    return absl::OkStatus();
  }
  if (IsClose(to, shape) && IsClose(from, shape)) {
    return CopyRun(session, to, from, BytesOf(shape), stream, waits);
  }
  if (to_host) return CopyOut(session, to, from, shape, stream);
  if (from_host) return CopyIn(session, to, from, shape, stream);
  return session.Send(wire::CopyBoxRequest{
      .to = ToWire(to), .from = ToWire(from), .shape = shape, .stream = stream});
}

CUDA_MEMCPY3D ParamsOf(const BoxPlan& plan) {
  CUDA_MEMCPY3D params = {};
  const auto rows = [](const FoundSide& side) {
    return side.pitch == 0 ? 0 : side.slice / side.pitch;
  };
  if (plan.from.kind == FoundSide::Kind::kArray) {
    params.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    params.srcArray = plan.from.array_handle;
    params.srcXInBytes = plan.from.x_bytes;
    params.srcY = plan.from.y;
    params.srcZ = plan.from.z;
  } else if (plan.from.kind == FoundSide::Kind::kHost) {
    params.srcMemoryType = CU_MEMORYTYPE_HOST;
    params.srcHost = plan.from.host();
  } else {
    params.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    params.srcDevice = plan.from.address;
  }
  params.srcPitch = plan.from.pitch;
  params.srcHeight = rows(plan.from);
  if (plan.to.kind == FoundSide::Kind::kArray) {
    params.dstMemoryType = CU_MEMORYTYPE_ARRAY;
    params.dstArray = plan.to.array_handle;
    params.dstXInBytes = plan.to.x_bytes;
    params.dstY = plan.to.y;
    params.dstZ = plan.to.z;
  } else if (plan.to.kind == FoundSide::Kind::kHost) {
    params.dstMemoryType = CU_MEMORYTYPE_HOST;
    params.dstHost = plan.to.host();
  } else {
    params.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    params.dstDevice = plan.to.address;
  }
  params.dstPitch = plan.to.pitch;
  params.dstHeight = rows(plan.to);
  params.WidthInBytes = plan.shape.width;
  params.Height = plan.shape.height;
  params.Depth = plan.shape.depth;
  return params;
}

absl::Status CaptureCopy(Session& session, wire::StreamId stream, const BoxPlan& plan) {
  ASSIGN_OR_RETURN(const Context* context, session.CurrentActive());
  CopyWork work;
  work.params = ParamsOf(plan);
  work.context = context->id;
  work.plan = plan;
  return CaptureWork(session, stream, std::move(work));
}

}  // namespace fargpu::client
