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
  int capability_major = 13;
  int capability_minor = 0;
  int multiprocessors = 16;
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
// separated by ','. Keys: devices (cards in the group, 1..64 in all), memory (bytes, or with
// KiB/MiB/GiB), name, capability (MAJOR.MINOR), sms; mode=run|null once, for all cards; machine
// (a text that stands in for the machine in the cards' UUIDs). Empty: one card.
// kInvalidArgument names the key, the value and what is allowed.
absl::StatusOr<DeviceConfig> ParseDeviceConfig(absl::string_view text, const HostFacts& host);

}  // namespace fargpu::softgpu
