#include "transport/control/byte_stream.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/mutex.h"
#include "common/status_macros.h"
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

namespace fargpu::transport {
namespace {

absl::Status PeerClosed() { return absl::UnavailableError("the peer closed the connection"); }

class PlainStream final : public ByteStream {
 public:
  explicit PlainStream(UniqueFd socket) : socket_(std::move(socket)) {}

  absl::StatusOr<size_t> Read(absl::Span<char> into, absl::Time deadline) override {
    while (true) {
      const ssize_t count = recv(socket_.get(), into.data(), into.size(), MSG_DONTWAIT);
      if (count > 0) return static_cast<size_t>(count);
      if (count == 0) return PeerClosed();
      if (errno == EAGAIN) {
        RETURN_IF_ERROR(PollFd(socket_.get(), POLLIN, deadline));
      } else if (errno != EINTR) {
        return ErrnoStatus("receive");
      }
    }
  }
  absl::Status Write(absl::Span<const char> bytes, absl::Time deadline) override {
    return WriteFully(socket_.get(), bytes, deadline);
  }
  absl::StatusOr<SessionKey> ExportKey(absl::string_view label) override {
    return absl::FailedPreconditionError("a unix socket has no TLS session to export a key from");
  }
  int fd() const override { return socket_.get(); }
  void AbandonAfterFork() override { socket_.reset(); }

 private:
  UniqueFd socket_;
};

// A handshake takes a few hundred bytes each way.
constexpr size_t kMaxHandshakeBytes = 64 << 10;
constexpr unsigned char kCipherSuite[] = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256
constexpr char kCipherSuiteName[] = "TLS_AES_128_GCM_SHA256";

struct SslDeleter {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};

class TlsStream;

// What OpenSSL's callbacks find behind an SSL: who we are, or what the client said.
struct TlsParty {
  const SecretLookup* lookup = nullptr;  // server
  LeaseId lease = {};
  std::string identity = {};  // client: the lease's id in hex
  LeaseSecret secret = {};    // client
  absl::Status why = {};      // server: why the client was refused
};

class TlsStream final : public ByteStream {
 public:
  explicit TlsStream(UniqueFd socket) : socket_(std::move(socket)) {}

  absl::Status Handshake(SSL_CTX* context, TlsParty* party, bool server, absl::Time deadline);

  absl::StatusOr<size_t> Read(absl::Span<char> into, absl::Time deadline) override {
    size_t count = 0;
    RETURN_IF_ERROR(
        Run([&] { return SSL_read_ex(ssl_.get(), into.data(), into.size(), &count); }, deadline));
    return count;
  }
  absl::Status Write(absl::Span<const char> bytes, absl::Time deadline) override {
    while (!bytes.empty()) {
      size_t count = 0;
      RETURN_IF_ERROR(Run(
          [&] { return SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &count); }, deadline));
      bytes.remove_prefix(count);
    }
    return absl::OkStatus();
  }
  absl::StatusOr<SessionKey> ExportKey(absl::string_view label) override {
    SessionKey key;
    if (SSL_export_keying_material(ssl_.get(), key.bytes.data(), key.bytes.size(), label.data(),
                                   label.size(), nullptr, 0, /*use_context=*/0) != 1) {
      return absl::InternalError("SSL_export_keying_material failed");
    }
    return key;
  }
  int fd() const override { return socket_.get(); }
  void AbandonAfterFork() override { socket_.reset(); }

 private:
  friend class SocketBio;

  template <typename Operation>
  absl::Status Run(Operation operation, absl::Time deadline);
  absl::Status Failure(int error);

  UniqueFd socket_;
  std::unique_ptr<SSL, SslDeleter> ssl_;
  bool shaking_hands_ = true;
  size_t handshake_bytes_ = 0;
  bool too_many_bytes_ = false;
};

// OpenSSL's own socket BIO writes without MSG_NOSIGNAL, and a guest must not raise SIGPIPE in its
// host. It is also the place where the bytes of a handshake are counted.
class SocketBio {
 public:
  static BIO* New(TlsStream* stream) {
    BIO* bio = BIO_new(Method());
    if (bio != nullptr) {
      BIO_set_data(bio, stream);
      BIO_set_init(bio, 1);
    }
    return bio;
  }

 private:
  static const BIO_METHOD* Method() {
    static const BIO_METHOD* const method = [] {
      BIO_METHOD* made = BIO_meth_new(BIO_TYPE_SOURCE_SINK | BIO_get_new_index(), "fargpu socket");
      BIO_meth_set_read(made, &Read);
      BIO_meth_set_write(made, &Write);
      BIO_meth_set_ctrl(made, &Control);
      return made;
    }();
    return method;
  }

  static TlsStream* Stream(BIO* bio) { return static_cast<TlsStream*>(BIO_get_data(bio)); }

  static int Read(BIO* bio, char* into, int size) {
    BIO_clear_retry_flags(bio);
    TlsStream* const stream = Stream(bio);
    ssize_t count = 0;
    do {
      count = recv(stream->socket_.get(), into, static_cast<size_t>(size), MSG_DONTWAIT);
    } while (count < 0 && errno == EINTR);
    if (count < 0 && errno == EAGAIN) BIO_set_retry_read(bio);
    if (count > 0 && stream->shaking_hands_) {
      stream->handshake_bytes_ += static_cast<size_t>(count);
      if (stream->handshake_bytes_ > kMaxHandshakeBytes) {
        stream->too_many_bytes_ = true;
        return -1;
      }
    }
    return static_cast<int>(count);
  }
  static int Write(BIO* bio, const char* bytes, int size) {
    BIO_clear_retry_flags(bio);
    ssize_t count = 0;
    do {
      count = send(Stream(bio)->socket_.get(), bytes, static_cast<size_t>(size),
                   MSG_DONTWAIT | MSG_NOSIGNAL);
    } while (count < 0 && errno == EINTR);
    if (count < 0 && errno == EAGAIN) BIO_set_retry_write(bio);
    return static_cast<int>(count);
  }
  static long Control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }
};

// Repeats `operation` while OpenSSL wants the socket to be ready for something.
template <typename Operation>
absl::Status TlsStream::Run(Operation operation, absl::Time deadline) {
  while (true) {
    // Errors are kept per thread; another library's must not be taken for ours.
    ERR_clear_error();
    errno = 0;
    const int result = operation();
    if (result == 1) return absl::OkStatus();
    const int error = SSL_get_error(ssl_.get(), result);
    if (error == SSL_ERROR_WANT_READ) {
      RETURN_IF_ERROR(PollFd(socket_.get(), POLLIN, deadline));
    } else if (error == SSL_ERROR_WANT_WRITE) {
      RETURN_IF_ERROR(PollFd(socket_.get(), POLLOUT, deadline));
    } else {
      return Failure(error);
    }
  }
}

absl::Status TlsStream::Failure(int error) {
  if (too_many_bytes_) {
    return absl::InvalidArgumentError(
        absl::StrCat("TLS handshake of more than ", kMaxHandshakeBytes, " bytes"));
  }
  const unsigned long code = ERR_get_error();
  const int reason = ERR_GET_REASON(code);
  if (error == SSL_ERROR_ZERO_RETURN || reason == SSL_R_UNEXPECTED_EOF_WHILE_READING) {
    return PeerClosed();
  }
  if (error == SSL_ERROR_SYSCALL && code == 0) {
    return errno == 0 ? PeerClosed() : ErrnoStatus("TLS");
  }
  const char* const text = ERR_reason_error_string(code);
  const std::string message =
      absl::StrCat("TLS: ", text != nullptr ? text : absl::StrCat("error ", code).c_str());
  // An alert of the peer, or a proof that fails: one of the two does not know the secret.
  if (ERR_GET_LIB(code) == ERR_LIB_SSL &&
      (reason == SSL_R_BINDER_DOES_NOT_VERIFY || reason == SSL_R_BAD_PSK ||
       (reason >= SSL_AD_REASON_OFFSET && reason < SSL_AD_REASON_OFFSET + 256))) {
    return absl::PermissionDeniedError(message);
  }
  return absl::InvalidArgumentError(message);
}

absl::Status TlsStream::Handshake(SSL_CTX* context, TlsParty* party, bool server,
                                  absl::Time deadline) {
  ssl_.reset(SSL_new(context));
  BIO* const bio = ssl_ == nullptr ? nullptr : SocketBio::New(this);
  if (bio == nullptr) return absl::ResourceExhaustedError("no memory for TLS");
  SSL_set_bio(ssl_.get(), bio, bio);
  SSL_set_app_data(ssl_.get(), party);
  const absl::Status status =
      Run([&] { return server ? SSL_accept(ssl_.get()) : SSL_connect(ssl_.get()); }, deadline);
  SSL_set_app_data(ssl_.get(), nullptr);
  RETURN_IF_ERROR(status);
  // An OpenSSL that found no common key could go on with certificates; we do not.
  if (SSL_session_reused(ssl_.get()) != 1) {
    return absl::PermissionDeniedError("TLS: the peer did not use the lease's secret");
  }
  shaking_hands_ = false;
  return absl::OkStatus();
}

TlsParty* PartyOf(SSL* ssl) { return static_cast<TlsParty*>(SSL_get_app_data(ssl)); }

// A session as OpenSSL wants it, of which only the key and the hash matter.
SSL_SESSION* SessionFor(SSL* ssl, const LeaseSecret& secret) {
  const SSL_CIPHER* const cipher = SSL_CIPHER_find(ssl, kCipherSuite);
  SSL_SESSION* const session = SSL_SESSION_new();
  if (cipher == nullptr || session == nullptr ||
      SSL_SESSION_set1_master_key(session, secret.bytes.data(), secret.bytes.size()) != 1 ||
      SSL_SESSION_set_cipher(session, cipher) != 1 ||
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) != 1) {
    SSL_SESSION_free(session);
    return nullptr;
  }
  return session;
}

int OfferSecret(SSL* ssl, const EVP_MD* hash, const unsigned char** identity, size_t* identity_size,
                SSL_SESSION** session) {
  TlsParty* const party = PartyOf(ssl);
  *session = nullptr;
  // After a HelloRetryRequest OpenSSL asks for a session of the hash that was chosen.
  if (hash != nullptr && EVP_MD_get_size(hash) != 32) return 0;
  *session = SessionFor(ssl, party->secret);
  *identity = reinterpret_cast<const unsigned char*>(party->identity.data());
  *identity_size = party->identity.size();
  return *session != nullptr;
}

int FindSecret(SSL* ssl, const unsigned char* identity, size_t identity_size,
               SSL_SESSION** session) {
  TlsParty* const party = PartyOf(ssl);
  *session = nullptr;
  // 1 without a session means "not known": OpenSSL then finds no key in common, and gives up.
  const absl::StatusOr<LeaseId> lease =
      ParseId<LeaseId>(absl::string_view(reinterpret_cast<const char*>(identity), identity_size));
  if (!lease.ok()) {
    party->why = absl::InvalidArgumentError("TLS: the client's identity is not a lease id");
    return 1;
  }
  const absl::StatusOr<LeaseSecret> secret = (*party->lookup)(*lease);
  if (!secret.ok()) {
    party->why = absl::PermissionDeniedError(
        absl::StrCat("lease ", ToString(*lease), ": ", secret.status().message()));
    return 1;
  }
  party->lease = *lease;
  *session = SessionFor(ssl, *secret);
  return *session != nullptr;
}

int RefuseCertificate(X509_STORE_CTX*, void*) { return 0; }

SSL_CTX* NewContext(bool server) {
  // The host may use OpenSSL too, in another copy; ours reads no configuration file and leaves
  // nothing to run at exit, when threads may still be inside it.
  OPENSSL_init_ssl(OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT, nullptr);
  SSL_CTX* const context = SSL_CTX_new(server ? TLS_server_method() : TLS_client_method());
  if (context == nullptr) return nullptr;
  SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  SSL_CTX_set_ciphersuites(context, kCipherSuiteName);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  if (server) {
    SSL_CTX_set_psk_find_session_callback(context, &FindSecret);
  } else {
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
    SSL_CTX_set_cert_verify_callback(context, &RefuseCertificate, nullptr);
    SSL_CTX_set_psk_use_session_callback(context, &OfferSecret);
  }
  return context;
}

// For the life of the process.
SSL_CTX* Context(bool server) {
  static Mutex* const mutex = new Mutex;
  static SSL_CTX* contexts[2] = {nullptr, nullptr};
  MutexLock lock(mutex);
  SSL_CTX*& context = contexts[server ? 1 : 0];
  if (context == nullptr) context = NewContext(server);
  return context;
}

}  // namespace

std::unique_ptr<ByteStream> NewPlainStream(UniqueFd socket) {
  return std::make_unique<PlainStream>(std::move(socket));
}

absl::StatusOr<std::unique_ptr<ByteStream>> TlsConnect(UniqueFd socket, const LeaseId& lease,
                                                       const LeaseSecret& secret,
                                                       absl::Time deadline) {
  SSL_CTX* const context = Context(/*server=*/false);
  if (context == nullptr) return absl::InternalError("OpenSSL cannot be initialised");
  TlsParty party = {.lease = lease, .identity = ToString(lease), .secret = secret};
  auto stream = std::make_unique<TlsStream>(std::move(socket));
  const absl::Status status = stream->Handshake(context, &party, /*server=*/false, deadline);
  explicit_bzero(&party.secret, sizeof(party.secret));
  if (status.code() == absl::StatusCode::kPermissionDenied) {
    return absl::PermissionDeniedError(
        absl::StrCat("the server refuses lease ", ToString(lease),
                     ": it does not know it, or the secret is wrong (", status.message(), ")"));
  }
  RETURN_IF_ERROR(status);
  return stream;
}

absl::StatusOr<std::unique_ptr<ByteStream>> TlsAccept(UniqueFd socket, const SecretLookup& lookup,
                                                      absl::Time deadline, LeaseId* lease) {
  SSL_CTX* const context = Context(/*server=*/true);
  if (context == nullptr) return absl::InternalError("OpenSSL cannot be initialised");
  TlsParty party = {.lookup = &lookup};
  auto stream = std::make_unique<TlsStream>(std::move(socket));
  const absl::Status status = stream->Handshake(context, &party, /*server=*/true, deadline);
  if (!status.ok()) {
    RETURN_IF_ERROR(party.why);
    if (status.code() == absl::StatusCode::kPermissionDenied && party.lease != LeaseId()) {
      return absl::PermissionDeniedError(absl::StrCat(
          "wrong secret for lease ", ToString(party.lease), " (", status.message(), ")"));
    }
    return status;
  }
  *lease = party.lease;
  return stream;
}

}  // namespace fargpu::transport
