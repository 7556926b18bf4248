#include "transport/control/endpoint.h"

#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/status_macros.h"
#include <net/if.h>

namespace fargpu::transport {
namespace {

constexpr int kBacklog = 128;
constexpr int kSocketFlags = SOCK_CLOEXEC | SOCK_NONBLOCK;

absl::StatusOr<sockaddr_un> UnixAddress(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("socket path ", path, " is longer than ",
                                                   sizeof(address.sun_path) - 1, " bytes"));
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

// Options of a connected TCP socket: no delay for small messages, and an end to silent peers.
void TuneTcp(int fd) {
  const auto set = [fd](int level, int name, int value) {
    setsockopt(fd, level, name, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 10'000);
}

absl::Status FinishConnect(int fd, const sockaddr* address, socklen_t size, absl::Time deadline,
                           const std::string& name) {
  const std::string what = absl::StrCat("connect to ", name);
  if (connect(fd, address, size) == 0) return absl::OkStatus();
  if (errno == ENOENT) return absl::UnavailableError(absl::StrCat(what, ": no such socket"));
  // A unix socket whose queue is full says EAGAIN, and cannot be waited for.
  if (errno == EAGAIN) return absl::UnavailableError(absl::StrCat(what, ": the server is busy"));
  if (errno != EINPROGRESS && errno != EINTR) return ErrnoStatus(what);
  const absl::Status ready = PollFd(fd, POLLOUT, deadline);
  if (!ready.ok()) return absl::Status(ready.code(), absl::StrCat(what, ": ", ready.message()));
  int error = 0;
  socklen_t error_size = sizeof(error);
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_size);
  if (error == 0) return absl::OkStatus();
  errno = error;
  return ErrnoStatus(what);
}

absl::StatusOr<addrinfo*> Resolve(const Endpoint& endpoint, int flags) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(endpoint.host.c_str(), endpoint.port.c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("address of ", endpoint.host, ": ", gai_strerror(error)));
  }
  return found;
}

std::string Name(const Endpoint& endpoint, const std::string& port) {
  const bool v6 = absl::StrContains(endpoint.host, ':');
  return v6 ? absl::StrCat("tcp:[", endpoint.host, "]:", port)
            : absl::StrCat("tcp:", endpoint.host, ":", port);
}

absl::StatusOr<UniqueFd> BindTcp(const Endpoint& endpoint) {
  ASSIGN_OR_RETURN(addrinfo* const found, Resolve(endpoint, AI_PASSIVE));
  const auto release = absl::MakeCleanup([found] { freeaddrinfo(found); });
  absl::Status status;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    UniqueFd socket_fd(socket(entry->ai_family, SOCK_STREAM | kSocketFlags, 0));
    if (!socket_fd.valid()) {
      status = ErrnoStatus("socket");
      continue;
    }
    const int one = 1;
    setsockopt(socket_fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(socket_fd.get(), entry->ai_addr, entry->ai_addrlen) == 0) return socket_fd;
    status = ErrnoStatus(absl::StrCat("bind to ", Name(endpoint, endpoint.port)));
  }
  return status;
}

absl::StatusOr<UniqueFd> BindUnix(const Endpoint& endpoint) {
  ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(endpoint.path));
  const auto* const generic = reinterpret_cast<const sockaddr*>(&address);
  struct stat info;
  if (lstat(endpoint.path.c_str(), &info) == 0) {
    if (!S_ISSOCK(info.st_mode)) {
      return absl::AlreadyExistsError(absl::StrCat(endpoint.path, " exists and is not a socket"));
    }
    UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | kSocketFlags, 0));
    if (connect(probe.get(), generic, sizeof(address)) == 0 || errno == EAGAIN) {
      return absl::AlreadyExistsError(absl::StrCat("another process listens on ", endpoint.path));
    }
    unlink(endpoint.path.c_str());
  }
  UniqueFd socket_fd(socket(AF_UNIX, SOCK_STREAM | kSocketFlags, 0));
  if (!socket_fd.valid()) return ErrnoStatus("socket");
  if (bind(socket_fd.get(), generic, sizeof(address)) != 0) {
    return ErrnoStatus(absl::StrCat("bind to ", endpoint.path));
  }
  if (chmod(endpoint.path.c_str(), 0666) != 0) {
    return ErrnoStatus(absl::StrCat("chmod ", endpoint.path));
  }
  return socket_fd;
}

bool SameAddress(const sockaddr& a, const sockaddr& b) {
  if (a.sa_family != b.sa_family) return false;
  if (a.sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in&>(a).sin_addr.s_addr ==
           reinterpret_cast<const sockaddr_in&>(b).sin_addr.s_addr;
  }
  if (a.sa_family != AF_INET6) return false;
  return std::memcmp(&reinterpret_cast<const sockaddr_in6&>(a).sin6_addr,
                     &reinterpret_cast<const sockaddr_in6&>(b).sin6_addr, sizeof(in6_addr)) == 0;
}

}  // namespace

absl::StatusOr<Endpoint> ParseEndpoint(absl::string_view text) {
  const auto wrong = [text](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("endpoint ", text, ": ", why, "; expected tcp:ADDRESS:PORT or unix:/path"));
  };
  Endpoint endpoint;
  if (absl::StartsWith(text, "unix:")) {
    endpoint.kind = Endpoint::Kind::kUnix;
    endpoint.path = std::string(text.substr(5));
    if (!absl::StartsWith(endpoint.path, "/")) return wrong("the path is not absolute");
    return endpoint;
  }
  if (!absl::StartsWith(text, "tcp:")) return wrong("unknown kind");
  absl::string_view rest = text.substr(4);
  const size_t colon = rest.rfind(':');
  if (colon == absl::string_view::npos) return wrong("no port");
  endpoint.port = std::string(rest.substr(colon + 1));
  absl::string_view host = rest.substr(0, colon);
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) {
    host = host.substr(1, host.size() - 2);
  } else if (absl::StrContains(host, ':')) {
    return wrong("an IPv6 address needs brackets");
  }
  endpoint.host = std::string(host);
  int port = 0;
  if (endpoint.host.empty()) return wrong("no address");
  if (!absl::SimpleAtoi(endpoint.port, &port) || port < 0 || port > 65535) {
    return wrong("the port is not a number from 0 to 65535");
  }
  return endpoint;
}

absl::StatusOr<UniqueFd> ConnectSocket(const Endpoint& endpoint, absl::Time deadline) {
  if (endpoint.kind == Endpoint::Kind::kUnix) {
    ASSIGN_OR_RETURN(const sockaddr_un address, UnixAddress(endpoint.path));
    UniqueFd socket_fd(socket(AF_UNIX, SOCK_STREAM | kSocketFlags, 0));
    if (!socket_fd.valid()) return ErrnoStatus("socket");
    RETURN_IF_ERROR(FinishConnect(socket_fd.get(), reinterpret_cast<const sockaddr*>(&address),
                                  sizeof(address), deadline, endpoint.path));
    return socket_fd;
  }
  ASSIGN_OR_RETURN(addrinfo* const found, Resolve(endpoint, 0));
  const auto release = absl::MakeCleanup([found] { freeaddrinfo(found); });
  absl::Status status;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    UniqueFd socket_fd(socket(entry->ai_family, SOCK_STREAM | kSocketFlags, 0));
    if (!socket_fd.valid()) {
      status = ErrnoStatus("socket");
      continue;
    }
    status = FinishConnect(socket_fd.get(), entry->ai_addr, entry->ai_addrlen, deadline,
                           Name(endpoint, endpoint.port));
    if (status.ok()) {
      TuneTcp(socket_fd.get());
      return socket_fd;
    }
  }
  return status;
}

absl::StatusOr<std::unique_ptr<Listener>> Listener::Listen(absl::string_view text) {
  ASSIGN_OR_RETURN(const Endpoint endpoint, ParseEndpoint(text));
  const bool unix_socket = endpoint.kind == Endpoint::Kind::kUnix;
  ASSIGN_OR_RETURN(UniqueFd socket_fd, unix_socket ? BindUnix(endpoint) : BindTcp(endpoint));
  if (listen(socket_fd.get(), kBacklog) != 0) return ErrnoStatus(absl::StrCat("listen on ", text));
  if (unix_socket) {
    return std::unique_ptr<Listener>(
        new Listener(std::move(socket_fd), std::string(text), endpoint.path));
  }
  sockaddr_storage bound = {};
  socklen_t size = sizeof(bound);
  char port[NI_MAXSERV] = {};
  auto* const generic = reinterpret_cast<sockaddr*>(&bound);
  if (getsockname(socket_fd.get(), generic, &size) != 0 ||
      getnameinfo(generic, size, nullptr, 0, port, sizeof(port), NI_NUMERICSERV) != 0) {
    return ErrnoStatus("getsockname");
  }
  return std::unique_ptr<Listener>(new Listener(std::move(socket_fd), Name(endpoint, port), ""));
}

Listener::Listener(UniqueFd socket, std::string endpoint, std::string path)
    : socket_(std::move(socket)), endpoint_(std::move(endpoint)), path_(std::move(path)) {
  struct stat info;
  if (!path_.empty() && lstat(path_.c_str(), &info) == 0) {
    device_ = info.st_dev;
    inode_ = info.st_ino;
  }
}

Listener::~Listener() {
  struct stat info;
  if (path_.empty() || lstat(path_.c_str(), &info) != 0) return;
  if (info.st_dev == device_ && info.st_ino == inode_) unlink(path_.c_str());
}

absl::StatusOr<UniqueFd> Listener::Accept(absl::Time deadline) {
  while (true) {
    RETURN_IF_ERROR(PollFd(socket_.get(), POLLIN, deadline));
    UniqueFd accepted(accept4(socket_.get(), nullptr, nullptr, kSocketFlags));
    if (accepted.valid()) {
      if (path_.empty()) TuneTcp(accepted.get());
      return accepted;
    }
    // Whoever was there may have gone again.
    if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) continue;
    return ErrnoStatus("accept");
  }
}

absl::StatusOr<std::string> InterfaceOf(int socket) {
  sockaddr_storage local = {};
  socklen_t size = sizeof(local);
  if (getsockname(socket, reinterpret_cast<sockaddr*>(&local), &size) != 0) {
    return ErrnoStatus("getsockname");
  }
  if (local.ss_family == AF_UNIX) return std::string("lo");
  // A dual-stack socket shows an IPv4 peer as ::ffff:a.b.c.d; interfaces list the plain address.
  if (local.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(local);
    if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
      sockaddr_in v4 = {};
      v4.sin_family = AF_INET;
      std::memcpy(&v4.sin_addr, v6.sin6_addr.s6_addr + 12, 4);
      std::memcpy(&local, &v4, sizeof(v4));
    }
  }
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) return ErrnoStatus("getifaddrs");
  const auto release = absl::MakeCleanup([interfaces] { freeifaddrs(interfaces); });
  std::string loopback;
  for (const ifaddrs* entry = interfaces; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_flags & IFF_LOOPBACK) loopback = entry->ifa_name;
    if (entry->ifa_addr == nullptr) continue;
    if (SameAddress(*entry->ifa_addr, reinterpret_cast<const sockaddr&>(local))) {
      return std::string(entry->ifa_name);
    }
  }
  // All of 127/8 is loopback, but only 127.0.0.1 is listed.
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(local);
  if (local.ss_family == AF_INET && ntohl(v4.sin_addr.s_addr) >> 24 == 127 && !loopback.empty()) {
    return loopback;
  }
  return absl::NotFoundError("no interface has the socket's local address");
}

std::string PeerName(int socket) {
  sockaddr_storage peer = {};
  socklen_t size = sizeof(peer);
  auto* const generic = reinterpret_cast<sockaddr*>(&peer);
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (getpeername(socket, generic, &size) != 0) return "an unknown peer";
  if (peer.ss_family == AF_UNIX) {
    ucred process = {};
    socklen_t process_size = sizeof(process);
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &process, &process_size) != 0) {
      return "an unknown process";
    }
    return absl::StrCat("process ", process.pid, " of user ", process.uid);
  }
  if (getnameinfo(generic, size, host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "an unknown peer";
  }
  return absl::StrCat(host, ":", port);
}

}  // namespace fargpu::transport
