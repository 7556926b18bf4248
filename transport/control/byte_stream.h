#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "common/fd.h"
#include "common/ids.h"
#include "transport/control/control_channel.h"

namespace fargpu::transport {

// Bytes over a connected socket, plain or inside TLS. Used by one thread at a time.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // At least one byte, at most `into.size()`. kUnavailable: the peer closed; kDeadlineExceeded.
  virtual absl::StatusOr<size_t> Read(absl::Span<char> into, absl::Time deadline) = 0;
  virtual absl::Status Write(absl::Span<const char> bytes, absl::Time deadline) = 0;
  // 32 bytes that both ends of a TLS session know and nobody else; kFailedPrecondition without TLS.
  virtual absl::StatusOr<SessionKey> ExportKey(absl::string_view label) = 0;
  virtual int fd() const = 0;
  // Closes the descriptor; the object must then be leaked, not destroyed.
  virtual void AbandonAfterFork() = 0;
};

std::unique_ptr<ByteStream> NewPlainStream(UniqueFd socket);

// TLS 1.3 in which both ends prove that they know the lease's secret (an external pre-shared key,
// with an ephemeral key exchange for forward secrecy); there are no certificates.
// kPermissionDenied: the other end does not know the secret, or does not know the lease.
absl::StatusOr<std::unique_ptr<ByteStream>> TlsConnect(UniqueFd socket, const LeaseId& lease,
                                                       const LeaseSecret& secret,
                                                       absl::Time deadline);
// `*lease` is what the client proved to hold. kInvalidArgument: it does not speak our TLS.
absl::StatusOr<std::unique_ptr<ByteStream>> TlsAccept(UniqueFd socket, const SecretLookup& lookup,
                                                      absl::Time deadline, LeaseId* lease);

}  // namespace fargpu::transport
