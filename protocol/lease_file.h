#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "common/ids.h"

namespace fargpu {

// What a client needs to open sessions on a lease. Written by `fargpu run`, the device plugin and
// fargpu-lease, read by libcuda.so.1 (FARGPU_LEASE names the file). Text, one `key value` a line:
//
//   lease 5f1c...          32 hex digits
//   secret 90ab...         64 hex digits; the file is therefore mode 0600
//   endpoint unix:/run/fargpu/fargpud.sock     tried in order
//   endpoint tcp:10.0.0.7:4833
//   memory_bytes 4294967296
//   cores_percent 30
//
// Empty lines and lines that begin with # are skipped; unknown keys too, so that older clients
// read newer files.
struct LeaseFile {
  LeaseId lease;
  LeaseSecret secret;
  std::vector<std::string> endpoints;
  uint64_t memory_bytes = 0;
  uint32_t cores_percent = 0;
};

std::string FormatLeaseFile(const LeaseFile& lease);
// kInvalidArgument names the line and what is wrong with it; never the secret.
absl::StatusOr<LeaseFile> ParseLeaseFile(absl::string_view text);
// kNotFound, kPermissionDenied or ParseLeaseFile's error, naming the path.
absl::StatusOr<LeaseFile> ReadLeaseFile(const std::string& path);
// Writes a new file of mode 0600; kAlreadyExists if there is one.
absl::Status WriteLeaseFile(const std::string& path, const LeaseFile& lease);

}  // namespace fargpu
