// What the machine itself can do, to set beside our figures: a TCP ping-pong with blocking and with
// busy receives, a TCP stream, and memcpy. Client and server are two processes on the loopback
// interface, as a program and its worker are.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/perf/measure.h"

namespace {

constexpr size_t kMessageBytes = 64;
constexpr int kRoundTrips = 5000;

enum class Wait { kBlock, kSpin };

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "raw_bench: %s: %s\n", what, std::strerror(errno));
  std::exit(EXIT_FAILURE);
}

bool ReceiveAll(int fd, char* data, size_t bytes, Wait wait) {
  const int flags = wait == Wait::kSpin ? MSG_DONTWAIT : 0;
  while (bytes > 0) {
    const ssize_t got = recv(fd, data, bytes, flags);
    if (got == 0) return false;
    if (got < 0) {
      if (errno == EAGAIN || errno == EINTR) continue;
      return false;
    }
    data += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

bool SendAll(int fd, const char* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t sent = send(fd, data, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    data += sent;
    bytes -= static_cast<size_t>(sent);
  }
  return true;
}

// A child process that serves one connection with `serve`, and the connection to it.
class Peer {
 public:
  template <typename Serve>
  explicit Peer(const Serve& serve) {
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    if (listener < 0 || bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
        listen(listener, 1) != 0 ||
        getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
      Die("listen on loopback");
    }
    child_ = fork();
    if (child_ < 0) Die("fork");
    if (child_ == 0) {
      const int fd = accept(listener, nullptr, nullptr);
      if (fd < 0) _exit(EXIT_FAILURE);
      SetNoDelay(fd);
      serve(fd);
      _exit(EXIT_SUCCESS);
    }
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd_ < 0 || connect(fd_, reinterpret_cast<sockaddr*>(&address), length) != 0) Die("connect");
    SetNoDelay(fd_);
    close(listener);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  ~Peer() {
    close(fd_);
    waitpid(child_, nullptr, 0);
  }

  int fd() const { return fd_; }

 private:
  static void SetNoDelay(int fd) {
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }

  pid_t child_ = -1;
  int fd_ = -1;
};

void PingPong(const char* name, Wait wait) {
  Peer peer([wait](int fd) {
    char message[kMessageBytes];
    while (ReceiveAll(fd, message, sizeof(message), wait) &&
           SendAll(fd, message, sizeof(message))) {
    }
  });
  char message[kMessageBytes] = {};
  perf::Measure(name, "us", [&] {
    const double seconds = perf::Seconds([&] {
      for (int i = 0; i < kRoundTrips; ++i) {
        if (!SendAll(peer.fd(), message, sizeof(message)) ||
            !ReceiveAll(peer.fd(), message, sizeof(message), wait)) {
          Die("ping-pong");
        }
      }
    });
    return seconds / kRoundTrips * 1e6;
  });
}

// Sends messages of `bytes` from one buffer into one buffer, each answered by one byte, like a
// copy that is waited for.
void Stream(size_t bytes) {
  Peer peer([bytes](int fd) {
    std::vector<char> buffer(bytes, 1);
    while (ReceiveAll(fd, buffer.data(), bytes, Wait::kBlock) && SendAll(fd, buffer.data(), 1)) {
    }
  });
  std::vector<char> buffer(bytes, 1);
  const int repeats = perf::CopyRepeats(bytes);
  perf::Measure("tcp_stream_" + perf::SizeName(bytes), "GB/s", [&] {
    const double seconds = perf::Seconds([&] {
      for (int i = 0; i < repeats; ++i) {
        char done = 0;
        if (!SendAll(peer.fd(), buffer.data(), bytes) ||
            !ReceiveAll(peer.fd(), &done, 1, Wait::kBlock)) {
          Die("stream");
        }
      }
    });
    return static_cast<double>(bytes) * repeats / seconds / 1e9;
  });
}

void Copy(size_t bytes) {
  std::vector<char> from(bytes, 1);
  std::vector<char> to(bytes, 2);
  const int repeats = perf::CopyRepeats(bytes);
  perf::Measure("memcpy_" + perf::SizeName(bytes), "GB/s", [&] {
    const double seconds = perf::Seconds([&] {
      for (int i = 0; i < repeats; ++i) {
        std::memcpy(to.data(), from.data(), bytes);
        // Keeps the compiler from dropping copies that the next one overwrites.
        asm volatile("" : : "r"(to.data()) : "memory");
      }
    });
    return static_cast<double>(bytes) * repeats / seconds / 1e9;
  });
}

}  // namespace

int main() {
  signal(SIGPIPE, SIG_IGN);
  PingPong("tcp_pingpong_blocking", Wait::kBlock);
  PingPong("tcp_pingpong_busy", Wait::kSpin);
  for (const size_t bytes : perf::CopySizes()) Stream(bytes);
  for (const size_t bytes : perf::CopySizes()) Copy(bytes);
  return EXIT_SUCCESS;
}
