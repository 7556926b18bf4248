#include "transport/control/control_channel.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <future>
#include <random>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/status_matchers.h"
#include "transport/control/endpoint.h"
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

namespace fargpu::transport {
namespace {

using testing::HasSubstr;

absl::Time Soon() { return absl::Now() + absl::Seconds(10); }

template <typename T>
T Counted(uint8_t first) {
  T value;
  for (uint8_t& byte : value.bytes) byte = first++;
  return value;
}
const LeaseId kLease = Counted<LeaseId>(1);
const LeaseSecret kSecret = Counted<LeaseSecret>(100);

absl::StatusOr<LeaseSecret> Lookup(const LeaseId& lease) {
  if (lease == kLease) return kSecret;
  return absl::NotFoundError("no such lease");
}

using Channel = absl::StatusOr<std::unique_ptr<ControlChannel>>;

// A server that takes one client, in a thread.
struct OneServer {
  std::unique_ptr<Listener> listener;
  std::future<Channel> accepted;

  explicit OneServer(const std::string& endpoint, absl::Duration limit = kHandshakeLimit) {
    auto listening = Listener::Listen(endpoint);
    EXPECT_OK(listening);
    listener = *std::move(listening);
    accepted = std::async(std::launch::async, [this, limit]() -> Channel {
      absl::StatusOr<UniqueFd> socket = listener->Accept(Soon());
      if (!socket.ok()) return socket.status();
      return AcceptChannel(*std::move(socket), Lookup, absl::Now() + limit);
    });
  }
  // A client that is none of ours.
  UniqueFd Raw() {
    const absl::StatusOr<Endpoint> endpoint = ParseEndpoint(listener->endpoint());
    EXPECT_OK(endpoint);
    absl::StatusOr<UniqueFd> socket = ConnectSocket(*endpoint, Soon());
    EXPECT_OK(socket);
    return *std::move(socket);
  }
};

std::string UnixEndpoint() {
  return absl::StrCat("unix:", testing::TempDir(), "/fargpu_control_test_", getpid(), ".sock");
}
std::string AnyPort() { return "tcp:127.0.0.1:0"; }

std::string Preamble(const LeaseId& lease, const LeaseSecret& secret) {
  std::string bytes("FARGPU\0\1", 8);
  bytes.append(reinterpret_cast<const char*>(lease.bytes.data()), lease.bytes.size());
  bytes.append(reinterpret_cast<const char*>(secret.bytes.data()), secret.bytes.size());
  bytes.append(8, '\0');
  return bytes;
}

TEST(EndpointTest, Parses) {
  ASSERT_OK_AND_ASSIGN(Endpoint tcp, ParseEndpoint("tcp:[fe80::1]:4833"));
  EXPECT_EQ(tcp.host, "fe80::1");
  EXPECT_EQ(tcp.port, "4833");
  ASSERT_OK_AND_ASSIGN(Endpoint name, ParseEndpoint("tcp:gpu1.example:0"));
  EXPECT_EQ(name.host, "gpu1.example");
  ASSERT_OK_AND_ASSIGN(Endpoint path, ParseEndpoint("unix:/run/fargpu/d.sock"));
  EXPECT_EQ(path.kind, Endpoint::Kind::kUnix);
  EXPECT_EQ(path.path, "/run/fargpu/d.sock");
  for (const char* wrong : {"", "tcp:", "tcp:host", "tcp::1", "tcp:host:65536", "tcp:host:-1",
                            "tcp:host:x", "tcp:::1:80", "unix:relative", "udp:host:1"}) {
    EXPECT_THAT(ParseEndpoint(wrong), StatusIs(absl::StatusCode::kInvalidArgument)) << wrong;
  }
}

TEST(ListenerTest, ReplacesAStaleSocketAndRespectsALiveOne) {
  const std::string endpoint = UnixEndpoint();
  const std::string path = endpoint.substr(5);
  {
    ASSERT_OK_AND_ASSIGN(auto first, Listener::Listen(endpoint));
    EXPECT_THAT(Listener::Listen(endpoint), StatusIs(absl::StatusCode::kAlreadyExists));
    ASSERT_EQ(rename(path.c_str(), (path + ".old").c_str()), 0);
  }
  ASSERT_EQ(rename((path + ".old").c_str(), path.c_str()), 0);
  EXPECT_EQ(access(path.c_str(), F_OK), 0);
  {
    ASSERT_OK_AND_ASSIGN(auto second, Listener::Listen(endpoint));
    EXPECT_THAT(second->Accept(absl::Now() + absl::Milliseconds(20)),
                StatusIs(absl::StatusCode::kDeadlineExceeded));
  }
  EXPECT_NE(access(path.c_str(), F_OK), 0);  // taken away again
  const int file = open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
  close(file);
  EXPECT_THAT(Listener::Listen(endpoint), StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_EQ(access(path.c_str(), F_OK), 0);
  unlink(path.c_str());
}

TEST(DialTest, NobodyThere) {
  EXPECT_THAT(Dial("unix:/nonexistent/fargpu.sock", kLease, kSecret, Soon()),
              StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(Dial("tcp:127.0.0.1:1", kLease, kSecret, Soon()),
              StatusIs(absl::StatusCode::kUnavailable));
}

TEST(DialTest, AServerThatNeverAnswersEndsAtTheDeadline) {
  ASSERT_OK_AND_ASSIGN(auto listener, Listener::Listen(AnyPort()));
  const absl::Time start = absl::Now();
  EXPECT_THAT(Dial(listener->endpoint(), kLease, kSecret, start + absl::Milliseconds(200)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_LT(absl::Now() - start, absl::Seconds(2));
}

class ControlChannelTest : public testing::TestWithParam<const char*> {
 protected:
  bool is_unix() const { return std::strcmp(GetParam(), "unix") == 0; }
  std::string endpoint() const { return is_unix() ? UnixEndpoint() : AnyPort(); }

  void Connect() {
    server_socket_ = std::make_unique<OneServer>(endpoint());
    Channel dialled = Dial(server_socket_->listener->endpoint(), kLease, kSecret, Soon());
    ASSERT_OK(dialled);
    client_ = *std::move(dialled);
    Channel accepted = server_socket_->accepted.get();
    ASSERT_OK(accepted);
    server_ = *std::move(accepted);
  }

  std::unique_ptr<OneServer> server_socket_;
  std::unique_ptr<ControlChannel> client_, server_;
};

TEST_P(ControlChannelTest, MessagesBothWays) {
  Connect();
  EXPECT_EQ(server_->lease(), kLease);
  for (const size_t size : {size_t{0}, size_t{1}, size_t{70'000}, kMaxControlMessageBytes}) {
    const std::string message(size, 'm');
    // A message larger than the socket's buffers needs a reader meanwhile.
    auto received = std::async(std::launch::async, [&] { return server_->Receive(Soon()); });
    ASSERT_OK(client_->Send(message, Soon()));
    ASSERT_OK_AND_ASSIGN(const std::string at_server, received.get());
    EXPECT_EQ(at_server, message);
    auto back = std::async(std::launch::async, [&] { return client_->Receive(Soon()); });
    ASSERT_OK(server_->Send(message, Soon()));
    ASSERT_OK_AND_ASSIGN(const std::string at_client, back.get());
    EXPECT_EQ(at_client, message);
  }
  EXPECT_THAT(client_->Send(std::string(kMaxControlMessageBytes + 1, 'm'), Soon()),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_P(ControlChannelTest, TheEndOfThePeerIsSeen) {
  Connect();
  EXPECT_THAT(client_->Receive(absl::InfinitePast()),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  pollfd item = {.fd = client_->fd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&item, 1, 20), 0);  // quiet while nothing is sent: no TLS tickets either
  server_.reset();
  EXPECT_EQ(poll(&item, 1, 5000), 1);
  EXPECT_THAT(client_->Receive(Soon()), StatusIs(absl::StatusCode::kUnavailable));
  // SIGPIPE would end this test here.
  ASSERT_EQ(signal(SIGPIPE, SIG_DFL) == SIG_ERR, false);
  absl::Status status;
  for (int i = 0; i < 100 && status.ok(); ++i) {
    status = client_->Send(std::string(10'000, 'x'), Soon());
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable));
}

TEST_P(ControlChannelTest, DescriptorsAreCloseOnExec) {
  Connect();
  for (const int fd : {client_->fd(), server_->fd(), server_socket_->listener->fd()}) {
    EXPECT_TRUE(fcntl(fd, F_GETFD) & FD_CLOEXEC);
  }
  ASSERT_OK_AND_ASSIGN(const std::string interface, InterfaceOf(client_->fd()));
  EXPECT_EQ(interface, "lo");
}

TEST_P(ControlChannelTest, AWrongSecretIsRefused) {
  OneServer server(endpoint());
  LeaseSecret wrong = kSecret;
  wrong.bytes[31] ^= 1;
  Channel dialled = Dial(server.listener->endpoint(), kLease, wrong, Soon());
  absl::Status status = dialled.status();
  if (status.ok()) status = (*dialled)->Receive(Soon()).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kPermissionDenied));
  const Channel accepted = server.accepted.get();
  EXPECT_THAT(accepted, StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(std::string(accepted.status().message()),
              HasSubstr("wrong secret for lease 0102030405"));
}

TEST_P(ControlChannelTest, AnUnknownLeaseIsRefused) {
  OneServer server(endpoint());
  Channel dialled = Dial(server.listener->endpoint(), Counted<LeaseId>(7), kSecret, Soon());
  absl::Status status = dialled.status();
  if (status.ok()) status = (*dialled)->Receive(Soon()).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kPermissionDenied));
  const Channel accepted = server.accepted.get();
  EXPECT_THAT(accepted, StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(std::string(accepted.status().message()), HasSubstr("no such lease"));
}

TEST_P(ControlChannelTest, GarbageIsRefused) {
  std::string noise(4096, '\0');
  std::mt19937 random(1);
  for (char& byte : noise) byte = static_cast<char>(random());
  for (const std::string& garbage :
       {std::string(64, '\xff'), std::string(64, '\0'), noise,
        std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100'000, '\x16')}) {
    OneServer server(endpoint(), absl::Seconds(1));
    {
      const UniqueFd raw = server.Raw();
      WriteFully(raw.get(), garbage, Soon()).IgnoreError();
      shutdown(raw.get(), SHUT_WR);
      const Channel accepted = server.accepted.get();
      EXPECT_FALSE(accepted.ok());
      EXPECT_FALSE(absl::StrContains(std::string(accepted.status().message()), '\n'));
    }
  }
}

TEST_P(ControlChannelTest, ATruncatedHandshakeIsRefused) {
  // What a real client says first, taken from one that talks to us alone.
  std::string real = Preamble(kLease, kSecret);
  if (!is_unix()) {
    ASSERT_OK_AND_ASSIGN(auto listener, Listener::Listen(endpoint()));
    std::thread client([&] {
      Dial(listener->endpoint(), kLease, kSecret, absl::Now() + absl::Milliseconds(300))
          .status()
          .IgnoreError();
    });
    ASSERT_OK_AND_ASSIGN(const UniqueFd socket, listener->Accept(Soon()));
    char bytes[4096];
    ASSERT_OK(PollFd(socket.get(), POLLIN, Soon()));
    const ssize_t count = recv(socket.get(), bytes, sizeof(bytes), 0);
    ASSERT_GT(count, 100);
    real.assign(bytes, static_cast<size_t>(count));
    client.join();
  }
  for (const size_t size : {size_t{0}, size_t{1}, size_t{5}, real.size() / 2, real.size() - 1}) {
    OneServer server(endpoint());
    {
      const UniqueFd raw = server.Raw();
      ASSERT_OK(WriteFully(raw.get(), real.substr(0, size), Soon()));
    }
    const Channel accepted = server.accepted.get();
    EXPECT_THAT(accepted, StatusIs(absl::StatusCode::kUnavailable)) << size;
  }
}

TEST_P(ControlChannelTest, ASlowClientIsCutOffAtTheDeadline) {
  OneServer server(endpoint(), absl::Milliseconds(300));
  const absl::Time start = absl::Now();
  const UniqueFd raw = server.Raw();
  std::string trickle =
      is_unix() ? Preamble(kLease, kSecret) : std::string("\x16\x03\x01\x01\x00", 5);
  trickle.resize(200);
  for (const char byte : trickle) {
    if (server.accepted.wait_for(std::chrono::milliseconds(20)) == std::future_status::ready) break;
    WriteFully(raw.get(), {&byte, 1}, Soon()).IgnoreError();
  }
  EXPECT_THAT(server.accepted.get(), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_LT(absl::Now() - start, absl::Seconds(1));
}

INSTANTIATE_TEST_SUITE_P(Both, ControlChannelTest, testing::Values("tcp", "unix"),
                         [](const auto& test) { return std::string(test.param); });

TEST(UnixChannelTest, KnowsTheProcessAtTheOtherEnd) {
  OneServer server(UnixEndpoint());
  ASSERT_OK_AND_ASSIGN(auto client, Dial(server.listener->endpoint(), kLease, kSecret, Soon()));
  ASSERT_OK_AND_ASSIGN(auto accepted, server.accepted.get());
  ASSERT_TRUE(accepted->peer_credentials().has_value());
  EXPECT_EQ(accepted->peer_credentials()->pid, getpid());
  EXPECT_EQ(accepted->peer_credentials()->uid, getuid());
  EXPECT_THAT(client->TlsExporterKey("x"), StatusIs(absl::StatusCode::kFailedPrecondition));
}

// After a good preamble, a client that breaks the message format.
void ExpectRefusedAfterPreamble(const std::string& bytes, const std::string& reason) {
  OneServer server(UnixEndpoint());
  const UniqueFd raw = server.Raw();
  ASSERT_OK(WriteFully(raw.get(), Preamble(kLease, kSecret) + bytes, Soon()));
  ASSERT_OK_AND_ASSIGN(auto accepted, server.accepted.get());
  for (int i = 0; i < 2; ++i) {
    const auto received = accepted->Receive(Soon());
    EXPECT_THAT(received, StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(std::string(received.status().message()), HasSubstr(reason));
  }
}

TEST(UnixChannelTest, AMessageOfFourGibIsRefused) {
  ExpectRefusedAfterPreamble("FGPM\xff\xff\xff\xff", "4294967295 bytes is over the limit");
  ExpectRefusedAfterPreamble(std::string("FGPM\x01\x00\x10\x00", 8), "1048577 bytes is over");
  ExpectRefusedAfterPreamble(std::string("XGPM\x01\x00\x00\x00", 8), "magic number");
}

TEST(UnixChannelTest, ReservedBytesMustBeZero) {
  OneServer server(UnixEndpoint());
  const UniqueFd raw = server.Raw();
  std::string preamble = Preamble(kLease, kSecret);
  preamble[63] = 1;
  ASSERT_OK(WriteFully(raw.get(), preamble, Soon()));
  EXPECT_THAT(server.accepted.get(), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(UnixChannelTest, ADeadlineLeavesTheStreamIntact) {
  OneServer server(UnixEndpoint());
  const UniqueFd raw = server.Raw();
  ASSERT_OK(WriteFully(raw.get(), Preamble(kLease, kSecret), Soon()));
  ASSERT_OK_AND_ASSIGN(auto accepted, server.accepted.get());
  const std::string message(
      "FGPM\x03\x00\x00\x00"
      "abc",
      11);
  for (const char byte : message) {
    EXPECT_THAT(accepted->Receive(absl::Now() + absl::Milliseconds(1)),
                StatusIs(absl::StatusCode::kDeadlineExceeded));
    ASSERT_OK(WriteFully(raw.get(), {&byte, 1}, Soon()));
  }
  ASSERT_OK_AND_ASSIGN(const std::string received, accepted->Receive(Soon()));
  EXPECT_EQ(received, "abc");
}

TEST(TlsChannelTest, BothEndsExportTheSameKeys) {
  OneServer server(AnyPort());
  ASSERT_OK_AND_ASSIGN(auto client, Dial(server.listener->endpoint(), kLease, kSecret, Soon()));
  ASSERT_OK_AND_ASSIGN(auto accepted, server.accepted.get());
  ASSERT_OK_AND_ASSIGN(const SessionKey a, client->TlsExporterKey("fargpu data up"));
  ASSERT_OK_AND_ASSIGN(const SessionKey b, accepted->TlsExporterKey("fargpu data up"));
  ASSERT_OK_AND_ASSIGN(const SessionKey c, accepted->TlsExporterKey("fargpu data down"));
  EXPECT_EQ(a.bytes, b.bytes);
  EXPECT_NE(a.bytes, c.bytes);
  EXPECT_NE(a.bytes, SessionKey().bytes);
}

TEST(TlsChannelTest, AHandshakeOfTooManyBytesIsRefused) {
  OneServer server(AnyPort());
  const UniqueFd raw = server.Raw();
  // A ClientHello that claims 130,000 bytes, in records of 16 KiB.
  std::string record("\x16\x03\x01\x40\x00", 5);
  record += std::string("\x01\x01\xfb\xd0\x03\x03", 6);
  record.resize(5 + 16384, 'x');
  for (int i = 0; i < 8; ++i) {
    WriteFully(raw.get(), record, Soon()).IgnoreError();
    record.replace(5, 6, "xxxxxx");
  }
  const Channel accepted = server.accepted.get();
  EXPECT_THAT(accepted, StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(std::string(accepted.status().message()), HasSubstr("more than 65536 bytes"));
}

// Somebody between client and server sees neither the secret nor what is said.
TEST(TlsChannelTest, NothingIsReadableOnTheWire) {
  OneServer server(AnyPort());
  ASSERT_OK_AND_ASSIGN(auto middle, Listener::Listen(AnyPort()));
  std::string seen;
  std::thread relay([&] {
    absl::StatusOr<UniqueFd> near = middle->Accept(Soon());
    const UniqueFd far = server.Raw();
    pollfd items[2] = {{.fd = near->get(), .events = POLLIN, .revents = 0},
                       {.fd = far.get(), .events = POLLIN, .revents = 0}};
    while (poll(items, 2, 5000) > 0) {
      for (int i = 0; i < 2; ++i) {
        if (items[i].revents == 0) continue;
        char bytes[4096];
        const ssize_t count = recv(items[i].fd, bytes, sizeof(bytes), 0);
        if (count <= 0) return;
        seen.append(bytes, static_cast<size_t>(count));
        WriteFully(items[1 - i].fd, {bytes, static_cast<size_t>(count)}, Soon()).IgnoreError();
      }
    }
  });
  {
    ASSERT_OK_AND_ASSIGN(auto client, Dial(middle->endpoint(), kLease, kSecret, Soon()));
    ASSERT_OK_AND_ASSIGN(auto accepted, server.accepted.get());
    ASSERT_OK(client->Send("what the client says", Soon()));
    ASSERT_OK_AND_ASSIGN(const std::string heard, accepted->Receive(Soon()));
    EXPECT_EQ(heard, "what the client says");
  }
  relay.join();
  EXPECT_TRUE(absl::StrContains(seen, ToString(kLease)));  // the identity is no secret
  EXPECT_FALSE(absl::StrContains(
      seen, absl::string_view(reinterpret_cast<const char*>(kSecret.bytes.data()), 8)));
  EXPECT_FALSE(absl::StrContains(seen, "what the client"));
}

// An impostor that has no secret but offers a certificate, as any TLS server would.
TEST(TlsChannelTest, AServerWithACertificateInsteadOfTheSecretIsRefused) {
  EVP_PKEY* const key = EVP_EC_gen("P-256");
  X509* const certificate = X509_new();
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
  X509_set_pubkey(certificate, key);
  X509_sign(certificate, key, EVP_sha256());
  SSL_CTX* const context = SSL_CTX_new(TLS_server_method());
  ASSERT_EQ(SSL_CTX_use_certificate(context, certificate), 1);
  ASSERT_EQ(SSL_CTX_use_PrivateKey(context, key), 1);

  ASSERT_OK_AND_ASSIGN(auto listener, Listener::Listen(AnyPort()));
  std::thread impostor([&] {
    absl::StatusOr<UniqueFd> socket = listener->Accept(Soon());
    ASSERT_OK(socket);
    fcntl(socket->get(), F_SETFL, 0);
    SSL* const ssl = SSL_new(context);
    SSL_set_fd(ssl, socket->get());
    EXPECT_NE(SSL_accept(ssl), 1);
    SSL_free(ssl);
  });
  const Channel dialled = Dial(listener->endpoint(), kLease, kSecret, Soon());
  EXPECT_FALSE(dialled.ok());
  impostor.join();
  SSL_CTX_free(context);
  X509_free(certificate);
  EVP_PKEY_free(key);
}

}  // namespace
}  // namespace fargpu::transport
