#include "transport/connection_test_peers.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <deque>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/mutex.h"
#include "common/status_macros.h"
#include "transport/link.h"

namespace fargpu::transport {
namespace {

constexpr absl::Duration kLimit = absl::Seconds(20);

absl::Status SendAddress(int fd, const std::string& address) {
  const uint32_t size = static_cast<uint32_t>(address.size());
  RETURN_IF_ERROR(
      WriteFully(fd, {reinterpret_cast<const char*>(&size), sizeof(size)}, absl::Now() + kLimit));
  return WriteFully(fd, address, absl::Now() + kLimit);
}

absl::StatusOr<std::string> ReceiveAddress(int fd) {
  uint32_t size = 0;
  RETURN_IF_ERROR(
      ReadFully(fd, {reinterpret_cast<char*>(&size), sizeof(size)}, absl::Now() + kLimit));
  std::string address(size, '\0');
  RETURN_IF_ERROR(ReadFully(fd, absl::MakeSpan(&address[0], size), absl::Now() + kLimit));
  return address;
}

absl::StatusOr<std::unique_ptr<Connection>> ConnectOver(int fd, Reach reach) {
  ASSIGN_OR_RETURN(auto endpoint, UcxEndpoint::Create(TestOptions(reach)));
  RETURN_IF_ERROR(SendAddress(fd, endpoint->local_address()));
  ASSIGN_OR_RETURN(const std::string address, ReceiveAddress(fd));
  return endpoint->Connect(address);
}

// Until the connection dies.
absl::Status Echo(Connection* connection, bool silent) {
  std::deque<std::pair<SendTicket, Message>> borrowed;
  while (true) {
    std::vector<Message> arrived;
    ASSIGN_OR_RETURN(const bool moved, connection->Progress(&arrived));
    for (Message& message : arrived) {
      if (silent) continue;
      ASSIGN_OR_RETURN(const SendTicket ticket, connection->Send({}, message.bytes()));
      borrowed.emplace_back(ticket, std::move(message));
    }
    while (!borrowed.empty() && connection->IsSent(borrowed.front().first)) borrowed.pop_front();
    if (moved) continue;
    ASSIGN_OR_RETURN(const bool armed, connection->Arm());
    pollfd item = {.fd = connection->event_fd(), .events = POLLIN, .revents = 0};
    if (armed) poll(&item, 1, 1000);
  }
}

absl::Status AnswerOnLink(std::unique_ptr<Connection> connection, bool fork_first) {
  Mutex mutex;  // the handler may run on the link's own thread
  std::deque<IncomingFrame> calls;
  const auto pending = [&] {
    MutexLock lock(&mutex);
    return !calls.empty();
  };
  const std::unique_ptr<Link> link = Link::Start(
      std::move(connection), {.active_spin = absl::Milliseconds(2)},
      [&](IncomingFrame frame) {
        MutexLock lock(&mutex);
        calls.push_back(std::move(frame));
      },
      [](const absl::Status&) {});
  while (true) {
    RETURN_IF_ERROR(link->WaitUntil(pending, absl::InfiniteFuture()));
    IncomingFrame call;
    {
      MutexLock lock(&mutex);
      call = std::move(calls.front());
      calls.pop_front();
    }
    if (std::exchange(fork_first, false) && fork() == 0) {
      link->AbandonAfterFork();
      prctl(PR_SET_PDEATHSIG, 0);
      sleep(4);
      _exit(0);
    }
    ASSIGN_OR_RETURN(
        const SendTicket ticket,
        link->Send(wire::FrameKind::kReplies, 1, call.header.first_call, call.body(), call.bulk()));
    if (!call.bulk().empty()) RETURN_IF_ERROR(link->WaitSent(ticket, absl::Now() + kLimit));
  }
}

}  // namespace

UcxOptions TestOptions(Reach reach) {
  UcxOptions options = {.reach = reach, .net_device = "lo"};
  options.session.bytes[0] = 7;
  return options;
}

absl::StatusOr<ConnectionPair> NewUcxPair(const UcxOptions& first, const UcxOptions& second) {
  ASSIGN_OR_RETURN(auto one, UcxEndpoint::Create(first));
  ASSIGN_OR_RETURN(auto other, UcxEndpoint::Create(second));
  ASSIGN_OR_RETURN(auto near, one->Connect(other->local_address()));
  ASSIGN_OR_RETURN(auto far, other->Connect(one->local_address()));
  return ConnectionPair(std::move(near), std::move(far));
}

absl::StatusOr<PeerProcess> PeerProcess::Start(Reach reach, const std::string& role) {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
    return ErrnoStatus("socketpair");
  }
  UniqueFd ours(fds[0]), theirs(fds[1]);
  const std::string arguments[] = {"peer", absl::StrCat("--peer=", role),
                                   reach == Reach::kMachine ? "shm" : "tcp",
                                   absl::StrCat(theirs.get())};
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  PeerProcess peer;
  peer.pid_ = fork();
  if (peer.pid_ < 0) return ErrnoStatus("fork");
  if (peer.pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    fcntl(theirs.get(), F_SETFD, 0);
    execv("/proc/self/exe", argv.data());
    _exit(127);
  }
  theirs.reset();
  ASSIGN_OR_RETURN(peer.connection_, ConnectOver(ours.get(), reach));
  return peer;
}

PeerProcess::PeerProcess(PeerProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), connection_(std::move(other.connection_)) {}

PeerProcess::~PeerProcess() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  Reap();
}

void PeerProcess::Signal(int number) { kill(pid_, number); }

void PeerProcess::Reap() {
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

bool RunAsPeer(int argc, char** argv) {
  if (argc != 4 || std::strncmp(argv[1], "--peer=", 7) != 0) return false;
  const std::string role = argv[1] + 7;
  const Reach reach = std::strcmp(argv[2], "shm") == 0 ? Reach::kMachine : Reach::kNetwork;
  auto connection = ConnectOver(std::atoi(argv[3]), reach);
  if (!connection.ok()) return true;
  if (role == "link" || role == "link_forks") {
    AnswerOnLink(*std::move(connection), role == "link_forks").IgnoreError();
  } else {
    Echo(connection->get(), role == "silent").IgnoreError();
  }
  return true;
}

}  // namespace fargpu::transport
