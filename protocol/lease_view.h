#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "protocol/handshake.h"

// What a client asks on the control socket when it wants to know how its lease stands and no
// session: libnvidia-ml.so.1 does, which therefore costs no worker and no place in the ledger. It
// proves the lease's secret as for a session, sends a Hello with kFeatureLook, gets a LeaseView and
// hangs up.
namespace fargpu {

// A bit of Hello::features, beside enum Feature: the answer is a LeaseView in place of a Welcome.
inline constexpr uint64_t kFeatureLook = 1 << 1;

// A process that has a session on the lease.
struct LeaseProcess {
  uint32_t pid = 0;  // as that process knows itself
  std::string program;
  std::vector<uint64_t> used_bytes;  // of each device

  template <typename Visitor>
  void VisitFields(Visitor& visitor) {
    visitor(pid);
    visitor(program);
    visitor(used_bytes);
  }
};

struct LeaseView {
  static constexpr char kName[] = "LeaseView";
  int32_t refusal = 0;  // as in Welcome
  std::string message;
  uint32_t cores_percent = 0;
  std::vector<DeviceInfo> devices;   // in the program's order; the memory is the lease's
  std::vector<uint64_t> used_bytes;  // of each device, by all processes of the lease
  std::vector<LeaseProcess> processes;

  template <typename Visitor>
  void VisitFields(Visitor& visitor) {
    visitor(refusal);
    visitor(message);
    visitor(cores_percent);
    visitor(devices);
    visitor(used_bytes);
    visitor(processes);
  }
};

// kInvalidArgument unless all lists are as long as that of the devices.
inline absl::Status CheckLeaseView(const LeaseView& view) {
  bool fits = view.used_bytes.size() == view.devices.size();
  for (const LeaseProcess& process : view.processes) {
    fits = fits && process.used_bytes.size() == view.devices.size();
  }
  if (fits) return absl::OkStatus();
  return absl::InvalidArgumentError("the lists of a LeaseView are not equally long");
}

}  // namespace fargpu
