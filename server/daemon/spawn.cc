#include "server/daemon/spawn.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

#include "common/status_macros.h"

extern char** environ;

namespace fargpu::server {

absl::StatusOr<SpawnedProcess> Spawn(const std::vector<std::string>& command, int socket) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  const absl::Cleanup destroy = [&] {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  };
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, socket, STDERR_FILENO + 1);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  std::vector<char*> arguments;
  for (const std::string& argument : command) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  pid_t pid = 0;
  const int result =
      posix_spawn(&pid, command.front().c_str(), &actions, &attributes, arguments.data(), environ);
  if (result != 0) {
    return absl::UnavailableError(
        absl::StrCat("start ", command.front(), ": ", strerrordesc_np(result)));
  }
  SpawnedProcess process;
  process.pid = static_cast<uint32_t>(pid);
  // Our child: its pid cannot be used again before we have waited for it.
  absl::StatusOr<UniqueFd> pidfd = OpenPidfd(process.pid);
  if (!pidfd.ok()) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return pidfd.status();
  }
  process.pidfd = std::move(*pidfd);
  return process;
}

absl::StatusOr<UniqueFd> OpenPidfd(uint32_t pid) {
  // Close-on-exec by nature.
  UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0)));
  if (!pidfd.valid()) return ErrnoStatus(absl::StrCat("pidfd_open of process ", pid));
  return pidfd;
}

void KillProcess(int pidfd) { syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, nullptr, 0); }

bool RunsProgram(uint32_t pid, const std::string& path) {
  std::error_code error;
  std::string program =
      std::filesystem::read_symlink(absl::StrCat("/proc/", pid, "/exe"), error).string();
  if (error) return false;
  // What was replaced while it runs, by an update, is called so.
  constexpr char kDeleted[] = " (deleted)";
  if (program.size() > strlen(kDeleted) &&
      program.compare(program.size() - strlen(kDeleted), std::string::npos, kDeleted) == 0) {
    program.resize(program.size() - strlen(kDeleted));
  }
  const std::string real = std::filesystem::weakly_canonical(path, error).string();
  return program == real;
}

}  // namespace fargpu::server
