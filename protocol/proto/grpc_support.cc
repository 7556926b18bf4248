#include "protocol/proto/grpc_support.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include <grpc/support/log.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include "common/fd.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "protocol/proto/rpc_status.pb.h"

namespace fargpu {
namespace {

// A key or a chain of certificates is some kilobytes; more is a wrong file.
constexpr size_t kMaxPemBytes = 1 << 20;

absl::StatusOr<std::string> ReadPem(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return ErrnoStatus(absl::StrCat("open ", path));
  std::string text(kMaxPemBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kMaxPemBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is larger than ", kMaxPemBytes, " bytes: not a PEM file"));
  }
  if (!absl::StrContains(text, "-----BEGIN ")) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a PEM file"));
  }
  return text;
}

struct TlsPems {
  std::string certificate;
  std::string key;
  std::string ca;
};

absl::StatusOr<TlsPems> ReadAll(const TlsFiles& files) {
  if (files.certificate.empty() || files.key.empty() || files.ca.empty()) {
    return absl::InvalidArgumentError(
        "mutual TLS needs all of certificate, key and CA (--tls-cert, --tls-key, --tls-ca)");
  }
  TlsPems pems;
  ASSIGN_OR_RETURN(pems.certificate, ReadPem(files.certificate));
  ASSIGN_OR_RETURN(pems.key, ReadPem(files.key));
  ASSIGN_OR_RETURN(pems.ca, ReadPem(files.ca));
  return pems;
}

absl::Status NeedsTls(const BrokerAddress& address) {
  return absl::InvalidArgumentError(
      absl::StrCat(address.text,
                   " is not a loopback address, and the broker speaks plaintext on "
                   "those only; give --tls-cert, --tls-key and --tls-ca"));
}

bool IsLoopbackHost(const std::string& host) {
  in_addr v4;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6;
  if (inet_pton(AF_INET6, host.c_str(), &v6) == 1) return IN6_IS_ADDR_LOOPBACK(&v6);
  return host == "localhost";
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  rpc::Status details;
  details.set_code(static_cast<int>(status.code()));
  details.set_message(std::string(status.message()));
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), details.message(),
                      details.SerializeAsString());
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

bool IsAnswer(const grpc::Status& status) { return status.ok() || !status.error_details().empty(); }

void SendGrpcLogToOurs() {
  gpr_set_log_function([](gpr_log_func_args* arguments) {
    if (arguments->severity == GPR_LOG_SEVERITY_ERROR) {
      FARGPU_LOG(kWarning, "gRPC: ", arguments->message);
    } else {
      FARGPU_LOG(kDebug, "gRPC: ", arguments->message);
    }
  });
}

absl::StatusOr<BrokerAddress> ParseBrokerAddress(absl::string_view text) {
  if (absl::StartsWith(text, "unix:")) {
    const absl::string_view path = text.substr(5);
    // sockaddr_un holds 108 bytes with the final zero.
    if (path.empty() || path[0] != '/' || path.size() > 107) {
      return absl::InvalidArgumentError(
          absl::StrCat("broker address \"", text,
                       "\": a unix address is unix:/absolute/path of at most 107 "
                       "characters"));
    }
    return BrokerAddress{.text = std::string(text), .is_local = true};
  }
  const size_t colon = text.rfind(':');
  uint32_t port = 0;
  if (colon == absl::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(text.substr(colon + 1), &port) || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("broker address \"", text, "\" is neither HOST:PORT nor unix:/path"));
  }
  absl::string_view host = text.substr(0, colon);
  if (host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (absl::StrContains(host, ":")) {
    return absl::InvalidArgumentError(
        absl::StrCat("broker address \"", text, "\": write an IPv6 address as [", host, "]:PORT"));
  }
  return BrokerAddress{.text = std::string(text), .is_local = IsLoopbackHost(std::string(host))};
}

TlsFiles TlsFilesFromEnvironment() {
  const auto value = [](const char* name) {
    const char* text = std::getenv(name);
    return std::string(text != nullptr ? text : "");
  };
  return TlsFiles{.certificate = value("FARGPU_TLS_CERT"),
                  .key = value("FARGPU_TLS_KEY"),
                  .ca = value("FARGPU_TLS_CA")};
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const BrokerAddress& address, const TlsFiles& tls) {
  if (tls.empty()) {
    if (!address.is_local) return NeedsTls(address);
    return grpc::InsecureServerCredentials();
  }
  ASSIGN_OR_RETURN(TlsPems pems, ReadAll(tls));
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = std::move(pems.ca);
  options.pem_key_cert_pairs.push_back({std::move(pems.key), std::move(pems.certificate)});
  return grpc::SslServerCredentials(options);
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeBrokerChannel(const BrokerAddress& address,
                                                                 const TlsFiles& tls) {
  grpc::ChannelArguments arguments;
  // A proxy from the environment is for the web, not for the way to our broker.
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  if (tls.empty()) {
    if (!address.is_local) return NeedsTls(address);
    return grpc::CreateCustomChannel(address.text, grpc::InsecureChannelCredentials(), arguments);
  }
  ASSIGN_OR_RETURN(TlsPems pems, ReadAll(tls));
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = std::move(pems.ca);
  options.pem_private_key = std::move(pems.key);
  options.pem_cert_chain = std::move(pems.certificate);
  return grpc::CreateCustomChannel(address.text, grpc::SslCredentials(options), arguments);
}

}  // namespace fargpu
