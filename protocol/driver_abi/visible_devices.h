#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

// CUDA_VISIBLE_DEVICES, which a driver library reads itself: programs and launchers of programs
// (one process per card) rely on it.
namespace fargpu::driver_abi {

using DeviceUuid = std::array<uint8_t, 16>;

// Which of the machine's cards, given by their UUIDs, a program sees, in its order. `variable` is
// the variable's value: null (not set) shows all cards, an empty text none. Else it is a list,
// separated by commas, of ordinals and of UUIDs as text ("GPU-8932f937-..."), of which the first
// digits are enough as long as only one card has them. What names no card, or one that was named
// before, ends the list: what stands behind it is not visible.
std::vector<int> VisibleDevices(const char* variable, absl::Span<const DeviceUuid> uuids);

}  // namespace fargpu::driver_abi
