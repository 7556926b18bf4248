#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "common/fd.h"
#include "protocol/wire/codec.h"

namespace fargpu::server {

// A socket between the daemon and a worker that carries whole messages, with descriptors where need
// be. One thread may send while another receives.
class MessageSocket {
 public:
  static constexpr size_t kMaxMessageBytes = 128 << 10;
  static constexpr size_t kMaxDescriptors = 4;

  explicit MessageSocket(UniqueFd socket) : socket_(std::move(socket)) {}

  // Two connected ends, close-on-exec.
  static absl::StatusOr<std::pair<UniqueFd, UniqueFd>> Pair();
  // "@name" stands for a name that is in no file system (unix(7), abstract): it goes with the
  // socket, and any user of the machine can connect to it.
  static absl::StatusOr<UniqueFd> Listen(const std::string& path);
  static absl::StatusOr<UniqueFd> Connect(const std::string& path);

  struct Received {
    std::string bytes;
    std::vector<UniqueFd> descriptors;
  };
  // Neither waits long: messages are few and the kernel's buffer holds many.
  absl::Status Send(absl::Span<const char> bytes, absl::Span<const int> descriptors = {});
  // kUnavailable: the other process is gone. kDeadlineExceeded with a deadline in the past: nothing
  // is there.
  absl::StatusOr<Received> Receive(absl::Time deadline);

  template <typename Message>
  absl::Status SendMessage(const Message& message, absl::Span<const int> descriptors = {}) {
    std::vector<char> bytes;
    wire::EncodeMessage(message, &bytes);
    return Send(absl::MakeConstSpan(bytes), descriptors);
  }

  int fd() const { return socket_.get(); }

 private:
  UniqueFd socket_;
};

}  // namespace fargpu::server
