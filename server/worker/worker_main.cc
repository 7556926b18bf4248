// fargpu-worker: one session with one client. Started by fargpud, never by hand.
#include <getopt.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "server/process/log_setup.h"
#include "server/worker/worker.h"

namespace {

// Less than the daemon has: no descriptors but the ones we were given, no way to new privileges, no
// core files with a tenant's data. The parent's death is deliberately not ours: a session outlives
// its daemon.
void Harden(int daemon_fd) {
  if (daemon_fd > STDERR_FILENO + 1) {
    close_range(STDERR_FILENO + 1, static_cast<unsigned>(daemon_fd) - 1, 0);
  }
  close_range(static_cast<unsigned>(daemon_fd) + 1, ~0u, 0);
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  const rlimit no_core = {.rlim_cur = 0, .rlim_max = 0};
  setrlimit(RLIMIT_CORE, &no_core);
  signal(SIGPIPE, SIG_IGN);
}

}  // namespace

int main(int argc, char** argv) {
  fargpu::server::WorkerOptions options;
  std::string log_level = "info";
  const option known[] = {{"driver", required_argument, nullptr, 'd'},
                          {"daemon-fd", required_argument, nullptr, 'f'},
                          {"run-dir", required_argument, nullptr, 'r'},
                          {"log-level", required_argument, nullptr, 'l'},
                          {"fresh-memory-is-zero", no_argument, nullptr, 'z'},
                          {"probe", no_argument, nullptr, 'p'},
                          {nullptr, 0, nullptr, 0}};
  int choice = 0;
  while ((choice = getopt_long(argc, argv, "", known, nullptr)) != -1) {
    switch (choice) {
      case 'd':
        options.driver = optarg;
        break;
      case 'f':
        options.daemon_fd = std::atoi(optarg);
        break;
      case 'r':
        options.run_dir = optarg;
        break;
      case 'l':
        log_level = optarg;
        break;
      case 'z':
        options.fresh_memory_is_zero = true;
        break;
      case 'p':
        options.probe = true;
        break;
      default:
        return 64;
    }
  }
  if (options.driver.empty() || options.daemon_fd <= STDERR_FILENO) {
    std::fputs("fargpu-worker is started by fargpud, with --driver and --daemon-fd\n", stderr);
    return 64;
  }
  Harden(options.daemon_fd);
  if (!fargpu::server::SetUpLog("worker", log_level).ok()) return 64;
  const int status = fargpu::server::RunWorker(options);
  // Threads of the driver may still run; exit handlers would race with them.
  std::fflush(stderr);
  _exit(status);
}
