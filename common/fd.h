#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace fargpu {

// Owns one file descriptor; closes it when destroyed.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1);

 private:
  int fd_ = -1;
};

// A Status for the present errno, e.g. ErrnoStatus("open /run/fargpu"). ENOENT and the like map to
// the fitting codes; peers that went away (EPIPE, ECONNRESET, ECONNREFUSED) are kUnavailable.
absl::Status ErrnoStatus(absl::string_view what);

// Reads or writes all of `data` by `deadline`; works on blocking and non-blocking descriptors.
// kUnavailable: the peer closed. kDeadlineExceeded: some bytes may have been moved.
absl::Status ReadFully(int fd, absl::Span<char> data, absl::Time deadline);
absl::Status WriteFully(int fd, absl::Span<const char> data, absl::Time deadline);

// Waits until `fd` has one of `events` (poll(2) bits). kDeadlineExceeded when it has not by then.
absl::Status PollFd(int fd, short events, absl::Time deadline);

}  // namespace fargpu
