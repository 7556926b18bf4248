#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include <grpcpp/channel.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/support/status.h>

namespace fargpu {

// The codes of both are the same numbers.
grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);
// Whether a server of ours made this status, with ToGrpcStatus. False for what gRPC found out by
// itself, e.g. that the connection broke: then nobody knows whether the call was carried out.
bool IsAnswer(const grpc::Status& status);

// gRPC's own log lines go where ours go (common/log.h): its errors as warnings, the rest as debug.
// Call it in main() before gRPC is used; without it they go to stderr.
void SendGrpcLogToOurs();

// Where a broker listens: "HOST:PORT", "[IPV6]:PORT" or "unix:/absolute/path".
struct BrokerAddress {
  std::string text;  // as gRPC takes it
  // Nothing leaves this machine: a unix socket, 127.0.0.0/8, ::1 or localhost.
  bool is_local = false;
};
// kInvalidArgument, naming what is wrong.
absl::StatusOr<BrokerAddress> ParseBrokerAddress(absl::string_view text);

// PEM files of mutual TLS. All three or none.
struct TlsFiles {
  std::string certificate;  // of this side, with what chains it to the CA
  std::string key;          // of this side
  std::string ca;           // what signed the other side's certificate
  bool empty() const { return certificate.empty() && key.empty() && ca.empty(); }
};
// From FARGPU_TLS_CERT, FARGPU_TLS_KEY and FARGPU_TLS_CA.
TlsFiles TlsFilesFromEnvironment();

// Plaintext stays on this machine (DESIGN D11): kInvalidArgument when `address` is not local and
// `tls` is empty or incomplete; kNotFound and the like when a file cannot be read.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const BrokerAddress& address, const TlsFiles& tls);
// The channel connects when first used, and again whenever it has to.
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeBrokerChannel(const BrokerAddress& address,
                                                                 const TlsFiles& tls);

}  // namespace fargpu
