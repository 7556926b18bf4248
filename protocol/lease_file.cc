#include "protocol/lease_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

#include "common/fd.h"
#include "common/status_macros.h"

namespace fargpu {
namespace {

constexpr size_t kMaxFileBytes = 64 << 10;

absl::Status ParseLine(absl::string_view key, absl::string_view value, LeaseFile* lease) {
  if (key == "lease") {
    ASSIGN_OR_RETURN(lease->lease, ParseId<LeaseId>(value));
  } else if (key == "secret") {
    return HexToBytes(value, absl::MakeSpan(lease->secret.bytes));
  } else if (key == "endpoint") {
    if (!absl::StartsWith(value, "unix:") && !absl::StartsWith(value, "tcp:")) {
      return absl::InvalidArgumentError("an endpoint begins with unix: or tcp:");
    }
    lease->endpoints.emplace_back(value);
  } else if (key == "memory_bytes") {
    if (!absl::SimpleAtoi(value, &lease->memory_bytes)) {
      return absl::InvalidArgumentError("expected a number of bytes");
    }
  } else if (key == "cores_percent") {
    if (!absl::SimpleAtoi(value, &lease->cores_percent)) {
      return absl::InvalidArgumentError("expected a number of per cent");
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string FormatLeaseFile(const LeaseFile& lease) {
  std::string text = absl::StrCat("lease ", ToString(lease.lease), "\nsecret ",
                                  BytesToHex(lease.secret.bytes), "\n");
  for (const std::string& endpoint : lease.endpoints) {
    absl::StrAppend(&text, "endpoint ", endpoint, "\n");
  }
  absl::StrAppend(&text, "memory_bytes ", lease.memory_bytes, "\ncores_percent ",
                  lease.cores_percent, "\n");
  return text;
}

absl::StatusOr<LeaseFile> ParseLeaseFile(absl::string_view text) {
  LeaseFile lease;
  bool has_lease = false;
  bool has_secret = false;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(line, absl::MaxSplits(' ', 1));
    if (absl::Status status =
            ParseLine(pair.first, absl::StripAsciiWhitespace(pair.second), &lease);
        !status.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, ", ", pair.first, ": ", status.message()));
    }
    has_lease |= pair.first == "lease";
    has_secret |= pair.first == "secret";
  }
  if (!has_lease || !has_secret || lease.endpoints.empty()) {
    return absl::InvalidArgumentError("a lease file needs the lines lease, secret and endpoint");
  }
  return lease;
}

absl::StatusOr<LeaseFile> ReadLeaseFile(const std::string& path) {
  // Without O_NONBLOCK, opening a FIFO waits for whoever writes it.
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return ErrnoStatus(absl::StrCat("lease file ", path));
  struct stat info = {};
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(absl::StrCat("lease file ", path));
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat("lease file ", path, " is no regular file"));
  }
  std::string text;
  char buffer[4096];
  while (true) {
    const ssize_t count = read(fd.get(), buffer, sizeof(buffer));
    if (count < 0) return ErrnoStatus(absl::StrCat("lease file ", path));
    if (count == 0) break;
    text.append(buffer, count);
    if (text.size() > kMaxFileBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("lease file ", path, " is longer than ", kMaxFileBytes, " bytes"));
    }
  }
  absl::StatusOr<LeaseFile> lease = ParseLeaseFile(text);
  if (!lease.ok()) {
    return absl::Status(lease.status().code(),
                        absl::StrCat("lease file ", path, ": ", lease.status().message()));
  }
  return lease;
}

absl::Status WriteLeaseFile(const std::string& path, const LeaseFile& lease) {
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd.valid()) return ErrnoStatus(absl::StrCat("lease file ", path));
  const std::string text = FormatLeaseFile(lease);
  return WriteFully(fd.get(), text, absl::Now() + absl::Seconds(10));
}

}  // namespace fargpu
