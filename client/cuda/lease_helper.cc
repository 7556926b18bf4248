#include "client/cuda/lease_helper.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/fd.h"
#include "common/status_macros.h"

extern char** environ;

namespace fargpu::client {
namespace {

// A broker may queue the request; how long is the helper's business (FARGPU_WAIT), but a program is
// not held for ever by a helper that says nothing.
constexpr absl::Duration kLimit = absl::Minutes(60);
constexpr size_t kMaxLeaseBytes = 64 << 10;

// Our end of the helper's input. Open as long as this process is.
std::atomic<int> helper_input{-1};

std::string FindHelper() {
  if (const char* named = std::getenv("FARGPU_LEASE_HELPER"); named != nullptr && *named != '\0') {
    return named;
  }
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&LeaseFromHelper), &info) != 0 && info.dli_fname != nullptr) {
    const std::string library = info.dli_fname;
    const size_t slash = library.rfind('/');
    if (slash != std::string::npos) {
      const std::string folder = library.substr(0, slash);
      // Beside the library, in a build tree, and where an installation has it
      // (PREFIX/lib/fargpu/client, PREFIX/bin).
      for (const char* place : {"", "/../bin", "/../../../bin"}) {
        const std::string candidate = absl::StrCat(folder, place, "/fargpu-lease");
        if (access(candidate.c_str(), X_OK) == 0) return candidate;
      }
    }
  }
  return "fargpu-lease";
}

struct Pipe {
  UniqueFd read;
  UniqueFd write;
};

absl::StatusOr<Pipe> MakePipe() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return ErrnoStatus("pipe");
  return Pipe{UniqueFd(fds[0]), UniqueFd(fds[1])};
}

// The helper's output up to the empty line that ends a lease, or all of it.
absl::StatusOr<std::string> ReadLease(int fd, absl::Time deadline) {
  std::string text;
  while (text.size() <= kMaxLeaseBytes) {
    RETURN_IF_ERROR(PollFd(fd, POLLIN, deadline));
    char buffer[4096];
    const ssize_t size = read(fd, buffer, sizeof(buffer));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) return ErrnoStatus("read from fargpu-lease");
    if (size == 0) return text;
    text.append(buffer, static_cast<size_t>(size));
    if (absl::EndsWith(text, "\n\n")) return text;
  }
  return absl::InvalidArgumentError("fargpu-lease prints more than a lease");
}

// The helper's own words about why there is no lease went to stderr; here is what is left to say.
absl::Status HelperFailed(pid_t pid, const std::string& helper, absl::string_view why) {
  int status = 0;
  const absl::Time deadline = absl::Now() + absl::Seconds(1);
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (absl::Now() > deadline) {
      kill(pid, SIGKILL);
      waitpid(pid, &status, 0);
      break;
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
  return absl::UnavailableError(absl::StrCat(
      "no lease from ", helper, ": ", why,
      WIFEXITED(status) ? absl::StrCat(" (exit status ", WEXITSTATUS(status), ")") : ""));
}

}  // namespace

absl::StatusOr<LeaseFile> LeaseFromHelper(const std::string& broker) {
  const std::string helper = FindHelper();
  ASSIGN_OR_RETURN(Pipe input, MakePipe());
  ASSIGN_OR_RETURN(Pipe output, MakePipe());

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input.read.get(), STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output.write.get(), STDOUT_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // A signal from the terminal is for the program; the helper ends when the program does.
  posix_spawnattr_setpgroup(&attributes, 0);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  char* arguments[] = {const_cast<char*>("fargpu-lease"), nullptr};
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, helper.c_str(), &actions, &attributes, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    errno = error;
    return absl::NotFoundError(
        absl::StrCat("FARGPU_BROKER is ", broker, ", but the helper that asks it cannot be run: ",
                     ErrnoStatus(helper).message(), " (FARGPU_LEASE_HELPER can name it)"));
  }
  output.write.reset();
  input.read.reset();
  const absl::StatusOr<std::string> text = ReadLease(output.read.get(), absl::Now() + kLimit);
  if (!text.ok()) return HelperFailed(pid, helper, text.status().message());
  absl::StatusOr<LeaseFile> lease = ParseLeaseFile(*text);
  if (!lease.ok()) {
    return HelperFailed(pid, helper, text->empty() ? "it gave none" : lease.status().message());
  }
  helper_input.store(input.write.release());
  return lease;
}

void LeaveHelperAfterFork() {
  const int fd = helper_input.exchange(-1);
  if (fd >= 0) close(fd);
}

}  // namespace fargpu::client
