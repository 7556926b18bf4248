#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/fd.h"

namespace fargpu::cli {

// The folder in which `fargpu up` keeps what it started: $FARGPU_HOME, else
// ${XDG_STATE_HOME:-~/.local/state}/fargpu.
//
//   broker.address   where the broker listens; kept over `down`, so that the next `up` takes it
//   again broker.pid, daemon.pid     "PID START-TIME" broker.log, daemon.log broker/          the
//   broker's state run/             the daemon's run directory leases/          lease files of
//   running `fargpu run`s
class Home {
 public:
  // kFailedPrecondition if neither variable nor home directory is known.
  static absl::StatusOr<Home> Locate();
  explicit Home(std::string path) : path_(std::move(path)) {}

  // Makes the folder, mode 0700.
  absl::Status Make() const;
  // Held while `up` or `down` works, so that two of them do not mix. Waits up to 60 s.
  absl::StatusOr<UniqueFd> Lock() const;
  // The address in broker.address. kNotFound: nothing was ever started here.
  absl::StatusOr<std::string> BrokerAddress() const;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// At most 64 KiB of a file.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path);
// Replaces the file as a whole; mode 0600.
absl::Status WriteFileAtomically(const std::string& path, const std::string& text);

}  // namespace fargpu::cli
