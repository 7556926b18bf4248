#include "protocol/proto/lease_client.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/ids.h"
#include "common/log.h"
#include "common/status_macros.h"

namespace fargpu {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(5);
// A broker may be asking one node after another, 3 s each, before it answers.
constexpr absl::Duration kAllocateMargin = absl::Seconds(30);
// A call that no broker answered is repeated for so long.
constexpr absl::Duration kReconnect = absl::Seconds(5);

void SetTimeout(grpc::ClientContext* context, absl::Duration timeout) {
  context->set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
}

}  // namespace

absl::StatusOr<std::unique_ptr<BrokerClient>> BrokerClient::Connect(const std::string& address,
                                                                    const TlsFiles& tls,
                                                                    absl::Duration timeout) {
  ASSIGN_OR_RETURN(const BrokerAddress parsed, ParseBrokerAddress(address));
  ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel, MakeBrokerChannel(parsed, tls));
  auto client = std::unique_ptr<BrokerClient>(new BrokerClient(address, std::move(channel)));
  RETURN_IF_ERROR(client->WaitConnected(timeout));
  return client;
}

BrokerClient::BrokerClient(std::string address, std::shared_ptr<grpc::Channel> channel)
    : address_(std::move(address)),
      channel_(std::move(channel)),
      stub_(broker::v1::Broker::NewStub(channel_)) {}

absl::Status BrokerClient::CallUntilAnswered(
    absl::FunctionRef<grpc::Status(grpc::ClientContext*)> call) {
  absl::Time give_up = absl::InfiniteFuture();  // counted from the first time that nobody answered
  while (true) {
    grpc::ClientContext context;
    const grpc::Status status = call(&context);
    if (status.error_code() != grpc::StatusCode::UNAVAILABLE || IsAnswer(status)) {
      return FromGrpcStatus(status);
    }
    if (absl::Now() >= give_up) {
      return absl::UnavailableError(
          absl::StrCat("no broker at ", address_, " any more: ", status.error_message()));
    }
    if (give_up == absl::InfiniteFuture()) give_up = absl::Now() + kReconnect;
    absl::SleepFor(absl::Milliseconds(200));
    (void)WaitConnected(give_up - absl::Now());
  }
}

absl::Status BrokerClient::WaitConnected(absl::Duration timeout) {
  const auto deadline = std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout);
  grpc_connectivity_state state = channel_->GetState(/*try_to_connect=*/true);
  while (state != GRPC_CHANNEL_READY) {
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE || state == GRPC_CHANNEL_SHUTDOWN ||
        !channel_->WaitForStateChange(state, deadline)) {
      return absl::UnavailableError(absl::StrCat("no broker at ", address_));
    }
    state = channel_->GetState(/*try_to_connect=*/true);
  }
  return absl::OkStatus();
}

absl::StatusOr<LeaseFile> ToLeaseFile(const broker::v1::AllocateResponse& response) {
  LeaseFile file;
  const broker::v1::Lease& lease = response.lease();
  absl::StatusOr<LeaseId> id = ParseId<LeaseId>(lease.id());
  if (!id.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the broker's answer has no sound lease id: ", id.status().message()));
  }
  file.lease = *id;
  if (response.secret().size() != file.secret.bytes.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the broker's answer has a secret of ",
                                                   response.secret().size(), " bytes; expected ",
                                                   file.secret.bytes.size()));
  }
  std::memcpy(file.secret.bytes.data(), response.secret().data(), file.secret.bytes.size());
  for (const std::string& endpoint : lease.endpoints()) {
    // It becomes a line of a file.
    if (absl::StrContains(endpoint, '\n')) {
      return absl::InvalidArgumentError("the broker's answer has an endpoint of several lines");
    }
    file.endpoints.push_back(endpoint);
  }
  if (file.endpoints.empty()) {
    return absl::InvalidArgumentError("the broker's answer has no endpoint");
  }
  file.memory_bytes = lease.memory_bytes();
  file.cores_percent = lease.cores_percent();
  return file;
}

std::string LeaseNameFrom(absl::string_view name) {
  std::string result(name.substr(0, 63));
  for (char& c : result) {
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  }
  return result;
}

absl::StatusOr<std::unique_ptr<LeaseHolder>> LeaseHolder::Allocate(
    BrokerClient* client, broker::v1::AllocateRequest request) {
  if (request.request_id().empty()) request.set_request_id(ToString(RandomId<LeaseId>()));
  const absl::Duration limit = absl::Milliseconds(request.wait_ms()) + kAllocateMargin;
  broker::v1::AllocateResponse response;
  // The request id settles whether the lease was granted before the connection broke.
  RETURN_IF_ERROR(client->CallUntilAnswered([&](grpc::ClientContext* context) {
    SetTimeout(context, limit);
    return client->stub().Allocate(context, request, &response);
  }));
  ASSIGN_OR_RETURN(LeaseFile file, ToLeaseFile(response));
  return std::unique_ptr<LeaseHolder>(
      new LeaseHolder(client, std::move(file), std::move(*response.mutable_lease())));
}

LeaseHolder::LeaseHolder(BrokerClient* client, LeaseFile file, broker::v1::Lease lease)
    : client_(client),
      file_(std::move(file)),
      lease_(std::move(lease)),
      renew_every_(std::clamp(absl::Milliseconds(lease_.ttl_ms()) / 4, absl::Milliseconds(250),
                              absl::Seconds(60))),
      renewals_([this] { RunRenewals(); }) {}

LeaseHolder::~LeaseHolder() {
  if (!released_) (void)Release("");
}

void LeaseHolder::RunRenewals() {
  MutexLock lock(&mutex_);
  absl::Time next = absl::Now() + renew_every_;
  while (!stop_) {
    const absl::Duration left = next - absl::Now();
    if (left > absl::ZeroDuration()) {
      stopped_.WaitFor(&mutex_, absl::ToChronoNanoseconds(left));
      continue;
    }
    mutex_.Unlock();
    grpc::ClientContext context;
    SetTimeout(&context, std::min(kCallTimeout, renew_every_));
    broker::v1::RenewRequest request;
    request.set_lease_id(ToString(file_.lease));
    broker::v1::Lease lease;
    const absl::Status status = FromGrpcStatus(client_->stub().Renew(&context, request, &lease));
    if (!status.ok()) {
      FARGPU_LOG(kWarning, "lease ", ToString(file_.lease),
                 " could not be renewed: ", status.message());
    }
    mutex_.Lock();
    // An ended lease stays ended; there is nothing more to do.
    if (status.code() == absl::StatusCode::kFailedPrecondition ||
        status.code() == absl::StatusCode::kNotFound) {
      return;
    }
    next = absl::Now() + renew_every_;
  }
}

void LeaseHolder::StopRenewals() {
  {
    MutexLock lock(&mutex_);
    stop_ = true;
  }
  stopped_.Signal();
  if (renewals_.joinable()) renewals_.join();
}

absl::Status LeaseHolder::Release(const std::string& reason) {
  StopRenewals();
  released_ = true;
  broker::v1::ReleaseRequest request;
  request.set_lease_id(ToString(file_.lease));
  request.set_reason(reason);
  broker::v1::ReleaseResponse response;
  return client_->CallUntilAnswered([&](grpc::ClientContext* context) {
    SetTimeout(context, kCallTimeout);
    return client_->stub().Release(context, request, &response);
  });
}

}  // namespace fargpu
