#include "server/worker/session.h"

#include <algorithm>

#include "server/testing/session_harness.h"

namespace fargpu::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Wants = WireClient::Wants;

std::vector<std::string> Only(const std::vector<std::string>& calls,
                              std::initializer_list<std::string> names) {
  std::vector<std::string> result;
  for (const std::string& call : calls) {
    if (std::find(names.begin(), names.end(), call) != names.end()) result.push_back(call);
  }
  return result;
}

TEST_F(SessionTest, RunsCallsInTheOrderOfTheFrameAndRepliesTogether) {
  client_->Add(wire::StreamCreateRequest{.phStream = {100}, .Flags = 0});
  client_->Add(wire::EventCreateRequest{.phEvent = {200}, .Flags = 0});
  client_->Add(wire::EventRecordRequest{.hEvent = {200}, .hStream = {100}});
  const uint64_t first = client_->Add(wire::EventQueryRequest{.hEvent = {200}}, Wants::kReply);
  const uint64_t second = client_->Add(wire::StreamQueryRequest{.hStream = {100}}, Wants::kReply);
  ASSERT_OK(client_->Flush());
  const auto a = client_->WaitFor(first);
  const auto b = client_->WaitFor(second);
  EXPECT_EQ(a.result, CUDA_SUCCESS);
  EXPECT_EQ(b.result, CUDA_SUCCESS);
  EXPECT_EQ(a.frame, b.frame);
  EXPECT_THAT(
      Only(driver_.calls(), {"cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuStreamCreate",
                             "cuEventCreate", "cuEventRecord", "cuStreamQuery"}),
      ElementsAre("cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuStreamCreate", "cuEventCreate",
                  "cuEventRecord", "cuStreamQuery"));
}

TEST_F(SessionTest, ACallThatWaitsDoesNotHoldUpOtherThreads) {
  driver_.Hold("cuStreamSynchronize");
  const uint64_t waits =
      client_->Add(wire::StreamSynchronizeRequest{.hStream = {0}}, Wants::kReply, /*thread=*/1);
  ASSERT_OK(client_->Flush());
  ASSERT_TRUE(driver_.WaitHeld("cuStreamSynchronize"));
  for (uint32_t thread = 2; thread < 6; ++thread) {
    EXPECT_EQ(client_->Call(wire::StreamQueryRequest{.hStream = {0}}, thread).result, CUDA_SUCCESS);
  }
  // Several may wait at a time.
  const uint64_t also_waits =
      client_->Add(wire::StreamSynchronizeRequest{.hStream = {0}}, Wants::kReply, /*thread=*/2);
  ASSERT_OK(client_->Flush());
  ASSERT_TRUE(driver_.WaitHeld("cuStreamSynchronize", 2));
  EXPECT_EQ(client_->Call(wire::StreamQueryRequest{.hStream = {0}}, 3).result, CUDA_SUCCESS);
  EXPECT_FALSE(client_->Has(waits));
  EXPECT_FALSE(client_->Has(also_waits));
  driver_.Release("cuStreamSynchronize");
  EXPECT_EQ(client_->WaitFor(waits).result, CUDA_SUCCESS);
  EXPECT_EQ(client_->WaitFor(also_waits).result, CUDA_SUCCESS);
}

TEST_F(SessionTest, AThreadsNextCallStartsWhenItsWaitingCallsAreDone) {
  const uint64_t memory = Allocate(kMiB);
  driver_.Hold("cuMemcpyHtoD_v2");
  client_->Add(wire::MemcpyHtoDV2Request{.dstDevice = memory, .ByteCount = 4}, Wants::kNothing, 1);
  ASSERT_OK(client_->Flush("abcd"));
  ASSERT_TRUE(driver_.WaitHeld("cuMemcpyHtoD_v2"));
  const uint64_t other = client_->Add(wire::StreamQueryRequest{}, Wants::kReply, /*thread=*/2);
  const uint64_t next = client_->Add(wire::StreamQueryRequest{}, Wants::kReply, /*thread=*/1);
  ASSERT_OK(client_->Flush());
  // Made before the first thread's next call, so it does not wait for the copy.
  EXPECT_EQ(client_->WaitFor(other).result, CUDA_SUCCESS);
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_FALSE(client_->Has(next));
  driver_.Release("cuMemcpyHtoD_v2");
  EXPECT_EQ(client_->WaitFor(next).result, CUDA_SUCCESS);
}

TEST_F(SessionTest, WaitingCallsOfOneThreadRunOneAfterAnother) {
  const uint64_t memory = Allocate(kMiB);
  std::vector<uint64_t> calls;
  for (int i = 0; i < 20; ++i) {
    calls.push_back(
        client_->Add(wire::MemcpyDtoHV2Request{.srcDevice = memory + 100 * static_cast<uint64_t>(i),
                                               .ByteCount = 100},
                     Wants::kReply));
  }
  ASSERT_OK(client_->Flush());
  size_t frame = 0;
  for (uint64_t call : calls) {
    const auto reply = client_->WaitFor(call);
    EXPECT_EQ(reply.bulk, std::string(100, '\0'));
    EXPECT_GT(reply.frame, frame);
    frame = reply.frame;
  }
}

TEST_F(SessionTest, ErrorsOfCallsThatNobodyWaitsForLeaveWithTheNextReply) {
  driver_.FailNext("cuMemsetD8Async", CUDA_ERROR_ILLEGAL_ADDRESS);
  client_->Add(wire::MemsetD8AsyncRequest{.dstDevice = 0, .uc = 0, .N = 0, .hStream = {0}});
  client_->Add(wire::EventRecordRequest{.hEvent = {77}, .hStream = {0}});  // no such event
  const auto first = client_->Call(wire::StreamQueryRequest{});
  EXPECT_EQ(first.result, CUDA_SUCCESS);
  EXPECT_EQ(first.deferred, CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(client_->Call(wire::StreamQueryRequest{}).deferred, CUDA_SUCCESS);
}

TEST_F(SessionTest, DeliveriesComeBeforeTheReplyThatTellsOfThem) {
  const uint64_t memory = Allocate(kMiB);
  client_->Call(wire::MemcpyHtoDV2Request{.dstDevice = memory, .ByteCount = 6}, 1, 1, "abcdef");
  driver_.HoldEvents();
  client_->Add(wire::MemcpyDtoHAsyncV2Request{
      .srcDevice = memory, .ByteCount = 3, .hStream = {0}, .delivery = 9, .offset = 0});
  client_->Add(wire::MemcpyDtoHAsyncV2Request{
      .srcDevice = memory + 3, .ByteCount = 3, .hStream = {0}, .delivery = 9, .offset = 3});
  EXPECT_EQ(client_->Call(wire::StreamQueryRequest{}).deliveries_before, 0u);
  driver_.ReleaseEvents();
  EXPECT_EQ(client_->Call(wire::StreamSynchronizeRequest{}).deliveries_before, 2u);
  const auto deliveries = client_->deliveries();
  ASSERT_EQ(deliveries.size(), 2u);
  EXPECT_EQ(deliveries[0].token, 9u);
  EXPECT_EQ(deliveries[0].offset, 0u);
  EXPECT_EQ(deliveries[0].bytes, "abc");
  EXPECT_EQ(deliveries[1].offset, 3u);
  EXPECT_EQ(deliveries[1].bytes, "def");
}

TEST_F(SessionTest, DeliveriesLeaveWithoutAReplyWhenThereAreMany) {
  const uint64_t memory = Allocate(kMiB);
  // More than may be under way at a time.
  for (uint64_t i = 0; i < 2 * AsyncCopies::kMaxCopies; ++i) {
    client_->Add(wire::MemcpyDtoHAsyncV2Request{
        .srcDevice = memory, .ByteCount = 8, .hStream = {0}, .delivery = 1 + i, .offset = 0});
    if (i % 1000 == 999) {
      ASSERT_OK(client_->Flush());
    }
  }
  ASSERT_OK(client_->Flush());
  const absl::Status many = client_->link().WaitUntil(
      [&] { return client_->deliveries().size() >= AsyncCopies::kMaxCopies / 2; },
      absl::Now() + kTestLimit);
  EXPECT_OK(many);
  client_->Call(wire::StreamSynchronizeRequest{});
  const auto deliveries = client_->deliveries();
  ASSERT_EQ(deliveries.size(), 2 * AsyncCopies::kMaxCopies);
  for (size_t i = 0; i < deliveries.size(); ++i) ASSERT_EQ(deliveries[i].token, 1 + i);
}

TEST_F(SessionTest, WhatKernelsPrintComesBeforeTheReply) {
  Print({.out = "hello from a kernel\n", .error = "an assertion failed\n"});
  EXPECT_EQ(client_->Call(wire::StreamSynchronizeRequest{}).deliveries_before, 2u);
  const auto deliveries = client_->deliveries();
  ASSERT_EQ(deliveries.size(), 2u);
  EXPECT_EQ(deliveries[0].token, 0u);
  EXPECT_EQ(deliveries[0].offset, static_cast<uint64_t>(wire::PrintStream::kOut));
  EXPECT_EQ(deliveries[0].bytes, "hello from a kernel\n");
  EXPECT_EQ(deliveries[1].token, 0u);
  EXPECT_EQ(deliveries[1].offset, static_cast<uint64_t>(wire::PrintStream::kError));
  EXPECT_EQ(deliveries[1].bytes, "an assertion failed\n");
}

TEST_F(SessionTest, IdsThatNameNothingAreCudaErrors) {
  EXPECT_EQ(client_->Call(wire::StreamQueryRequest{.hStream = {55}}).result,
            CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(client_->Call(wire::StreamQueryRequest{}, 1, /*context=*/99).result,
            CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(client_->Call(wire::StreamQueryRequest{}, 1, /*context=*/0).result,
            CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(client_->Call(wire::CtxDestroyV2Request{.context = {98}}).result,
            CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(SessionTest, EachClientThreadHasItsOwnDefaultStream) {
  client_->Call(wire::StreamQueryRequest{.hStream = {2}}, 1);
  client_->Call(wire::StreamQueryRequest{.hStream = {2}}, 2);
  client_->Call(wire::StreamQueryRequest{.hStream = {2}}, 1);
  EXPECT_EQ(driver_.Count("cuStreamCreate"), 2);
}

TEST_F(SessionTest, AContextTakesItsObjectsAlong) {
  client_->Call(wire::CtxCreateV2Request{.context = {5}, .flags = 0, .device = 0});
  client_->Add(wire::StreamCreateRequest{.phStream = {100}, .Flags = 0}, Wants::kNothing, 1, 5);
  EXPECT_EQ(client_->Call(wire::MemAllocV2Request{.bytesize = 8 * kMiB}, 1, 5).result,
            CUDA_SUCCESS);
  EXPECT_EQ(ledger_->UsedBytes(0), 8 * kMiB);
  EXPECT_EQ(client_->Call(wire::CtxDestroyV2Request{.context = {5}}).result, CUDA_SUCCESS);
  EXPECT_EQ(ledger_->UsedBytes(0), 0u);
  EXPECT_EQ(client_->Call(wire::StreamQueryRequest{.hStream = {100}}).result,
            CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(client_->Call(wire::StreamQueryRequest{}, 1, 5).result, CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(SessionTest, AGoodbyeEndsTheSession) {
  ASSERT_OK(client_->Flush());
  ASSERT_OK(client_->SendRaw(wire::FrameKind::kGoodbye, 0, 0, ""));
  EXPECT_THAT(WaitForEnd(), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(SessionTest, ADeadClientEndsTheSessionThoughACallHangsInTheDriver) {
  driver_.Hold("cuStreamSynchronize");
  client_->Add(wire::StreamSynchronizeRequest{}, Wants::kReply);
  ASSERT_OK(client_->Flush());
  ASSERT_TRUE(driver_.WaitHeld("cuStreamSynchronize"));
  client_.reset();
  EXPECT_THAT(WaitForEnd(), StatusIs(absl::StatusCode::kUnavailable));
  driver_.Release("cuStreamSynchronize");
}

// What no client of ours sends: each ends the session and never becomes a CUresult.
class MalformedTest : public SessionTest {
 protected:
  void ExpectEnds(const std::string& why) {
    const absl::Status end = WaitForEnd();
    EXPECT_THAT(end, StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(std::string(end.message()), HasSubstr(why));
  }
  std::string OneRecord(uint16_t op, uint32_t size = 24, uint16_t flags = 1, uint32_t thread = 1,
                        uint32_t reserved = 0) {
    wire::CallHeader header;
    header.size = size;
    header.op = op;
    header.flags = flags;
    header.context.value = 1;
    header.thread = thread;
    header.reserved = reserved;
    return std::string(reinterpret_cast<const char*>(&header), sizeof(header));
  }
  void SendRecord(const std::string& body, uint16_t records = 1, const std::string& bulk = "") {
    ASSERT_OK(client_->Flush());
    ASSERT_OK(client_->SendRaw(wire::FrameKind::kCalls, records, client_->next_call(), body, bulk));
  }
};

TEST_F(MalformedTest, UnknownOp) {
  SendRecord(OneRecord(0xfffe));
  ExpectEnds("no call with op 65534");
}
TEST_F(MalformedTest, RecordLongerThanTheFrame) {
  SendRecord(OneRecord(wire::StreamQueryRequest::kOp, 0xfffffff8));
  ExpectEnds("says it has 4294967288 bytes");
}
TEST_F(MalformedTest, PayloadCutOff) {
  SendRecord(OneRecord(wire::StreamQueryRequest::kOp));
  ExpectEnds("cuStreamQuery");
}
TEST_F(MalformedTest, BytesAfterTheLastRecord) {
  SendRecord(OneRecord(wire::CtxGetLimitRequest::kOp, 24) + std::string(8, '\0'));
  ExpectEnds("8 bytes follow");
}
TEST_F(MalformedTest, ThreadZero) {
  SendRecord(OneRecord(wire::StreamQueryRequest::kOp, 24, 1, 0));
  ExpectEnds("the record's header");
}
TEST_F(MalformedTest, UnknownFlags) {
  SendRecord(OneRecord(wire::StreamQueryRequest::kOp, 24, 6));
  ExpectEnds("the record's header");
}
TEST_F(MalformedTest, FewerRecordsThanAnnounced) {
  SendRecord("", 3);
  ExpectEnds("cut off after 0 bytes");
}
TEST_F(MalformedTest, NoRecords) {
  SendRecord("", 0);
  ExpectEnds("0 calls");
}
TEST_F(MalformedTest, CallNumbersWithAGap) {
  ASSERT_OK(client_->Flush());
  ASSERT_OK(client_->SendRaw(wire::FrameKind::kCalls, 1, client_->next_call() + 1,
                             OneRecord(wire::CtxGetLimitRequest::kOp)));
  ExpectEnds("was due");
}
TEST_F(MalformedTest, FrameKindOfTheOtherDirection) {
  ASSERT_OK(client_->SendRaw(wire::FrameKind::kReplies, 0, 0, ""));
  ExpectEnds("a frame of kind 2");
}
TEST_F(MalformedTest, BulkForACallThatTakesNone) {
  client_->Add(wire::StreamQueryRequest{});
  ASSERT_OK(client_->Flush("bytes"));
  ExpectEnds("takes none");
}
TEST_F(MalformedTest, CopyWithAnotherSizeThanItsBulk) {
  client_->Add(wire::MemcpyHtoDV2Request{.dstDevice = 0, .ByteCount = 4});
  ASSERT_OK(client_->Flush("bytes"));
  ExpectEnds("a copy of 4 bytes came with 5");
}
TEST_F(MalformedTest, ACopyToTheHostThatNoFrameCarries) {
  client_->Add(wire::MemcpyDtoHV2Request{.srcDevice = 0, .ByteCount = uint64_t{1} << 40},
               Wants::kReply);
  ASSERT_OK(client_->Flush());
  ExpectEnds("a copy of 1099511627776 bytes");
}
TEST_F(MalformedTest, AnIdTwice) {
  client_->Add(wire::StreamCreateRequest{.phStream = {100}, .Flags = 0});
  client_->Add(wire::StreamCreateRequest{.phStream = {100}, .Flags = 0});
  ASSERT_OK(client_->Flush());
  ExpectEnds("stream id 100 is in use");
}
TEST_F(MalformedTest, AReservedStreamId) {
  client_->Add(wire::StreamCreateRequest{.phStream = {2}, .Flags = 0});
  ASSERT_OK(client_->Flush());
  ExpectEnds("reserved id");
}
TEST_F(MalformedTest, AnImageThatWasNotSent) {
  client_->Add(wire::LibraryLoadDataRequest{.library = {3}, .image = {4}, .first_function = {100}},
               Wants::kReply);
  ASSERT_OK(client_->Flush());
  ExpectEnds("image 4 was not sent");
}
TEST_F(MalformedTest, AnImageLargerThanAllowed) {
  client_->Add(wire::SessionImageBeginRequest{
      .image = {4}, .kind = 5, .part_bytes = {uint64_t{1} << 63, uint64_t{1} << 63}});
  ASSERT_OK(client_->Flush());
  ExpectEnds("on their way");
}
TEST_F(MalformedTest, APieceBeyondItsPart) {
  client_->Add(wire::SessionImageBeginRequest{.image = {4}, .kind = 5, .part_bytes = {4}});
  client_->Add(wire::SessionImagePartRequest{.image = {4}, .part = 0, .offset = 0});
  ASSERT_OK(client_->Flush("12345"));
  ExpectEnds("piece of 5 bytes");
}

}  // namespace
}  // namespace fargpu::server
