#pragma once

#include "absl/strings/string_view.h"

#include "softgpu/runtime/device_config.h"

namespace fargpu::softgpu {

// Gives `spec` the name and the figures of a real card, by a short name such as "h100"; false if
// there is none of that name. What a card of ours can do stays what it is.
bool ApplyModel(absl::string_view model, DeviceSpec* spec);
// The short names, separated by ", ".
std::string ModelNames();

}  // namespace fargpu::softgpu
