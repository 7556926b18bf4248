// fargpud: lends the cards of one machine. See README.md.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include <CLI/CLI.hpp>

#include "common/fd.h"
#include "common/install_paths.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "server/daemon/broker_link.h"
#include "server/daemon/driver_choice.h"
#include "server/daemon/front_door.h"
#include "server/daemon/lease_table.h"
#include "server/daemon/worker_pool.h"
#include "server/process/log_setup.h"

namespace fargpu::server {
namespace {

constexpr absl::Duration kProbeLimit = absl::Seconds(60);

struct Options {
  std::string broker;
  std::string node;
  std::string run_dir;
  std::vector<std::string> listen;
  std::string driver = "auto";
  std::string log_level = "info";
  int workers = 2;
};

// Held for as long as the daemon lives; the kernel gives it back when it dies.
absl::StatusOr<UniqueFd> LockRunDir(const std::string& run_dir) {
  if (mkdir(run_dir.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrnoStatus(absl::StrCat("mkdir ", run_dir));
  }
  const std::string path = absl::StrCat(run_dir, "/fargpud.lock");
  UniqueFd lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.valid()) return ErrnoStatus(absl::StrCat("open ", path));
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoStatus(absl::StrCat("lock ", path));
    return absl::AlreadyExistsError(absl::StrCat("another fargpud runs in ", run_dir,
                                                 "; stop it or give this one another --run-dir"));
  }
  return lock;
}

// The first driver that works and has a device, and its devices.
absl::StatusOr<std::vector<DeviceInfo>> ChooseDriver(const std::string& driver,
                                                     WorkerCommand* command) {
  ASSIGN_OR_RETURN(const std::vector<DriverCandidate> candidates, DriverCandidates(driver));
  std::vector<std::string> reasons;
  for (const DriverCandidate& candidate : candidates) {
    command->driver = candidate.path;
    command->fresh_memory_is_zero = candidate.fresh_memory_is_zero;
    absl::StatusOr<std::vector<DeviceInfo>> devices =
        ProbeDriver(*command, absl::Now() + kProbeLimit);
    if (devices.ok()) {
      FARGPU_LOG(kInfo, "driver ", candidate.path, " with ", devices->size(),
                 devices->size() == 1 ? " device, " : " devices, the first ",
                 devices->front().name);
      return devices;
    }
    reasons.push_back(absl::StrCat(candidate.path, ": ", devices.status().message()));
  }
  return absl::NotFoundError(absl::StrCat("no driver works: ", absl::StrJoin(reasons, "; ")));
}

absl::Status Run(const Options& options, const sigset_t& signals) {
  std::error_code error;
  const std::string run_dir = std::filesystem::absolute(options.run_dir, error).string();
  if (error) return absl::InvalidArgumentError(absl::StrCat("--run-dir: ", error.message()));
  BrokerLink::Options broker;
  ASSIGN_OR_RETURN(broker.address, ParseBrokerAddress(options.broker));
  broker.tls = TlsFilesFromEnvironment();
  broker.node_name = options.node;
  ASSIGN_OR_RETURN(const UniqueFd lock, LockRunDir(run_dir));

  WorkerCommand command;
  command.run_dir = run_dir;
  command.log_level = options.log_level;
  ASSIGN_OR_RETURN(command.program, ProgramPath("fargpu-worker"));
  ASSIGN_OR_RETURN(std::vector<DeviceInfo> devices, ChooseDriver(options.driver, &command));
  ASSIGN_OR_RETURN(const std::unique_ptr<LeaseTable> leases,
                   LeaseTable::Open(absl::StrCat(run_dir, "/leases"), std::move(devices)));
  WorkerPool::Options pool;
  pool.command = command;
  pool.warm = options.workers;
  ASSIGN_OR_RETURN(const std::unique_ptr<WorkerPool> workers,
                   WorkerPool::Start(std::move(pool), leases.get()));
  FrontDoor::Options door_options;
  // Clients on this machine take the first that they can reach.
  door_options.listen = {absl::StrCat("unix:", run_dir, "/fargpud.sock")};
  door_options.listen.insert(door_options.listen.end(), options.listen.begin(),
                             options.listen.end());
  ASSIGN_OR_RETURN(std::unique_ptr<FrontDoor> door,
                   FrontDoor::Open(std::move(door_options), leases.get(), workers.get()));
  broker.endpoints = door->endpoints();
  FARGPU_LOG(kInfo, "listening on ", absl::StrJoin(broker.endpoints, ", "));
  ASSIGN_OR_RETURN(std::unique_ptr<BrokerLink> link,
                   BrokerLink::Start(std::move(broker), leases.get(), workers.get()));

  int signal = 0;
  sigwait(&signals, &signal);
  FARGPU_LOG(kInfo, "ending all sessions, because of signal ", signal);
  for (const std::shared_ptr<const Lease>& lease : leases->All()) {
    workers->EndLease(*lease, "the daemon is shutting down");
  }
  workers->Shutdown();
  // Guests at the door may wait for seconds, and nobody needs their answers any more.
  std::fflush(stderr);
  _exit(0);
}

}  // namespace
}  // namespace fargpu::server

int main(int argc, char** argv) {
  CLI::App app("fargpud: lends the GPUs of this machine");
  fargpu::server::Options options;
  app.set_version_flag("--version", FARGPU_VERSION);
  app.add_option("--broker", options.broker, "Where the broker is, HOST:PORT or unix:PATH")
      ->required();
  app.add_option("--node", options.node, "This machine's name in the pool")->required();
  app.add_option("--run-dir", options.run_dir, "Sockets, leases and ledgers; private to the daemon")
      ->required();
  app.add_option("--listen", options.listen,
                 "Where clients connect besides the unix socket in the run directory, e.g. "
                 "tcp:10.0.0.7:4833; may be given more than once");
  app.add_option("--driver", options.driver,
                 "nvidia, softgpu, or the path of a CUDA driver library; otherwise NVIDIA's if it "
                 "has a device, else softgpu");
  app.add_option("--workers", options.workers, "Worker processes kept ready")
      ->check(CLI::Range(1, 64));
  app.add_option("--log-level", options.log_level, "error, warning, info or debug");
  CLI11_PARSE(app, argc, argv);
  if (const absl::Status log = fargpu::server::SetUpLog("fargpud", options.log_level); !log.ok()) {
    std::fprintf(stderr, "fargpud: %s\n", std::string(log.message()).c_str());
    return 64;
  }
  // Before any thread starts, so that all of them leave these to main.
  signal(SIGPIPE, SIG_IGN);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const absl::Status status = fargpu::server::Run(options, signals);
  FARGPU_LOG(kError, std::string(status.message()));
  return 1;
}
