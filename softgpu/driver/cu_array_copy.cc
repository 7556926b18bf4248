// Copies between arrays and linear memory by byte offset, the oldest form.

#include "softgpu/driver/array.h"
#include "softgpu/driver/copy.h"
#include "softgpu/driver/copy_params.h"
#include "softgpu/driver/edge.h"

namespace fargpu::softgpu {
namespace {

// One end of such a copy: an array and an offset into its rows, taken as one sequence of bytes, or
// linear memory.
struct End {
  CUarray array = nullptr;
  size_t offset = 0;
  uint64_t address = 0;
  Side side = Side::kUnified;
  bool is_array = false;
};

End ArrayEnd(CUarray array, size_t offset) {
  return {.array = array, .offset = offset, .is_array = true};
}
End MemoryEnd(uint64_t address, Side side) { return {.address = address, .side = side}; }
End HostEnd(const void* pointer) {
  return MemoryEnd(reinterpret_cast<uint64_t>(pointer), Side::kHost);
}

// How far an end runs on before its next row starts, and where it is: the caller copies that much.
absl::StatusOr<size_t> PlaceEnd(Driver& driver, const End& end, size_t done, size_t bytes,
                                uint64_t* address, Side* side, ArrayPlace* place) {
  if (!end.is_array) {
    *address = end.address == 0 ? 0 : end.address + done;
    *side = end.side;
    return bytes - done;
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<Array> array, FindArray(driver, end.array));
  if (array->memory.depth > 1) return InvalidValue("the array has layers or is of 3 dimensions");
  const size_t row = array->row_bytes();
  const size_t total = row * array->memory.height;
  if (end.offset > total || bytes > total - end.offset) {
    return InvalidValue(
        absl::StrCat("offset ", end.offset, " + ", bytes, " of an array of ", total, " bytes"));
  }
  const size_t at = end.offset + done;
  *place = {.array = end.array, .x_bytes = at % row, .y = at / row, .z = 0};
  *address = array->memory.address + place->y * array->memory.row_pitch + place->x_bytes;
  *side = Side::kDevice;
  return row - place->x_bytes;
}

// Calls copy(plan) for each piece that lies in one row on both ends.
template <typename Copy>
absl::Status ForEachPiece(Driver& driver, const End& to, const End& from, size_t bytes, Copy copy) {
  size_t done = 0;
  do {
    CopyPlan plan;
    ASSIGN_OR_RETURN(const size_t to_room,
                     PlaceEnd(driver, to, done, bytes, &plan.destination, &plan.destination_side,
                              &plan.destination_array));
    ASSIGN_OR_RETURN(const size_t from_room, PlaceEnd(driver, from, done, bytes, &plan.source,
                                                      &plan.source_side, &plan.source_array));
    plan.width = std::min({bytes - done, to_room, from_room});
    plan.source_pitch = plan.destination_pitch = plan.width;
    plan.source_slice = plan.destination_slice = plan.width;
    RETURN_IF_ERROR(copy(plan));
    done += plan.width;
  } while (done < bytes);
  return absl::OkStatus();
}

CUresult CopyNowBetween(const char* call, NullStream null, const End& to, const End& from,
                        size_t bytes) {
  return WithStream(call, null, nullptr,
                    [&](Driver& driver, Context& context, Stream& stream) -> absl::Status {
                      RETURN_IF_ERROR(CheckAllowedDuringCapture(driver));
                      return ForEachPiece(driver, to, from, bytes, [&](const CopyPlan& plan) {
                        return CopyNow(driver, context, stream, plan);
                      });
                    });
}

CUresult CopyBetween(const char* call, NullStream null, CUstream handle, const End& to,
                     const End& from, size_t bytes) {
  return WithStream(
      call, null, handle,
      [&](Driver& driver, Context& context, Stream& stream) -> absl::Status {
        return ForEachPiece(driver, to, from, bytes, [&](const CopyPlan& plan) {
          return CopyAsync(driver, context, stream, plan);
        });
      },
      OnCapture::kRecord);
}

}  // namespace

CUresult Do_cuMemcpyDtoA_v2(const char* call, NullStream null, CUarray array, size_t offset,
                            CUdeviceptr source, size_t bytes) {
  return CopyBetween(call, null, nullptr, ArrayEnd(array, offset), MemoryEnd(source, Side::kDevice),
                     bytes);
}
CUresult Do_cuMemcpyAtoD_v2(const char* call, NullStream null, CUdeviceptr destination,
                            CUarray array, size_t offset, size_t bytes) {
  return CopyBetween(call, null, nullptr, MemoryEnd(destination, Side::kDevice),
                     ArrayEnd(array, offset), bytes);
}
CUresult Do_cuMemcpyHtoA_v2(const char* call, NullStream null, CUarray array, size_t offset,
                            const void* source, size_t bytes) {
  return CopyNowBetween(call, null, ArrayEnd(array, offset), HostEnd(source), bytes);
}
CUresult Do_cuMemcpyAtoH_v2(const char* call, NullStream null, void* destination, CUarray array,
                            size_t offset, size_t bytes) {
  return CopyNowBetween(call, null, HostEnd(destination), ArrayEnd(array, offset), bytes);
}
CUresult Do_cuMemcpyAtoA_v2(const char* call, NullStream null, CUarray destination,
                            size_t destination_offset, CUarray source, size_t source_offset,
                            size_t bytes) {
  return CopyBetween(call, null, nullptr, ArrayEnd(destination, destination_offset),
                     ArrayEnd(source, source_offset), bytes);
}
CUresult Do_cuMemcpyHtoAAsync_v2(const char* call, NullStream null, CUarray array, size_t offset,
                                 const void* source, size_t bytes, CUstream stream) {
  return CopyBetween(call, null, stream, ArrayEnd(array, offset), HostEnd(source), bytes);
}
CUresult Do_cuMemcpyAtoHAsync_v2(const char* call, NullStream null, void* destination,
                                 CUarray array, size_t offset, size_t bytes, CUstream stream) {
  return CopyBetween(call, null, stream, HostEnd(destination), ArrayEnd(array, offset), bytes);
}

}  // namespace fargpu::softgpu

CU_API_TWINS(cuMemcpyDtoA_v2, _ptds,
             (CUarray array, size_t offset, CUdeviceptr source, size_t bytes), array, offset,
             source, bytes);
CU_API_TWINS(cuMemcpyAtoD_v2, _ptds,
             (CUdeviceptr destination, CUarray array, size_t offset, size_t bytes), destination,
             array, offset, bytes);
CU_API_TWINS(cuMemcpyHtoA_v2, _ptds,
             (CUarray array, size_t offset, const void* source, size_t bytes), array, offset,
             source, bytes);
CU_API_TWINS(cuMemcpyAtoH_v2, _ptds,
             (void* destination, CUarray array, size_t offset, size_t bytes), destination, array,
             offset, bytes);
CU_API_TWINS(cuMemcpyAtoA_v2, _ptds,
             (CUarray destination, size_t destination_offset, CUarray source, size_t source_offset,
              size_t bytes),
             destination, destination_offset, source, source_offset, bytes);
CU_API_TWINS(cuMemcpyHtoAAsync_v2, _ptsz,
             (CUarray array, size_t offset, const void* source, size_t bytes, CUstream stream),
             array, offset, source, bytes, stream);
CU_API_TWINS(cuMemcpyAtoHAsync_v2, _ptsz,
             (void* destination, CUarray array, size_t offset, size_t bytes, CUstream stream),
             destination, array, offset, bytes, stream);
