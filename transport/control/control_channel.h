#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "common/fd.h"
#include "common/ids.h"

namespace fargpu::transport {

inline constexpr size_t kMaxControlMessageBytes = 1 << 20;
// How long a server should give a stranger to prove the secret.
inline constexpr absl::Duration kHandshakeLimit = absl::Seconds(5);

// The secret of a lease that this server knows; any error refuses the client.
using SecretLookup = std::function<absl::StatusOr<LeaseSecret>(const LeaseId& lease)>;

struct SessionKey {
  std::array<uint8_t, 32> bytes = {};
};

// A session's control socket after the lease's secret was proved: whole messages both ways, and an
// end that tells of the peer's death. TLS on tcp, plain on a unix socket. One thread at a time.
class ControlChannel {
 public:
  virtual ~ControlChannel() = default;

  // kInvalidArgument over kMaxControlMessageBytes; kUnavailable when the peer is gone.
  virtual absl::Status Send(absl::string_view message, absl::Time deadline) = 0;
  // kDeadlineExceeded leaves the stream intact: the next call goes on where this one stopped, and a
  // deadline in the past only looks. kUnavailable: the peer closed. kInvalidArgument: it sent
  // nonsense. kPermissionDenied (client, first call): the server refused lease or secret.
  virtual absl::StatusOr<std::string> Receive(absl::Time deadline) = 0;

  virtual const LeaseId& lease() const = 0;
  // Of the process at the other end of a unix socket.
  virtual std::optional<ucred> peer_credentials() const = 0;
  // A key for `label` that only the two ends know, from the TLS session. kFailedPrecondition on a
  // unix socket, which has none.
  virtual absl::StatusOr<SessionKey> TlsExporterKey(absl::string_view label) = 0;

  // For poll(2): readable when Receive may have something, or the peer is gone.
  virtual int fd() const = 0;
  // In the child of a fork(): closes the child's copy of the descriptor. Only the destructor may be
  // called afterwards.
  virtual void AbandonAfterFork() = 0;
};

// Connects to "tcp:ADDRESS:PORT" or "unix:/path" and proves the secret. On tcp a wrong secret fails
// here (kPermissionDenied); on a unix socket nobody waits for the verdict, and it fails in
// Receive().
absl::StatusOr<std::unique_ptr<ControlChannel>> Dial(absl::string_view endpoint,
                                                     const LeaseId& lease,
                                                     const LeaseSecret& secret,
                                                     absl::Time deadline);

// The server's side, for a socket that Listener::Accept() gave. Returns by `deadline` whatever the
// stranger does, and reads at most 64 KiB of it. The message of an error is one line for the log.
absl::StatusOr<std::unique_ptr<ControlChannel>> AcceptChannel(UniqueFd socket,
                                                              const SecretLookup& lookup,
                                                              absl::Time deadline);

}  // namespace fargpu::transport
