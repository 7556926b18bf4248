#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace fargpu::conformance {

// A module whose kernel k holds the instruction `form` ("ld.global.v2.f32"), with operands as that
// opcode takes them. Empty where nobody has told us what the operands look like.
std::string ProbeModule(absl::string_view form);

}  // namespace fargpu::conformance
