// fargpu softgpu run: a program on the software device of this machine, with no daemon and no
// lease.
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/verb.h"

#include "common/install_paths.h"
#include "common/status_macros.h"

namespace fargpu::cli {
namespace {

struct SoftgpuOptions {
  std::string config;
  std::string model;
  std::string memory;
  std::string capability;
  uint32_t count = 0;
  std::vector<std::string> command;
};

// The value of FARGPU_SOFTGPU that the options ask for; empty if none does, so that the variable
// stays what it is.
absl::StatusOr<std::string> SettingsOf(const SoftgpuOptions& options) {
  std::vector<std::string> settings;
  // A model first: what follows overrides it.
  if (!options.model.empty()) settings.push_back(absl::StrCat("model=", options.model));
  if (options.count > 0) settings.push_back(absl::StrCat("devices=", options.count));
  if (!options.memory.empty()) settings.push_back(absl::StrCat("memory=", options.memory));
  if (!options.capability.empty()) {
    settings.push_back(absl::StrCat("capability=", options.capability));
  }
  if (options.config.empty()) return absl::StrJoin(settings, ",");
  if (!settings.empty()) {
    return absl::InvalidArgumentError("--config says all of it; give no other option with it");
  }
  if (!absl::EndsWith(options.config, ".toml")) {
    return absl::InvalidArgumentError(
        absl::StrCat("--config ", options.config, ": the file's name must end in .toml"));
  }
  return std::filesystem::absolute(options.config).string();
}

int RunOnSoftgpu(const SoftgpuOptions& options) {
  const absl::StatusOr<std::string> settings = SettingsOf(options);
  if (!settings.ok()) return Fail(settings.status(), kExitRunFailed);
  const absl::StatusOr<std::string> library = SoftgpuLibraryPath();
  if (!library.ok()) return Fail(library.status(), kExitRunFailed);
  std::string path = std::filesystem::path(*library).parent_path().string();
  if (const char* given = std::getenv("LD_LIBRARY_PATH"); given != nullptr && *given != '\0') {
    absl::StrAppend(&path, ":", given);
  }
  setenv("LD_LIBRARY_PATH", path.c_str(), /*overwrite=*/1);
  if (!settings->empty()) setenv("FARGPU_SOFTGPU", settings->c_str(), /*overwrite=*/1);
  std::vector<char*> arguments;
  for (const std::string& argument : options.command) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  const int error = errno;
  return Fail(absl::NotFoundError(
                  absl::StrCat("cannot run ", options.command[0], ": ", std::strerror(error))),
              error == ENOENT ? kExitNotFound : kExitCannotExecute);
}

}  // namespace

void AddSoftgpu(CLI::App& app, Action* action) {
  CLI::App* group = app.add_subcommand("softgpu", "The software device of this machine");
  group->require_subcommand(1);
  CLI::App* verb =
      group->add_subcommand("run", "Run a CUDA program on the CPU, without daemon and lease");
  verb->footer(
      "Exit status: the program's; 125 if it could not be prepared, 126 if it cannot be executed, "
      "127 if it was not found.\n"
      "Example:\n  fargpu softgpu run --model h100 --count 2 -- ./app its arguments");
  const auto options = std::make_shared<SoftgpuOptions>();
  verb->add_option("--count", options->count, "How many cards (default 1)")
      ->check(CLI::Range(1, 64));
  verb->add_option("--model", options->model, "Which card to look like, e.g. h100, a100, rtx4090");
  verb->add_option("--memory", options->memory, "Memory of each card, e.g. 4GiB");
  verb->add_option("--capability", options->capability,
                   "Compute capability that programs see, e.g. 9.0 (default 12.0)");
  verb->add_option("--config", options->config, "A softgpu.toml that describes the cards");
  verb->add_option("COMMAND", options->command, "The program and its arguments, after --")
      ->required();
  verb->callback([options, action] { *action = [options] { return RunOnSoftgpu(*options); }; });
}

}  // namespace fargpu::cli
