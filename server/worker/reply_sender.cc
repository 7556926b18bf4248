#include "server/worker/reply_sender.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/log.h"

namespace fargpu::server {
namespace {

constexpr absl::Duration kLongestWait = absl::Seconds(10);

// The body of a delivery frame.
struct DeliveryBody {
  uint64_t token = 0;
  uint64_t offset = 0;
};

}  // namespace

void ReplySender::NoteDeferred(CUresult result) {
  MutexLock lock(&mutex_);
  if (deferred_ == CUDA_SUCCESS) deferred_ = result;
}

void ReplySender::Add(uint64_t call, uint16_t op, CUresult result, absl::Span<const char> fields,
                      transport::Message bulk) {
  MutexLock lock(&mutex_);
  SendDoneLocked();
  const size_t size = (sizeof(wire::ReplyHeader) + fields.size() + 7) / 8 * 8;
  if (body_.size() + size > wire::kMaxBodyBytes || records_ == UINT16_MAX) FlushLocked({});
  wire::ReplyHeader header;
  header.size = static_cast<uint32_t>(size);
  header.op = op;
  header.call = call;
  header.result = static_cast<int32_t>(result);
  header.deferred = static_cast<int32_t>(std::exchange(deferred_, CUDA_SUCCESS));
  const size_t start = body_.size();
  body_.resize(start + size);  // the padding is zero
  std::memcpy(body_.data() + start, &header, sizeof(header));
  if (!fields.empty()) {
    std::memcpy(body_.data() + start + sizeof(header), fields.data(), fields.size());
  }
  ++records_;
  if (bulk.size > 0) FlushLocked(std::move(bulk));
}

void ReplySender::Flush() {
  MutexLock lock(&mutex_);
  FlushLocked({});
}

void ReplySender::FlushLocked(transport::Message bulk) {
  if (records_ == 0) return;
  const auto ticket =
      link_->Send(wire::FrameKind::kReplies, records_, 0, absl::MakeConstSpan(body_), bulk.bytes());
  if (!ticket.ok() && absl::IsInvalidArgument(ticket.status())) {
    FARGPU_LOG(kError, "a reply cannot be sent: ", std::string(ticket.status().message()));
  }
  body_.clear();
  records_ = 0;
  if (ticket.ok()) Keep(*ticket, std::move(bulk));
}

void ReplySender::SendDelivery(uint64_t token, uint64_t offset, transport::Message bytes) {
  const DeliveryBody body = {.token = token, .offset = offset};
  const auto ticket = link_->Send(
      wire::FrameKind::kDelivery, 0, 0,
      absl::MakeConstSpan(reinterpret_cast<const char*>(&body), sizeof(body)), bytes.bytes());
  if (ticket.ok()) Keep(*ticket, std::move(bytes));
}

void ReplySender::SendPrinted(wire::PrintStream stream, absl::string_view text) {
  if (text.empty()) return;
  MutexLock lock(&mutex_);
  for (size_t at = 0; at < text.size(); at += wire::kMaxBulkBytes) {
    const absl::string_view piece = text.substr(at, wire::kMaxBulkBytes);
    transport::Message bytes = transport::NewMessage(piece.size());
    std::memcpy(bytes.storage.get(), piece.data(), piece.size());
    SendDelivery(0, static_cast<uint64_t>(stream), std::move(bytes));
  }
}

void ReplySender::SendDone() {
  MutexLock lock(&mutex_);
  SendDoneLocked();
}

void ReplySender::SendHostFunction(const wire::HostFunctionRun& run) {
  MutexLock lock(&mutex_);
  SendDoneLocked();
  // A link that has died ends the session, and with it the wait for the function.
  link_->Send(wire::FrameKind::kHostFunction, 0, 0, wire::FrameBodyOf(run), {}).IgnoreError();
}

void ReplySender::SendHostBytes(uint64_t token, absl::Span<const char> bytes) {
  MutexLock lock(&mutex_);
  SendDoneLocked();
  for (size_t at = 0; at < bytes.size(); at += wire::kMaxBulkBytes) {
    const absl::Span<const char> piece = bytes.subspan(at, wire::kMaxBulkBytes);
    transport::Message copy = transport::NewMessage(piece.size());
    std::memcpy(copy.storage.get(), piece.data(), piece.size());
    SendDelivery(token, at, std::move(copy));
  }
}

void ReplySender::SendDoneLocked() {
  for (AsyncCopies::Delivery& done : copies_->TakeDone()) {
    SendDelivery(done.token, done.offset, std::move(done.bytes));
  }
}

// The link borrows `bytes` until they are sent. Those sent before are let go here, without waiting
// unless there are too many of them; a client that takes nothing at all is dead after a while, by
// the link's own measure or because it is slower than anybody waits.
void ReplySender::Keep(transport::SendTicket ticket, transport::Message bytes) {
  while (!borrowed_.empty()) {
    const absl::Time deadline =
        borrowed_bytes_ > kMaxBorrowedBytes ? absl::Now() + kLongestWait : absl::InfinitePast();
    if (!link_->WaitSent(borrowed_.front().ticket, deadline).ok()) break;
    borrowed_bytes_ -= borrowed_.front().bytes.size;
    borrowed_.pop_front();
  }
  if (bytes.size == 0) return;
  borrowed_bytes_ += bytes.size;
  borrowed_.push_back({ticket, std::move(bytes)});
}

}  // namespace fargpu::server
