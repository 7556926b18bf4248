// fargpu: the command.
#include <iostream>

#include "absl/strings/str_cat.h"
#include "cli/verb.h"

int main(int argc, char** argv) {
  fargpu::SendGrpcLogToOurs();
  CLI::App app("Runs CUDA programs on cards of other machines.", "fargpu");
  app.footer(
      "Example:\n"
      "  fargpu up\n"
      "  fargpu run --memory 4GiB --cores 30 -- ./app\n"
      "  fargpu pool\n"
      "  fargpu down\n"
      "`fargpu VERB --help` tells more.");
  app.require_subcommand(1);
  app.set_version_flag("--version", "fargpu " FARGPU_VERSION);
  fargpu::cli::GlobalOptions globals;
  app.add_option("--broker", globals.broker,
                 "HOST:PORT or unix:/path of the broker (default: FARGPU_BROKER, else what `fargpu "
                 "up` started, else 127.0.0.1:4830)");
  fargpu::cli::Action action;
  fargpu::cli::AddUp(app, &action);
  fargpu::cli::AddDown(app, &action);
  fargpu::cli::AddRun(app, globals, &action);
  fargpu::cli::AddSoftgpu(app, &action);
  fargpu::cli::AddPool(app, globals, &action);
  fargpu::cli::AddLeases(app, globals, &action);
  fargpu::cli::AddSmi(app, globals, &action);
  fargpu::cli::AddVersion(app, globals, &action);
  // --broker may also stand behind the verb.
  for (CLI::App* verb : app.get_subcommands({})) verb->fallthrough();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help
    // Of `softgpu run` too, all other statuses are the program's.
    const bool run = app.got_subcommand("run") || app.got_subcommand("softgpu");
    // Of a wrong verb CLI11 says only that a right one is missing.
    const bool wrong_verb = app.get_subcommands().empty() && argc > 1 && argv[1][0] != '-';
    std::cerr << "fargpu: "
              << (wrong_verb ? absl::StrCat("there is no verb ", argv[1]) : error.what())
              << "; see `fargpu " << (app.got_subcommand("run") ? "run " : "") << "--help`\n";
    return run ? fargpu::cli::kExitRunFailed : fargpu::cli::kExitUsage;
  }
  const int status = action();
  // The verbs write to a stream whose errors, a full disk perhaps, show only now.
  if (status == 0 && !std::cout.flush()) {
    std::cerr << "fargpu: the output could not be written\n";
    return fargpu::cli::kExitFailure;
  }
  return status;
}
