#pragma once

#include <cstring>
#include <vector>

#include "gtest/gtest.h"

#include "common/status_matchers.h"
#include "protocol/wire/codec.h"
#include "protocol/wire/filled_message.h"
#include "protocol/wire/record.h"

// What must hold for every message of the protocol; instantiated over all of them by generated
// code. Run it under AddressSanitizer to see wrong reads.
namespace fargpu::wire {

template <typename Message>
class MessageTest : public testing::Test {};
TYPED_TEST_SUITE_P(MessageTest);

TYPED_TEST_P(MessageTest, RoundTripIsByteIdentical) {
  const std::vector<char> bytes = EncodedFilled<TypeParam>();
  TypeParam decoded;
  ASSERT_OK(DecodeMessage(bytes, &decoded));
  std::vector<char> again;
  EncodeMessage(decoded, &again);
  EXPECT_EQ(again, bytes);
}

TYPED_TEST_P(MessageTest, EveryTruncationAndExtensionIsRejected) {
  const std::vector<char> bytes = EncodedFilled<TypeParam>();
  for (size_t size = 0; size < bytes.size(); ++size) {
    // A copy of exactly this size, so that AddressSanitizer sees a read beyond it.
    const std::vector<char> cut(bytes.begin(), bytes.begin() + size);
    TypeParam decoded;
    EXPECT_THAT(DecodeMessage(absl::MakeConstSpan(cut), &decoded),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
  std::vector<char> longer = bytes;
  longer.push_back(0);
  TypeParam decoded;
  EXPECT_THAT(DecodeMessage(absl::MakeConstSpan(longer), &decoded),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TYPED_TEST_P(MessageTest, OverwrittenWordsNeverReadOrAllocateBeyondTheMessage) {
  const std::vector<char> bytes = EncodedFilled<TypeParam>();
  for (uint32_t word : {0u, ~0u, 0x80000000u}) {
    for (size_t offset = 0; offset + sizeof(word) <= bytes.size(); ++offset) {
      std::vector<char> broken = bytes;
      std::memcpy(broken.data() + offset, &word, sizeof(word));
      TypeParam decoded;
      if (!DecodeMessage(absl::MakeConstSpan(broken), &decoded).ok()) continue;
      std::vector<char> again;
      EncodeMessage(decoded, &again);
      EXPECT_EQ(again.size(), broken.size());
    }
  }
}

TYPED_TEST_P(MessageTest, TravelsInARecord) {
  const std::vector<char> fields = EncodedFilled<TypeParam>();
  TypeParam message;
  ASSERT_OK(DecodeMessage(fields, &message));
  std::vector<char> body;
  AppendRecord(CallHeader{.op = TypeParam::kOp, .context = {7}, .thread = 1}, message, &body);
  EXPECT_EQ(body.size() % 8, 0u);
  absl::Span<const char> rest = body;
  CallRecord record;
  ASSERT_OK(NextRecord(&rest, &record));
  EXPECT_TRUE(rest.empty());
  EXPECT_EQ(record.header.op, TypeParam::kOp);
  TypeParam decoded;
  ASSERT_OK(DecodePayload(record.payload, &decoded));
  std::vector<char> again;
  EncodeMessage(decoded, &again);
  EXPECT_EQ(again, fields);
}

REGISTER_TYPED_TEST_SUITE_P(MessageTest, RoundTripIsByteIdentical,
                            EveryTruncationAndExtensionIsRejected,
                            OverwrittenWordsNeverReadOrAllocateBeyondTheMessage, TravelsInARecord);

}  // namespace fargpu::wire
