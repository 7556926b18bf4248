#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

#include "common/fd.h"
#include "transport/connection.h"
#include "transport/ucx/ucx_endpoint.h"

// For tests: both ends of a connection in this process, or the far end in another one.
namespace fargpu::transport {

using ConnectionPair = std::pair<std::unique_ptr<Connection>, std::unique_ptr<Connection>>;

UcxOptions TestOptions(Reach reach);
absl::StatusOr<ConnectionPair> NewUcxPair(const UcxOptions& first, const UcxOptions& second);

// Another process of this program (it must call RunAsPeer in main) at the other end.
class PeerProcess {
 public:
  // `role`: "echo" sends every message back; "silent" connects and then only polls; "link" answers
  // every kCalls frame of a Link with a kReplies frame that brings the same bytes; "link_forks"
  // does so after it has forked a child that gives the link up and lives on for a while.
  static absl::StatusOr<PeerProcess> Start(Reach reach, const std::string& role);
  PeerProcess(PeerProcess&& other) noexcept;
  ~PeerProcess();  // kills it

  int pid() const { return pid_; }
  std::unique_ptr<Connection> TakeConnection() { return std::move(connection_); }
  void Signal(int number);
  void Reap();  // waits for its end after a deadly signal

 private:
  PeerProcess() = default;
  int pid_ = -1;
  std::unique_ptr<Connection> connection_;
};

// True if this process was started by PeerProcess; it has then played its role.
bool RunAsPeer(int argc, char** argv);

}  // namespace fargpu::transport
