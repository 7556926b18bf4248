#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "protocol/handshake.h"

// What daemon and worker say to each other over a MessageSocket. Both are of one build, but a
// worker may outlive its daemon and meet a newer one: fields are only appended, and what does not
// decode ends the conversation.
namespace fargpu::server {

struct WorkerMessage {
  static constexpr char kName[] = "WorkerMessage";
  enum Kind : uint8_t {
    kReady = 1,     // the driver works; with --probe, welcome.devices describes its devices
    kFailed = 2,    // it does not; `text` says why
    kWelcome = 3,   // the answer to kStart, for the client
    kAnnounce = 4,  // to a new daemon: this session was here before you
  };
  uint8_t kind = 0;
  std::string text;
  Welcome welcome;
  std::array<uint8_t, 16> lease = {};
  std::array<uint8_t, 16> session = {};
  uint32_t client_pid = 0;
  std::string program;

  template <typename Visitor>
  void VisitFields(Visitor& visitor) {
    visitor(kind);
    visitor(text);
    visitor(welcome);
    visitor(lease);
    visitor(session);
    visitor(client_pid);
    visitor(program);
  }
};

struct DaemonMessage {
  static constexpr char kName[] = "DaemonMessage";
  enum Kind : uint8_t {
    kStart = 1,  // with two descriptors: the lease's ledger, and the client's control socket
    kEnd = 2,    // end at once; `text` says why
  };
  uint8_t kind = 0;
  std::string text;
  std::array<uint8_t, 16> lease = {};
  std::array<uint8_t, 16> session = {};
  Hello hello;
  std::vector<DeviceInfo> devices;  // of the lease, in its order
  bool may_share_memory = false;    // the client is on this machine
  std::string net_device;           // that leads to the client

  template <typename Visitor>
  void VisitFields(Visitor& visitor) {
    visitor(kind);
    visitor(text);
    visitor(lease);
    visitor(session);
    visitor(hello);
    visitor(devices);
    visitor(may_share_memory);
    visitor(net_device);
  }
};

}  // namespace fargpu::server
