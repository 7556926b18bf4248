#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace fargpu::cli {

// A process, told from a later one with the same number by when it started.
struct ProcessId {
  pid_t pid = 0;
  uint64_t start_time = 0;  // clock ticks since boot, field 22 of /proc/PID/stat
  bool operator==(const ProcessId&) const = default;
};

// kNotFound: there is no such process (a zombie counts as none).
absl::StatusOr<ProcessId> IdentifyProcess(pid_t pid);
bool IsAlive(const ProcessId& process);

// kNotFound: no such file. kInvalidArgument: it holds something else.
absl::StatusOr<ProcessId> ReadPidFile(const std::string& path);
absl::Status WritePidFile(const std::string& path, const ProcessId& process);

struct BackgroundProgram {
  std::vector<std::string> arguments;                            // [0] is the program's path
  std::vector<std::pair<std::string, std::string>> environment;  // added to ours
  std::string working_directory;
  std::string log_path;  // its stdout and stderr, appended
};
// Starts it in a session of its own, with no descriptor of ours but the log.
absl::StatusOr<ProcessId> StartInBackground(const BackgroundProgram& program);
// Sends SIGTERM, and SIGKILL if it has not ended after `grace`. OK when the process is gone.
absl::Status StopProcess(const ProcessId& process, absl::Duration grace);

// Processes of this user whose environment has NAME=VALUE.
std::vector<ProcessId> FindProcessesByEnvironment(const std::string& name,
                                                  const std::string& value);

// Our environment with `changes` made to it, as "NAME=VALUE".
std::vector<std::string> EnvironmentWith(
    const std::vector<std::pair<std::string, std::string>>& changes);
// For the exec family: pointers into `strings`, then null.
std::vector<char*> PointersTo(std::vector<std::string>& strings);

}  // namespace fargpu::cli
