#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include <CLI/CLI.hpp>

#include "protocol/proto/lease_client.h"

namespace fargpu::cli {

// Exit statuses of our own.
constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;
// Of `run`, where all others are the program's: as env(1) and shells have them.
constexpr int kExitRunFailed = 125;
constexpr int kExitCannotExecute = 126;
constexpr int kExitNotFound = 127;

struct GlobalOptions {
  std::string broker;  // --broker; empty if not given
};

// What the command line asked for; main() runs it once all of it has been read.
using Action = std::function<int()>;

// Each adds its verb to `app` and sets `*action` when the verb was given. The references must
// outlive the run of the action.
void AddUp(CLI::App& app, Action* action);
void AddDown(CLI::App& app, Action* action);
void AddRun(CLI::App& app, const GlobalOptions& globals, Action* action);
void AddSoftgpu(CLI::App& app, Action* action);
void AddPool(CLI::App& app, const GlobalOptions& globals, Action* action);
void AddLeases(CLI::App& app, const GlobalOptions& globals, Action* action);
void AddSmi(CLI::App& app, const GlobalOptions& globals, Action* action);
void AddVersion(CLI::App& app, const GlobalOptions& globals, Action* action);

// Connects to --broker, else FARGPU_BROKER, else what `fargpu up` started, else 127.0.0.1:4830.
// The error says what to do.
absl::StatusOr<std::unique_ptr<BrokerClient>> ConnectToBroker(const GlobalOptions& globals);

// A deadline for calls that the broker answers by itself.
void SetCallDeadline(grpc::ClientContext* context);

// "fargpu: MESSAGE" on stderr; returns `exit_status`.
int Fail(const absl::Status& status, int exit_status = kExitFailure);

}  // namespace fargpu::cli
