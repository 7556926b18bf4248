#include "protocol/handshake.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace fargpu {

absl::StatusOr<uint16_t> NegotiateVersion(uint16_t their_min, uint16_t their_max) {
  const uint16_t low = std::max(their_min, kWireVersionMin);
  const uint16_t high = std::min(their_max, kWireVersionMax);
  if (low > high) {
    return absl::FailedPreconditionError(
        absl::StrCat("the peer speaks wire versions ", their_min, " to ", their_max, ", we speak ",
                     kWireVersionMin, " to ", kWireVersionMax, "; upgrade the older side"));
  }
  return high;
}

Welcome RefusingWelcome(const absl::Status& why) {
  Welcome welcome;
  welcome.refusal = static_cast<int32_t>(why.code());
  welcome.message = std::string(why.message().substr(0, wire::kMaxStringBytes));
  return welcome;
}

absl::Status RefusalOf(const Welcome& welcome) {
  if (welcome.refusal == 0) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(welcome.refusal), welcome.message);
}

}  // namespace fargpu
