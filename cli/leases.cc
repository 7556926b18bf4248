// fargpu leases: who holds what.
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/table.h"
#include "cli/verb.h"

#include "common/memory_size.h"

namespace fargpu::cli {
namespace {

std::string StateOf(const broker::v1::Lease& lease) {
  switch (lease.state()) {
    case broker::v1::LEASE_STATE_RESERVING:
      return "reserving";
    case broker::v1::LEASE_STATE_ACTIVE:
      return "active";
    case broker::v1::LEASE_STATE_ENDED:
      return absl::StrCat("ended: ", lease.end_reason());
    default:
      return absl::StrCat("state ", static_cast<int>(lease.state()));  // of a newer broker
  }
}

int ShowLeases(const GlobalOptions& globals, const std::string& tenant, bool all) {
  auto client = ConnectToBroker(globals);
  if (!client.ok()) return Fail(client.status());
  const int64_t now_ms = absl::ToUnixMillis(absl::Now());
  std::vector<std::vector<std::string>> rows = {
      {"LEASE", "TENANT", "NAME", "NODE", "CARDS", "MEMORY", "CORES", "SESSIONS", "AGE", "STATE"}};
  broker::v1::ListRequest request;
  request.set_tenant(tenant);
  request.set_include_ended(all);
  request.set_page_size(500);
  do {
    grpc::ClientContext context;
    SetCallDeadline(&context);
    broker::v1::ListResponse response;
    const absl::Status status =
        FromGrpcStatus((*client)->stub().List(&context, request, &response));
    if (!status.ok()) return Fail(status);
    for (const broker::v1::Lease& lease : response.leases()) {
      rows.push_back({lease.id(), lease.tenant(), lease.name().empty() ? "-" : lease.name(),
                      lease.devices().empty() ? "-" : lease.devices(0).node(),
                      absl::StrCat(lease.devices_size()), FormatMemory(lease.memory_bytes()),
                      absl::StrCat(lease.cores_percent(), "%"), absl::StrCat(lease.session_count()),
                      FormatAge((now_ms - lease.create_time_ms()) / 1000), StateOf(lease)});
    }
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  if (rows.size() == 1) {
    std::cout << "No leases.\n";
    return 0;
  }
  std::cout << FormatTable(rows);
  return 0;
}

}  // namespace

void AddLeases(CLI::App& app, const GlobalOptions& globals, Action* action) {
  struct Options {
    std::string tenant;
    bool all = false;
  };
  // Shared with the callback, which runs after this function has returned.
  const auto options = std::make_shared<Options>();
  CLI::App* verb = app.add_subcommand("leases", "Show who holds which slice of which card");
  verb->add_option("--tenant", options->tenant, "Only this tenant's");
  verb->add_flag("--all", options->all, "Also those that ended during the last day");
  verb->footer("Example:\n  fargpu leases --all");
  verb->callback([&globals, action, options] {
    *action = [&globals, options] { return ShowLeases(globals, options->tenant, options->all); };
  });
}

}  // namespace fargpu::cli
