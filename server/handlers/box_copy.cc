// Copies of boxes, to and from arrays too, and sets of rows.
#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "protocol/wire/frame.h"
#include "server/handlers/box_places.h"
#include "server_handlers.h"

namespace fargpu::server::handlers {
namespace {

// The bytes of a box that travels in one frame; ends the session if it is no box that a client of
// ours sends.
absl::Status CheckFrameBox(Call& call, const wire::BoxShape& shape, uint64_t* bytes) {
  uint64_t rows = 0;
  if (shape.width == 0 || shape.height == 0 || shape.depth == 0 ||
      __builtin_mul_overflow(shape.height, shape.depth, &rows) ||
      __builtin_mul_overflow(rows, shape.width, bytes) || *bytes > wire::kMaxBulkBytes) {
    return call.Malformed(absl::StrCat("a box of ", shape.width, "x", shape.height, "x",
                                       shape.depth, " bytes; a frame carries ",
                                       wire::kMaxBulkBytes));
  }
  return absl::OkStatus();
}

CUDA_MEMCPY3D BoxOf(const wire::BoxShape& shape) {
  CUDA_MEMCPY3D box = {};
  box.WidthInBytes = shape.width;
  box.Height = shape.height;
  box.Depth = shape.depth;
  return box;
}

}  // namespace

absl::Status SetBoxSource(Call& call, const wire::BoxPlace& place, CUDA_MEMCPY3D* box) {
  if (place.array.value == 0) {
    box->srcMemoryType = CU_MEMORYTYPE_DEVICE;
    box->srcDevice = place.address;
    box->srcPitch = place.pitch;
    box->srcHeight = place.rows;
    return absl::OkStatus();
  }
  Array array;
  RETURN_IF_ERROR(call.objects().arrays.Find(place.array, &array));
  box->srcMemoryType = CU_MEMORYTYPE_ARRAY;
  box->srcArray = array.handle;
  box->srcXInBytes = place.x_bytes;
  box->srcY = place.y;
  box->srcZ = place.z;
  return absl::OkStatus();
}

absl::Status SetBoxDestination(Call& call, const wire::BoxPlace& place, CUDA_MEMCPY3D* box) {
  if (place.array.value == 0) {
    box->dstMemoryType = CU_MEMORYTYPE_DEVICE;
    box->dstDevice = place.address;
    box->dstPitch = place.pitch;
    box->dstHeight = place.rows;
    return absl::OkStatus();
  }
  Array array;
  RETURN_IF_ERROR(call.objects().arrays.Find(place.array, &array));
  box->dstMemoryType = CU_MEMORYTYPE_ARRAY;
  box->dstArray = array.handle;
  box->dstXInBytes = place.x_bytes;
  box->dstY = place.y;
  box->dstZ = place.z;
  return absl::OkStatus();
}

absl::Status CopyBox(const wire::CopyBoxRequest& request, Call& call, wire::CopyBoxReply* reply) {
  CUDA_MEMCPY3D box = BoxOf(request.shape);
  RETURN_IF_ERROR(SetBoxSource(call, request.from, &box));
  RETURN_IF_ERROR(SetBoxDestination(call, request.to, &box));
  CUstream stream = nullptr;
  RETURN_IF_ERROR(call.Resolve(request.stream, &stream));
  RETURN_IF_CUDA_ERROR(call.driver().cuMemcpy3DAsync_v2(&box, stream));
  return absl::OkStatus();
}

absl::Status CopyBoxIn(const wire::CopyBoxInRequest& request, Call& call,
                       wire::CopyBoxInReply* reply) {
  uint64_t bytes = 0;
  RETURN_IF_ERROR(CheckFrameBox(call, request.shape, &bytes));
  if (call.bulk().size() != bytes) {
    return call.Malformed(
        absl::StrCat("a box of ", bytes, " bytes came with ", call.bulk().size()));
  }
  CUDA_MEMCPY3D box = BoxOf(request.shape);
  RETURN_IF_ERROR(SetBoxDestination(call, request.to, &box));
  box.srcMemoryType = CU_MEMORYTYPE_HOST;
  box.srcHost = call.bulk().data();
  box.srcPitch = request.shape.width;
  box.srcHeight = request.shape.height;
  CUstream stream = nullptr;
  RETURN_IF_ERROR(call.Resolve(request.stream, &stream));
  return call.resources().copies.BoxToDevice(call.header().context, box, bytes, stream,
                                             call.frame());
}

absl::Status CopyBoxPull(const wire::CopyBoxPullRequest& request, Call& call,
                         wire::CopyBoxPullReply* reply) {
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(request.shape.width, request.shape.height, &bytes) ||
      __builtin_mul_overflow(bytes, request.shape.depth, &bytes) || bytes == 0) {
    return call.Malformed("a copy without bytes, or with more than there are");
  }
  // Also when the copy fails, so that the client hears that its token is not needed any more.
  ASSIGN_OR_RETURN(
      const std::shared_ptr<HostWork> work,
      call.resources().host_functions.NewPinnedPull(request.token, bytes, call.header().context));
  CUDA_MEMCPY3D box = BoxOf(request.shape);
  RETURN_IF_ERROR(SetBoxDestination(call, request.to, &box));
  box.srcMemoryType = CU_MEMORYTYPE_HOST;
  box.srcHost = work->bytes();
  box.srcPitch = request.shape.width;
  box.srcHeight = request.shape.height;
  CUstream stream = nullptr;
  RETURN_IF_ERROR(call.Resolve(request.stream, &stream));
  RETURN_IF_CUDA_ERROR(call.driver().cuLaunchHostFunc(stream, &HostWork::Entry, work.get()));
  const CUresult copied = call.driver().cuMemcpy3DAsync_v2(&box, stream);
  RETURN_IF_ERROR(call.resources().copies.Keep(call.header().context, stream, work, bytes));
  RETURN_IF_CUDA_ERROR(copied);
  return absl::OkStatus();
}

absl::Status CopyBoxOut(const wire::CopyBoxOutRequest& request, Call& call,
                        wire::CopyBoxOutReply* reply) {
  uint64_t bytes = 0;
  RETURN_IF_ERROR(CheckFrameBox(call, request.shape, &bytes));
  transport::Message buffer = transport::NewMessage(bytes);
  CUDA_MEMCPY3D box = BoxOf(request.shape);
  RETURN_IF_ERROR(SetBoxSource(call, request.from, &box));
  box.dstMemoryType = CU_MEMORYTYPE_HOST;
  box.dstHost = buffer.storage.get();
  box.dstPitch = request.shape.width;
  box.dstHeight = request.shape.height;
  CUstream stream = nullptr;
  RETURN_IF_ERROR(call.Resolve(request.stream, &stream));
  const CUresult copied = call.driver().cuMemcpy3DAsync_v2(&box, stream);
  // Also after a failure: the buffer must not be in the driver's hands when it goes.
  const CUresult waited = call.driver().cuStreamSynchronize(stream);
  RETURN_IF_CUDA_ERROR(copied);
  RETURN_IF_CUDA_ERROR(waited);
  call.SetReplyBulk(std::move(buffer));
  return absl::OkStatus();
}

absl::Status MemsetD2D8Async(const wire::MemsetD2D8AsyncRequest& request, Call& call,
                             wire::MemsetD2D8AsyncReply* reply) {
  CUstream stream = nullptr;
  RETURN_IF_ERROR(call.Resolve(request.hStream, &stream));
  RETURN_IF_CUDA_ERROR(call.driver().cuMemsetD2D8Async(
      request.dstDevice, request.dstPitch, request.uc, request.Width, request.Height, stream));
  return absl::OkStatus();
}

absl::Status MemsetD2D16Async(const wire::MemsetD2D16AsyncRequest& request, Call& call,
                              wire::MemsetD2D16AsyncReply* reply) {
  CUstream stream = nullptr;
  RETURN_IF_ERROR(call.Resolve(request.hStream, &stream));
  RETURN_IF_CUDA_ERROR(call.driver().cuMemsetD2D16Async(
      request.dstDevice, request.dstPitch, request.us, request.Width, request.Height, stream));
  return absl::OkStatus();
}

absl::Status MemsetD2D32Async(const wire::MemsetD2D32AsyncRequest& request, Call& call,
                              wire::MemsetD2D32AsyncReply* reply) {
  CUstream stream = nullptr;
  RETURN_IF_ERROR(call.Resolve(request.hStream, &stream));
  RETURN_IF_CUDA_ERROR(call.driver().cuMemsetD2D32Async(
      request.dstDevice, request.dstPitch, request.ui, request.Width, request.Height, stream));
  return absl::OkStatus();
}

}  // namespace fargpu::server::handlers
