#include "softgpu/exec/operations.h"

#include "softgpu/exec/async_operations.h"
#include "softgpu/exec/device_calls.h"
#include "softgpu/exec/image_operations.h"
#include "softgpu/exec/matrix_operations.h"
#include "softgpu/exec/slots.h"
#include "softgpu/exec/tensor_operations.h"

namespace fargpu::softgpu {

void RunOperation(WarpContext* context, uint32_t operation, uint64_t code, uint32_t mask,
                  char* slots, uint32_t line) {
  const OperationCall call = {context, code, mask, Slots(slots), line};
  switch (static_cast<Operation>(operation)) {
    case Operation::kTexture:
      return Texture(call);
    case Operation::kTextureGather:
      return TextureGather(call);
    case Operation::kTextureQuery:
      return TextureQuery(call);
    case Operation::kSurfaceQuery:
      return SurfaceQuery(call);
    case Operation::kSurfaceLoad:
    case Operation::kSurfaceStore:
    case Operation::kSurfaceReduce:
      return Surface(call, static_cast<Operation>(operation));
    case Operation::kMatrixMultiply:
      return MatrixMultiply(call);
    case Operation::kMatrixLoad:
      return MatrixLoad(call);
    case Operation::kMatrixStore:
      return MatrixStore(call);
    case Operation::kTileLoad:
    case Operation::kTileStore:
      return MoveTiles(call, static_cast<Operation>(operation) == Operation::kTileStore);
    case Operation::kTileTranspose:
      return TransposeTile(call);
    case Operation::kCopy:
      return Copy(call);
    case Operation::kBulkCopy:
      return BulkCopy(call);
    case Operation::kTensorCopy:
      return TensorCopy(call);
    case Operation::kTensorReplace:
      return TensorReplace(call);
    case Operation::kBarrierObject:
      return BarrierObject(call);
    case Operation::kAtomic128:
      return Atomic128(call);
    case Operation::kDeviceCall:
      return RunDeviceCall(call);
  }
}

}  // namespace fargpu::softgpu
