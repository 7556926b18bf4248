#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/mutex.h"
#include "common/status_matchers.h"
#include "memory/device_allocator.h"
#include "memory/lease_ledger.h"
#include "messages.h"
#include "protocol/wire/host_function.h"
#include "protocol/wire/record.h"
#include "server/driver/driver_memory.h"
#include "server/driver/fake_driver.h"
#include "server/worker/session.h"
#include "transport/inproc/in_process_connection.h"
#include "transport/link.h"

// For tests: a worker's session over FakeDriver, and a client that speaks the wire format by hand.
namespace fargpu::server {

constexpr absl::Duration kTestLimit = absl::Seconds(20);

// Calls are numbered as they are added and leave with Flush().
class WireClient {
 public:
  explicit WireClient(std::unique_ptr<transport::Connection> connection) {
    link_ = transport::Link::Start(
        std::move(connection), {},
        [this](transport::IncomingFrame frame) { OnFrame(std::move(frame)); },
        [](const absl::Status&) {});
  }

  struct Reply {
    CUresult result = CUDA_SUCCESS;
    CUresult deferred = CUDA_SUCCESS;
    std::vector<char> payload;
    std::string bulk;
    size_t deliveries_before = 0;  // how many had come when the reply came
    size_t frame = 0;              // number of the reply frame it came in
  };
  struct Delivery {
    uint64_t token = 0;
    uint64_t offset = 0;
    std::string bytes;
  };

  enum class Wants { kNothing, kReply };

  // Returns the call's number.
  template <typename Request>
  uint64_t Add(const Request& request, Wants wants = Wants::kNothing, uint32_t thread = 1,
               uint64_t context = 1) {
    wire::CallHeader header;
    header.op = Request::kOp;
    header.flags = wants == Wants::kReply ? wire::kWantsReply : 0;
    header.context.value = context;
    header.thread = thread;
    wire::AppendRecord(header, request, &body_);
    ++records_;
    return next_call_++;
  }
  absl::Status Flush(const std::string& bulk = "") {
    const uint64_t first = next_call_ - records_;
    const auto ticket = link_->Send(wire::FrameKind::kCalls, records_, first, body_, bulk);
    records_ = 0;
    body_.clear();
    if (!ticket.ok()) return ticket.status();
    return link_->WaitSent(*ticket, absl::Now() + kTestLimit);
  }
  absl::Status SendRaw(wire::FrameKind kind, uint16_t records, uint64_t first,
                       const std::string& body, const std::string& bulk = "") {
    return link_->Send(kind, records, first, body, bulk).status();
  }

  bool Has(uint64_t call) {
    MutexLock lock(&mutex_);
    return replies_.count(call) != 0;
  }
  Reply WaitFor(uint64_t call) {
    const absl::Status status =
        link_->WaitUntil([&] { return Has(call); }, absl::Now() + kTestLimit);
    EXPECT_THAT(status, IsOk()) << "call " << call;
    MutexLock lock(&mutex_);
    return replies_[call];
  }
  // One call with a reply, alone in its frame.
  template <typename Request>
  Reply Call(const Request& request, uint32_t thread = 1, uint64_t context = 1,
             const std::string& bulk = "") {
    const uint64_t number = Add(request, Wants::kReply, thread, context);
    EXPECT_THAT(Flush(bulk), IsOk());
    return WaitFor(number);
  }
  template <typename ReplyMessage>
  static ReplyMessage Decode(const Reply& reply) {
    ReplyMessage message;
    EXPECT_THAT(wire::DecodePayload(absl::MakeConstSpan(reply.payload), &message), IsOk());
    return message;
  }

  std::vector<Delivery> deliveries() {
    MutexLock lock(&mutex_);
    return deliveries_;
  }
  // Functions of the program that streams have come to, in order.
  std::vector<wire::HostFunctionRun> runs() {
    MutexLock lock(&mutex_);
    return runs_;
  }
  size_t deliveries_before_first_run() {
    MutexLock lock(&mutex_);
    return deliveries_before_first_run_;
  }
  transport::Link& link() { return *link_; }
  uint64_t next_call() const { return next_call_; }

 private:
  void OnFrame(transport::IncomingFrame frame) {
    MutexLock lock(&mutex_);
    if (frame.header.kind == wire::FrameKind::kDelivery) {
      Delivery delivery;
      std::memcpy(&delivery.token, frame.body().data(), 8);
      std::memcpy(&delivery.offset, frame.body().data() + 8, 8);
      delivery.bytes.assign(frame.bulk().begin(), frame.bulk().end());
      deliveries_.push_back(std::move(delivery));
      return;
    }
    if (frame.header.kind == wire::FrameKind::kHostFunction) {
      if (runs_.empty()) deliveries_before_first_run_ = deliveries_.size();
      ASSERT_THAT(wire::DecodeFrameBody(frame.body(), &runs_.emplace_back()), IsOk());
      return;
    }
    if (frame.header.kind != wire::FrameKind::kReplies) return;
    ++frames_;
    absl::Span<const char> body = frame.body();
    for (int i = 0; i < frame.header.record_count; ++i) {
      wire::ReplyRecord record;
      ASSERT_THAT(wire::NextRecord(&body, &record), IsOk());
      Reply& reply = replies_[record.header.call];
      reply.result = static_cast<CUresult>(record.header.result);
      reply.deferred = static_cast<CUresult>(record.header.deferred);
      reply.payload.assign(record.payload.begin(), record.payload.end());
      reply.deliveries_before = deliveries_.size();
      reply.frame = frames_;
      if (i + 1 == frame.header.record_count) {
        reply.bulk.assign(frame.bulk().begin(), frame.bulk().end());
      }
    }
  }

  std::vector<char> body_;
  uint16_t records_ = 0;
  uint64_t next_call_ = 1;
  Mutex mutex_;
  std::map<uint64_t, Reply> replies_ ABSL_GUARDED_BY(mutex_);
  std::vector<Delivery> deliveries_ ABSL_GUARDED_BY(mutex_);
  std::vector<wire::HostFunctionRun> runs_ ABSL_GUARDED_BY(mutex_);
  size_t deliveries_before_first_run_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t frames_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<transport::Link> link_;
};

// A lease of one device with 64 MiB; the client's context 1 is its primary context.
class SessionTest : public testing::Test {
 protected:
  static constexpr uint64_t kMiB = 1 << 20;
  static constexpr uint64_t kLimit = 64 * kMiB;

  void SetUp() override {
    char name[] = "/tmp/fargpu-session-XXXXXX";
    const int fd = mkstemp(name);
    ASSERT_GE(fd, 0);
    close(fd);
    path_ = name;
    ASSERT_OK_AND_ASSIGN(ledger_, memory::LeaseLedger::Create(path_, 1, kLimit));
    ASSERT_OK(ledger_->Join());
    memory_ = std::make_unique<DriverMemory>(&driver_, std::vector<CUdevice>{0});
    allocator_ = std::make_unique<memory::DeviceAllocator>(
        memory_.get(), ledger_.get(),
        memory::DeviceAllocator::Options{.window_bytes = uint64_t{16} << 30,
                                         .fresh_memory_is_zero = true});
    resources_ = std::make_unique<SessionResources>(&driver_, std::vector<CUdevice>{0},
                                                    ledger_.get(), allocator_.get(), &admission_);
    auto [client, worker] = transport::NewInProcessPair();
    session_ = std::make_unique<Session>(resources_.get(), std::move(worker), Session::Options{},
                                         [this] { return TakePrinted(); });
    client_ = std::make_unique<WireClient>(std::move(client));
    client_->Add(wire::DevicePrimaryCtxRetainRequest{.context = {1}, .device = 0});
  }
  void TearDown() override {
    client_.reset();
    session_.reset();
    resources_.reset();
    allocator_.reset();
    unlink(path_.c_str());
  }

  uint64_t Allocate(uint64_t bytes) {
    const auto reply = client_->Call(wire::MemAllocV2Request{.bytesize = bytes});
    EXPECT_EQ(reply.result, CUDA_SUCCESS);
    return WireClient::Decode<wire::MemAllocV2Reply>(reply).dptr;
  }
  // Until the session has ended; its cause.
  absl::Status WaitForEnd() { return session_->Wait(); }

  void Print(const PrintedText& text) {
    MutexLock lock(&print_mutex_);
    printed_.out += text.out;
    printed_.error += text.error;
  }
  PrintedText TakePrinted() {
    MutexLock lock(&print_mutex_);
    return std::exchange(printed_, PrintedText());
  }

  std::string path_;
  FakeDriver driver_;
  std::unique_ptr<memory::LeaseLedger> ledger_;
  std::unique_ptr<DriverMemory> memory_;
  std::unique_ptr<memory::DeviceAllocator> allocator_;
  OpenAdmission admission_;
  std::unique_ptr<SessionResources> resources_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<WireClient> client_;
  Mutex print_mutex_;
  PrintedText printed_ ABSL_GUARDED_BY(print_mutex_);
};

}  // namespace fargpu::server
