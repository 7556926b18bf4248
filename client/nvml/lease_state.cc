#include "client/nvml/lease_state.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"

#include "client/cuda/standard_descriptors.h"
#include "common/ids.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "protocol/lease_file.h"
#include "transport/control/control_channel.h"

namespace fargpu::nvml {
namespace {

constexpr absl::Duration kLookLimit = absl::Seconds(5);

absl::StatusOr<LeaseView> LookThrough(const std::string& endpoint, const LeaseFile& lease,
                                      absl::Time deadline) {
  ASSIGN_OR_RETURN(const std::unique_ptr<transport::ControlChannel> channel,
                   transport::Dial(endpoint, lease.lease, lease.secret, deadline));
  Hello hello;
  hello.features = kFeatureLook;
  hello.pid = static_cast<uint32_t>(getpid());
  std::vector<char> bytes;
  wire::EncodeMessage(hello, &bytes);
  // A daemon that turns us away says why before it closes.
  const absl::Status sent = channel->Send(absl::string_view(bytes.data(), bytes.size()), deadline);
  const absl::StatusOr<std::string> answer = channel->Receive(deadline);
  if (!answer.ok())
    return sent.ok() || !absl::IsUnavailable(answer.status()) ? answer.status() : sent;
  LeaseView view;
  RETURN_IF_ERROR(wire::DecodeMessage(absl::MakeConstSpan(answer->data(), answer->size()), &view));
  if (view.refusal != 0) {
    return absl::Status(static_cast<absl::StatusCode>(view.refusal), view.message);
  }
  RETURN_IF_ERROR(CheckLeaseView(view));
  return view;
}

bool SameCards(const LeaseView& a, const LeaseView& b) {
  if (a.devices.size() != b.devices.size()) return false;
  for (size_t i = 0; i < a.devices.size(); ++i) {
    if (a.devices[i].uuid != b.devices[i].uuid) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<LeaseView> LookAtLease() {
  const char* path = std::getenv("FARGPU_LEASE");
  if (path == nullptr || *path == '\0') {
    // With FARGPU_BROKER alone libcuda.so.1 gets a lease of its own in cuInit; another one for the
    // asking would show a card that the program does not compute on.
    return absl::NotFoundError("FARGPU_LEASE names no lease file; `fargpu run` sets it");
  }
  ASSIGN_OR_RETURN(const LeaseFile lease, ReadLeaseFile(path));
  const client::StandardDescriptorsTaken taken;
  const absl::Time deadline = absl::Now() + kLookLimit;
  std::vector<std::string> reasons;
  absl::StatusCode code = absl::StatusCode::kUnavailable;
  for (const std::string& endpoint : lease.endpoints) {
    absl::StatusOr<LeaseView> view = LookThrough(endpoint, lease, deadline);
    if (view.ok()) return view;
    code = view.status().code();
    reasons.push_back(absl::StrCat(endpoint, ": ", view.status().message()));
  }
  return absl::Status(code, absl::StrCat("lease ", ToString(lease.lease),
                                         " cannot be seen: ", absl::StrJoin(reasons, "; ")));
}

LeaseState& LeaseState::Get() {
  static LeaseState* const state = new LeaseState;  // never destroyed: calls come in until the end
  return *state;
}

nvmlReturn_t LeaseState::Init() {
  if (!initialized()) {
    absl::StatusOr<LeaseView> view = looker_.load()();
    if (view.ok() && view->devices.size() > kMaxCards) {
      view = absl::OutOfRangeError(absl::StrCat(view->devices.size(), " cards"));
    }
    if (!view.ok()) {
      FARGPU_LOG(kInfo, "nvmlInit: ", std::string(view.status().message()));
      return NVML_ERROR_DRIVER_NOT_LOADED;
    }
    const LeaseView* known = cards_.load();
    if (known == nullptr || !SameCards(*known, *view))
      cards_.store(new LeaseView(*std::move(view)));
  }
  users_.fetch_add(1);
  return NVML_SUCCESS;
}

nvmlReturn_t LeaseState::Shutdown() {
  int users = users_.load();
  do {
    if (users == 0) return NVML_ERROR_UNINITIALIZED;
  } while (!users_.compare_exchange_weak(users, users - 1));
  return NVML_SUCCESS;
}

nvmlDevice_t LeaseState::HandleOf(size_t index) {
  return reinterpret_cast<nvmlDevice_t>(&handles_[index]);
}

nvmlReturn_t LeaseState::IndexOf(nvmlDevice_t handle, size_t* index) const {
  if (!initialized()) return NVML_ERROR_UNINITIALIZED;
  const uintptr_t offset =
      reinterpret_cast<uintptr_t>(handle) - reinterpret_cast<uintptr_t>(handles_);
  if (offset >= cards().devices.size()) return NVML_ERROR_INVALID_ARGUMENT;
  *index = offset;
  return NVML_SUCCESS;
}

nvmlReturn_t LeaseState::Look(LeaseView* view) const {
  absl::StatusOr<LeaseView> now = looker_.load()();
  if (now.ok() && !SameCards(*now, cards())) now = absl::NotFoundError("the lease is another one");
  if (!now.ok()) {
    FARGPU_LOG(kInfo, "NVML: ", std::string(now.status().message()));
    return absl::IsDeadlineExceeded(now.status()) ? NVML_ERROR_TIMEOUT : NVML_ERROR_GPU_IS_LOST;
  }
  *view = *std::move(now);
  return NVML_SUCCESS;
}

nvmlReturn_t GiveText(const std::string& text, char* out, uint32_t size) {
  if (out == nullptr) return NVML_ERROR_INVALID_ARGUMENT;
  if (size <= text.size()) return NVML_ERROR_INSUFFICIENT_SIZE;
  std::memcpy(out, text.c_str(), text.size() + 1);
  return NVML_SUCCESS;
}

std::string UuidText(const DeviceInfo& device) {
  const std::string hex = BytesToHex(device.uuid);
  return absl::StrCat("GPU-", hex.substr(0, 8), "-", hex.substr(8, 4), "-", hex.substr(12, 4), "-",
                      hex.substr(16, 4), "-", hex.substr(20));
}

}  // namespace fargpu::nvml
