#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "common/fd.h"

namespace fargpu::server {

struct SpawnedProcess {
  uint32_t pid = 0;
  UniqueFd pidfd;
};

// Starts a program in a session of its own, with `socket` as its descriptor 3, /dev/null as stdin
// and stdout, and our stderr. Nothing else is inherited that is close-on-exec; signals are as at a
// login.
absl::StatusOr<SpawnedProcess> Spawn(const std::vector<std::string>& command, int socket);

// A descriptor that becomes readable when the process ends; kNotFound when it has ended.
absl::StatusOr<UniqueFd> OpenPidfd(uint32_t pid);
void KillProcess(int pidfd);

// Whether `pid` runs the program at `path`.
bool RunsProgram(uint32_t pid, const std::string& path);

}  // namespace fargpu::server
