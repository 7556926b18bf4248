#include "transport/ucx/ucx_endpoint.h"

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
    UcxOptions options = options_;
    options.session = session;
    return UcxConnection::Open(std::move(worker_), options, remote_address);
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
  std::string address(reinterpret_cast<const char*>(attributes.address), attributes.address_length);
  ucx->worker_release_address(worker->worker, attributes.address);
  return std::make_unique<UcxEndpointImpl>(std::move(worker), options, std::move(address));
}

}  // namespace fargpu::transport
