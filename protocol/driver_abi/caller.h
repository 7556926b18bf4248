#pragma once

namespace fargpu::driver_abi {

// Who asks for a device's capability. NVIDIA's libraries choose kernels by it, and only above all
// cards that they know do they choose those that exist as PTX; programs compile code for it, and
// compilers refuse what they do not know. So the software device tells them different ones,
// directly and through the client (docs/design/016-two-capabilities.md).
enum class Caller { kProgram, kLibrary };

// From the return address of a call. Each of NVIDIA's libraries has its own copy of the runtime, so
// that the call comes from the library itself. FarGPU's worker asks for libraries, too.
Caller CallerOf(const void* return_address);
// By the file name of the code that called, for tests.
Caller CallerOfFile(const char* path);

// What the software device tells programs, for FarGPU's worker, which is told what libraries are:
// as attributes whose numbers no driver of NVIDIA's knows.
inline constexpr int kProgramCapabilityMajor = 0x46610001;
inline constexpr int kProgramCapabilityMinor = 0x46610002;

}  // namespace fargpu::driver_abi
