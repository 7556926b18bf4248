#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace fargpu {

// MiB of "4GiB", "1.5GiB", "512MiB", "1TiB" or a plain number of MiB such as "4096"; units in any
// case. kInvalidArgument for anything else, for parts of a MiB, and for zero.
absl::StatusOr<uint64_t> ParseMemoryMib(absl::string_view text);

// The shortest exact form: "4 GiB", "1536 MiB", "123 B".
std::string FormatMemory(uint64_t bytes);

}  // namespace fargpu
