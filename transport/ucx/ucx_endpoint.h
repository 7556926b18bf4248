#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "common/ids.h"
#include "transport/connection.h"
#include "transport/ucx/place_info.h"

namespace fargpu::transport {

enum class Reach {
  kNetwork,  // TCP, and RDMA where this machine has a device that is up
  kMachine,  // these and shared memory; only if SharedMemoryIsPossible()
};

struct UcxOptions {
  Reach reach = Reach::kNetwork;
  // The network interface that reaches the peer ("eth0"; InterfaceOf() in control/ finds it).
  // Empty: all of them. FARGPU_NET_DEVICE in the environment replaces it.
  std::string net_device = {};
  // What Connect() names where it is not told; see there.
  SessionId session = {};
  // What a receiver accepts and a sender sends; tests make it larger to play a hostile peer.
  size_t max_message_bytes = kMaxMessageBytes;
};

// One end of a connection over UCX before the other end is known: made first, because its address
// has to travel over the control socket. There is no listener; a stranger who finds the port of the
// TCP transport does not get past UCX's magic number, and our first message names the session.
//
// FARGPU_TRANSPORT in the environment: "tcp", "shm" or "rdma" allows only that; "auto" or unset
// leaves the choice to UCX.
class UcxEndpoint {
 public:
  // kFailedPrecondition: no UCX, or FARGPU_TRANSPORT names something this machine or `reach` has
  // not. Takes 2 ms, with shared memory 7 ms.
  static absl::StatusOr<std::unique_ptr<UcxEndpoint>> Create(const UcxOptions& options);
  virtual ~UcxEndpoint() = default;

  // The bytes to tell the peer, a few hundred.
  virtual const std::string& local_address() const = 0;
  // Does not wait for the peer: what is sent before it answers is queued inside, and a peer that
  // cannot be reached shows as kUnavailable later. kInvalidArgument: not the bytes of a
  // local_address(). A call that gets past that uses the endpoint up.
  // Both ends name `session` in their first message, and an end that hears another name gives up
  // (kInvalidArgument): a worker must not take up with the client of another session.
  virtual absl::StatusOr<std::unique_ptr<Connection>> Connect(absl::string_view remote_address,
                                                              const SessionId& session) = 0;
  absl::StatusOr<std::unique_ptr<Connection>> Connect(absl::string_view remote_address) {
    return Connect(remote_address, default_session_);
  }

 protected:
  explicit UcxEndpoint(const SessionId& default_session) : default_session_(default_session) {}

 private:
  const SessionId default_session_;
};

}  // namespace fargpu::transport
