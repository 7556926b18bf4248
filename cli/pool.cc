// fargpu pool: the cards and what is lent of them.
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/table.h"
#include "cli/verb.h"

#include "common/memory_size.h"

namespace fargpu::cli {
namespace {

int ShowPool(const GlobalOptions& globals) {
  auto client = ConnectToBroker(globals);
  if (!client.ok()) return Fail(client.status());
  grpc::ClientContext context;
  SetCallDeadline(&context);
  broker::v1::ListNodesResponse response;
  const absl::Status status = FromGrpcStatus((*client)->stub().ListNodes(&context, {}, &response));
  if (!status.ok()) return Fail(status);

  const int64_t now_ms = absl::ToUnixMillis(absl::Now());
  std::vector<std::vector<std::string>> rows = {
      {"NODE", "STATE", "CARD", "MODEL", "MEMORY", "LENT", "CORES", "LEASES", "IN USE"}};
  for (const broker::v1::Node& node : response.nodes()) {
    std::string state = "alive";
    if (node.state() != broker::v1::NODE_STATE_ALIVE) {
      state = absl::StrCat("silent ", FormatAge((now_ms - node.last_heard_ms()) / 1000));
    }
    for (const broker::v1::Card& card : node.cards()) {
      rows.push_back({node.name(), state, card.uuid(), card.model(),
                      FormatMemory(card.memory_bytes()), FormatMemory(card.lent_memory_bytes()),
                      absl::StrCat(card.lent_cores_percent(), "/", card.cores_percent(), "%"),
                      absl::StrCat(card.lease_count()), FormatMemory(card.used_memory_bytes())});
    }
    if (node.cards().empty()) rows.push_back({node.name(), state, "no cards"});
  }
  if (rows.size() == 1) {
    std::cout << "The broker at " << (*client)->address() << " knows no node.\n";
    return 0;
  }
  std::cout << FormatTable(rows);
  return 0;
}

}  // namespace

void AddPool(CLI::App& app, const GlobalOptions& globals, Action* action) {
  CLI::App* verb = app.add_subcommand("pool", "Show the cards and what is lent of them");
  verb->footer("Example:\n  fargpu pool");
  verb->callback([&globals, action] { *action = [&globals] { return ShowPool(globals); }; });
}

}  // namespace fargpu::cli
