#include "server/daemon/driver_choice.h"

#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"

#include "common/install_paths.h"
#include "common/status_macros.h"

namespace fargpu::server {
namespace {

// Where installers put it. The name alone would also find our own client library, if it is in
// LD_LIBRARY_PATH.
constexpr const char* kNvidiaPaths[] = {"/usr/lib/x86_64-linux-gnu/libcuda.so.1",
                                        "/usr/lib64/libcuda.so.1",
                                        "/usr/lib/libcuda.so.1",
                                        "/usr/local/nvidia/lib64/libcuda.so.1",
                                        "/usr/lib/wsl/lib/libcuda.so.1",
                                        "/usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.1"};

void AddNvidia(std::vector<DriverCandidate>* candidates) {
  if (const char* path = std::getenv("FARGPU_NVIDIA_LIB"); path != nullptr && *path != '\0') {
    candidates->push_back({.path = path, .fresh_memory_is_zero = false});
    return;
  }
  for (const char* path : kNvidiaPaths) {
    if (access(path, R_OK) == 0) {
      candidates->push_back({.path = path, .fresh_memory_is_zero = false});
    }
  }
}

absl::Status AddSoftgpu(std::vector<DriverCandidate>* candidates) {
  std::string path;
  if (const char* given = std::getenv("FARGPU_SOFTGPU_LIB"); given != nullptr && *given != '\0') {
    path = given;
  } else {
    ASSIGN_OR_RETURN(path, SoftgpuLibraryPath());
  }
  // Its memory comes fresh from the operating system.
  candidates->push_back({.path = path, .fresh_memory_is_zero = true});
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<DriverCandidate>> DriverCandidates(absl::string_view driver) {
  std::vector<DriverCandidate> candidates;
  if (driver == "nvidia") {
    AddNvidia(&candidates);
    if (candidates.empty()) {
      return absl::NotFoundError(
          "no NVIDIA driver (libcuda.so.1) on this machine; FARGPU_NVIDIA_LIB can name it");
    }
    return candidates;
  }
  if (driver == "softgpu") {
    RETURN_IF_ERROR(AddSoftgpu(&candidates));
    return candidates;
  }
  if (!driver.empty() && driver != "auto") {
    candidates.push_back({.path = std::string(driver), .fresh_memory_is_zero = false});
    return candidates;
  }
  AddNvidia(&candidates);
  const absl::Status softgpu = AddSoftgpu(&candidates);
  if (candidates.empty()) return softgpu;
  return candidates;
}

}  // namespace fargpu::server
