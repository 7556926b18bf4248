#include "transport/control/control_channel.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

#include "common/status_macros.h"
#include "transport/control/byte_stream.h"
#include "transport/control/endpoint.h"

namespace fargpu::transport {
namespace {

// What a client sends first: {magic, lease, secret, zeros}. Inside TLS too, so that what follows is
// the same on both kinds of socket.
constexpr char kMagic[8] = {'F', 'A', 'R', 'G', 'P', 'U', '\0', '\1'};
constexpr size_t kLeaseOffset = 8;
constexpr size_t kSecretOffset = 24;
constexpr size_t kReservedOffset = 56;
constexpr size_t kPreambleBytes = 64;

// What the server says to that, before its first message.
constexpr uint32_t kVerdictMagic = 0x56504746;  // "FGPV"
constexpr uint32_t kAccepted = 0;
constexpr uint32_t kRefused = 1;

// Before each message: {magic, length}.
constexpr uint32_t kMessageMagic = 0x4d504746;  // "FGPM"
constexpr size_t kPrefixBytes = 8;

void PutPrefix(char* out, uint32_t magic, uint32_t value) {
  std::memcpy(out, &magic, sizeof(magic));
  std::memcpy(out + 4, &value, sizeof(value));
}
void GetPrefix(const char* in, uint32_t* magic, uint32_t* value) {
  std::memcpy(magic, in, sizeof(*magic));
  std::memcpy(value, in + 4, sizeof(*value));
}

class ControlChannelImpl final : public ControlChannel {
 public:
  ControlChannelImpl(std::unique_ptr<ByteStream> stream, const LeaseId& lease,
                     std::optional<ucred> credentials, bool verdict_due)
      : stream_(std::move(stream)),
        lease_(lease),
        credentials_(credentials),
        verdict_due_(verdict_due) {}
  ~ControlChannelImpl() override {
    if (abandoned_) stream_.release();  // NOLINT: leaked on purpose
  }

  absl::Status Send(absl::string_view message, absl::Time deadline) override {
    if (message.size() > kMaxControlMessageBytes) {
      return absl::InvalidArgumentError(absl::StrCat("control message of ", message.size(),
                                                     " bytes is over the limit of ",
                                                     kMaxControlMessageBytes));
    }
    // In one piece, so that it leaves in one segment.
    std::string bytes(kPrefixBytes, '\0');
    PutPrefix(&bytes[0], kMessageMagic, static_cast<uint32_t>(message.size()));
    absl::StrAppend(&bytes, message);
    return stream_->Write(bytes, deadline);
  }

  absl::StatusOr<std::string> Receive(absl::Time deadline) override {
    RETURN_IF_ERROR(broken_);
    absl::StatusOr<std::string> message = ReceiveOrStop(deadline);
    // What is out of step stays so.
    if (!message.ok() && message.status().code() != absl::StatusCode::kDeadlineExceeded) {
      broken_ = message.status();
    }
    return message;
  }

  const LeaseId& lease() const override { return lease_; }
  std::optional<ucred> peer_credentials() const override { return credentials_; }
  absl::StatusOr<SessionKey> TlsExporterKey(absl::string_view label) override {
    return stream_->ExportKey(label);
  }
  int fd() const override { return stream_->fd(); }
  void AbandonAfterFork() override {
    abandoned_ = true;
    stream_->AbandonAfterFork();
  }

 private:
  absl::StatusOr<std::string> ReceiveOrStop(absl::Time deadline) {
    uint32_t magic = 0;
    uint32_t value = 0;
    if (verdict_due_) {
      RETURN_IF_ERROR(Fill(kPrefixBytes, deadline));
      GetPrefix(buffer_.data(), &magic, &value);
      if (magic != kVerdictMagic) {
        return absl::InvalidArgumentError("the server does not speak our control protocol");
      }
      if (value != kAccepted) {
        return absl::PermissionDeniedError(
            absl::StrCat("the server refuses lease ", ToString(lease_),
                         ": it does not know it, or the secret is wrong"));
      }
      verdict_due_ = false;
      filled_ = 0;
    }
    RETURN_IF_ERROR(Fill(kPrefixBytes, deadline));
    GetPrefix(buffer_.data(), &magic, &value);
    if (magic != kMessageMagic) {
      return absl::InvalidArgumentError("control message does not begin with the magic number");
    }
    if (value > kMaxControlMessageBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "control message of ", value, " bytes is over the limit of ", kMaxControlMessageBytes));
    }
    RETURN_IF_ERROR(Fill(kPrefixBytes + value, deadline));
    filled_ = 0;
    return std::string(buffer_.data() + kPrefixBytes, value);
  }

  // Reads until the buffer holds `size` bytes; never more, so that nothing of the next message is.
  absl::Status Fill(size_t size, absl::Time deadline) {
    if (buffer_.size() < size) buffer_.resize(size);
    while (filled_ < size) {
      ASSIGN_OR_RETURN(
          const size_t count,
          stream_->Read(absl::MakeSpan(buffer_.data() + filled_, size - filled_), deadline));
      filled_ += count;
    }
    return absl::OkStatus();
  }

  std::unique_ptr<ByteStream> stream_;
  const LeaseId lease_;
  const std::optional<ucred> credentials_;
  bool verdict_due_;
  bool abandoned_ = false;
  std::vector<char> buffer_;
  size_t filled_ = 0;
  absl::Status broken_;
};

std::optional<ucred> CredentialsOf(int socket) {
  ucred credentials = {};
  socklen_t size = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return std::nullopt;
  return credentials;
}

absl::StatusOr<bool> IsUnixSocket(int socket) {
  int domain = 0;
  socklen_t size = sizeof(domain);
  if (getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &size) != 0) {
    return ErrnoStatus("SO_DOMAIN");
  }
  return domain == AF_UNIX;
}

absl::Status WithContext(absl::string_view what, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(what, ": ", status.message()));
}

// `proved`: the lease whose secret the TLS handshake has proved, if there was one.
absl::StatusOr<LeaseId> CheckPreamble(absl::Span<const char> preamble, const SecretLookup& lookup,
                                      const std::optional<LeaseId>& proved) {
  if (std::memcmp(preamble.data(), kMagic, sizeof(kMagic)) != 0) {
    return absl::InvalidArgumentError("preamble does not begin with the magic number");
  }
  for (const char byte : preamble.subspan(kReservedOffset)) {
    if (byte != 0) return absl::InvalidArgumentError("reserved bytes of the preamble are not zero");
  }
  LeaseId lease;
  LeaseSecret secret;
  std::memcpy(lease.bytes.data(), preamble.data() + kLeaseOffset, lease.bytes.size());
  std::memcpy(secret.bytes.data(), preamble.data() + kSecretOffset, secret.bytes.size());
  if (proved.has_value() && *proved != lease) {
    return absl::PermissionDeniedError(
        absl::StrCat("proved lease ", ToString(*proved), " but asks for lease ", ToString(lease)));
  }
  const absl::StatusOr<LeaseSecret> expected = lookup(lease);
  if (!expected.ok()) {
    return absl::PermissionDeniedError(
        absl::StrCat("lease ", ToString(lease), ": ", expected.status().message()));
  }
  if (!SecretsEqual(secret, *expected)) {
    return absl::PermissionDeniedError(absl::StrCat("wrong secret for lease ", ToString(lease)));
  }
  return lease;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ControlChannel>> Dial(absl::string_view text, const LeaseId& lease,
                                                     const LeaseSecret& secret,
                                                     absl::Time deadline) {
  ASSIGN_OR_RETURN(const Endpoint endpoint, ParseEndpoint(text));
  ASSIGN_OR_RETURN(UniqueFd socket, ConnectSocket(endpoint, deadline));
  std::unique_ptr<ByteStream> stream;
  std::optional<ucred> credentials;
  if (endpoint.kind == Endpoint::Kind::kUnix) {
    credentials = CredentialsOf(socket.get());
    stream = NewPlainStream(std::move(socket));
  } else {
    absl::StatusOr<std::unique_ptr<ByteStream>> tls =
        TlsConnect(std::move(socket), lease, secret, deadline);
    if (!tls.ok()) return WithContext(text, tls.status());
    stream = *std::move(tls);
  }
  char preamble[kPreambleBytes] = {};
  std::memcpy(preamble, kMagic, sizeof(kMagic));
  std::memcpy(preamble + kLeaseOffset, lease.bytes.data(), lease.bytes.size());
  std::memcpy(preamble + kSecretOffset, secret.bytes.data(), secret.bytes.size());
  const absl::Status written = stream->Write(preamble, deadline);
  explicit_bzero(preamble, sizeof(preamble));
  if (!written.ok()) return WithContext(text, written);
  return std::make_unique<ControlChannelImpl>(std::move(stream), lease, credentials,
                                              /*verdict_due=*/true);
}

absl::StatusOr<std::unique_ptr<ControlChannel>> AcceptChannel(UniqueFd socket,
                                                              const SecretLookup& lookup,
                                                              absl::Time deadline) {
  ASSIGN_OR_RETURN(const bool is_unix, IsUnixSocket(socket.get()));
  std::unique_ptr<ByteStream> stream;
  std::optional<ucred> credentials;
  std::optional<LeaseId> proved;
  if (is_unix) {
    credentials = CredentialsOf(socket.get());
    stream = NewPlainStream(std::move(socket));
  } else {
    LeaseId lease;
    absl::StatusOr<std::unique_ptr<ByteStream>> tls =
        TlsAccept(std::move(socket), lookup, deadline, &lease);
    RETURN_IF_ERROR(tls.status());
    stream = *std::move(tls);
    proved = lease;
  }
  char preamble[kPreambleBytes];
  size_t filled = 0;
  while (filled < sizeof(preamble)) {
    const absl::StatusOr<size_t> count =
        stream->Read(absl::MakeSpan(preamble + filled, sizeof(preamble) - filled), deadline);
    if (!count.ok()) {
      return WithContext(absl::StrCat("preamble ended after ", filled, " bytes"), count.status());
    }
    filled += *count;
  }
  const absl::StatusOr<LeaseId> lease = CheckPreamble(preamble, lookup, proved);
  explicit_bzero(preamble, sizeof(preamble));
  char verdict[kPrefixBytes];
  PutPrefix(verdict, kVerdictMagic, lease.ok() ? kAccepted : kRefused);
  // Eight bytes fit into any socket's buffer; a client that is gone shows later.
  const absl::Status written = stream->Write(verdict, deadline);
  RETURN_IF_ERROR(lease.status());
  RETURN_IF_ERROR(written);
  return std::make_unique<ControlChannelImpl>(std::move(stream), *lease, credentials,
                                              /*verdict_due=*/false);
}

}  // namespace fargpu::transport
