#pragma once

#include <cstdint>
#include <string>

namespace fargpu::softgpu {

// Formats as the device's printf does: `arguments` is the buffer the compiler filled, each
// argument at its natural alignment. Both are addresses in device memory and are read as they
// are; a fault there is the kernel's. `count` is set to the number of arguments used.
std::string FormatDevicePrintf(const char* format, const char* arguments, int* count);

}  // namespace fargpu::softgpu
