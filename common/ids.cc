#include "common/ids.h"

#include <sys/random.h>

#include <cerrno>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace fargpu {
namespace {

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

bool SecretsEqual(const LeaseSecret& a, const LeaseSecret& b) {
  uint8_t difference = 0;
  for (size_t i = 0; i < a.bytes.size(); ++i) difference |= a.bytes[i] ^ b.bytes[i];
  return difference == 0;
}

std::string BytesToHex(absl::Span<const uint8_t> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * bytes.size());
  for (uint8_t byte : bytes) {
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

absl::Status HexToBytes(absl::string_view hex, absl::Span<uint8_t> bytes) {
  if (hex.size() != 2 * bytes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected ", 2 * bytes.size(), " hex digits, got ", hex.size()));
  }
  for (size_t i = 0; i < bytes.size(); ++i) {
    const int high = HexDigit(hex[2 * i]);
    const int low = HexDigit(hex[2 * i + 1]);
    if (high < 0 || low < 0) {
      return absl::InvalidArgumentError(absl::StrCat("not a hex digit near position ", 2 * i));
    }
    bytes[i] = static_cast<uint8_t>(high << 4 | low);
  }
  return absl::OkStatus();
}

void FillRandom(absl::Span<uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = getrandom(bytes.data(), bytes.size(), 0);
    if (count < 0) {
      if (errno == EINTR) continue;
      std::abort();
    }
    bytes.remove_prefix(count);
  }
}

}  // namespace fargpu
