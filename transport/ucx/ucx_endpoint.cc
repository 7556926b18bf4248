#include "transport/ucx/ucx_endpoint.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/log.h"
#include "common/status_macros.h"
#include "transport/signal_block.h"
#include "transport/ucx/ucx_connection.h"
#include "transport/ucx/ucx_library.h"
#include "transport/ucx/ucx_settings.h"

namespace fargpu::transport {
namespace {

absl::Status Failed(const UcxLibrary& ucx, absl::string_view function, ucs_status_t status) {
  return absl::FailedPreconditionError(absl::StrCat(function, ": ", ucx.status_string(status)));
}

// UCX trusts an address blindly, and aborts on a damaged one. So ours travels with a magic number
// and a checksum. That keeps accidents out, not malice: who may name an address has proved the
// lease's secret, and can end no more than the process of its own session.
constexpr uint32_t kAddressMagic = 0x41504746;  // "FGPA"
constexpr size_t kAddressPrefix = 8;
constexpr size_t kMaxAddressBytes = 64 << 10;

uint32_t Checksum(absl::string_view bytes) {  // FNV-1a
  uint32_t sum = 2166136261u;
  for (const char byte : bytes) sum = (sum ^ static_cast<uint8_t>(byte)) * 16777619u;
  return sum;
}

std::string WrapAddress(absl::string_view bytes) {
  const uint32_t prefix[2] = {kAddressMagic, Checksum(bytes)};
  std::string wrapped(reinterpret_cast<const char*>(prefix), kAddressPrefix);
  absl::StrAppend(&wrapped, bytes);
  return wrapped;
}

absl::StatusOr<absl::string_view> UnwrapAddress(absl::string_view wrapped) {
  uint32_t prefix[2];
  static_assert(sizeof(prefix) == kAddressPrefix);
  if (wrapped.size() <= kAddressPrefix || wrapped.size() > kMaxAddressBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the peer's UCX address cannot be ", wrapped.size(), " bytes long"));
  }
  std::memcpy(prefix, wrapped.data(), kAddressPrefix);
  wrapped.remove_prefix(kAddressPrefix);
  if (prefix[0] != kAddressMagic || prefix[1] != Checksum(wrapped)) {
    return absl::InvalidArgumentError("the peer's UCX address is damaged");
  }
  return wrapped;
}

absl::Status CreateContext(const UcxOptions& options, UcxWorker* worker) {
  const UcxLibrary& ucx = worker->ucx;
  ASSIGN_OR_RETURN(const auto settings, UcxSettings(options));
  ucp_config_t* config = nullptr;
  ucs_status_t status = ucx.config_read(nullptr, nullptr, &config);
  if (status != UCS_OK) return Failed(ucx, "ucp_config_read", status);
  for (const auto& [name, value] : settings) {
    status = ucx.config_modify(config, name.c_str(), value.c_str());
    if (status != UCS_OK) {
      ucx.config_release(config);
      return Failed(ucx, absl::StrCat("UCX setting ", name, "=", value), status);
    }
  }
  ucp_params_t params = {};
  params.field_mask = UCP_PARAM_FIELD_FEATURES;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  status = ucx.init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config, &worker->context);
  ucx.config_release(config);
  if (status != UCS_OK) return Failed(ucx, "ucp_init", status);
  return absl::OkStatus();
}

absl::Status CreateWorker(UcxWorker* worker) {
  const UcxLibrary& ucx = worker->ucx;
  ucp_worker_params_t params = {};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  ucs_status_t status = ucx.worker_create(worker->context, &params, &worker->worker);
  if (status != UCS_OK) return Failed(ucx, "ucp_worker_create", status);
  status = ucx.worker_get_efd(worker->worker, &worker->event_fd);
  if (status != UCS_OK) return Failed(ucx, "ucp_worker_get_efd", status);
  return absl::OkStatus();
}

class UcxEndpointImpl final : public UcxEndpoint {
 public:
  UcxEndpointImpl(std::unique_ptr<UcxWorker> worker, const UcxOptions& options, std::string address)
      : UcxEndpoint(options.session),
        worker_(std::move(worker)),
        options_(options),
        address_(std::move(address)) {}

  const std::string& local_address() const override { return address_; }

  absl::StatusOr<std::unique_ptr<Connection>> Connect(absl::string_view remote_address,
                                                      const SessionId& session) override {
    if (worker_ == nullptr) {
      return absl::FailedPreconditionError("this UCX endpoint was connected before");
    }
    ASSIGN_OR_RETURN(const absl::string_view address, UnwrapAddress(remote_address));
    UcxOptions options = options_;
    options.session = session;
    return UcxConnection::Open(std::move(worker_), options, address);
  }

 private:
  std::unique_ptr<UcxWorker> worker_;
  const UcxOptions options_;
  const std::string address_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<UcxEndpoint>> UcxEndpoint::Create(const UcxOptions& options) {
  const SignalBlock block;  // UCX starts a thread
  ASSIGN_OR_RETURN(const UcxLibrary* ucx, LoadUcx());
  auto worker = std::make_unique<UcxWorker>(*ucx);
  RETURN_IF_ERROR(CreateContext(options, worker.get()));
  RETURN_IF_ERROR(CreateWorker(worker.get()));
  worker->sweep.TakeInto(&worker->descriptors);

  ucp_worker_attr_t attributes = {};
  attributes.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS | UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER;
  const ucs_status_t status = ucx->worker_query(worker->worker, &attributes);
  if (status != UCS_OK) return Failed(*ucx, "ucp_worker_query", status);
  worker->max_header = attributes.max_am_header;
  std::string address = WrapAddress(absl::string_view(
      reinterpret_cast<const char*>(attributes.address), attributes.address_length));
  ucx->worker_release_address(worker->worker, attributes.address);
  return std::make_unique<UcxEndpointImpl>(std::move(worker), options, std::move(address));
}

}  // namespace fargpu::transport
