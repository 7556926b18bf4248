#include "transport/ucx/ucx_connection.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/log.h"
#include "common/status_macros.h"
#include "transport/ucx/ucx_settings.h"

namespace fargpu::transport {
namespace {

constexpr unsigned kMessageId = 0;
// One byte: the sender closes its end. Over shared memory nothing else would tell that it did.
constexpr unsigned kClosingId = 1;
// Rendezvous costs an extra round trip and saves a copy; the two meet near 200 KiB on tcp.
constexpr size_t kLargestEager = 256 << 10;
// Offers of the peer that we take at once; further ones wait, so that memory stays bounded.
constexpr size_t kRendezvousWindow = 8;
// An opening frame: header, session, and the sender's process id or 0.
constexpr size_t kSessionBytes = sizeof(SessionId::bytes);
constexpr size_t kOpeningBytes = wire::kFrameHeaderBytes + kSessionBytes + sizeof(uint32_t);
constexpr int kMostProgressPerCall = 64;
constexpr absl::Duration kDrainLimit = absl::Seconds(1);
constexpr absl::Duration kFarewellLimit = absl::Milliseconds(100);
constexpr absl::Duration kClosingLimit = absl::Milliseconds(10);
// While sends are under way a sleeper looks this often, soon at first and then more rarely: a full
// shared-memory queue tells nobody when it has room again.
constexpr long kFirstRetryNanos = 20'000;
constexpr long kLastRetryNanos = 1'000'000;

absl::Status ClosedHere() { return absl::UnavailableError("the connection was closed"); }

}  // namespace

UcxWorker::~UcxWorker() {
  if (worker != nullptr) ucx.worker_destroy(worker);
  if (context != nullptr) ucx.cleanup(context);
}

UcxConnection::UcxConnection(std::unique_ptr<UcxWorker> worker, const UcxOptions& options)
    : options_(options),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      kick_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      timer_(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)),
      ucx_(std::move(worker)),
      retry_nanos_(kFirstRetryNanos) {}

absl::StatusOr<std::unique_ptr<Connection>> UcxConnection::Open(std::unique_ptr<UcxWorker> worker,
                                                                const UcxOptions& options,
                                                                absl::string_view remote_address) {
  std::unique_ptr<UcxConnection> connection(new UcxConnection(std::move(worker), options));
  RETURN_IF_ERROR(connection->Start(remote_address));
  return connection;
}

absl::Status UcxConnection::Start(absl::string_view remote_address) {
  MutexLock lock(&mutex_);
  if (!epoll_.valid() || !kick_.valid() || !timer_.valid()) return ErrnoStatus("epoll_create1");
  for (int fd : {ucx_->event_fd, kick_.get(), timer_.get()}) {
    epoll_event event = {.events = EPOLLIN, .data = {.fd = fd}};
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return ErrnoStatus("epoll_ctl");
  }
  // Sockets appear while the two ends find each other; they are all there when it is opened.
  sweep_ = std::make_unique<DescriptorSweep>();
  // The peer may have connected before we did.
  ucx_->sweep.TakeAcceptedInto(&ucx_->descriptors);

  ucp_am_handler_param_t handler = {};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessageId;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = &UcxConnection::OnMessage;
  handler.arg = this;
  ucs_status_t status = ucx_->ucx.worker_set_am_recv_handler(ucx_->worker, &handler);
  if (status == UCS_OK) {
    handler.id = kClosingId;
    handler.cb = &UcxConnection::OnClosing;
    status = ucx_->ucx.worker_set_am_recv_handler(ucx_->worker, &handler);
  }
  if (status != UCS_OK) {
    return absl::InternalError(
        absl::StrCat("ucp_worker_set_am_recv_handler: ", ucx_->ucx.status_string(status)));
  }

  const std::string address(remote_address);  // aligned, and ended by a zero
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &UcxConnection::OnError;
  params.err_handler.arg = this;
  status = ucx_->ucx.ep_create(ucx_->worker, &params, &endpoint_);
  if (status != UCS_OK) {
    endpoint_ = nullptr;
    return absl::UnavailableError(
        absl::StrCat("cannot reach the peer over UCX: ", ucx_->ucx.status_string(status)));
  }
  SendOpening();
  sweep_->TakeInto(&ucx_->descriptors);
  return failure_;
}

UcxConnection::~UcxConnection() {
  {
    MutexLock lock(&mutex_);
    // What was sent just before, a goodbye perhaps, shall leave if it can leave at once.
    const absl::Time end = absl::Now() + kFarewellLimit;
    while (!closed_ && failure_.ok() && !outgoing_.empty() && absl::Now() < end) {
      ucx_->ucx.worker_progress(ucx_->worker);
      CheckOpened();
      RetireSent();
    }
    Fail(ClosedHere());
    Close();
    ucx_.reset();  // stops all callbacks, so that messages may go
  }
}

void UcxConnection::SendOpening() {
  opening_ = NewMessage(kOpeningBytes);
  char* const out = opening_.storage.get();
  wire::EncodeFrameHeader(
      {.kind = wire::FrameKind::kOpen, .body_bytes = kOpeningBytes - wire::kFrameHeaderBytes},
      absl::MakeSpan(out, wire::kFrameHeaderBytes));
  std::memcpy(out + wire::kFrameHeaderBytes, options_.session.bytes.data(), kSessionBytes);
  // Process ids mean something to the peer only where both see the same ones.
  const uint32_t pid = options_.reach == Reach::kMachine ? static_cast<uint32_t>(getpid()) : 0;
  std::memcpy(out + wire::kFrameHeaderBytes + kSessionBytes, &pid, sizeof(pid));
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  opening_request_ =
      ucx_->ucx.am_send_nbx(endpoint_, kMessageId, nullptr, 0, out, kOpeningBytes, &param);
  if (UCS_PTR_IS_ERR(opening_request_)) {
    Lose("cannot send to the peer", UCS_PTR_STATUS(opening_request_));
    opening_request_ = nullptr;
    return;
  }
  param = {};
  flush_request_ = ucx_->ucx.ep_flush_nbx(endpoint_, &param);
  if (UCS_PTR_IS_ERR(flush_request_)) {
    Lose("cannot flush", UCS_PTR_STATUS(flush_request_));
    flush_request_ = nullptr;
  }
}

// Lets the queue go once both ends are ready.
void UcxConnection::CheckOpened() {
  if (opened_ || !failure_.ok()) return;
  if (!wired_) {
    if (!IsDone(&opening_request_) || !IsDone(&flush_request_) || !failure_.ok()) return;
    wired_ = true;
  }
  if (!peer_opened_) return;
  opened_ = true;
  opening_ = Message();
  sweep_->TakeInto(&ucx_->descriptors);
  sweep_.reset();

  char* text = nullptr;
  size_t text_size = 0;
  FILE* stream = open_memstream(&text, &text_size);
  if (stream != nullptr) {
    ucx_->ucx.ep_print_info(endpoint_, stream);
    std::fclose(stream);
    description_ = DescribeLanes({text, text_size});
    std::free(text);
  }
  while (posted_ < outgoing_.size() && failure_.ok()) Post(&outgoing_[posted_]);
}

void UcxConnection::Post(Outgoing* outgoing) {
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  const Message& head = outgoing->head;
  const absl::Span<const char> bulk = outgoing->bulk;
  param.flags =
      head.size + bulk.size() <= kLargestEager ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV;
  // With bulk bytes, the head goes as UCX's header and the bulk is sent from where it lies.
  void* const request = bulk.empty()
                            ? ucx_->ucx.am_send_nbx(endpoint_, kMessageId, nullptr, 0,
                                                    head.storage.get(), head.size, &param)
                            : ucx_->ucx.am_send_nbx(endpoint_, kMessageId, head.storage.get(),
                                                    head.size, bulk.data(), bulk.size(), &param);
  ++posted_;
  if (UCS_PTR_IS_ERR(request)) {
    Lose("cannot send to the peer", UCS_PTR_STATUS(request));
    return;
  }
  outgoing->request = request;
}

absl::StatusOr<SendTicket> UcxConnection::Send(absl::Span<const char> head,
                                               absl::Span<const char> bulk) {
  const size_t size = head.size() + bulk.size();
  if (size > options_.max_message_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "message of ", size, " bytes is over the limit of ", options_.max_message_bytes));
  }
  senders_.fetch_add(1);
  MutexLock lock(&mutex_);
  senders_.fetch_sub(1);
  if (!failure_.ok()) return SendFailure();
  // A head that UCX cannot take as a header is sent in one piece with its bulk.
  const bool join = !bulk.empty() && head.size() > ucx_->max_header;
  Outgoing& outgoing = outgoing_.emplace_back();
  outgoing.ticket = ++last_ticket_;
  outgoing.head = NewMessage(join ? size : head.size());
  if (!head.empty()) std::memcpy(outgoing.head.storage.get(), head.data(), head.size());
  if (join) {
    std::memcpy(outgoing.head.storage.get() + head.size(), bulk.data(), bulk.size());
  } else {
    outgoing.bulk = bulk;
  }
  const SendTicket ticket = outgoing.ticket;
  if (opened_) {
    Post(&outgoing);
    RetireSent();
    if (!failure_.ok()) return SendFailure();
  }
  if (!outgoing_.empty() && std::exchange(armed_, false)) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(kick_.get(), &one, sizeof(one));
  }
  return ticket;
}

// kInvalidArgument from Send() means the message; that the peer sent nonsense is told by
// Progress().
absl::Status UcxConnection::SendFailure() const {
  return absl::UnavailableError(failure_.message());
}

bool UcxConnection::IsSent(SendTicket ticket) {
  return sent_.load(std::memory_order_acquire) >= ticket;
}

// Whether UCX has done with `*request`, which is then freed and nullptr.
bool UcxConnection::IsDone(void** request) {
  if (*request == nullptr) return true;
  const ucs_status_t status = ucx_->ucx.request_check_status(*request);
  if (status == UCS_INPROGRESS) return false;
  ucx_->ucx.request_free(*request);
  *request = nullptr;
  if (status != UCS_OK) Lose("lost the peer", status);
  return true;
}

bool UcxConnection::RetireSent() {
  bool retired = false;
  while (posted_ > 0 && IsDone(&outgoing_.front().request)) {
    sent_.store(outgoing_.front().ticket, std::memory_order_release);
    outgoing_.pop_front();
    --posted_;
    retired = true;
  }
  return retired;
}

void UcxConnection::StartRendezvous() {
  if (rendezvous_waiting_ == 0) return;
  for (Incoming& incoming : incoming_) {
    if (rendezvous_active_ >= kRendezvousWindow || rendezvous_waiting_ == 0) return;
    if (incoming.rendezvous == nullptr) continue;
    Message message = NewMessage(incoming.size);
    if (incoming.header_bytes > 0) {
      std::memcpy(message.storage.get(), incoming.message.storage.get(), incoming.header_bytes);
    }
    incoming.message = std::move(message);
    --rendezvous_waiting_;
    ++rendezvous_active_;
    ucp_request_param_t param = {};
    incoming.request =
        ucx_->ucx.am_recv_data_nbx(ucx_->worker, std::exchange(incoming.rendezvous, nullptr),
                                   incoming.message.storage.get() + incoming.header_bytes,
                                   incoming.size - incoming.header_bytes, &param);
    if (UCS_PTR_IS_ERR(incoming.request)) {
      Lose("cannot receive from the peer", UCS_PTR_STATUS(incoming.request));
      incoming.request = nullptr;
      return;
    }
  }
}

bool UcxConnection::RetireReceived(std::vector<Message>* arrived) {
  bool retired = false;
  while (!incoming_.empty()) {
    Incoming& first = incoming_.front();
    if (!first.ready) {
      if (first.rendezvous != nullptr || !IsDone(&first.request)) break;
      --rendezvous_active_;
      if (!failure_.ok()) break;  // the message is not whole
    }
    arrived->push_back(std::move(first.message));
    incoming_.pop_front();
    retired = true;
  }
  return retired;
}

absl::StatusOr<bool> UcxConnection::Progress(std::vector<Message>* arrived) {
  for (int spins = 0; senders_.load(std::memory_order_relaxed) > 0 && spins < 1000; ++spins) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
  MutexLock lock(&mutex_);
  bool moved = false;
  if (!closed_) {
    armed_ = false;
    for (int i = 0; i < kMostProgressPerCall; ++i) {
      // StartRendezvous() is not called from the callback: UCX must not be entered again there.
      if (ucx_->ucx.worker_progress(ucx_->worker) == 0 || !failure_.ok()) break;
      moved = true;
      if (!incoming_.empty() && incoming_.front().ready) break;
    }
    CheckOpened();
    if (failure_.ok()) StartRendezvous();
    moved |= RetireSent();
    moved |= RetireReceived(arrived);
    if (failure_.ok()) StartRendezvous();
    // What the peer sent before still counts, as far as it is here.
    if (peer_closes_ && !moved) {
      lost_ = true;
      Fail(absl::UnavailableError("the peer closed the connection"));
    }
  }
  if (!failure_.ok()) {
    Close();
    return failure_;
  }
  if (moved) retry_nanos_ = kFirstRetryNanos;
  return moved;
}

absl::StatusOr<bool> UcxConnection::Arm() {
  MutexLock lock(&mutex_);
  if (!failure_.ok()) return failure_;
  uint64_t ignored = 0;
  [[maybe_unused]] ssize_t count = read(kick_.get(), &ignored, sizeof(ignored));
  if (peer_process_.valid() && PollFd(peer_process_.get(), POLLIN, absl::InfinitePast()).ok()) {
    peer_closes_ = true;
  }
  if (peer_closes_ || (!incoming_.empty() && incoming_.front().ready)) return false;
  const ucs_status_t status = ucx_->ucx.worker_arm(ucx_->worker);
  if (status == UCS_ERR_BUSY) return false;
  if (status != UCS_OK) {
    Lose("ucp_worker_arm", status);
    return failure_;
  }
  // Setting the timer anew also clears it.
  const bool under_way = posted_ > 0;
  if (under_way || timer_set_) {
    itimerspec when = {};
    if (under_way) {
      when.it_value.tv_nsec = retry_nanos_;
      retry_nanos_ = std::min(2 * retry_nanos_, kLastRetryNanos);
    }
    timerfd_settime(timer_.get(), 0, &when, nullptr);
    timer_set_ = under_way;
  }
  armed_ = true;
  return true;
}

// The first cause stays. UCX is left alone here, because this is called from its callbacks too.
void UcxConnection::Fail(absl::Status cause) {
  if (failure_.ok()) failure_ = std::move(cause);
}

void UcxConnection::Lose(absl::string_view what, ucs_status_t status) {
  lost_ = true;
  Fail(absl::UnavailableError(absl::StrCat(what, ": ", ucx_->ucx.status_string(status))));
}

void UcxConnection::TellPeerThatWeClose() {
  static constexpr char kByte = 0;
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  void* request =
      ucx_->ucx.am_send_nbx(endpoint_, kClosingId, nullptr, 0, &kByte, sizeof(kByte), &param);
  if (UCS_PTR_IS_ERR(request)) return;
  const absl::Time end = absl::Now() + kClosingLimit;
  while (!lost_ && !IsDone(&request) && absl::Now() < end) {
    ucx_->ucx.worker_progress(ucx_->worker);
  }
  // If it is still under way, closing by force ends it, and destroying the worker frees it.
}

// Takes everything back from UCX.
void UcxConnection::Close() {
  if (closed_) return;
  closed_ = true;
  const UcxLibrary& ucx = ucx_->ucx;
  if (opened_ && !lost_) TellPeerThatWeClose();
  void* closing = nullptr;
  if (endpoint_ != nullptr) {
    ucp_request_param_t param = {};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    closing = ucx.ep_close_nbx(endpoint_, &param);
    if (UCS_PTR_IS_ERR(closing)) closing = nullptr;
    endpoint_ = nullptr;
  }
  const absl::Time end = absl::Now() + kDrainLimit;
  bool drained = false;
  while (!drained && absl::Now() < end) {
    ucx.worker_progress(ucx_->worker);
    // All of them each time: none may stay unseen behind another that is late.
    drained = IsDone(&closing);
    drained &= IsDone(&opening_request_);
    drained &= IsDone(&flush_request_);
    for (size_t i = 0; i < posted_; ++i) drained &= IsDone(&outgoing_[i].request);
    for (Incoming& incoming : incoming_) drained &= IsDone(&incoming.request);
  }
  if (!drained) {
    // Without its worker UCX touches no memory of ours and of our callers any more.
    FARGPU_LOG(kWarning, "UCX did not give back all requests; dropping its worker");
  }
  for (Incoming& incoming : incoming_) {
    if (incoming.rendezvous != nullptr) ucx.am_data_release(ucx_->worker, incoming.rendezvous);
    incoming.rendezvous = nullptr;
  }
  ucx_.reset();
  incoming_.clear();
  outgoing_.clear();
  posted_ = 0;
  sweep_.reset();
}

void UcxConnection::TakeOpening(absl::Span<const char> bytes) {
  wire::FrameHeader header;
  const absl::Status decoded = wire::DecodeFrameHeader(bytes, &header);
  if (!decoded.ok()) return Fail(decoded);
  if (header.kind != wire::FrameKind::kOpen || bytes.size() != kOpeningBytes ||
      header.body_bytes != kOpeningBytes - wire::kFrameHeaderBytes) {
    return Fail(absl::InvalidArgumentError("the peer's first message is no opening frame"));
  }
  const char* const body = bytes.data() + wire::kFrameHeaderBytes;
  if (std::memcmp(body, options_.session.bytes.data(), kSessionBytes) != 0) {
    return Fail(absl::InvalidArgumentError("the peer's opening frame names another session"));
  }
  uint32_t pid = 0;
  std::memcpy(&pid, body + kSessionBytes, sizeof(pid));
  if (options_.reach == Reach::kMachine && pid != 0) WatchPeerProcess(pid);
  peer_opened_ = true;
}

// Over shared memory, UCX does not notice a dead peer while anything is queued for it, and never
// one that is a zombie. A wrong pid harms nobody but the peer that claims it.
void UcxConnection::WatchPeerProcess(uint32_t pid) {
  peer_process_.reset(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!peer_process_.valid()) {
    if (errno == ESRCH) peer_closes_ = true;
    return;  // an old kernel: UCX's own checks and the link's heartbeat remain
  }
  epoll_event event = {.events = EPOLLIN, .data = {.fd = peer_process_.get()}};
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, peer_process_.get(), &event);
}

ucs_status_t UcxConnection::TakeMessage(absl::Span<const char> header, void* data, size_t length,
                                        bool rendezvous) {
  // Not taken: UCX drops the data, and the sender is told that it arrived. We are gone by then.
  if (!failure_.ok()) return UCS_OK;
  if (length > options_.max_message_bytes || header.size() + length > options_.max_message_bytes) {
    Fail(absl::InvalidArgumentError(absl::StrCat("message of ", header.size(), " + ", length,
                                                 " bytes is over the limit of ",
                                                 options_.max_message_bytes)));
    return UCS_OK;
  }
  if (!peer_opened_) {
    if (rendezvous || !header.empty()) {
      Fail(absl::InvalidArgumentError("the peer's first message is no opening frame"));
    } else {
      TakeOpening({static_cast<const char*>(data), length});
    }
    return UCS_OK;
  }
  Incoming& incoming = incoming_.emplace_back();
  incoming.size = header.size() + length;
  incoming.header_bytes = header.size();
  incoming.message = NewMessage(rendezvous ? header.size() : incoming.size);
  if (!header.empty()) {
    std::memcpy(incoming.message.storage.get(), header.data(), header.size());
  }
  if (rendezvous) {
    incoming.rendezvous = data;
    ++rendezvous_waiting_;
    return UCS_INPROGRESS;
  }
  if (length > 0) std::memcpy(incoming.message.storage.get() + header.size(), data, length);
  incoming.ready = true;
  return UCS_OK;
}

// UCX calls back from inside ucp_worker_progress, which we call under the mutex.
ucs_status_t UcxConnection::OnMessage(void* self, const void* header, size_t header_length,
                                      void* data, size_t length, const ucp_am_recv_param_t* param) {
  return static_cast<UcxConnection*>(self)->TakeMessage(
      {static_cast<const char*>(header), header_length}, data, length,
      (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0);
}

ucs_status_t UcxConnection::OnClosing(void* self, const void*, size_t, void*, size_t,
                                      const ucp_am_recv_param_t*) {
  auto* const connection = static_cast<UcxConnection*>(self);
  connection->peer_closes_ = true;
  return UCS_OK;
}

void UcxConnection::OnError(void* self, ucp_ep_h endpoint, ucs_status_t status) {
  auto* const connection = static_cast<UcxConnection*>(self);
  connection->Lose("lost the peer", status);
}

void UcxConnection::Abort() {
  MutexLock lock(&mutex_);
  Fail(ClosedHere());
  Close();
}

// No lock: the thread that holds it in the parent does not exist here.
void UcxConnection::AbandonAfterFork() {
  if (ucx_ != nullptr) {
    for (const DescriptorSweep::Entry& entry : ucx_->descriptors) {
      if (entry.IsStillOpen()) close(entry.fd);
    }
  }
  epoll_.reset();
  kick_.reset();
  timer_.reset();
  peer_process_.reset();
}

bool UcxConnection::IsOpen() {
  MutexLock lock(&mutex_);
  return opened_;
}

std::string UcxConnection::Describe() const {
  MutexLock lock(&mutex_);
  return description_;
}

}  // namespace fargpu::transport
