#include "server/worker/memory_exchange.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/cuda_error.h"
#include "common/ids.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "server/process/message_socket.h"

namespace fargpu::server {
namespace {

// Workers answer at once; one that does not is stopped or means harm.
constexpr absl::Duration kAnswerLimit = absl::Seconds(5);

struct Ask {
  static constexpr char kName[] = "MemoryAsk";
  std::array<uint8_t, 16> lease = {};
  std::array<uint8_t, 16> token = {};

  template <typename Visitor>
  void VisitFields(Visitor& visitor) {
    visitor(lease);
    visitor(token);
  }
};

// With one descriptor, or `device` -1 and none: refused.
struct Given {
  static constexpr char kName[] = "MemoryGiven";
  int32_t device = -1;
  uint64_t number = 0;
  uint64_t block_bytes = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;

  template <typename Visitor>
  void VisitFields(Visitor& visitor) {
    visitor(device);
    visitor(number);
    visitor(block_bytes);
    visitor(offset);
    visitor(bytes);
  }
};

std::string AddressOf(const MemoryExchange::Id& session) {
  return absl::StrCat("@fargpu-memory-", BytesToHex(session));
}

// A name that is in no file system is open to all users of the machine.
bool IsOurUser(int fd) {
  ucred peer = {};
  socklen_t bytes = sizeof(peer);
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.uid == geteuid();
}

absl::Status Refused(absl::string_view why) {
  return CudaError(CUDA_ERROR_INVALID_VALUE, absl::StrCat("memory of another process: ", why));
}

template <typename Message>
absl::Status Decode(const std::string& bytes, Message* message) {
  return wire::DecodeMessage(absl::MakeConstSpan(bytes.data(), bytes.size()), message);
}

}  // namespace

MemoryExchange::~MemoryExchange() {
  std::unique_ptr<std::thread> server;
  {
    MutexLock lock(&mutex_);
    server = std::move(server_);
  }
  if (server == nullptr) return;
  eventfd_write(stop_.get(), 1);
  server->join();
}

void MemoryExchange::Start(memory::DeviceAllocator* allocator, const Id& lease, const Id& session) {
  allocator_ = allocator;
  lease_ = lease;
  session_ = session;
}

absl::StatusOr<std::vector<uint64_t>> MemoryExchange::Offer(
    const memory::DeviceAllocator::Shared& shared) {
  MutexLock lock(&mutex_);
  if (allocator_ == nullptr) {
    return CudaError(CUDA_ERROR_NOT_SUPPORTED, "this session shares no memory");
  }
  if (server_ == nullptr) {
    ASSIGN_OR_RETURN(listener_, MessageSocket::Listen(AddressOf(session_)));
    stop_ = UniqueFd(eventfd(0, EFD_CLOEXEC));
    if (!stop_.valid()) return ErrnoStatus("eventfd");
    server_ = std::make_unique<std::thread>([this, stop = stop_.get()] { Serve(stop); });
  }
  Id token = {};
  for (const auto& [known, offer] : offers_) {
    if (offer.number == shared.number && offer.offset == shared.offset) token = known;
  }
  if (token == Id{}) {
    if (offers_.size() >= kMaxOffers) {
      return CudaError(CUDA_ERROR_OUT_OF_MEMORY,
                       absl::StrCat(kMaxOffers, " handles of shared memory, the limit"));
    }
    FillRandom(absl::MakeSpan(token));
    offers_[token] = shared;
  }
  std::vector<uint64_t> words(kHandleWords, 0);
  std::memcpy(&words[0], session_.data(), session_.size());
  std::memcpy(&words[2], token.data(), token.size());
  return words;
}

absl::StatusOr<MemoryExchange::Taken> MemoryExchange::Take(const std::vector<uint64_t>& words) {
  Id session = {};
  Ask ask{.lease = lease_, .token = {}};
  std::memcpy(session.data(), &words[0], session.size());
  std::memcpy(ask.token.data(), &words[2], ask.token.size());
  if (session == session_) {
    return CudaError(CUDA_ERROR_INVALID_CONTEXT, "the handle was made by this process");
  }
  absl::StatusOr<UniqueFd> connection = MessageSocket::Connect(AddressOf(session));
  if (!connection.ok()) return Refused(connection.status().message());
  if (!IsOurUser(connection->get())) return Refused("its socket is another user's");
  MessageSocket socket(std::move(*connection));
  if (absl::Status sent = socket.SendMessage(ask); !sent.ok()) return Refused(sent.message());
  absl::StatusOr<MessageSocket::Received> answer = socket.Receive(absl::Now() + kAnswerLimit);
  if (!answer.ok()) return Refused(answer.status().message());
  Given given;
  if (absl::Status decoded = Decode(answer->bytes, &given); !decoded.ok()) {
    return Refused(decoded.message());
  }
  if (given.device < 0 || answer->descriptors.size() != 1) return Refused("it gives none");
  return Taken{.shared = {.number = given.number,
                          .device = given.device,
                          .block_bytes = given.block_bytes,
                          .offset = given.offset,
                          .bytes = given.bytes},
               .fd = std::move(answer->descriptors[0])};
}

void MemoryExchange::Serve(int stop_fd) {
  while (true) {
    pollfd items[2] = {{.fd = listener_.get(), .events = POLLIN, .revents = 0},
                       {.fd = stop_fd, .events = POLLIN, .revents = 0}};
    if (poll(items, 2, -1) < 0) continue;
    if (items[1].revents != 0) return;
    UniqueFd connection(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (connection.valid() && IsOurUser(connection.get())) Answer(std::move(connection));
  }
}

void MemoryExchange::Answer(UniqueFd connection) {
  MessageSocket socket(std::move(connection));
  const absl::StatusOr<MessageSocket::Received> received =
      socket.Receive(absl::Now() + kAnswerLimit);
  Ask ask;
  if (!received.ok() || !Decode(received->bytes, &ask).ok()) return;
  Given given;
  UniqueFd fd;
  if (ask.lease == lease_) {
    memory::DeviceAllocator::Shared shared;
    {
      MutexLock lock(&mutex_);
      const auto offer = offers_.find(ask.token);
      if (offer != offers_.end()) shared = offer->second;
    }
    if (shared.number != 0) {
      absl::StatusOr<UniqueFd> exported = allocator_->Export(shared.number);
      if (exported.ok()) {
        fd = std::move(*exported);
        given = {.device = shared.device,
                 .number = shared.number,
                 .block_bytes = shared.block_bytes,
                 .offset = shared.offset,
                 .bytes = shared.bytes};
      }
    }
  } else {
    FARGPU_LOG(kWarning, "a session of another lease asked for memory of this one; refused");
  }
  const int descriptor = fd.get();
  const absl::Status sent = socket.SendMessage(
      given, fd.valid() ? absl::MakeConstSpan(&descriptor, 1) : absl::Span<const int>());
  if (!sent.ok()) FARGPU_LOG(kDebug, "sharing memory: ", std::string(sent.message()));
}

}  // namespace fargpu::server
