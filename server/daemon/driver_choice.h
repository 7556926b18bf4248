#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace fargpu::server {

// A driver library that may be used.
struct DriverCandidate {
  std::string path;
  // It promises that memory it hands out holds no bytes of others.
  bool fresh_memory_is_zero = false;
};

// What `--driver` stands for, in the order in which to try: "nvidia", "softgpu", the path of a
// library, or, where nothing is said, NVIDIA's and then softgpu's. kNotFound: there is none.
absl::StatusOr<std::vector<DriverCandidate>> DriverCandidates(absl::string_view driver);

}  // namespace fargpu::server
