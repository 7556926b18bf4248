#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace fargpu::softgpu {

// One simulated card.
struct DeviceSpec {
  std::string name = "FarGPU Software Device";
  uint64_t memory_bytes = 0;
  // What programs are told. They compile code for it (NVRTC knows nothing above 12.1), and branch
  // on it.
  int capability_major = 12;
  int capability_minor = 0;
  // What NVIDIA's libraries are told (driver/caller.h): above all they know, they choose kernels
  // that exist as PTX.
  int library_capability_major = 13;
  int library_capability_minor = 0;
  int multiprocessors = 16;
  int clock_khz = 1000000;
  int memory_clock_khz = 1000000;
  int memory_bus_bits = 256;
  int l2_bytes = 4 << 20;
  std::array<uint8_t, 16> uuid = {};
  int pci_domain = 0;
  int pci_bus = 0;
  int pci_device = 0;
};

enum class ExecutionMode {
  kRun,   // kernels run
  kNull,  // kernels return at once: what is left is the cost of everything else
};

struct DeviceConfig {
  std::vector<DeviceSpec> devices;
  ExecutionMode mode = ExecutionMode::kRun;
};

// What the parser takes from the machine it runs on.
struct HostFacts {
  uint64_t memory_bytes = 0;
  std::string machine_id;  // any text that names the machine
};
HostFacts ReadHostFacts();

// Parses the value of FARGPU_SOFTGPU: groups of cards separated by ';', each a list of KEY=VALUE
// separated by ','. Keys: devices (cards in the group, 1..64 in all), model (device_models.h; what
// follows it overrides it), memory (bytes, or with KiB/MiB/GiB), name, capability and
// library_capability (MAJOR.MINOR), sms, clock (MHz); mode=run|null once, for all cards; machine (a
// text that stands in for the machine in the cards' UUIDs). Empty: one card.
// kInvalidArgument names the key, the value and what is allowed.
absl::StatusOr<DeviceConfig> ParseDeviceConfig(absl::string_view text, const HostFacts& host);

// The same from a file, in the part of TOML that it takes: `[[device]]` begins a group, and lines
// KEY = VALUE hold the keys above; texts are quoted, '#' begins a comment. Errors name the line.
absl::StatusOr<DeviceConfig> ParseDeviceConfigFile(absl::string_view contents,
                                                   const HostFacts& host);
// What FARGPU_SOFTGPU says: settings, or the path of such a file (a value that ends in ".toml").
absl::StatusOr<DeviceConfig> ReadDeviceConfig(absl::string_view variable, const HostFacts& host);

}  // namespace fargpu::softgpu
