#pragma once

#include <atomic>
#include <memory>
#include <new>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "client/nvml/nvml.h"
#include "common/no_cancellation.h"
#include "protocol/lease_view.h"

namespace fargpu::nvml {

// Asks the daemon that holds this process's lease (FARGPU_LEASE names its file) how it stands: one
// connection that is closed again, at most 5 s. No session and no CUDA context comes of it.
absl::StatusOr<LeaseView> LookAtLease();

// What nvmlInit and nvmlShutdown count, and the cards that handles stand for.
//
// There is no lock and no open descriptor, so a fork in any moment leaves the child a library that
// works: PyTorch asks NVML how many cards there are for this very reason.
class LeaseState {
 public:
  using Looker = absl::StatusOr<LeaseView> (*)();

  static LeaseState& Get();

  // NVML_ERROR_DRIVER_NOT_LOADED, and the reason at FARGPU_LOG=info, where no lease can be seen.
  nvmlReturn_t Init();
  nvmlReturn_t Shutdown();
  bool initialized() const { return users_.load() > 0; }
  // NVML_ERROR_UNINITIALIZED.
  nvmlReturn_t Check() const { return initialized() ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED; }

  // The cards as they were at the first Init: what of them does not change. Needs initialized().
  const LeaseView& cards() const { return *cards_.load(); }
  nvmlDevice_t HandleOf(size_t index);
  // Also checks that the library is initialised. NVML_ERROR_INVALID_ARGUMENT: no handle of ours.
  nvmlReturn_t IndexOf(nvmlDevice_t handle, size_t* index) const;

  // How the lease stands now. NVML_ERROR_GPU_IS_LOST where it is gone, NVML_ERROR_TIMEOUT where
  // its daemon does not answer.
  nvmlReturn_t Look(LeaseView* view) const;

  void SetLookerForTest(Looker looker) { looker_.store(looker); }

 private:
  static constexpr size_t kMaxCards = 64;

  std::atomic<Looker> looker_{&LookAtLease};
  std::atomic<int> users_{0};
  // Replaced, and the old one leaked, only if the cards are other ones: handles may be in use.
  std::atomic<const LeaseView*> cards_{nullptr};
  char handles_[kMaxCards] = {};  // a handle is the address of one
};

// Runs `function`, an nvmlReturn_t(), as the body of an entry point: no exception gets out.
template <typename Function>
nvmlReturn_t AtNvmlEdge(Function&& function) noexcept {
  const NoCancellation whole;
  try {
    return function();
  } catch (const std::bad_alloc&) {
    return NVML_ERROR_MEMORY;
  } catch (...) {
    return NVML_ERROR_UNKNOWN;
  }
}

// NVML's way to give text: NVML_ERROR_INSUFFICIENT_SIZE where it does not fit with its end.
nvmlReturn_t GiveText(const std::string& text, char* out, uint32_t size);

// "GPU-5f1c2a3b-...", as NVIDIA prints it.
std::string UuidText(const DeviceInfo& device);

}  // namespace fargpu::nvml
