#include "common/memory_size.h"

#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace fargpu {

absl::StatusOr<uint64_t> ParseMemoryMib(absl::string_view text) {
  const absl::Status wrong = absl::InvalidArgumentError(
      absl::StrCat("\"", text.substr(0, 40),
                   "\" is not a size; write 4GiB, 512MiB or a number of MiB such as 4096"));
  size_t digits = 0;
  while (digits < text.size() && (absl::ascii_isdigit(text[digits]) || text[digits] == '.')) {
    ++digits;
  }
  double number = 0;
  if (digits == 0 || !absl::SimpleAtod(text.substr(0, digits), &number)) return wrong;
  const std::string unit =
      absl::AsciiStrToLower(absl::StripLeadingAsciiWhitespace(text.substr(digits)));
  if (unit == "gib") {
    number *= 1024;
  } else if (unit == "tib") {
    number *= 1024.0 * 1024;
  } else if (!unit.empty() && unit != "mib") {
    return wrong;
  }
  // 2^40 MiB is more than anybody has, and exact in a double.
  if (number < 1 || number > 1099511627776.0 || number != std::floor(number)) return wrong;
  return static_cast<uint64_t>(number);
}

std::string FormatMemory(uint64_t bytes) {
  constexpr uint64_t kMib = 1 << 20;
  constexpr uint64_t kGib = 1 << 30;
  if (bytes != 0 && bytes % kGib == 0) return absl::StrCat(bytes / kGib, " GiB");
  if (bytes % kMib == 0) return absl::StrCat(bytes / kMib, " MiB");
  return absl::StrCat(bytes, " B");
}

}  // namespace fargpu
