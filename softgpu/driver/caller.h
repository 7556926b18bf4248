#pragma once

namespace fargpu::softgpu {

// Who asks for a device's capability. NVIDIA's libraries choose kernels by it, and only above all
// cards that they know do they choose those that exist as PTX; programs compile code for it, and
// compilers refuse what they do not know. So they are told different ones (DeviceSpec,
// docs/design/016-two-capabilities.md).
enum class Caller { kProgram, kLibrary };

// From the return address of a call. Each of NVIDIA's libraries has its own copy of the runtime, so
// that the call comes from the library itself. FarGPU's worker asks for libraries, too.
Caller CallerOf(const void* return_address);
// By the file name of the code that called, for tests.
Caller CallerOfFile(const char* path);

}  // namespace fargpu::softgpu
