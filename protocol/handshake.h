#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "common/ids.h"
#include "protocol/wire/codec.h"

// What client and daemon say to each other on the control socket, after the lease's secret was
// proved (transport/control): Hello from the client, Welcome back, and then nothing; the socket
// stays open so that its end tells of the peer's death. Encoded with wire/codec.h.
namespace fargpu {

// Version of everything in protocol/wire and protocol/api. A client offers a range, the worker
// takes the highest it knows.
inline constexpr uint16_t kWireVersionMin = 1;
inline constexpr uint16_t kWireVersionMax = 1;

// Bits of Hello::features and Welcome::features; the session has what both sides know. A peer
// ignores bits that it does not know.
enum Feature : uint64_t {
  kFeatureDeliveries = 1 << 0,  // bytes of asynchronous device-to-host copies come in frames
};                              // 1 << 1 is kFeatureLook of lease_view.h

// Bits of Hello::transports and Welcome::transport.
enum Transport : uint32_t {
  kTransportTcp = 1 << 0,
  kTransportSharedMemory = 1 << 1,
  kTransportRdma = 1 << 2,
};

struct Hello {
  static constexpr char kName[] = "Hello";
  uint16_t version_min = kWireVersionMin;
  uint16_t version_max = kWireVersionMax;
  uint64_t features = 0;
  uint32_t pid = 0;
  std::string program;      // basename of the client's executable, for lists of sessions
  uint32_t transports = 0;  // what `address` can be reached by
  std::string place;        // transport::PlaceInfo: decides whether shared memory can be used
  std::string address;      // of the client's UCX worker

  template <typename Visitor>
  void VisitFields(Visitor& visitor) {
    visitor(version_min);
    visitor(version_max);
    visitor(features);
    visitor(pid);
    visitor(program);
    visitor(transports);
    visitor(place);
    visitor(address);
  }
};

// All that the client ever asks of a device without a round trip.
struct DeviceInfo {
  std::array<uint8_t, 16> uuid = {};     // as cuDeviceGetUuid gives it
  std::array<uint8_t, 16> uuid_v2 = {};  // as cuDeviceGetUuid_v2 gives it; differs on MIG
  std::string name;
  uint64_t total_memory_bytes = 0;  // of the lease, which the program takes for the card
  std::string pci_bus_id;           // "0000:0b:00.0"
  std::vector<int32_t> attributes;  // index: CUdevice_attribute; [0] is unused
  int32_t least_stream_priority = 0;
  int32_t greatest_stream_priority = 0;
  // What programs are told, MAJOR * 10 + MINOR, where that is not what the attributes say, which is
  // what NVIDIA's libraries are told (docs/design/016); else 0.
  int32_t program_capability = 0;

  template <typename Visitor>
  void VisitFields(Visitor& visitor) {
    visitor(uuid);
    visitor(uuid_v2);
    visitor(name);
    visitor(total_memory_bytes);
    visitor(pci_bus_id);
    visitor(attributes);
    visitor(least_stream_priority);
    visitor(greatest_stream_priority);
    visitor(program_capability);
  }
};

struct Welcome {
  static constexpr char kName[] = "Welcome";
  // Not 0: the session was refused; an absl::StatusCode, and `message` says why in one sentence.
  int32_t refusal = 0;
  std::string message;
  uint16_t version = 0;
  uint64_t features = 0;
  std::array<uint8_t, 16> session = {};
  uint32_t transport = 0;      // the one Transport that the session uses
  std::string place;           // the worker's transport::PlaceInfo
  std::string address;         // of the worker's UCX worker
  int32_t driver_version = 0;  // e.g. 13000
  // Where all device memory of the session lies, on both sides (DESIGN D4). The client reserves it
  // without access. Size 0: the driver has no virtual memory API, addresses may lie anywhere.
  uint64_t window_base = 0;
  uint64_t window_bytes = 0;
  std::vector<DeviceInfo> devices;

  template <typename Visitor>
  void VisitFields(Visitor& visitor) {
    visitor(refusal);
    visitor(message);
    visitor(version);
    visitor(features);
    visitor(session);
    visitor(transport);
    visitor(place);
    visitor(address);
    visitor(driver_version);
    visitor(window_base);
    visitor(window_bytes);
    visitor(devices);
  }
};

// The highest version in both ranges; kFailedPrecondition naming both if there is none.
absl::StatusOr<uint16_t> NegotiateVersion(uint16_t their_min, uint16_t their_max);

// A Welcome that refuses, or the refusal in one.
Welcome RefusingWelcome(const absl::Status& why);
absl::Status RefusalOf(const Welcome& welcome);

}  // namespace fargpu
