#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "common/ids.h"
#include "protocol/proto/broker.pb.h"
#include "protocol/proto/node.pb.h"

namespace fargpu::scheduler {

// Messages come from the network. Nothing of them is used before it went through here. All
// functions return kInvalidArgument naming the field, its value and the limit.

// An AllocateRequest with its defaults filled in, all in range.
struct AllocateSpec {
  std::string tenant;
  std::string queue;
  std::string request_id;
  std::string name;
  uint64_t memory_bytes = 0;
  uint32_t cores_percent = 0;
  uint32_t count = 0;
  absl::Duration wait;
  absl::Duration ttl;
};
absl::StatusOr<AllocateSpec> CheckAllocate(const broker::v1::AllocateRequest& request,
                                           absl::Duration default_ttl);
// Equal for requests that ask for the same; how long to wait is not part of it.
std::string Fingerprint(const AllocateSpec& spec);

absl::StatusOr<LeaseId> CheckLeaseId(absl::string_view field, absl::string_view value);
// At most `max_bytes` printable characters; UTF-8 above ASCII is let through.
absl::Status CheckText(absl::string_view field, absl::string_view value, size_t max_bytes);
// 1 to 63 characters of [A-Za-z0-9._-].
absl::Status CheckName(absl::string_view field, absl::string_view value);

absl::Status CheckHello(const node::v1::Hello& hello);
absl::Status CheckHeartbeat(const node::v1::Heartbeat& heartbeat);

}  // namespace fargpu::scheduler
