#pragma once

#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace fargpu {

// How UUIDs of the software device's cards begin, so that they can be told from real cards
// anywhere, whatever model they play. The rest makes them version 8 (custom) UUIDs of RFC 9562.
inline constexpr uint8_t kSoftwareCardUuid[4] = {0x46, 0x61, 0x72, 0x47};  // "FarG"

// `uuid` as NVIDIA prints it, "GPU-46617247-...".
inline bool IsSoftwareCard(absl::string_view uuid) {
  return uuid.size() == 40 && absl::StartsWith(uuid, "GPU-46617247-") && uuid[18] == '8';
}

}  // namespace fargpu
