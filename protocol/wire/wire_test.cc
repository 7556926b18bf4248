#include <cstring>
#include <vector>

#include "gtest/gtest.h"

#include "common/status_matchers.h"
#include "messages.h"
#include "protocol/wire/frame.h"
#include "protocol/wire/opcodes.h"
#include "protocol/wire/record.h"

namespace fargpu::wire {
namespace {

FrameHeader SomeHeader() {
  return {.kind = FrameKind::kCalls,
          .record_count = 3,
          .body_bytes = 96,
          .bulk_bytes = 4096,
          .sequence = 17,
          .acknowledged = 5,
          .first_call = 40};
}

TEST(FrameTest, HeaderRoundTrip) {
  char bytes[kFrameHeaderBytes];
  EncodeFrameHeader(SomeHeader(), absl::MakeSpan(bytes));
  FrameHeader read;
  ASSERT_OK(DecodeFrameHeader(bytes, &read));
  EXPECT_EQ(read.kind, FrameKind::kCalls);
  EXPECT_EQ(read.record_count, 3);
  EXPECT_EQ(read.body_bytes, 96u);
  EXPECT_EQ(read.bulk_bytes, 4096u);
  EXPECT_EQ(read.sequence, 17u);
  EXPECT_EQ(read.acknowledged, 5u);
  EXPECT_EQ(read.first_call, 40u);
}

TEST(FrameTest, RejectsWhatIsNoFrame) {
  char good[kFrameHeaderBytes];
  EncodeFrameHeader(SomeHeader(), absl::MakeSpan(good));
  FrameHeader read;
  EXPECT_THAT(DecodeFrameHeader(absl::MakeConstSpan(good, kFrameHeaderBytes - 1), &read),
              StatusIs(absl::StatusCode::kInvalidArgument));
  const struct {
    size_t offset;
    uint32_t value;
  } rows[] = {
      {0, 0xffffffff},          // magic
      {4, 0},                   // kind 0
      {4, 99},                  // kind 99
      {8, kMaxBodyBytes + 1},   // body over its limit
      {8, 0xffffffff},          // 4 GiB body
      {12, kMaxBulkBytes + 1},  // bulk over its limit
      {40, 1},                  // reserved
  };
  for (const auto& row : rows) {
    char broken[kFrameHeaderBytes];
    std::memcpy(broken, good, sizeof(good));
    std::memcpy(broken + row.offset, &row.value, sizeof(row.value));
    EXPECT_THAT(DecodeFrameHeader(broken, &read), StatusIs(absl::StatusCode::kInvalidArgument))
        << row.offset << " " << row.value;
  }
}

TEST(RecordTest, SeveralRecordsOneAfterTheOther) {
  std::vector<char> body;
  AppendRecord(CallHeader{.op = 1}, EventQueryRequest{.hEvent = {5}}, &body);
  AppendRecord(CallHeader{.op = 2}, MemsetD8AsyncRequest{.dstDevice = 9, .uc = 1, .N = 3}, &body);
  absl::Span<const char> rest = body;
  CallRecord first;
  CallRecord second;
  ASSERT_OK(NextRecord(&rest, &first));
  ASSERT_OK(NextRecord(&rest, &second));
  EXPECT_TRUE(rest.empty());
  EXPECT_EQ(first.header.op, 1);
  MemsetD8AsyncRequest memset_request;
  ASSERT_OK(DecodePayload(second.payload, &memset_request));
  EXPECT_EQ(memset_request.N, 3u);
}

TEST(RecordTest, LyingSizesAreRejected) {
  std::vector<char> body;
  AppendRecord(CallHeader{.op = 1}, EventQueryRequest{.hEvent = {5}}, &body);
  for (uint32_t size : {0u, 8u, 23u, 25u, 31u, 40u, 0x7ffffff8u, 0xffffffffu}) {
    std::vector<char> broken = body;
    std::memcpy(broken.data(), &size, sizeof(size));
    absl::Span<const char> rest = broken;
    CallRecord record;
    EXPECT_THAT(NextRecord(&rest, &record), StatusIs(absl::StatusCode::kInvalidArgument)) << size;
  }
}

TEST(RecordTest, PaddingMustBeZeroAndShort) {
  std::vector<char> body;
  AppendRecord(CallHeader{.op = 1}, MemsetD8AsyncRequest{}, &body);
  absl::Span<const char> rest = body;
  CallRecord record;
  ASSERT_OK(NextRecord(&rest, &record));
  body.back() = 1;
  MemsetD8AsyncRequest request;
  EXPECT_THAT(DecodePayload(record.payload, &request),
              StatusIs(absl::StatusCode::kInvalidArgument));
  const std::vector<char> long_payload(record.payload.size() + 8, 0);
  EXPECT_THAT(DecodePayload(absl::MakeConstSpan(long_payload), &request),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(OpcodesTest, NamesAreCudas) {
  EXPECT_STREQ(OpName(MemAllocV2Request::kOp), "cuMemAlloc_v2");
  EXPECT_EQ(OpName(0xffff), nullptr);
}

}  // namespace
}  // namespace fargpu::wire
