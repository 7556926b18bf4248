#include "cli/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "cli/home.h"

#include "common/fd.h"
#include "common/status_macros.h"

namespace fargpu::cli {

absl::StatusOr<ProcessId> IdentifyProcess(pid_t pid) {
  const absl::Status none = absl::NotFoundError(absl::StrCat("no process ", pid));
  const absl::StatusOr<std::string> stat = ReadSmallFile(absl::StrCat("/proc/", pid, "/stat"));
  if (!stat.ok()) return none;
  // The name, field 2, is in parentheses and may hold anything, so count from its end.
  const size_t name_end = stat->rfind(')');
  if (name_end == std::string::npos) return none;
  const std::vector<absl::string_view> fields =
      absl::StrSplit(absl::string_view(*stat).substr(name_end + 1), ' ', absl::SkipEmpty());
  constexpr size_t kState = 0;       // field 3
  constexpr size_t kStartTime = 19;  // field 22
  uint64_t start_time = 0;
  if (fields.size() <= kStartTime || fields[kState] == "Z" || fields[kState] == "X" ||
      !absl::SimpleAtoi(fields[kStartTime], &start_time)) {
    return none;
  }
  return ProcessId{.pid = pid, .start_time = start_time};
}

bool IsAlive(const ProcessId& process) {
  const absl::StatusOr<ProcessId> present = IdentifyProcess(process.pid);
  return present.ok() && *present == process;
}

absl::StatusOr<ProcessId> ReadPidFile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(path));
  const std::vector<absl::string_view> words =
      absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  ProcessId process;
  if (words.size() != 2 || !absl::SimpleAtoi(words[0], &process.pid) || process.pid < 2 ||
      !absl::SimpleAtoi(words[1], &process.start_time)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " does not hold a process number and a start time"));
  }
  return process;
}

absl::Status WritePidFile(const std::string& path, const ProcessId& process) {
  return WriteFileAtomically(path, absl::StrCat(process.pid, " ", process.start_time, "\n"));
}

std::vector<std::string> EnvironmentWith(
    const std::vector<std::pair<std::string, std::string>>& changes) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view text = *entry;
    const bool changed = std::any_of(changes.begin(), changes.end(), [&](const auto& change) {
      return absl::StartsWith(text, absl::StrCat(change.first, "="));
    });
    if (!changed) result.emplace_back(text);
  }
  for (const auto& [name, value] : changes) result.push_back(absl::StrCat(name, "=", value));
  return result;
}

std::vector<char*> PointersTo(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

absl::StatusOr<ProcessId> StartInBackground(const BackgroundProgram& program) {
  UniqueFd log(open(program.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log.valid()) return ErrnoStatus(absl::StrCat("open ", program.log_path));
  std::vector<std::string> arguments = program.arguments;
  std::vector<std::string> environment = EnvironmentWith(program.environment);

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, log.get(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, log.get(), STDERR_FILENO);
  // A pipe of our caller that stayed open in the background would keep the caller waiting.
  posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
  posix_spawn_file_actions_addchdir_np(&actions, program.working_directory.c_str());
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  sigset_t all;
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  pid_t pid = 0;
  const int error = posix_spawn(&pid, arguments[0].c_str(), &actions, &attributes,
                                PointersTo(arguments).data(), PointersTo(environment).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot start ", arguments[0], ": ", std::generic_category().message(error)));
  }
  absl::StatusOr<ProcessId> process = IdentifyProcess(pid);
  if (!process.ok()) {
    return absl::UnavailableError(absl::StrCat(arguments[0], " ended at once"));
  }
  return process;
}

absl::Status StopProcess(const ProcessId& process, absl::Duration grace) {
  const auto gone_by = [&](absl::Time deadline) {
    while (true) {
      // If it is our child, a zombie of it is not to stay.
      (void)waitpid(process.pid, nullptr, WNOHANG);
      if (!IsAlive(process)) return true;
      if (absl::Now() >= deadline) return false;
      absl::SleepFor(absl::Milliseconds(20));
    }
  };
  for (const auto& [signal, patience] :
       {std::pair(SIGTERM, grace), std::pair(SIGKILL, absl::Seconds(5))}) {
    if (gone_by(absl::InfinitePast())) return absl::OkStatus();
    if (kill(process.pid, signal) != 0 && errno != ESRCH) {
      return ErrnoStatus(absl::StrCat("kill process ", process.pid));
    }
    if (gone_by(absl::Now() + patience)) return absl::OkStatus();
  }
  return absl::DeadlineExceededError(
      absl::StrCat("process ", process.pid, " does not end, even by SIGKILL"));
}

std::vector<ProcessId> FindProcessesByEnvironment(const std::string& name,
                                                  const std::string& value) {
  std::vector<ProcessId> found;
  const std::string wanted = absl::StrCat(name, "=", value);
  DIR* const directory = opendir("/proc");
  if (directory == nullptr) return found;
  while (const dirent* entry = readdir(directory)) {
    pid_t pid = 0;
    if (!absl::SimpleAtoi(entry->d_name, &pid) || pid == getpid()) continue;
    // Readable for processes of this user only, which is as wanted.
    std::ifstream file(absl::StrCat("/proc/", pid, "/environ"), std::ios::binary);
    std::string variable;
    while (std::getline(file, variable, '\0')) {
      if (variable != wanted) continue;
      if (const absl::StatusOr<ProcessId> process = IdentifyProcess(pid); process.ok()) {
        found.push_back(*process);
      }
      break;
    }
  }
  closedir(directory);
  return found;
}

}  // namespace fargpu::cli
