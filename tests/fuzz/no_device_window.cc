#include "softgpu/compiler.h"

// The compiler asks where device memory lies; nothing is run here, so there need be none.
namespace fargpu::softgpu {

AddressWindow DeviceWindow() { return {uint64_t{1} << 40, uint64_t{1} << 36}; }
uint64_t ReserveWindowRange(uint64_t bytes) { return 0; }
void ReleaseWindowRange(uint64_t address, uint64_t bytes) {}
bool HostRangeReachable(uint64_t address, uint64_t bytes) { return false; }

}  // namespace fargpu::softgpu
