#pragma once

#include <string>

#include "absl/status/statusor.h"

#include "protocol/lease_file.h"

namespace fargpu::client {

// Gets a lease from the broker by way of the program fargpu-lease, because this library speaks
// neither gRPC nor protobuf (DESIGN D12). It is the one that FARGPU_LEASE_HELPER names, the one
// that came with this library, or the one in PATH. It prints a lease file and an empty line, and
// keeps the lease until its input closes, which happens when this process ends, however it ends.
absl::StatusOr<LeaseFile> LeaseFromHelper(const std::string& broker);

// In the child of a fork: the lease is the parent's, and ends with it.
void LeaveHelperAfterFork();

}  // namespace fargpu::client
