#include "softgpu/runtime/device_config.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

#include "common/software_card.h"
#include "common/status_macros.h"
#include "softgpu/runtime/device_models.h"

namespace fargpu::softgpu {
namespace {

constexpr int kMaxDevices = 64;
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kSmallestMemory = 16 * kMiB;
constexpr uint64_t kLargestMemory = uint64_t{1} << 40;
constexpr uint64_t kDefaultMemory = 4096 * kMiB;
// Cards take bus numbers from here on; low ones belong to the machine's own devices.
constexpr int kFirstPciBus = 0x10;
constexpr size_t kLongestName = 255;  // cudaDeviceProp::name holds 256 with its NUL

constexpr absl::string_view kMessagePrefix = "FARGPU_SOFTGPU: ";

absl::string_view WithoutPrefix(absl::string_view message) {
  absl::ConsumePrefix(&message, kMessagePrefix);
  return message;
}

absl::Status BadValue(absl::string_view key, absl::string_view value, absl::string_view allowed) {
  return absl::InvalidArgumentError(
      absl::StrCat("FARGPU_SOFTGPU: ", key, "=\"", value, "\": expected ", allowed));
}

absl::StatusOr<uint64_t> ParseBytes(absl::string_view value) {
  constexpr absl::string_view kAllowed = "16MiB to 1TiB, as bytes or with KiB, MiB or GiB";
  absl::string_view digits = value;
  uint64_t unit = 1;
  if (absl::ConsumeSuffix(&digits, "KiB")) {
    unit = uint64_t{1} << 10;
  } else if (absl::ConsumeSuffix(&digits, "MiB")) {
    unit = kMiB;
  } else if (absl::ConsumeSuffix(&digits, "GiB")) {
    unit = uint64_t{1} << 30;
  } else if (absl::ConsumeSuffix(&digits, "TiB")) {
    unit = uint64_t{1} << 40;
  }
  uint64_t count = 0;
  if (!absl::SimpleAtoi(digits, &count) || count > kLargestMemory / unit ||
      count * unit < kSmallestMemory) {
    return BadValue("memory", value, kAllowed);
  }
  return count * unit;
}

absl::StatusOr<int> ParseInt(absl::string_view key, absl::string_view value, int low, int high) {
  int number = 0;
  if (!absl::SimpleAtoi(value, &number) || number < low || number > high) {
    return BadValue(key, value, absl::StrCat("a number from ", low, " to ", high));
  }
  return number;
}

absl::Status ParseCapability(absl::string_view key, absl::string_view value, int* out_major,
                             int* out_minor) {
  const std::vector<absl::string_view> parts = absl::StrSplit(value, '.');
  int major = 0, minor = 0;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &major) ||
      !absl::SimpleAtoi(parts[1], &minor) || major < 1 || major > 99 || minor < 0 || minor > 9) {
    return BadValue(key, value, "MAJOR.MINOR, e.g. 12.0");
  }
  *out_major = major;
  *out_minor = minor;
  return absl::OkStatus();
}

uint64_t Mix(uint64_t value) {
  value ^= value >> 30;
  value *= 0xbf58476d1ce4e5b9;
  value ^= value >> 27;
  value *= 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

// The same machine and ordinal always give the same UUID, so that all processes (and a daemon
// after a restart) speak of the same card.
std::array<uint8_t, 16> MakeUuid(absl::string_view machine, int ordinal) {
  uint64_t halves[2] = {0x9e3779b97f4a7c15, 0xd1b54a32d192ed03};
  for (uint64_t& half : halves) {
    for (char c : machine) half = Mix(half ^ static_cast<uint8_t>(c)) + 0x9e3779b97f4a7c15;
    half = Mix(half ^ static_cast<uint64_t>(ordinal + 1));
  }
  std::array<uint8_t, 16> uuid;
  for (size_t i = 0; i < uuid.size(); ++i) {
    uuid[i] = static_cast<uint8_t>(halves[i / 8] >> (8 * (i % 8)));
  }
  std::copy(std::begin(kSoftwareCardUuid), std::end(kSoftwareCardUuid), uuid.begin());
  // Marked as a version 8 (custom) UUID of RFC 9562.
  uuid[6] = static_cast<uint8_t>((uuid[6] & 0x0f) | 0x80);
  uuid[8] = static_cast<uint8_t>((uuid[8] & 0x3f) | 0x80);
  return uuid;
}

std::string ReadLine(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

HostFacts ReadHostFacts() {
  HostFacts facts;
  facts.memory_bytes = static_cast<uint64_t>(std::max(0L, sysconf(_SC_PHYS_PAGES))) *
                       static_cast<uint64_t>(std::max(0L, sysconf(_SC_PAGESIZE)));
  // Containers made from one image share its machine-id; the host name tells them apart.
  char host_name[256] = {};
  gethostname(host_name, sizeof(host_name) - 1);
  facts.machine_id = absl::StrCat(ReadLine("/etc/machine-id"), "/", host_name);
  return facts;
}

absl::StatusOr<DeviceConfig> ParseDeviceConfig(absl::string_view text, const HostFacts& host) {
  DeviceConfig config;
  std::string machine = host.machine_id;
  const uint64_t default_memory =
      host.memory_bytes == 0
          ? kDefaultMemory
          : std::max(kSmallestMemory,
                     std::min(kDefaultMemory, host.memory_bytes / 2 / kMiB * kMiB));
  for (absl::string_view group : absl::StrSplit(text, ';')) {
    DeviceSpec spec;
    spec.memory_bytes = default_memory;
    int count = 1;
    for (absl::string_view setting : absl::StrSplit(group, ',', absl::SkipEmpty())) {
      const std::pair<absl::string_view, absl::string_view> pair =
          absl::StrSplit(setting, absl::MaxSplits('=', 1));
      const absl::string_view key = absl::StripAsciiWhitespace(pair.first);
      const absl::string_view value = absl::StripAsciiWhitespace(pair.second);
      if (key == "devices") {
        ASSIGN_OR_RETURN(count, ParseInt(key, value, 1, kMaxDevices));
      } else if (key == "memory") {
        ASSIGN_OR_RETURN(spec.memory_bytes, ParseBytes(value));
      } else if (key == "name") {
        if (value.empty() || value.size() > kLongestName) {
          return BadValue(key, value, "1 to 255 characters");
        }
        spec.name = std::string(value);
      } else if (key == "capability") {
        RETURN_IF_ERROR(
            ParseCapability(key, value, &spec.capability_major, &spec.capability_minor));
      } else if (key == "library_capability") {
        RETURN_IF_ERROR(ParseCapability(key, value, &spec.library_capability_major,
                                        &spec.library_capability_minor));
      } else if (key == "model") {
        if (!ApplyModel(value, &spec)) return BadValue(key, value, ModelNames());
      } else if (key == "clock") {
        ASSIGN_OR_RETURN(const int megahertz, ParseInt(key, value, 1, 10000));
        spec.clock_khz = megahertz * 1000;
      } else if (key == "sms") {
        ASSIGN_OR_RETURN(spec.multiprocessors, ParseInt(key, value, 1, 1024));
      } else if (key == "machine") {
        if (value.empty()) return BadValue(key, value, "a text");
        machine = std::string(value);
      } else if (key == "mode") {
        if (value != "run" && value != "null") return BadValue(key, value, "run or null");
        config.mode = value == "null" ? ExecutionMode::kNull : ExecutionMode::kRun;
      } else {
        return absl::InvalidArgumentError(
            absl::StrCat("FARGPU_SOFTGPU: unknown key \"", key,
                         "\": expected devices, model, memory, name, capability, "
                         "library_capability, sms, clock, mode or machine"));
      }
    }
    if (config.devices.size() + count > kMaxDevices) {
      return absl::InvalidArgumentError(
          absl::StrCat("FARGPU_SOFTGPU: more than ", kMaxDevices, " devices"));
    }
    config.devices.insert(config.devices.end(), count, spec);
  }
  for (size_t i = 0; i < config.devices.size(); ++i) {
    const int ordinal = static_cast<int>(i);
    config.devices[i].uuid = MakeUuid(machine, ordinal);
    config.devices[i].pci_bus = kFirstPciBus + ordinal;
  }
  return config;
}

absl::StatusOr<DeviceConfig> ParseDeviceConfigFile(absl::string_view contents,
                                                   const HostFacts& host) {
  std::string settings;
  bool in_device = false;
  int number = 0;
  const auto error = [&](absl::string_view message) {
    return absl::InvalidArgumentError(
        absl::StrCat(kMessagePrefix, "line ", number, ": ", WithoutPrefix(message)));
  };
  for (absl::string_view line : absl::StrSplit(contents, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#') continue;
    if (line == "[[device]]") {
      if (in_device) settings += ';';
      in_device = true;
      continue;
    }
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(line, absl::MaxSplits('=', 1));
    const absl::string_view key = absl::StripAsciiWhitespace(pair.first);
    absl::string_view value = absl::StripAsciiWhitespace(pair.second);
    if (absl::ConsumePrefix(&value, "\"")) {
      const size_t close = value.find('"');
      if (close == absl::string_view::npos) return error("a text has no closing quote");
      value = value.substr(0, close);
    } else {
      value = absl::StripAsciiWhitespace(value.substr(0, value.find('#')));
    }
    if (key.empty() || line.find('=') == absl::string_view::npos) {
      return error("expected [[device]] or KEY = VALUE");
    }
    if (value.find_first_of(",;") != absl::string_view::npos) {
      return error("a value must not contain ',' or ';'");
    }
    absl::StrAppend(&settings, key, "=", value, ",");
    // Each line is also checked by itself, so that the error can name it.
    const absl::StatusOr<DeviceConfig> alone =
        ParseDeviceConfig(absl::StrCat(key, "=", value), host);
    if (!alone.ok()) return error(alone.status().message());
  }
  return ParseDeviceConfig(settings, host);
}

absl::StatusOr<DeviceConfig> ReadDeviceConfig(absl::string_view variable, const HostFacts& host) {
  if (!absl::EndsWith(variable, ".toml")) return ParseDeviceConfig(variable, host);
  std::ifstream file{std::string(variable)};
  if (!file) {
    return absl::InvalidArgumentError(
        absl::StrCat("FARGPU_SOFTGPU: cannot open the file ", variable));
  }
  const std::string contents((std::istreambuf_iterator<char>(file)),
                             std::istreambuf_iterator<char>());
  absl::StatusOr<DeviceConfig> config = ParseDeviceConfigFile(contents, host);
  if (config.ok()) return config;
  return absl::InvalidArgumentError(
      absl::StrCat(kMessagePrefix, variable, ": ", WithoutPrefix(config.status().message())));
}

}  // namespace fargpu::softgpu
