#include "softgpu/exec/slots.h"

#include "absl/strings/str_format.h"

#include "softgpu/exec/launch_failure.h"

namespace fargpu::softgpu {

uint64_t PlainAddress(const OperationCall& call, int lane, bool shared, uint64_t offset,
                      uint64_t bytes, uint64_t alignment) {
  const WarpContext& c = *call.context;
  uint64_t base = shared ? c.shared_base : 0;
  uint64_t rank = 0;
  const uint64_t given = offset;
  if (shared && offset >> kClusterShift != 0) {  // of another block, or of this one by its rank
    rank = (offset >> kClusterShift) - 1;
    base = c.cluster_shared + rank * c.cluster_stride;
    offset &= (uint64_t{1} << kClusterShift) - 1;
  }
  const bool inside = shared ? offset <= c.shared_bytes && c.shared_bytes - offset >= bytes &&
                                   rank < ClusterBlocks(c)
                             : InWindow(offset, bytes) || HostRangeReachable(offset, bytes);
  if (!inside) {
    EndLaunch(call.context, CUDA_ERROR_ILLEGAL_ADDRESS,
              absl::StrFormat("%s, %s, PTX line %u: access of %u bytes at 0x%x", Where(&c),
                              ThreadOf(&c, lane), call.line, bytes, given));
  }
  if (offset % alignment != 0) {
    EndLaunch(call.context, CUDA_ERROR_MISALIGNED_ADDRESS,
              absl::StrFormat("%s, %s, PTX line %u: address 0x%x is not a multiple of %u",
                              Where(&c), ThreadOf(&c, lane), call.line, offset, alignment));
  }
  return base + offset;
}

}  // namespace fargpu::softgpu
