#include "scheduler/broker/request_checks.h"

#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "common/status_macros.h"

namespace fargpu::scheduler {
namespace {

constexpr size_t kMaxName = 63;
constexpr size_t kMaxLabel = 128;
// Above any card there will be for long; keeps sums of bytes far from 2^64.
constexpr uint64_t kMaxMemoryMib = uint64_t{1} << 30;  // 1 PiB
constexpr uint32_t kMaxCardsPerLease = 64;
constexpr uint64_t kMaxWaitMs = 86'400'000;
constexpr uint64_t kMinTtlMs = 1'000;
constexpr uint64_t kMaxTtlMs = 604'800'000;
constexpr int kMaxEndpoints = 16;
constexpr int kMaxDevices = 64;
constexpr int kMaxLeasesPerNode = 100'000;

// What a stranger wrote, fit for a message: short and printable.
std::string Quote(absl::string_view value) {
  constexpr size_t kShown = 64;
  return absl::StrCat("\"", absl::CHexEscape(value.substr(0, kShown)),
                      value.size() > kShown ? "...\"" : "\"");
}

absl::Status OutOfRange(absl::string_view field, uint64_t value, uint64_t least, uint64_t most,
                        absl::string_view unit = "") {
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, unit, "; allowed are ", least, " to ", most, unit));
}

absl::Status CheckGpuUuid(absl::string_view field, absl::string_view value) {
  constexpr size_t kLength = 40;  // "GPU-" and 8-4-4-4-12 hex digits
  bool good = value.size() == kLength && absl::StartsWith(value, "GPU-");
  for (size_t i = 4; good && i < kLength; ++i) {
    const bool dash = i == 12 || i == 17 || i == 22 || i == 27;
    good = dash ? value[i] == '-' : absl::ascii_isxdigit(value[i]);
  }
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", Quote(value), "; expected GPU- and a UUID of 36 characters"));
}

absl::Status CheckEndpoint(absl::string_view field, absl::string_view value) {
  RETURN_IF_ERROR(CheckText(field, value, /*max_bytes=*/256));
  if (absl::ConsumePrefix(&value, "unix:")) {
    // sockaddr_un holds 108 bytes with the final zero.
    if (!value.empty() && value[0] == '/' && value.size() <= 107) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        field, " is unix:", value, "; expected an absolute path of at most 107 bytes"));
  }
  if (absl::ConsumePrefix(&value, "tcp:")) {
    const size_t colon = value.rfind(':');
    uint32_t port = 0;
    if (colon != absl::string_view::npos && colon > 0 &&
        absl::SimpleAtoi(value.substr(colon + 1), &port) && port >= 1 && port <= 65535) {
      const absl::string_view host = value.substr(0, colon);
      if (host != "0.0.0.0" && host != "[::]") return absl::OkStatus();
      return absl::InvalidArgumentError(
          absl::StrCat(field, " is tcp:", value, "; a client cannot connect to ", host));
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", Quote(value), "; expected unix:/path or tcp:HOST:PORT"));
}

}  // namespace

absl::Status CheckText(absl::string_view field, absl::string_view value, size_t max_bytes) {
  if (value.size() > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(field, " has ", value.size(), " bytes; at most ",
                                                   max_bytes, " are allowed: ", Quote(value)));
  }
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, " is ", Quote(value), "; control characters are not allowed"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckName(absl::string_view field, absl::string_view value) {
  bool good = !value.empty() && value.size() <= kMaxName;
  for (size_t i = 0; good && i < value.size(); ++i) {
    good = absl::ascii_isalnum(value[i]) || value[i] == '.' || value[i] == '_' || value[i] == '-';
  }
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", Quote(value), "; expected 1 to ",
                                                 kMaxName, " characters of [A-Za-z0-9._-]"));
}

absl::StatusOr<LeaseId> CheckLeaseId(absl::string_view field, absl::string_view value) {
  absl::StatusOr<LeaseId> id = ParseId<LeaseId>(value);
  if (id.ok()) return id;
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", Quote(value), "; expected 32 hex digits"));
}

absl::StatusOr<AllocateSpec> CheckAllocate(const broker::v1::AllocateRequest& request,
                                           absl::Duration default_ttl) {
  AllocateSpec spec;
  spec.tenant = request.tenant().empty() ? "default" : request.tenant();
  RETURN_IF_ERROR(CheckName("tenant", spec.tenant));
  spec.queue = request.queue().empty() ? "default" : request.queue();
  RETURN_IF_ERROR(CheckName("queue", spec.queue));
  RETURN_IF_ERROR(CheckText("request_id", request.request_id(), kMaxLabel));
  spec.request_id = request.request_id();
  RETURN_IF_ERROR(CheckText("name", request.name(), kMaxLabel));
  spec.name = request.name();

  if (request.memory_mib() < 1 || request.memory_mib() > kMaxMemoryMib) {
    return OutOfRange("memory_mib", request.memory_mib(), 1, kMaxMemoryMib, " MiB");
  }
  spec.memory_bytes = request.memory_mib() << 20;
  spec.cores_percent = request.cores_percent() == 0 ? 100 : request.cores_percent();
  if (spec.cores_percent > 100) {
    return OutOfRange("cores_percent", spec.cores_percent, 1, 100, "%");
  }
  spec.count = request.count() == 0 ? 1 : request.count();
  if (spec.count > kMaxCardsPerLease) return OutOfRange("count", spec.count, 1, kMaxCardsPerLease);
  if (request.wait_ms() > kMaxWaitMs) {
    return OutOfRange("wait_ms", request.wait_ms(), 0, kMaxWaitMs, " ms");
  }
  spec.wait = absl::Milliseconds(request.wait_ms());
  if (request.ttl_ms() == 0) {
    spec.ttl = default_ttl;
  } else if (request.ttl_ms() < kMinTtlMs || request.ttl_ms() > kMaxTtlMs) {
    return OutOfRange("ttl_ms", request.ttl_ms(), kMinTtlMs, kMaxTtlMs, " ms");
  } else {
    spec.ttl = absl::Milliseconds(request.ttl_ms());
  }
  return spec;
}

std::string Fingerprint(const AllocateSpec& spec) {
  // Length prefixes keep fields apart. A field that is added later joins only when it is not at its
  // default, so that fingerprints in stores stay valid.
  return absl::StrCat(spec.queue.size(), ":", spec.queue, spec.name.size(), ":", spec.name, " ",
                      spec.memory_bytes, " ", spec.cores_percent, " ", spec.count, " ",
                      absl::ToInt64Milliseconds(spec.ttl));
}

absl::Status CheckHello(const node::v1::Hello& hello) {
  RETURN_IF_ERROR(CheckName("hello.node_name", hello.node_name()));
  RETURN_IF_ERROR(CheckText("hello.fargpu_version", hello.fargpu_version(), kMaxLabel));
  if (hello.endpoints_size() < 1 || hello.endpoints_size() > kMaxEndpoints) {
    return OutOfRange("number of hello.endpoints", hello.endpoints_size(), 1, kMaxEndpoints);
  }
  for (int i = 0; i < hello.endpoints_size(); ++i) {
    RETURN_IF_ERROR(CheckEndpoint(absl::StrCat("hello.endpoints[", i, "]"), hello.endpoints(i)));
  }
  if (hello.devices_size() > kMaxDevices) {
    return OutOfRange("number of hello.devices", hello.devices_size(), 0, kMaxDevices);
  }
  std::set<std::string> uuids;
  for (int i = 0; i < hello.devices_size(); ++i) {
    const node::v1::Device& device = hello.devices(i);
    const std::string field = absl::StrCat("hello.devices[", i, "]");
    RETURN_IF_ERROR(CheckGpuUuid(field + ".uuid", device.uuid()));
    if (!uuids.insert(device.uuid()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ".uuid ", device.uuid(), " is named twice"));
    }
    RETURN_IF_ERROR(CheckText(field + ".name", device.name(), kMaxLabel));
    RETURN_IF_ERROR(CheckText(field + ".pci_bus_id", device.pci_bus_id(), kMaxLabel));
    if (device.memory_bytes() < 1 || device.memory_bytes() > kMaxMemoryMib << 20) {
      return OutOfRange(field + ".memory_bytes", device.memory_bytes(), 1, kMaxMemoryMib << 20);
    }
    if (device.cores_percent() > 100) {
      return OutOfRange(field + ".cores_percent", device.cores_percent(), 0, 100, "%");
    }
  }
  if (hello.leases_size() > kMaxLeasesPerNode) {
    return OutOfRange("number of hello.leases", hello.leases_size(), 0, kMaxLeasesPerNode);
  }
  std::set<LeaseId> ids;
  for (int i = 0; i < hello.leases_size(); ++i) {
    const node::v1::HeldLease& lease = hello.leases(i);
    const std::string field = absl::StrCat("hello.leases[", i, "]");
    ASSIGN_OR_RETURN(const LeaseId id, CheckLeaseId(field + ".lease_id", lease.lease_id()));
    if (!ids.insert(id).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ".lease_id ", lease.lease_id(), " is named twice"));
    }
    if (lease.secret().size() != sizeof(LeaseSecret)) {
      return absl::InvalidArgumentError(absl::StrCat(field, ".secret has ", lease.secret().size(),
                                                     " bytes; expected ", sizeof(LeaseSecret)));
    }
    if (lease.device_uuids_size() < 1 || lease.device_uuids_size() > kMaxDevices) {
      return OutOfRange(absl::StrCat("number of ", field, ".device_uuids"),
                        lease.device_uuids_size(), 1, kMaxDevices);
    }
    for (const std::string& uuid : lease.device_uuids()) {
      RETURN_IF_ERROR(CheckGpuUuid(field + ".device_uuids", uuid));
    }
    if (lease.memory_bytes() < 1 || lease.memory_bytes() > kMaxMemoryMib << 20) {
      return OutOfRange(field + ".memory_bytes", lease.memory_bytes(), 1, kMaxMemoryMib << 20);
    }
    if (lease.cores_percent() < 1 || lease.cores_percent() > 100) {
      return OutOfRange(field + ".cores_percent", lease.cores_percent(), 1, 100, "%");
    }
    if (lease.ttl_ms() > kMaxTtlMs)
      return OutOfRange(field + ".ttl_ms", lease.ttl_ms(), 0, kMaxTtlMs);
  }
  return absl::OkStatus();
}

absl::Status CheckHeartbeat(const node::v1::Heartbeat& heartbeat) {
  if (heartbeat.devices_size() > kMaxDevices) {
    return OutOfRange("number of heartbeat.devices", heartbeat.devices_size(), 0, kMaxDevices);
  }
  if (heartbeat.sessions_size() > kMaxLeasesPerNode) {
    return OutOfRange("number of heartbeat.sessions", heartbeat.sessions_size(), 0,
                      kMaxLeasesPerNode);
  }
  for (const node::v1::Session& session : heartbeat.sessions()) {
    RETURN_IF_ERROR(CheckLeaseId("heartbeat.sessions.lease_id", session.lease_id()).status());
  }
  return absl::OkStatus();
}

}  // namespace fargpu::scheduler
