#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

#include "protocol/wire/codec.h"

// Records are what frames of kind kCalls and kReplies are made of. Each begins with a header of 24
// bytes and is padded with zeros to a multiple of 8 bytes.
namespace fargpu::wire {

enum CallFlags : uint16_t {
  kWantsReply = 1,  // a thread of the client waits, or will wait, for the reply
};

// One call as the client made it. Its number is the frame's first_call plus its place in the frame.
struct CallHeader {
  uint32_t size = 0;  // of the whole record, header and padding included
  uint16_t op = 0;
  uint16_t flags = 0;
  ContextId context = {};  // current context of the calling thread; 0: none
  uint32_t thread = 0;     // small number of the calling thread, from 1 up
  uint32_t reserved = 0;   // zero
};

struct ReplyHeader {
  uint32_t size = 0;
  uint16_t op = 0;
  uint16_t flags = 0;
  uint64_t call = 0;     // number of the call that this answers
  int32_t result = 0;    // CUresult of the call
  int32_t deferred = 0;  // first CUresult other than CUDA_SUCCESS of calls before it that nobody
                         // waited for, since the last reply; 0: none
};

static_assert(sizeof(CallHeader) == 24 && sizeof(ReplyHeader) == 24);

// A record in place: `header` is a copy, `payload` points into the frame (padding included, so
// decoders of payloads use DecodePayload).
template <typename Header>
struct Record {
  Header header;
  absl::Span<const char> payload;
};
using CallRecord = Record<CallHeader>;
using ReplyRecord = Record<ReplyHeader>;

// Appends a record with the fields of `message`; sets header.size.
template <typename Header, typename Message>
void AppendRecord(Header header, const Message& message, std::vector<char>* out) {
  const size_t start = out->size();
  out->resize(start + sizeof(Header));
  EncodeMessage(message, out);
  out->resize((out->size() + 7) / 8 * 8);
  header.size = static_cast<uint32_t>(out->size() - start);
  std::memcpy(out->data() + start, &header, sizeof(header));
}

// Takes the next record from the front of `body`.
template <typename Header>
absl::Status NextRecord(absl::Span<const char>* body, Record<Header>* record) {
  if (body->size() < sizeof(Header)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a record header is cut off after ", body->size(), " bytes"));
  }
  std::memcpy(&record->header, body->data(), sizeof(Header));
  const uint32_t size = record->header.size;
  if (size < sizeof(Header) || size % 8 != 0 || size > body->size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a record says it has ", size, " bytes; ", body->size(), " are left"));
  }
  record->payload = body->subspan(sizeof(Header), size - sizeof(Header));
  body->remove_prefix(size);
  return absl::OkStatus();
}

// Decodes a record's payload: the fields, then less than 8 zero bytes.
template <typename Message>
absl::Status DecodePayload(absl::Span<const char> payload, Message* message) {
  Decoder decoder(payload);
  message->VisitFields(decoder);
  const absl::Span<const char> padding = decoder.rest();
  if (decoder.ok() && padding.size() < 8) {
    for (char byte : padding) {
      if (byte != 0) {
        return absl::InvalidArgumentError(absl::StrCat(Message::kName, ": padding is not zero"));
      }
    }
    return absl::OkStatus();
  }
  return decoder.Finish(Message::kName);
}

}  // namespace fargpu::wire
