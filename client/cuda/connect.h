#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "client/cuda/session.h"
#include "protocol/lease_file.h"

namespace fargpu::client {

// Opens this process's session: finds the lease (FARGPU_LEASE names a lease file; else, if
// FARGPU_BROKER is set, the helper program gets one), tries its endpoints in order, proves the
// secret, shakes hands and connects UCX. At most 10 s, the broker's part not counted. The message
// of an error is one line that says what to do about it.
absl::StatusOr<SessionParts> ConnectFromEnvironment();

// The part after the lease is known.
absl::StatusOr<SessionParts> ConnectToLease(const LeaseFile& lease, absl::Time deadline);

}  // namespace fargpu::client
