#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/fd.h"
#include "common/mutex.h"
#include "memory/device_allocator.h"
#include "memory/lease_ledger.h"
#include "messages.h"
#include "protocol/wire/record.h"
#include "server/driver/driver_memory.h"
#include "server/driver/fake_driver.h"
#include "server/worker/session.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/message_table.h"
#include "transport/inproc/in_process_connection.h"

// A worker's session and the client that means it ill. Whatever the client sends, the session must
// serve or end it, give back what it took from the lease, and do so soon.
//
// Input: u8 kind of client.
//   even: messages as they are, each as u16 size | bytes.
//   odd: calls in frames that are well-formed, each as u16 op | u8 bits | u16 size | fields, and
//        with kHasBulk u16 size | bulk. Bits: see CallBits. Context 1 is a primary context.
namespace fargpu::fuzz {
namespace {

using server::FakeDriver;

enum CallBits : uint8_t {
  kReply = 1,
  kEndsFrame = 2,
  kHasBulk = 4,
  kOtherContext = 8,
  kThreadShift = 4,  // two bits, threads 1 to 4
};

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kLeaseBytes = 32 * kMiB;
constexpr uint64_t kWindowBytes = 256 * kMiB;
// Fixed, so that addresses in inputs keep their meaning.
constexpr uint64_t kWindowBase = uint64_t{0x3f} << 40;
constexpr absl::Duration kLimit = absl::Seconds(4);

// A card that notices wild addresses instead of dying of them.
class GuardedDriver final : public FakeDriver {
 public:
  ~GuardedDriver() override { Protect(kWindowBase, kWindowBytes); }

  CUresult cuMemAddressReserve(CUdeviceptr* address, size_t size, size_t alignment,
                               CUdeviceptr wanted, unsigned long long flags) override {
    if (size != kWindowBytes) return CUDA_ERROR_OUT_OF_MEMORY;
    Protect(kWindowBase, kWindowBytes);
    *address = kWindowBase;
    return CUDA_SUCCESS;
  }
  CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset,
                    CUmemGenericAllocationHandle handle, unsigned long long flags) override {
    Require(size > 0 && address >= kWindowBase && size <= kWindowBytes &&
                address - kWindowBase <= kWindowBytes - size,
            "memory is mapped inside the session's window");
    MutexLock lock(&mutex_);
    const auto after = mapped_.upper_bound(address);
    Require(after == mapped_.end() || after->first >= address + size, "mappings do not overlap");
    Require(
        after == mapped_.begin() || std::prev(after)->first + std::prev(after)->second <= address,
        "mappings do not overlap");
    mapped_[address] = size;
    return FakeDriver::cuMemMap(address, size, offset, handle, flags);
  }
  CUresult cuMemUnmap(CUdeviceptr address, size_t size) override {
    MutexLock lock(&mutex_);
    const auto found = mapped_.lower_bound(address);
    if (found == mapped_.end() || found->first != address) return CUDA_ERROR_INVALID_VALUE;
    auto end = found;
    uint64_t reach = address;
    while (end != mapped_.end() && end->first == reach && reach < address + size) {
      reach += end->second;
      ++end;
    }
    if (reach != address + size) return CUDA_ERROR_INVALID_VALUE;
    mapped_.erase(found, end);
    Protect(address, size);
    return CUDA_SUCCESS;
  }

  CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) override {
    if (bytes == 0) return CUDA_SUCCESS;
    MutexLock lock(&mutex_);
    if (!IsMapped(to, bytes)) return CUDA_ERROR_INVALID_VALUE;
    return FakeDriver::cuMemcpyHtoD_v2(to, from, bytes);
  }
  CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) override {
    if (bytes == 0) return CUDA_SUCCESS;
    MutexLock lock(&mutex_);
    if (!IsMapped(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
    return FakeDriver::cuMemcpyDtoH_v2(to, from, bytes);
  }
  CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, size_t bytes,
                                CUstream stream) override {
    if (bytes == 0) return CUDA_SUCCESS;
    MutexLock lock(&mutex_);
    if (!IsMapped(to, bytes)) return CUDA_ERROR_INVALID_VALUE;
    return FakeDriver::cuMemcpyHtoDAsync_v2(to, from, bytes, stream);
  }
  CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, size_t bytes,
                                CUstream stream) override {
    if (bytes == 0) return CUDA_SUCCESS;
    MutexLock lock(&mutex_);
    if (!IsMapped(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
    return FakeDriver::cuMemcpyDtoHAsync_v2(to, from, bytes, stream);
  }
  CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count,
                           CUstream stream) override {
    if (count == 0) return CUDA_SUCCESS;
    MutexLock lock(&mutex_);
    if (!IsMapped(to, count)) return CUDA_ERROR_INVALID_VALUE;
    return FakeDriver::cuMemsetD8Async(to, value, count, stream);
  }
  CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) override {
    if (count == 0) return CUDA_SUCCESS;
    MutexLock lock(&mutex_);
    if (!IsMapped(to, count)) return CUDA_ERROR_INVALID_VALUE;
    return FakeDriver::cuMemsetD8_v2(to, value, count);
  }
  CUresult cuLaunchKernel(CUfunction function, unsigned int, unsigned int, unsigned int,
                          unsigned int, unsigned int, unsigned int, unsigned int, CUstream,
                          void** parameters, void**) override {
    const char* name = nullptr;
    const auto kernel = reinterpret_cast<CUkernel>(function);
    if (cuKernelGetName(&name, kernel) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_HANDLE;
    // Reads what a driver would read.
    size_t offset = 0, size = 0;
    uint64_t sum = 0;
    for (size_t i = 0; cuKernelGetParamInfo(kernel, i, &offset, &size) == CUDA_SUCCESS; ++i) {
      for (size_t b = 0; b < size; ++b) sum += static_cast<const uint8_t*>(parameters[i])[b];
    }
    return sum == ~uint64_t{0} ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
  }

 private:
  static void Protect(uint64_t address, uint64_t bytes) {
    void* const wanted = reinterpret_cast<void*>(address);
    Require(mmap(wanted, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
                 -1, 0) == wanted,
            "the window's addresses are free");
  }
  bool IsMapped(uint64_t address, uint64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    while (bytes > 0) {
      auto next = mapped_.upper_bound(address);
      if (next == mapped_.begin()) return false;
      --next;
      const uint64_t there = address - next->first;
      if (there >= next->second) return false;
      const uint64_t part = std::min(bytes, next->second - there);
      address += part;
      bytes -= part;
    }
    return true;
  }

  Mutex mutex_;
  std::map<uint64_t, uint64_t> mapped_ ABSL_GUARDED_BY(mutex_);
};

memory::LeaseLedger* Ledger() {
  static const std::unique_ptr<memory::LeaseLedger> ledger = [] {
    const std::string path = absl::StrCat("/tmp/fargpu_fuzz_ledger_", getpid());
    auto created = memory::LeaseLedger::Create(path, 1, kLeaseBytes);
    Require(created.ok() && (*created)->Join().ok(), "there is a place for a ledger");
    unlink(path.c_str());
    return *std::move(created);
  }();
  return ledger.get();
}

// The client's end: frames go out, and the last call's reply is waited for.
class Client {
 public:
  explicit Client(std::unique_ptr<transport::Connection> connection)
      : connection_(std::move(connection)) {}

  bool SendMessage(absl::Span<const char> bytes) { return connection_->Send(bytes, {}).ok(); }

  void Add(wire::CallHeader header, absl::Span<const char> fields) {
    const size_t start = body_.size();
    const size_t size = (sizeof(header) + fields.size() + 7) / 8 * 8;
    header.size = static_cast<uint32_t>(size);
    body_.resize(start + size);
    std::memcpy(body_.data() + start, &header, sizeof(header));
    if (!fields.empty()) {
      std::memcpy(body_.data() + start + sizeof(header), fields.data(), fields.size());
    }
    ++records_;
  }
  template <typename Request>
  void Add(const Request& request, uint16_t flags) {
    std::vector<char> fields;
    wire::EncodeMessage(request, &fields);
    Add(wire::CallHeader{.op = Request::kOp, .flags = flags, .context = {1}, .thread = 1}, fields);
  }
  bool Flush(absl::Span<const char> bulk) {
    if (records_ == 0) return true;
    const wire::FrameHeader header = {.kind = wire::FrameKind::kCalls,
                                      .record_count = records_,
                                      .body_bytes = static_cast<uint32_t>(body_.size()),
                                      .bulk_bytes = static_cast<uint32_t>(bulk.size()),
                                      .sequence = ++sequence_,
                                      .first_call = next_call_};
    std::vector<char> message(wire::kFrameHeaderBytes);
    wire::EncodeFrameHeader(header, absl::MakeSpan(message));
    message.insert(message.end(), body_.begin(), body_.end());
    next_call_ += records_;
    records_ = 0;
    body_.clear();
    return connection_->Send(message, bulk).ok();
  }

  // Until the last call that was sent is answered, or the session has ended (and its process would
  // have).
  void WaitForLastReply(const std::atomic<bool>& ended) {
    const absl::Time end = absl::Now() + kLimit;
    std::vector<transport::Message> arrived;
    while (true) {
      arrived.clear();
      const absl::StatusOr<bool> moved = connection_->Progress(&arrived);
      for (const transport::Message& message : arrived) {
        if (IsLastReply(message.bytes())) return;
      }
      if (!moved.ok() || ended.load()) return;
      Require(absl::Now() < end, "the last call is answered");
      if (!*moved) {
        PollFd(connection_->event_fd(), 1 /* POLLIN */, absl::Now() + absl::Milliseconds(2))
            .IgnoreError();
      }
    }
  }
  void Abort() { connection_->Abort(); }

 private:
  bool IsLastReply(absl::Span<const char> message) {
    wire::FrameHeader header;
    Require(wire::DecodeFrameHeader(message, &header).ok(), "the worker sends frames");
    if (header.kind != wire::FrameKind::kReplies) return false;
    absl::Span<const char> body = message.subspan(wire::kFrameHeaderBytes, header.body_bytes);
    for (uint16_t i = 0; i < header.record_count; ++i) {
      wire::ReplyRecord record;
      Require(wire::NextRecord(&body, &record).ok(), "the worker sends records");
      if (record.header.call == next_call_ - 1) return true;
    }
    return false;
  }

  const std::unique_ptr<transport::Connection> connection_;
  std::vector<char> body_;
  uint16_t records_ = 0;
  uint64_t sequence_ = 0;
  uint64_t next_call_ = 1;
};

void SendCalls(InputReader* input, Client* client, const std::atomic<bool>& ended) {
  client->Add(wire::DevicePrimaryCtxRetainRequest{.context = {1}, .device = 0}, 0);
  while (!input->empty()) {
    const uint16_t op = input->U16();
    const uint8_t bits = input->U8();
    const wire::CallHeader header = {
        .op = op,
        .flags = static_cast<uint16_t>((bits & kReply) != 0 ? wire::kWantsReply : 0),
        .context = {(bits & kOtherContext) != 0 ? uint64_t{2} : uint64_t{1}},
        .thread = 1u + ((bits >> kThreadShift) & 3u)};
    client->Add(header, input->Take(input->U16()));
    absl::Span<const char> bulk;
    if ((bits & kHasBulk) != 0) bulk = input->Take(input->U16());
    if ((bits & (kEndsFrame | kHasBulk)) != 0 && !client->Flush(bulk)) return;
  }
  client->Add(wire::CtxSynchronizeRequest{}, wire::kWantsReply);
  if (client->Flush({})) client->WaitForLastReply(ended);
}

void SendMessages(InputReader* input, Client* client) {
  while (!input->empty()) {
    if (!client->SendMessage(input->Take(input->U16()))) return;
  }
}

// Appends a call to an input of the odd kind.
template <typename Request>
void PutCall(std::string* input, const Request& request, uint8_t bits = kReply,
             const std::string& bulk = "") {
  std::vector<char> fields;
  wire::EncodeMessage(request, &fields);
  PutPlain<uint16_t>(input, Request::kOp);
  PutPlain<uint8_t>(input, static_cast<uint8_t>(bits | (bulk.empty() ? 0 : kHasBulk)));
  PutPlain<uint16_t>(input, static_cast<uint16_t>(fields.size()));
  input->append(fields.data(), fields.size());
  if (bulk.empty()) return;
  PutPlain<uint16_t>(input, static_cast<uint16_t>(bulk.size()));
  input->append(bulk);
}

std::string Copies() {
  std::string input(1, '\1');
  PutCall(&input, wire::MemAllocV2Request{.bytesize = 4096}, kReply | kEndsFrame);
  PutCall(&input, wire::StreamCreateRequest{.phStream = {100}, .Flags = 1}, 0);
  PutCall(&input, wire::EventCreateRequest{.phEvent = {200}, .Flags = 0}, 0);
  PutCall(&input, wire::MemcpyHtoDV2Request{.dstDevice = kWindowBase, .ByteCount = 6}, 0, "abcdef");
  PutCall(&input,
          wire::MemcpyHtoDAsyncV2Request{
              .dstDevice = kWindowBase + 64, .ByteCount = 3, .hStream = {100}},
          0, "ghi");
  PutCall(&input, wire::EventRecordRequest{.hEvent = {200}, .hStream = {100}}, 0);
  PutCall(&input, wire::MemsetD8AsyncRequest{
                      .dstDevice = kWindowBase + 128, .uc = 7, .N = 100, .hStream = {2}});
  PutCall(
      &input,
      wire::MemcpyDtoHAsyncV2Request{
          .srcDevice = kWindowBase, .ByteCount = 100, .hStream = {100}, .delivery = 9, .offset = 0},
      0);
  PutCall(&input, wire::MemcpyDtoHV2Request{.srcDevice = kWindowBase + 1, .ByteCount = 70},
          kReply | kEndsFrame | (2 << kThreadShift));
  PutCall(&input, wire::EventSynchronizeRequest{.hEvent = {200}});
  PutCall(&input, wire::StreamSynchronizeRequest{.hStream = {100}}, kReply | (1 << kThreadShift));
  PutCall(&input, wire::MemFreeV2Request{.dptr = kWindowBase}, 0);
  PutCall(&input, wire::EventDestroyV2Request{.hEvent = {200}}, 0);
  PutCall(&input, wire::StreamDestroyV2Request{.hStream = {100}}, 0);
  return input;
}

}  // namespace

std::vector<Seed> Seeds() {
  std::vector<Seed> seeds = {{"copies", Copies()}};
  std::string all(1, '\1');
  for (const MessageRow& row : Messages()) {
    if (row.is_reply) continue;
    const std::vector<char> fields = row.filled();
    std::string call;
    PutPlain<uint16_t>(&call, row.op);
    PutPlain<uint8_t>(&call, kReply);
    PutPlain<uint16_t>(&call, static_cast<uint16_t>(fields.size()));
    call += ToBytes(fields);
    all += call;
    seeds.push_back({row.name, "\1" + call});
  }
  seeds.push_back({"all_calls", all});
  std::string goodbye(1, '\0');
  std::string frame(wire::kFrameHeaderBytes, '\0');
  wire::EncodeFrameHeader({.kind = wire::FrameKind::kGoodbye, .sequence = 1},
                          absl::MakeSpan(&frame[0], frame.size()));
  PutPlain<uint16_t>(&goodbye, static_cast<uint16_t>(frame.size()));
  seeds.push_back({"goodbye", goodbye + frame});
  return seeds;
}

}  // namespace fargpu::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fargpu;          // NOLINT: one function
  using namespace fargpu::fuzz;    // NOLINT
  using namespace fargpu::server;  // NOLINT
  InputReader input(data, size);
  GuardedDriver driver;
  DriverMemory driver_memory(&driver, {0});
  absl::Status end;
  {
    memory::DeviceAllocator allocator(&driver_memory, Ledger(),
                                      {.window_bytes = kWindowBytes, .fresh_memory_is_zero = true});
    OpenAdmission admission;
    SessionResources resources(&driver, {0}, Ledger(), &allocator, &admission);
    auto [ours, theirs] = transport::NewInProcessPair();
    Session session(&resources, std::move(theirs),
                    {.link = {.spin = absl::ZeroDuration()}, .max_threads = 8},
                    [] { return PrintedText(); });
    std::atomic<bool> ended{false};
    std::thread waiter([&] {
      end = session.Wait();
      ended.store(true);
    });
    Client client(std::move(ours));
    if ((input.U8() & 1) == 0) {
      SendMessages(&input, &client);
    } else {
      SendCalls(&input, &client, ended);
    }
    client.Abort();
    const absl::Time gone = absl::Now();
    waiter.join();
    Require(absl::Now() - gone < kLimit, "a session ends when its client is gone");
  }
  Require(end.code() == absl::StatusCode::kUnavailable ||
              end.code() == absl::StatusCode::kInvalidArgument,
          "a session ends by the client's going or its nonsense");
  Require(Ledger()->UsedBytes(0) == 0, "the lease gets everything back");
  return 0;
}
