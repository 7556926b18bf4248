#pragma once

namespace fargpu::softgpu {

// Loads the stand-ins for NVIDIA's run-time compilers (softgpu/standins) that lie beside this
// library, so that who loads those by name from now on gets the stand-ins, wherever its own search
// path leads. They load nothing themselves before they are called. Not in FarGPU's own programs.
void LoadCompilerStandIns();

}  // namespace fargpu::softgpu
