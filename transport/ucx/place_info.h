#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace fargpu::transport {

// Where a process runs, as far as shared memory cares. Client and daemon exchange it in the
// handshake, because UCX itself fails to connect instead of falling back when shared memory is out
// of reach.
struct PlaceInfo {
  std::array<uint8_t, 16> boot_id = {};  // names the running kernel
  uint32_t uid = 0;
  uint64_t ipc_namespace = 0;
  uint64_t pid_namespace = 0;
  bool operator==(const PlaceInfo&) const = default;

  // Of this process. All zero where /proc does not tell, which matches no place.
  static PlaceInfo Local();
};

inline constexpr size_t kPlaceInfoBytes = 40;
std::string EncodePlaceInfo(const PlaceInfo& place);  // kPlaceInfoBytes
absl::StatusOr<PlaceInfo> DecodePlaceInfo(absl::string_view bytes);

// OK if processes at these places can share memory; otherwise why not, in words for a log line.
absl::Status SharedMemoryIsPossible(const PlaceInfo& a, const PlaceInfo& b);

}  // namespace fargpu::transport
