#pragma once

#include <cstdint>
#include <string>

namespace fargpu::softgpu {

// Formats as the device's printf does: `arguments` is the buffer the compiler filled, each
// argument at its natural alignment. Both are addresses in device memory and are read as they
// are; a fault there is the kernel's. `count` is set to the number of arguments used. Where a
// string lies outside of device memory it is not read, and `outside` set to its address.
std::string FormatDevicePrintf(const char* format, const char* arguments, int* count,
                               uint64_t* outside);

}  // namespace fargpu::softgpu
