#include "server/process/message_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "common/status_macros.h"

namespace fargpu::server {
namespace {

struct Address {
  sockaddr_un name = {};
  socklen_t bytes = sizeof(sockaddr_un);
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }
};

absl::StatusOr<Address> AddressOf(const std::string& path) {
  Address address;
  address.name.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.name.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("the socket path ", path, " has ", path.size(),
                                                   " bytes; ", sizeof(address.name.sun_path) - 1,
                                                   " are possible"));
  }
  std::memcpy(address.name.sun_path, path.data(), path.size());
  if (absl::StartsWith(path, "@")) {
    address.name.sun_path[0] = '\0';
    address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  }
  return address;
}

}  // namespace

absl::StatusOr<std::pair<UniqueFd, UniqueFd>> MessageSocket::Pair() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoStatus("socketpair");
  }
  return std::make_pair(UniqueFd(ends[0]), UniqueFd(ends[1]));
}

absl::StatusOr<UniqueFd> MessageSocket::Listen(const std::string& path) {
  ASSIGN_OR_RETURN(const Address address, AddressOf(path));
  UniqueFd socket_fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket_fd.valid()) return ErrnoStatus("socket");
  // Only the daemon that holds the run directory's lock comes here, so what is there is stale.
  if (!absl::StartsWith(path, "@")) unlink(path.c_str());
  if (bind(socket_fd.get(), address.get(), address.bytes) != 0) {
    return ErrnoStatus(absl::StrCat("bind ", path));
  }
  if (listen(socket_fd.get(), 128) != 0) return ErrnoStatus(absl::StrCat("listen ", path));
  return socket_fd;
}

absl::StatusOr<UniqueFd> MessageSocket::Connect(const std::string& path) {
  ASSIGN_OR_RETURN(const Address address, AddressOf(path));
  UniqueFd socket_fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!socket_fd.valid()) return ErrnoStatus("socket");
  if (connect(socket_fd.get(), address.get(), address.bytes) != 0) {
    return ErrnoStatus(absl::StrCat("connect ", path));
  }
  return socket_fd;
}

absl::Status MessageSocket::Send(absl::Span<const char> bytes, absl::Span<const int> descriptors) {
  if (bytes.size() > kMaxMessageBytes || descriptors.size() > kMaxDescriptors) {
    return absl::InvalidArgumentError(absl::StrCat("a message of ", bytes.size(), " bytes and ",
                                                   descriptors.size(), " descriptors"));
  }
  iovec piece = {.iov_base = const_cast<char*>(bytes.data()), .iov_len = bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size() * sizeof(int));
  }
  // A worker that does not read, because it is stopped, must not hold up the daemon.
  if (sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    return ErrnoStatus("sendmsg between daemon and worker");
  }
  return absl::OkStatus();
}

absl::StatusOr<MessageSocket::Received> MessageSocket::Receive(absl::Time deadline) {
  if (absl::Status ready = PollFd(socket_.get(), POLLIN, deadline); !ready.ok()) return ready;
  Received received;
  received.bytes.resize(kMaxMessageBytes);
  iovec piece = {.iov_base = received.bytes.data(), .iov_len = received.bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxDescriptors * sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t size = recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (size < 0) return ErrnoStatus("recvmsg between daemon and worker");
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      received.descriptors.emplace_back(fd);
    }
  }
  if (size == 0) return absl::UnavailableError("the other process closed its end");
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0) {
    return absl::InvalidArgumentError("a message between daemon and worker is too long");
  }
  received.bytes.resize(static_cast<size_t>(size));
  return received;
}

}  // namespace fargpu::server
