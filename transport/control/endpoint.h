#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "common/fd.h"

namespace fargpu::transport {

// Where a control socket is: "tcp:ADDRESS:PORT" ("tcp:[::1]:4833", "tcp:gpu1:4833",
// "tcp:0.0.0.0:0") or "unix:/path".
struct Endpoint {
  enum class Kind { kTcp, kUnix };
  Kind kind = Kind::kTcp;
  std::string host;  // without brackets
  std::string port;
  std::string path;
};
absl::StatusOr<Endpoint> ParseEndpoint(absl::string_view text);

// A connected socket, non-blocking and close-on-exec. Names with several addresses are tried in
// turn. kUnavailable: nobody listens there.
absl::StatusOr<UniqueFd> ConnectSocket(const Endpoint& endpoint, absl::Time deadline);

// A listening socket. A stale socket file, one that nobody listens on, is replaced; the file is
// removed when the listener goes. Anybody may connect to it: the lease's secret decides, not the
// file's mode.
class Listener {
 public:
  static absl::StatusOr<std::unique_ptr<Listener>> Listen(absl::string_view endpoint);
  ~Listener();

  // kDeadlineExceeded: nobody came. Sockets are non-blocking and close-on-exec.
  absl::StatusOr<UniqueFd> Accept(absl::Time deadline);

  int fd() const { return socket_.get(); }                   // readable when Accept has somebody
  const std::string& endpoint() const { return endpoint_; }  // with the real port for port 0

 private:
  Listener(UniqueFd socket, std::string endpoint, std::string path);

  const UniqueFd socket_;
  const std::string endpoint_;
  const std::string path_;
  // Of the socket file, so that another's is not removed.
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

// The network interface that a connected socket's traffic leaves by, e.g. "eth0"; "lo" for unix
// sockets: what UCX shall use to reach the same peer.
absl::StatusOr<std::string> InterfaceOf(int socket);

// "10.0.0.7:51234", for log lines.
std::string PeerName(int socket);

}  // namespace fargpu::transport
