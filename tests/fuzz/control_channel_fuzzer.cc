#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/fd.h"
#include "tests/fuzz/fuzz_target.h"
#include "transport/control/byte_stream.h"
#include "transport/control/control_channel.h"
#include "transport/control/endpoint.h"

// Input: u8 that chooses who reads (Reader below) | the bytes that the stranger sends before it
// closes the socket. TLS is read up to the point where keys are needed.
namespace fargpu::fuzz {
namespace {

using transport::AcceptChannel;
using transport::ControlChannel;

enum Reader : uint8_t { kServer, kClient, kTlsServer, kTlsClient, kReaders };

constexpr char kMagic[8] = {'F', 'A', 'R', 'G', 'P', 'U', '\0', '\1'};

LeaseId KnownLease() {
  LeaseId lease;
  lease.bytes.fill(0x11);
  return lease;
}
LeaseSecret KnownSecret() {
  LeaseSecret secret;
  secret.bytes.fill(0x22);
  return secret;
}
absl::StatusOr<LeaseSecret> Lookup(const LeaseId& lease) {
  if (lease != KnownLease()) return absl::NotFoundError("no such lease");
  return KnownSecret();
}

// Far enough away never to be met: the stranger has closed its end already.
absl::Time Deadline() { return absl::Now() + absl::Seconds(20); }

void Write(int socket, absl::Span<const char> bytes) {
  // What does not fit into the socket's buffer is as good as never sent.
  [[maybe_unused]] const ssize_t written =
      send(socket, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

UniqueFd SocketThatSays(absl::Span<const char> bytes, UniqueFd* stranger) {
  int ends[2];
  Require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "there are sockets");
  *stranger = UniqueFd(ends[1]);
  Write(stranger->get(), bytes);
  shutdown(stranger->get(), SHUT_WR);
  return UniqueFd(ends[0]);
}

void ReceiveAll(ControlChannel* channel) {
  while (true) {
    const absl::StatusOr<std::string> message = channel->Receive(Deadline());
    if (!message.ok()) {
      Require(message.status().code() != absl::StatusCode::kDeadlineExceeded,
              "a closed socket ends the wait");
      return;
    }
    Require(message->size() <= transport::kMaxControlMessageBytes, "messages are under the limit");
  }
}

void ServeStranger(absl::Span<const char> bytes) {
  UniqueFd stranger;
  UniqueFd socket = SocketThatSays(bytes, &stranger);
  const auto channel = AcceptChannel(std::move(socket), Lookup, Deadline());
  if (!channel.ok()) return;
  Require((*channel)->lease() == KnownLease(), "only a lease that is known gets in");
  ReceiveAll(channel->get());
}

// A client that dialled a server which is none.
void DialStranger(absl::Span<const char> bytes) {
  // Removes its file when the process exits in an orderly way.
  static const std::unique_ptr<transport::Listener> listener = [] {
    auto listening = transport::Listener::Listen(
        absl::StrCat("unix:/tmp/fargpu_fuzz_control_", getpid(), ".sock"));
    Require(listening.ok(), "there is a place for a socket");
    return *std::move(listening);
  }();
  const auto channel =
      transport::Dial(listener->endpoint(), KnownLease(), KnownSecret(), Deadline());
  Require(channel.ok(), "the listener listens");
  const auto stranger = listener->Accept(Deadline());
  Require(stranger.ok(), "the client came");
  Write(stranger->get(), bytes);
  shutdown(stranger->get(), SHUT_WR);
  ReceiveAll(channel->get());
}

std::string Preamble(const LeaseSecret& secret) {
  std::string bytes(kMagic, sizeof(kMagic));
  const LeaseId lease = KnownLease();
  bytes.append(reinterpret_cast<const char*>(lease.bytes.data()), lease.bytes.size());
  bytes.append(reinterpret_cast<const char*>(secret.bytes.data()), secret.bytes.size());
  return bytes.append(8, '\0');
}
std::string Prefixed(absl::string_view magic, uint32_t value, absl::string_view rest) {
  std::string bytes(magic);
  PutPlain(&bytes, value);
  return bytes.append(rest.data(), rest.size());
}

// The first flight of a client's TLS handshake, as our own client makes it.
std::string ClientHello() {
  int ends[2];
  Require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0, "there are sockets");
  UniqueFd server(ends[1]);
  transport::TlsConnect(UniqueFd(ends[0]), KnownLease(), KnownSecret(),
                        absl::Now() + absl::Milliseconds(20))
      .status()
      .IgnoreError();
  char bytes[4096];
  const ssize_t size = recv(server.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
  return std::string(bytes, size > 0 ? static_cast<size_t>(size) : 0);
}
// ...and the server's answer to it.
std::string ServerHello(const std::string& client_hello) {
  UniqueFd stranger;
  UniqueFd socket = SocketThatSays(client_hello, &stranger);
  LeaseId lease;
  transport::TlsAccept(std::move(socket), Lookup, Deadline(), &lease).status().IgnoreError();
  char bytes[4096];
  const ssize_t size = recv(stranger.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
  return std::string(bytes, size > 0 ? static_cast<size_t>(size) : 0);
}

}  // namespace

std::vector<Seed> Seeds() {
  const auto reader = [](Reader who, absl::string_view bytes) {
    return absl::StrCat(std::string(1, static_cast<char>(who)), bytes);
  };
  const std::string messages = Prefixed("FGPM", 5, "hello") + Prefixed("FGPM", 0, "");
  const std::string hello = ClientHello();
  return {
      {"server_accepts", reader(kServer, Preamble(KnownSecret()) + messages)},
      {"server_refuses", reader(kServer, Preamble(LeaseSecret()) + messages)},
      {"server_too_long",
       reader(kServer, Preamble(KnownSecret()) + Prefixed("FGPM", 0xffffffff, "x"))},
      {"client_accepted", reader(kClient, Prefixed("FGPV", 0, "") + messages)},
      {"client_refused", reader(kClient, Prefixed("FGPV", 1, ""))},
      {"tls_client_hello", reader(kTlsServer, hello)},
      {"tls_server_hello", reader(kTlsClient, ServerHello(hello))},
  };
}

}  // namespace fargpu::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fargpu;        // NOLINT: one function
  using namespace fargpu::fuzz;  // NOLINT
  InputReader input(data, size);
  const uint8_t reader = input.U8() % kReaders;
  UniqueFd stranger;
  switch (reader) {
    case kServer:
      ServeStranger(input.rest());
      break;
    case kClient:
      DialStranger(input.rest());
      break;
    case kTlsServer: {
      LeaseId lease;
      UniqueFd socket = SocketThatSays(input.rest(), &stranger);
      Require(!transport::TlsAccept(std::move(socket), Lookup, Deadline(), &lease).ok(),
              "nobody gets in without a secret");
      break;
    }
    default: {
      UniqueFd socket = SocketThatSays(input.rest(), &stranger);
      Require(
          !transport::TlsConnect(std::move(socket), KnownLease(), KnownSecret(), Deadline()).ok(),
          "a server without the secret is none");
    }
  }
  return 0;
}
