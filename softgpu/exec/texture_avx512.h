#pragma once

#include "softgpu/exec/slots.h"
#include "softgpu/texture.h"

namespace fargpu::softgpu {

// Samples `texture` for all lanes of a kTexture operation at once. False if this CPU or this module
// cannot; then nothing has been done that SampleTexture, lane by lane, does not do again. The
// results are the same, bit for bit.
bool SampleByAvx512(const OperationCall& call, const TextureDescriptor& texture);

}  // namespace fargpu::softgpu
