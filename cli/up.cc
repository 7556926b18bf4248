// fargpu up: a broker and a daemon on this machine.
#include <unistd.h>

#include <filesystem>
#include <iostream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/local_services.h"
#include "cli/verb.h"

namespace fargpu::cli {
namespace {

int Up(UpOptions options) {
  // The daemon works in another directory than the user.
  if (absl::StrContains(options.driver, '/')) {
    std::error_code error;
    options.driver = std::filesystem::absolute(options.driver, error).string();
  }
  const absl::StatusOr<Home> home = Home::Locate();
  if (!home.ok()) return Fail(home.status());
  if (absl::Status made = home->Make(); !made.ok()) return Fail(made);
  const absl::StatusOr<UniqueFd> lock = home->Lock();
  if (!lock.ok()) return Fail(lock.status());
  std::string summary;
  if (absl::Status started = StartServices(*home, options, &summary); !started.ok()) {
    return Fail(started);
  }
  std::cout << summary << std::endl;
  return 0;
}

}  // namespace

void AddUp(CLI::App& app, Action* action) {
  struct Options {
    UpOptions up;
    double timeout_seconds = 60;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand(
      "up", "Start a broker and a daemon on this machine, in the background, on loopback");
  verb->add_option("--driver", options->up.driver,
                   "softgpu (the software device), nvidia, or the path of a driver library")
      ->capture_default_str();
  verb->add_option("--node", options->up.node_name, "Name of the node (default: this machine's)");
  verb->add_option("--timeout", options->timeout_seconds, "Seconds to wait until all is ready")
      ->capture_default_str()
      ->check(CLI::Range(1.0, 3600.0));
  verb->add_option("DAEMON_OPTIONS", options->up.daemon_options, "Options for fargpud, after --");
  verb->footer(
      "State and logs are under $FARGPU_HOME (default: ~/.local/state/fargpu).\n\n"
      "Examples:\n  fargpu up\n  fargpu up --driver nvidia -- --workers 4\nStop with: fargpu down");
  verb->callback([options, action] {
    options->up.timeout = absl::Seconds(options->timeout_seconds);
    *action = [options] { return Up(options->up); };
  });
}

}  // namespace fargpu::cli
