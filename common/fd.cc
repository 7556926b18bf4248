#include "common/fd.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/status_macros.h"

namespace fargpu {

void UniqueFd::reset(int fd) {
  if (fd_ >= 0) close(fd_);
  fd_ = fd;
}

absl::Status ErrnoStatus(absl::string_view what) {
  const int error = errno;
  const std::string text = absl::StrCat(what, ": ", std::generic_category().message(error));
  switch (error) {
    case ENOENT:
      return absl::NotFoundError(text);
    case EEXIST:
    case EADDRINUSE:
      return absl::AlreadyExistsError(text);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(text);
    case EPIPE:
    case ECONNRESET:
    case ECONNREFUSED:
    case EHOSTUNREACH:
    case ENETUNREACH:
      return absl::UnavailableError(text);
    case ETIMEDOUT:
      return absl::DeadlineExceededError(text);
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case ENOSPC:
      return absl::ResourceExhaustedError(text);
    case EINVAL:
      return absl::InvalidArgumentError(text);
    default:
      return absl::InternalError(text);
  }
}

absl::Status PollFd(int fd, short events, absl::Time deadline) {
  while (true) {
    const int64_t left_ms =
        std::clamp<int64_t>(absl::ToInt64Milliseconds(deadline - absl::Now()) + 1, 0, INT_MAX);
    pollfd item = {.fd = fd, .events = events, .revents = 0};
    const int ready = poll(&item, 1, static_cast<int>(left_ms));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return ErrnoStatus("poll");
    if (absl::Now() >= deadline) return absl::DeadlineExceededError("no event before the deadline");
  }
}

absl::Status ReadFully(int fd, absl::Span<char> data, absl::Time deadline) {
  while (!data.empty()) {
    RETURN_IF_ERROR(PollFd(fd, POLLIN, deadline));
    const ssize_t count = read(fd, data.data(), data.size());
    if (count == 0) return absl::UnavailableError("the peer closed the connection");
    if (count < 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      return ErrnoStatus("read");
    }
    data.remove_prefix(count);
  }
  return absl::OkStatus();
}

absl::Status WriteFully(int fd, absl::Span<const char> data, absl::Time deadline) {
  while (!data.empty()) {
    RETURN_IF_ERROR(PollFd(fd, POLLOUT, deadline));
    // MSG_DONTWAIT keeps the deadline on blocking sockets; MSG_NOSIGNAL because we are a guest in
    // processes whose SIGPIPE is theirs. Descriptors that are no sockets are plainly written.
    ssize_t count = send(fd, data.data(), data.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && errno == ENOTSOCK) count = write(fd, data.data(), data.size());
    if (count < 0) {
      if (errno == EINTR || errno == EAGAIN) continue;
      return ErrnoStatus("write");
    }
    data.remove_prefix(count);
  }
  return absl::OkStatus();
}

}  // namespace fargpu
