#include "client/cuda/fake_worker.h"

#include <cstring>

#include "absl/time/clock.h"

#include "protocol/wire/opcodes.h"
#include "transport/inproc/in_process_connection.h"

namespace fargpu::client {

FakeWorker::FakeWorker() : memory_(64 << 20) {
  auto [client_end, worker_end] = transport::NewInProcessPair();
  client_end_ = std::move(client_end);
  Start(std::move(worker_end));
}

FakeWorker::FakeWorker(std::unique_ptr<transport::Connection> connection) : memory_(64 << 20) {
  Start(std::move(connection));
}

void FakeWorker::Start(std::unique_ptr<transport::Connection> connection) {
  wire::FunctionInfo info;
  info.name = "vector_add";
  info.param_offsets = {0, 8, 16, 24};
  info.param_sizes = {8, 8, 8, 4};
  info.attributes = {512, 64, 0, 0, 32, 90, 90, 0, 49152, -1};
  functions.push_back(info);
  info.name = "nothing";
  info.param_offsets.clear();
  info.param_sizes.clear();
  info.attributes = {1024};
  functions.push_back(info);
  PlayCard();
  link_ = transport::Link::Start(
      std::move(connection), {},
      [this](transport::IncomingFrame frame) {
        // The first frame may come before Start() has returned.
        while (link_ptr_.load() == nullptr) absl::SleepFor(absl::Milliseconds(1));
        Handle(frame);
      },
      [](const absl::Status&) {});
  link_ptr_.store(link_.get());
}

FakeWorker::~FakeWorker() = default;

SessionParts FakeWorker::TakeParts() {
  SessionParts parts;
  parts.connection = std::move(client_end_);
  parts.welcome = MakeWelcome();
  return parts;
}

Welcome FakeWorker::MakeWelcome() {
  Welcome welcome;
  welcome.version = kWireVersionMax;
  welcome.driver_version = 13000;
  welcome.window_base = kWindowBase;
  welcome.window_bytes = kWindowBytes;
  for (int i = 0; i < kDevices; ++i) {
    DeviceInfo device;
    for (int byte = 0; byte < 16; ++byte) {
      device.uuid[byte] = static_cast<uint8_t>(16 * i + byte);
      device.uuid_v2[byte] = static_cast<uint8_t>(100 + 16 * i + byte);
    }
    device.name = "Fake Card " + std::to_string(i);
    device.total_memory_bytes = uint64_t{1} << 30;
    device.pci_bus_id = "0000:0" + std::to_string(i + 1) + ":00.0";
    device.attributes.assign(CU_DEVICE_ATTRIBUTE_MAX, 1);
    const std::pair<int, int> values[] = {
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
        {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
        {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
        {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
        {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
        {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
        {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
        {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 101376},
        {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 4},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 13},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
        {CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 0},
        {CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, i + 1},
        {CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 0},
    };
    for (const auto& [attribute, value] : values) device.attributes[attribute] = value;
    device.least_stream_priority = 0;
    device.greatest_stream_priority = -5;
    device.program_capability = 120;
    welcome.devices.push_back(std::move(device));
  }
  return welcome;
}

void FakeWorker::PlayCard() {
  On<wire::MemAllocV2Request>(
      [this](const wire::MemAllocV2Request& request, wire::MemAllocV2Reply* reply, Call*) {
        if (request.bytesize > memory_.size()) return CUDA_ERROR_OUT_OF_MEMORY;
        reply->dptr = next_address_;
        next_address_ += (request.bytesize + 255) / 256 * 256;
        return CUDA_SUCCESS;
      });
  On<wire::SharedReserveRequest>(
      [this](const wire::SharedReserveRequest& request, wire::SharedReserveReply* reply, Call*) {
        if (request.bytes > kWindowBase + memory_.size() - next_shared_) {
          return CUDA_ERROR_OUT_OF_MEMORY;
        }
        reply->address = next_shared_;
        next_shared_ += request.bytes;
        return CUDA_SUCCESS;
      });
  On<wire::SharedWriteRequest>(
      [this](const wire::SharedWriteRequest& request, wire::SharedWriteReply*, Call* call) {
        const char* from = call->bulk.data();
        for (size_t i = 0; i < request.addresses.size(); ++i) {
          std::memcpy(memory(request.addresses[i]), from, request.sizes[i]);
          from += request.sizes[i];
        }
        EXPECT_EQ(from, call->bulk.data() + call->bulk.size());
        return CUDA_SUCCESS;
      });
  On<wire::SharedReadRequest>(
      [this](const wire::SharedReadRequest& request, wire::SharedReadReply*, Call* call) {
        const char* from = memory(request.address);
        call->reply_bulk.assign(from, from + request.bytes);
        return CUDA_SUCCESS;
      });
  On<wire::MemGetInfoV2Request>(
      [this](const wire::MemGetInfoV2Request&, wire::MemGetInfoV2Reply* reply, Call*) {
        reply->free = memory_.size();
        reply->total = memory_.size();
        return CUDA_SUCCESS;
      });
  On<wire::MemcpyHtoDV2Request>(
      [this](const wire::MemcpyHtoDV2Request& request, wire::MemcpyHtoDV2Reply*, Call* call) {
        EXPECT_EQ(call->bulk.size(), request.ByteCount);
        std::memcpy(memory(request.dstDevice), call->bulk.data(), call->bulk.size());
        return CUDA_SUCCESS;
      });
  On<wire::MemcpyHtoDAsyncV2Request>([this](const wire::MemcpyHtoDAsyncV2Request& request,
                                            wire::MemcpyHtoDAsyncV2Reply*, Call* call) {
    EXPECT_EQ(call->bulk.size(), request.ByteCount);
    std::memcpy(memory(request.dstDevice), call->bulk.data(), call->bulk.size());
    return CUDA_SUCCESS;
  });
  On<wire::MemcpyDtoHV2Request>(
      [this](const wire::MemcpyDtoHV2Request& request, wire::MemcpyDtoHV2Reply*, Call* call) {
        const char* from = memory(request.srcDevice);
        call->reply_bulk.assign(from, from + request.ByteCount);
        return CUDA_SUCCESS;
      });
  On<wire::MemcpyDtoHAsyncV2Request>(
      [this](const wire::MemcpyDtoHAsyncV2Request& request, wire::MemcpyDtoHAsyncV2Reply*, Call*) {
        const char* from = memory(request.srcDevice);
        deliveries_.push_back({request.delivery, request.offset, {from, from + request.ByteCount}});
        return CUDA_SUCCESS;
      });
  On<wire::LibraryLoadDataRequest>(
      [this](const wire::LibraryLoadDataRequest&, wire::LibraryLoadDataReply* reply, Call*) {
        reply->functions = functions;
        return CUDA_SUCCESS;
      });
  On<wire::ModuleLoadDataExRequest>(
      [this](const wire::ModuleLoadDataExRequest&, wire::ModuleLoadDataExReply* reply, Call*) {
        reply->functions = functions;
        return CUDA_SUCCESS;
      });
}

void FakeWorker::Handle(const transport::IncomingFrame& frame) {
  if (frame.header.kind == wire::FrameKind::kGoodbye) {
    MutexLock lock(&mutex_);
    goodbye_ = true;
    return;
  }
  if (frame.header.kind == wire::FrameKind::kHostFunctionDone) {
    wire::HostFunctionDone done;
    ASSERT_TRUE(wire::DecodeFrameBody(frame.body(), &done).ok());
    MutexLock lock(&mutex_);
    ended_runs_.push_back(done.run);
    pulled_.append(frame.bulk().data(), frame.bulk().size());
    return;
  }
  ASSERT_EQ(frame.header.kind, wire::FrameKind::kCalls);
  EXPECT_EQ(frame.header.first_call, next_call_);
  {
    MutexLock lock(&mutex_);
    ++frames_;
  }
  absl::Span<const char> rest = frame.body();
  for (int i = 0; i < frame.header.record_count; ++i) {
    wire::CallRecord record;
    ASSERT_TRUE(wire::NextRecord(&rest, &record).ok());
    const bool last = i + 1 == frame.header.record_count;
    Call call{.header = record.header,
              .bulk = last ? frame.bulk() : absl::Span<const char>(),
              .reply_bulk = {}};
    const char* name = wire::OpName(record.header.op);
    ASSERT_NE(name, nullptr) << record.header.op;
    {
      MutexLock lock(&mutex_);
      received_.push_back({name, record.header, next_call_, {call.bulk.begin(), call.bulk.end()}});
    }
    std::vector<char> fields;
    CUresult result = CUDA_SUCCESS;
    if (const auto it = handlers_.find(record.header.op); it != handlers_.end()) {
      result = it->second(record.payload, &call, &fields);
    }
    const uint64_t number = next_call_++;
    if ((record.header.flags & wire::kWantsReply) == 0) {
      if (deferred_ == CUDA_SUCCESS) deferred_ = result;
      continue;
    }
    if (!answers_.load()) continue;
    for (const PendingDelivery& due : deliveries_) Deliver(due.token, due.offset, due.bytes);
    deliveries_.clear();
    if (result != CUDA_SUCCESS) fields.clear();
    wire::ReplyHeader header;
    header.op = record.header.op;
    header.call = number;
    header.result = result;
    header.deferred = std::exchange(deferred_, CUDA_SUCCESS);
    std::vector<char> body(sizeof(header));
    body.insert(body.end(), fields.begin(), fields.end());
    body.resize((body.size() + 7) / 8 * 8);
    header.size = static_cast<uint32_t>(body.size());
    std::memcpy(body.data(), &header, sizeof(header));
    const std::vector<char>& bulk = kept_.emplace_back(std::move(call.reply_bulk));
    link_ptr_.load()->Send(wire::FrameKind::kReplies, 1, 0, body, bulk).status().IgnoreError();
  }
  EXPECT_TRUE(rest.empty());
}

void FakeWorker::Deliver(uint64_t token, uint64_t offset, absl::Span<const char> bytes) {
  const uint64_t where[2] = {token, offset};
  const std::vector<char>& bulk = kept_.emplace_back(bytes.begin(), bytes.end());
  link_ptr_.load()
      ->Send(wire::FrameKind::kDelivery, 0, 0,
             absl::MakeConstSpan(reinterpret_cast<const char*>(where), sizeof(where)), bulk)
      .status()
      .IgnoreError();
}

void FakeWorker::SendHostFunction(const wire::HostFunctionRun& run) {
  link_ptr_.load()
      ->Send(wire::FrameKind::kHostFunction, 0, 0, wire::FrameBodyOf(run), {})
      .status()
      .IgnoreError();
}

std::vector<uint64_t> FakeWorker::ended_runs() const {
  MutexLock lock(&mutex_);
  return ended_runs_;
}

std::string FakeWorker::pulled() const {
  MutexLock lock(&mutex_);
  return pulled_;
}

void FakeWorker::SendReplies(uint16_t records, absl::Span<const char> body) {
  link_ptr_.load()->Send(wire::FrameKind::kReplies, records, 0, body, {}).status().IgnoreError();
}

void FakeWorker::Die() { link_.reset(); }

std::vector<FakeWorker::Received> FakeWorker::received() const {
  MutexLock lock(&mutex_);
  return received_;
}

std::vector<std::string> FakeWorker::names() const {
  std::vector<std::string> names;
  for (const Received& call : received()) names.push_back(call.name);
  return names;
}

size_t FakeWorker::Count(const std::string& name) const {
  size_t count = 0;
  for (const Received& call : received()) count += call.name == name ? 1 : 0;
  return count;
}

size_t FakeWorker::frames() const {
  MutexLock lock(&mutex_);
  return frames_;
}

bool FakeWorker::said_goodbye() const {
  MutexLock lock(&mutex_);
  return goodbye_;
}

}  // namespace fargpu::client
