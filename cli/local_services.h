#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cli/home.h"
#include "cli/process.h"

namespace fargpu::cli {

// The environment variable by which `down` finds everything that an `up` started, also workers
// whose daemon is dead. Its value is the home's path.
inline constexpr char kMarkerVariable[] = "FARGPU_UP_HOME";

// What `up` starts on this machine, and `down` stops. `home` must be locked.
struct UpOptions {
  std::string driver = "softgpu";
  std::string node_name;                    // empty: this machine's name
  std::vector<std::string> daemon_options;  // passed through
  absl::Duration timeout = absl::Seconds(60);
};
// Starts what does not run yet and returns when the node is registered with its cards. If that
// fails, what this call started is stopped again. `summary` becomes a sentence for the user.
absl::Status StartServices(const Home& home, const UpOptions& options, std::string* summary);

// Stops everything; `stopped` becomes the number of processes. OK also if nothing ran.
absl::Status StopServices(const Home& home, int* stopped);

}  // namespace fargpu::cli
