// fargpu run: a program with a lease.
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <system_error>
#include <thread>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "cli/home.h"
#include "cli/process.h"
#include "cli/verb.h"

#include "common/install_paths.h"
#include "common/memory_size.h"
#include "common/software_card.h"
#include "common/status_macros.h"
#include "protocol/lease_file.h"

namespace fargpu::cli {
namespace {

// Short, because we renew: a lease whose `fargpu run` was killed is free again after this.
constexpr absl::Duration kTtl = absl::Seconds(60);

struct RunOptions {
  std::string memory;
  uint32_t cores = 100;
  uint32_t count = 1;
  std::string name;
  std::string tenant;
  std::string queue;
  double wait_seconds = 0;
  std::vector<std::string> command;
};

// What this process should do with signals, as its parent wanted it.
struct SignalState {
  sigset_t mask;
  bool sigpipe_ignored;

  // Call it before gRPC, which ignores SIGPIPE; a program must not inherit that from us.
  static SignalState Capture() {
    SignalState state;
    pthread_sigmask(SIG_BLOCK, nullptr, &state.mask);
    struct sigaction action;
    sigaction(SIGPIPE, nullptr, &action);
    state.sigpipe_ignored = action.sa_handler == SIG_IGN;
    return state;
  }
};

// Passed on when somebody sends them to us alone. Keys of a terminal reach the program by
// themselves, because it is in our process group.
sigset_t ForwardedSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD}) {
    sigaddset(&set, signal);
  }
  return set;
}

absl::StatusOr<std::string> WriteLease(const LeaseFile& lease) {
  ASSIGN_OR_RETURN(const Home home, Home::Locate());
  RETURN_IF_ERROR(home.Make());
  const std::string directory = home.File("leases");
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrnoStatus(absl::StrCat("mkdir ", directory));
  }
  const std::string path = absl::StrCat(directory, "/", ToString(lease.lease));
  RETURN_IF_ERROR(WriteLeaseFile(path, lease));
  return path;
}

// Waits for `child` and passes signals on. The status as a shell gives it.
int WaitForProgram(pid_t child, int signal_fd) {
  while (true) {
    int status = 0;
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child && WIFEXITED(status)) return WEXITSTATUS(status);
    if (ended == child && WIFSIGNALED(status)) return 128 + WTERMSIG(status);
    signalfd_siginfo info;
    if (read(signal_fd, &info, sizeof(info)) != static_cast<ssize_t>(sizeof(info))) continue;
    const int signal = static_cast<int>(info.ssi_signo);
    // ssi_code > 0: the kernel sent it for the terminal, to the whole foreground group.
    if (signal != SIGCHLD && info.ssi_code <= 0) kill(child, signal);
  }
}

// Connects and allocates on a thread of its own, while this one looks out for signals: the mask
// that keeps them from gRPC's threads would keep the user's Ctrl-C from ending the wait.
struct Allocation {
  absl::StatusOr<std::unique_ptr<BrokerClient>> client = absl::UnknownError("not connected");
  absl::StatusOr<std::unique_ptr<LeaseHolder>> lease = absl::UnknownError("not allocated");
};
std::unique_ptr<Allocation> Allocate(const GlobalOptions& globals,
                                     const broker::v1::AllocateRequest& request, int signal_fd,
                                     const sigset_t& forwarded) {
  auto allocation = std::make_unique<Allocation>();
  const UniqueFd done(eventfd(0, EFD_CLOEXEC));
  std::thread worker([&] {
    allocation->client = ConnectToBroker(globals);
    if (allocation->client.ok()) {
      allocation->lease = LeaseHolder::Allocate(allocation->client->get(), request);
    } else {
      allocation->lease = allocation->client.status();
    }
    eventfd_write(done.get(), 1);
  });
  pollfd events[] = {{done.get(), POLLIN, 0}, {signal_fd, POLLIN, 0}};
  while (events[0].revents == 0) {
    if (poll(events, 2, -1) < 0 || events[1].revents == 0) continue;
    signalfd_siginfo info;
    if (read(signal_fd, &info, sizeof(info)) != static_cast<ssize_t>(sizeof(info)) ||
        info.ssi_signo == SIGCHLD) {
      continue;
    }
    // The broker sees the connection end and forgets the request.
    pthread_sigmask(SIG_UNBLOCK, &forwarded, nullptr);
    raise(static_cast<int>(info.ssi_signo));
    // It was ignored, by our parent's wish.
    pthread_sigmask(SIG_BLOCK, &forwarded, nullptr);
  }
  worker.join();
  return allocation;
}

// For LD_LIBRARY_PATH: our libcuda.so.1, and if all cards are software ones, what makes NVIDIA's
// run-time compilers give PTX (softgpu/standins), where it is installed.
std::string LibraryFolders(const std::string& client_folder, const broker::v1::Lease& lease) {
  for (const broker::v1::LeasedDevice& device : lease.devices()) {
    if (!IsSoftwareCard(device.uuid())) return client_folder;
  }
  const absl::StatusOr<std::string> softgpu = SoftgpuLibraryPath();
  if (lease.devices().empty() || !softgpu.ok()) return client_folder;
  const std::filesystem::path standins = std::filesystem::path(*softgpu).parent_path() / "standins";
  if (!std::filesystem::is_directory(standins)) return client_folder;
  return absl::StrCat(client_folder, ":", standins.string());
}

int Run(const GlobalOptions& globals, const RunOptions& options) {
  const SignalState signals = SignalState::Capture();
  // Before gRPC makes threads, which must not take these from us.
  const sigset_t forwarded = ForwardedSignals();
  pthread_sigmask(SIG_BLOCK, &forwarded, nullptr);
  const UniqueFd signal_fd(signalfd(-1, &forwarded, SFD_CLOEXEC));
  if (!signal_fd.valid()) return Fail(ErrnoStatus("signalfd"), kExitRunFailed);

  const absl::StatusOr<uint64_t> memory_mib = ParseMemoryMib(options.memory);
  if (!memory_mib.ok()) {
    return Fail(
        absl::InvalidArgumentError(absl::StrCat("--memory: ", memory_mib.status().message())),
        kExitRunFailed);
  }
  if (std::isnan(options.wait_seconds)) {
    return Fail(absl::InvalidArgumentError("--wait: nan is no number of seconds"), kExitRunFailed);
  }
  const absl::StatusOr<std::string> library_dir = ClientLibraryDir();
  if (!library_dir.ok()) return Fail(library_dir.status(), kExitRunFailed);

  broker::v1::AllocateRequest request;
  request.set_tenant(options.tenant);
  request.set_queue(options.queue);
  request.set_name(
      !options.name.empty()
          ? options.name
          : LeaseNameFrom(std::filesystem::path(options.command[0]).filename().string()));
  request.set_memory_mib(*memory_mib);
  request.set_cores_percent(options.cores);
  request.set_count(options.count);
  request.set_wait_ms(static_cast<uint64_t>(options.wait_seconds * 1000));
  request.set_ttl_ms(absl::ToInt64Milliseconds(kTtl));
  const std::unique_ptr<Allocation> allocation =
      Allocate(globals, request, signal_fd.get(), forwarded);
  absl::StatusOr<std::unique_ptr<LeaseHolder>>& lease = allocation->lease;
  if (!lease.ok()) return Fail(lease.status(), kExitRunFailed);

  const absl::StatusOr<std::string> lease_path = WriteLease((*lease)->file());
  if (!lease_path.ok()) return Fail(lease_path.status(), kExitRunFailed);
  const absl::Cleanup remove_file = [&] { unlink(lease_path->c_str()); };

  const std::string folders = LibraryFolders(*library_dir, (*lease)->lease());
  const char* const old_path = std::getenv("LD_LIBRARY_PATH");
  std::vector<std::string> environment =
      EnvironmentWith({{"FARGPU_LEASE", *lease_path},
                       {"LD_LIBRARY_PATH", old_path != nullptr && *old_path != '\0'
                                               ? absl::StrCat(folders, ":", old_path)
                                               : folders}});
  std::vector<std::string> command = options.command;
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setsigmask(&attributes, &signals.mask);
  sigset_t defaults;
  sigemptyset(&defaults);
  if (!signals.sigpipe_ignored) sigaddset(&defaults, SIGPIPE);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  pid_t child = 0;
  const int error = posix_spawnp(&child, command[0].c_str(), nullptr, &attributes,
                                 PointersTo(command).data(), PointersTo(environment).data());
  posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    return Fail(absl::NotFoundError(absl::StrCat("cannot run ", command[0], ": ",
                                                 std::generic_category().message(error))),
                error == ENOENT ? kExitNotFound : kExitCannotExecute);
  }
  const int exit_status = WaitForProgram(child, signal_fd.get());
  if (absl::Status released = (*lease)->Release("its program ended"); !released.ok()) {
    Fail(absl::Status(released.code(),
                      absl::StrCat("lease ", ToString((*lease)->file().lease),
                                   " could not be released (", released.message(),
                                   "); it ends by itself within ", absl::FormatDuration(kTtl))));
  }
  return exit_status;
}

}  // namespace

void AddRun(CLI::App& app, const GlobalOptions& globals, Action* action) {
  const auto options = std::make_shared<RunOptions>();
  CLI::App* verb = app.add_subcommand("run", "Run a CUDA program on a slice of a far card");
  verb->add_option("--memory,-m", options->memory,
                   "Memory of each card: 4GiB, 512MiB or a number of MiB")
      ->required();
  verb->add_option("--cores,-c", options->cores, "Compute of each card, in per cent")
      ->capture_default_str()
      ->check(CLI::Range(1, 100));
  verb->add_option("--count,-n", options->count, "How many cards")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  verb->add_option("--name", options->name,
                   "Shown in `fargpu leases` (default: the program's name)");
  verb->add_option("--tenant", options->tenant, "Who asks");
  verb->add_option("--queue", options->queue, "Where to wait");
  verb->add_option("--wait", options->wait_seconds,
                   "Seconds to wait for cards to become free before giving up")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 86400.0));
  verb->add_option("COMMAND", options->command, "The program and its arguments, after --")
      ->required();
  verb->footer(
      "Exit status: the program's; 128+N if signal N ended it; 125 if it got no lease; 126 or 127 "
      "if\n"
      "it cannot be executed or is not found.\n\n"
      "Example:\n  fargpu run --memory 4GiB --cores 30 -- ./app --its-own-option");
  verb->callback([&globals, options, action] {
    *action = [&globals, options] { return Run(globals, *options); };
  });
}

}  // namespace fargpu::cli
