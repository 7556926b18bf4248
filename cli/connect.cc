#include <chrono>
#include <cstdlib>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "cli/home.h"
#include "cli/verb.h"

#include "common/status_macros.h"

namespace fargpu::cli {
namespace {

constexpr char kDefaultBroker[] = "127.0.0.1:4830";
constexpr absl::Duration kConnectTimeout = absl::Seconds(5);

std::string BrokerAddressFor(const GlobalOptions& globals) {
  if (!globals.broker.empty()) return globals.broker;
  if (const char* value = std::getenv("FARGPU_BROKER"); value != nullptr && *value != '\0') {
    return value;
  }
  if (const absl::StatusOr<Home> home = Home::Locate(); home.ok()) {
    if (const absl::StatusOr<std::string> address = home->BrokerAddress(); address.ok()) {
      return *address;
    }
  }
  return kDefaultBroker;
}

}  // namespace

absl::StatusOr<std::unique_ptr<BrokerClient>> ConnectToBroker(const GlobalOptions& globals) {
  const std::string address = BrokerAddressFor(globals);
  absl::StatusOr<std::unique_ptr<BrokerClient>> client =
      BrokerClient::Connect(address, TlsFilesFromEnvironment(), kConnectTimeout);
  if (client.ok()) return client;
  if (client.status().code() == absl::StatusCode::kInvalidArgument) {
    const absl::StatusOr<BrokerAddress> parsed = ParseBrokerAddress(address);
    if (!parsed.ok() || parsed->is_local) return client;
    return absl::InvalidArgumentError(
        absl::StrCat("the broker at ", address,
                     " is beyond loopback, which needs mutual TLS; set "
                     "FARGPU_TLS_CERT, FARGPU_TLS_KEY and FARGPU_TLS_CA"));
  }
  if (client.status().code() != absl::StatusCode::kUnavailable) return client;
  const absl::StatusOr<BrokerAddress> parsed = ParseBrokerAddress(address);
  const bool local = parsed.ok() && parsed->is_local;
  return absl::UnavailableError(
      absl::StrCat("no broker at ", address,
                   local ? "; start one with `fargpu up`"
                         : "; check that fargpu-broker runs there, or name another with --broker"));
}

void SetCallDeadline(grpc::ClientContext* context) {
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
}

int Fail(const absl::Status& status, int exit_status) {
  std::cerr << "fargpu: " << status.message() << std::endl;
  return exit_status;
}

}  // namespace fargpu::cli
