#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "protocol/wire/filled_message.h"
#include "protocol/wire/record.h"

namespace fargpu::fuzz {

// One message of the protocol, for code that meets all of them.
struct MessageRow {
  uint16_t op = 0;
  bool is_reply = false;
  const char* name = nullptr;
  // Decode `bytes`, whole or as the payload of a record, and encode the message again.
  absl::Status (*decode)(absl::Span<const char> bytes, std::vector<char>* again) = nullptr;
  absl::Status (*decode_payload)(absl::Span<const char> bytes, std::vector<char>* again) = nullptr;
  // Every field set, encoded.
  std::vector<char> (*filled)() = nullptr;
};

template <typename Message>
absl::Status DecodeAndEncode(absl::Span<const char> bytes, std::vector<char>* again) {
  Message message;
  const absl::Status status = wire::DecodeMessage(bytes, &message);
  if (status.ok()) wire::EncodeMessage(message, again);
  return status;
}
template <typename Message>
absl::Status DecodePayloadAndEncode(absl::Span<const char> bytes, std::vector<char>* again) {
  Message message;
  const absl::Status status = wire::DecodePayload(bytes, &message);
  if (status.ok()) wire::EncodeMessage(message, again);
  return status;
}
template <typename Message>
MessageRow RowOf(bool is_reply) {
  return {Message::kOp,
          is_reply,
          Message::kName,
          &DecodeAndEncode<Message>,
          &DecodePayloadAndEncode<Message>,
          &wire::EncodedFilled<Message>};
}

// All messages, in the order of the spec; generated.
const std::vector<MessageRow>& Messages();
const MessageRow* FindMessage(uint16_t op, bool is_reply);

}  // namespace fargpu::fuzz
