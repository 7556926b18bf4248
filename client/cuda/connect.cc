#include "client/cuda/connect.h"

#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"

#include "client/cuda/lease_helper.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "transport/control/control_channel.h"
#include "transport/control/endpoint.h"
#include "transport/ucx/place_info.h"
#include "transport/ucx/ucx_endpoint.h"

namespace fargpu::client {
namespace {

constexpr absl::Duration kConnectLimit = absl::Seconds(10);

class ChannelHold final : public ControlHold {
 public:
  explicit ChannelHold(std::unique_ptr<transport::ControlChannel> channel)
      : channel_(std::move(channel)) {}
  void AbandonAfterFork() override { channel_->AbandonAfterFork(); }

 private:
  const std::unique_ptr<transport::ControlChannel> channel_;
};

const char* Environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

std::string ProgramName() {
  char path[PATH_MAX];
  const ssize_t size = readlink("/proc/self/exe", path, sizeof(path));
  if (size <= 0) return "unknown";
  const std::string whole(path, static_cast<size_t>(size));
  return whole.substr(whole.rfind('/') + 1);
}

absl::StatusOr<LeaseFile> FindLease() {
  if (const char* path = Environment("FARGPU_LEASE")) return ReadLeaseFile(path);
  if (const char* broker = Environment("FARGPU_BROKER")) return LeaseFromHelper(broker);
  return absl::NotFoundError(
      "no GPU server is configured: neither FARGPU_LEASE nor FARGPU_BROKER is set");
}

// Encodes a handshake message for the control socket.
template <typename Message>
std::string Encoded(const Message& message) {
  std::vector<char> bytes;
  wire::EncodeMessage(message, &bytes);
  return std::string(bytes.data(), bytes.size());
}

absl::StatusOr<SessionParts> ConnectTo(const std::string& endpoint, const LeaseFile& lease,
                                       absl::Time deadline) {
  ASSIGN_OR_RETURN(const transport::Endpoint parsed, transport::ParseEndpoint(endpoint));
  const bool local = parsed.kind == transport::Endpoint::Kind::kUnix;
  if (local && access(parsed.path.c_str(), F_OK) != 0) {
    return absl::NotFoundError("there is no such socket on this machine");
  }
  ASSIGN_OR_RETURN(std::unique_ptr<transport::ControlChannel> channel,
                   transport::Dial(endpoint, lease.lease, lease.secret, deadline));
  // If the session does not come about, the socket closes and the daemon forgets us.
  transport::UcxOptions options;
  options.reach = local ? transport::Reach::kMachine : transport::Reach::kNetwork;
  ASSIGN_OR_RETURN(options.net_device, transport::InterfaceOf(channel->fd()));
  ASSIGN_OR_RETURN(std::unique_ptr<transport::UcxEndpoint> ucx,
                   transport::UcxEndpoint::Create(options));

  Hello hello;
  hello.features = kFeatureDeliveries;
  hello.pid = static_cast<uint32_t>(getpid());
  hello.program = ProgramName();
  hello.transports = kTransportTcp;
  if (local) hello.transports |= kTransportSharedMemory;
  hello.place = transport::EncodePlaceInfo(transport::PlaceInfo::Local());
  hello.address = ucx->local_address();
  if (absl::Status sent = channel->Send(Encoded(hello), deadline); !sent.ok()) {
    // A daemon that turned us away said why before it closed.
    const absl::Status verdict = channel->Receive(deadline).status();
    return verdict.ok() ? sent : verdict;
  }
  ASSIGN_OR_RETURN(const std::string answer, channel->Receive(deadline));

  SessionParts parts;
  RETURN_IF_ERROR(
      wire::DecodeMessage(absl::MakeConstSpan(answer.data(), answer.size()), &parts.welcome));
  RETURN_IF_ERROR(RefusalOf(parts.welcome));
  if (parts.welcome.version < kWireVersionMin || parts.welcome.version > kWireVersionMax) {
    return absl::FailedPreconditionError(absl::StrCat("the server speaks wire version ",
                                                      parts.welcome.version, ", this library ",
                                                      kWireVersionMin, " to ", kWireVersionMax));
  }
  const SessionId session{parts.welcome.session};
  ASSIGN_OR_RETURN(parts.connection, ucx->Connect(parts.welcome.address, session));
  parts.control = std::make_unique<ChannelHold>(std::move(channel));
  return parts;
}

}  // namespace

absl::StatusOr<SessionParts> ConnectToLease(const LeaseFile& lease, absl::Time deadline) {
  if (lease.endpoints.empty()) {
    return absl::InvalidArgumentError("the lease names no endpoint");
  }
  std::vector<std::string> reasons;
  for (const std::string& endpoint : lease.endpoints) {
    absl::StatusOr<SessionParts> parts = ConnectTo(endpoint, lease, deadline);
    if (parts.ok()) return parts;
    reasons.push_back(absl::StrCat(endpoint, ": ", parts.status().message()));
  }
  return absl::UnavailableError(absl::StrCat("no session on lease ", ToString(lease.lease), ": ",
                                             absl::StrJoin(reasons, "; ")));
}

absl::StatusOr<SessionParts> ConnectFromEnvironment() {
  ASSIGN_OR_RETURN(const LeaseFile lease, FindLease());
  return ConnectToLease(lease, absl::Now() + kConnectLimit);
}

}  // namespace fargpu::client
