#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace fargpu::conformance {

struct KnownForm {
  std::string name;         // "ld.global.v2.f32"
  int64_t occurrences = 0;  // in the programs and libraries that were looked at
};

// The lines of mnemonics.tsv. Empty if the file is missing or malformed.
std::vector<KnownForm> KnownForms();

// A module whose kernel k holds the instruction `form` ("ld.global.v2.f32"), with operands as that
// opcode takes them. Empty where nobody has told us what the operands look like.
std::string ProbeModule(absl::string_view form);

}  // namespace fargpu::conformance
