#pragma once

#include <string>

namespace fargpu::server {

struct WorkerOptions {
  std::string driver;   // path of the driver library
  int daemon_fd = 3;    // the socket to the daemon
  std::string run_dir;  // where a new daemon is to be found
  bool fresh_memory_is_zero = false;
  bool probe = false;  // only describe the devices
};

// The life of a worker: loads the driver, waits for a session, serves it, ends. Returns the
// process's exit status; the caller must then leave by _exit(), because a thread may hang in the
// driver.
int RunWorker(const WorkerOptions& options);

}  // namespace fargpu::server
