#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace fargpu {

// 16 bytes that name one thing everywhere; printed as 32 lower-case hex digits. `Tag` keeps ids of
// different things apart at compile time.
template <typename Tag>
struct Id {
  std::array<uint8_t, 16> bytes = {};
  auto operator<=>(const Id&) const = default;
};

using LeaseId = Id<struct LeaseTag>;
using SessionId = Id<struct SessionTag>;

// The 32 secret bytes of a lease. Never printed.
struct LeaseSecret {
  std::array<uint8_t, 32> bytes = {};
};
// Takes the same time whatever the bytes are, so that a guess learns nothing from the clock.
bool SecretsEqual(const LeaseSecret& a, const LeaseSecret& b);

std::string BytesToHex(absl::Span<const uint8_t> bytes);
// Fills `bytes` exactly from 2 * bytes.size() hex digits; kInvalidArgument otherwise.
absl::Status HexToBytes(absl::string_view hex, absl::Span<uint8_t> bytes);
// From the kernel's random number generator; aborts if there is none.
void FillRandom(absl::Span<uint8_t> bytes);

template <typename Tag>
std::string ToString(const Id<Tag>& id) {
  return BytesToHex(id.bytes);
}
template <typename IdType>
IdType RandomId() {
  IdType id;
  FillRandom(absl::MakeSpan(id.bytes));
  return id;
}
template <typename IdType>
absl::StatusOr<IdType> ParseId(absl::string_view hex) {
  IdType id;
  absl::Status status = HexToBytes(hex, absl::MakeSpan(id.bytes));
  if (!status.ok()) return status;
  return id;
}

}  // namespace fargpu
