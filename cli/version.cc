// fargpu version: of this program, and of the broker if there is one.
#include <iostream>

#include "cli/verb.h"

namespace fargpu::cli {
namespace {

int ShowVersion(const GlobalOptions& globals) {
  std::cout << "fargpu " << FARGPU_VERSION << "\n";
  auto client = ConnectToBroker(globals);
  if (!client.ok()) {
    // Only a broker that was asked for by name has to be there.
    return globals.broker.empty() ? 0 : Fail(client.status());
  }
  grpc::ClientContext context;
  SetCallDeadline(&context);
  broker::v1::BrokerInfo info;
  const absl::Status status = FromGrpcStatus((*client)->stub().GetBrokerInfo(&context, {}, &info));
  if (!status.ok()) return Fail(status);
  std::cout << "broker " << info.fargpu_version() << " at " << (*client)->address() << "\n";
  return 0;
}

}  // namespace

void AddVersion(CLI::App& app, const GlobalOptions& globals, Action* action) {
  CLI::App* verb = app.add_subcommand("version", "Show the version of fargpu and of the broker");
  verb->footer("Example:\n  fargpu version");
  verb->callback([&globals, action] { *action = [&globals] { return ShowVersion(globals); }; });
}

}  // namespace fargpu::cli
