// fargpu down: stops what `fargpu up` started.
#include <unistd.h>

#include <iostream>

#include "cli/local_services.h"
#include "cli/verb.h"

namespace fargpu::cli {
namespace {

int Down() {
  const absl::StatusOr<Home> home = Home::Locate();
  if (!home.ok()) return Fail(home.status());
  int stopped = 0;
  if (access(home->path().c_str(), F_OK) == 0) {
    const absl::StatusOr<UniqueFd> lock = home->Lock();
    if (!lock.ok()) return Fail(lock.status());
    if (absl::Status status = StopServices(*home, &stopped); !status.ok()) return Fail(status);
  }
  std::cout << (stopped > 0 ? "down\n" : "nothing was running\n");
  return 0;
}

}  // namespace

void AddDown(CLI::App& app, Action* action) {
  CLI::App* verb =
      app.add_subcommand("down", "Stop what `fargpu up` started, and all its sessions");
  verb->footer(
      "Leases stay in the broker's store for the next `fargpu up`.\n\nExample:\n  fargpu down");
  verb->callback([action] { *action = [] { return Down(); }; });
}

}  // namespace fargpu::cli
