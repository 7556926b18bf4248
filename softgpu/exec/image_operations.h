#pragma once

#include "softgpu/exec/slots.h"

// The operations on textures and surfaces.
namespace fargpu::softgpu {

void Texture(const OperationCall& call);
void TextureGather(const OperationCall& call);
void TextureQuery(const OperationCall& call);
void SurfaceQuery(const OperationCall& call);
void Surface(const OperationCall& call, Operation operation);

}  // namespace fargpu::softgpu
