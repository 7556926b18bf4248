#include "protocol/driver_abi/visible_devices.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace fargpu::driver_abi {
namespace {

std::string UuidDigits(const DeviceUuid& uuid) {
  const std::string hex = absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(uuid.data()), uuid.size()));
  const absl::string_view digits = hex;
  return absl::StrCat(digits.substr(0, 8), "-", digits.substr(8, 4), "-", digits.substr(12, 4), "-",
                      digits.substr(16, 4), "-", digits.substr(20));
}

// -1 if `text` names no card, or more than one.
int FindDevice(absl::string_view text, absl::Span<const DeviceUuid> uuids) {
  const int count = static_cast<int>(uuids.size());
  if (absl::ConsumePrefix(&text, "GPU-")) {
    const std::string wanted = absl::AsciiStrToLower(text);
    int found = -1;
    for (int device = 0; device < count; ++device) {
      if (UuidDigits(uuids[device]).compare(0, wanted.size(), wanted) != 0) continue;
      if (found >= 0) return -1;
      found = device;
    }
    return found;
  }
  int ordinal = -1;
  return absl::SimpleAtoi(text, &ordinal) && ordinal >= 0 && ordinal < count ? ordinal : -1;
}

}  // namespace

std::vector<int> VisibleDevices(const char* variable, absl::Span<const DeviceUuid> uuids) {
  std::vector<int> visible;
  if (variable == nullptr) {
    for (size_t device = 0; device < uuids.size(); ++device) {
      visible.push_back(static_cast<int>(device));
    }
    return visible;
  }
  for (const absl::string_view text : absl::StrSplit(variable, ',')) {
    const int device = FindDevice(absl::StripAsciiWhitespace(text), uuids);
    if (device < 0 || std::find(visible.begin(), visible.end(), device) != visible.end()) break;
    visible.push_back(device);
  }
  return visible;
}

}  // namespace fargpu::driver_abi
