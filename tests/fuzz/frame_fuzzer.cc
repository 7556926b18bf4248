#include <algorithm>

#include "protocol/wire/frame.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/message_table.h"

// Input: a frame as a connection delivers it. Header, records and the fields of each are read as
// client and worker read them.
namespace fargpu::fuzz {
namespace {

using wire::FrameHeader;
using wire::FrameKind;

std::string FrameBytes(FrameHeader header, absl::Span<const char> body,
                       absl::Span<const char> bulk) {
  header.body_bytes = static_cast<uint32_t>(body.size());
  header.bulk_bytes = static_cast<uint32_t>(bulk.size());
  std::string bytes(wire::kFrameHeaderBytes, '\0');
  wire::EncodeFrameHeader(header, absl::MakeSpan(&bytes[0], bytes.size()));
  return bytes + ToBytes(body) + ToBytes(bulk);
}

template <typename Header>
void AppendFilled(Header header, const MessageRow& row, std::vector<char>* body) {
  const std::vector<char> fields = row.filled();
  const size_t start = body->size();
  header.op = row.op;
  header.size = static_cast<uint32_t>((sizeof(header) + fields.size() + 7) / 8 * 8);
  body->resize(start + header.size);
  std::memcpy(body->data() + start, &header, sizeof(header));
  std::copy(fields.begin(), fields.end(), body->begin() + start + sizeof(header));
}

template <typename Header>
void WalkRecords(absl::Span<const char> body, uint16_t count, bool is_reply) {
  for (uint16_t i = 0; i < count; ++i) {
    wire::Record<Header> record;
    const size_t before = body.size();
    if (!wire::NextRecord(&body, &record).ok()) return;
    Require(body.size() + sizeof(Header) + record.payload.size() == before,
            "a record takes the bytes it says");
    const MessageRow* const row = FindMessage(record.header.op, is_reply);
    std::vector<char> again;
    if (row == nullptr || !row->decode_payload(record.payload, &again).ok()) continue;
    again.resize((again.size() + 7) / 8 * 8);
    Require(absl::MakeConstSpan(again) == record.payload, "a record encodes to what it came from");
  }
}

}  // namespace

std::vector<Seed> Seeds() {
  std::vector<Seed> seeds;
  std::vector<char> calls, replies;
  uint16_t number = 0;
  for (const MessageRow& row : Messages()) {
    if (row.is_reply) {
      AppendFilled(wire::ReplyHeader{.call = number, .result = 1}, row, &replies);
    } else {
      AppendFilled(wire::CallHeader{.flags = wire::kWantsReply, .context = {3}, .thread = 1}, row,
                   &calls);
      ++number;
    }
    std::vector<char> one;
    AppendFilled(wire::CallHeader{.thread = 1}, row, &one);
    if (seeds.size() < 16) {
      seeds.push_back(
          {"call_" + std::to_string(row.op),
           FrameBytes({.kind = FrameKind::kCalls, .record_count = 1, .sequence = 2}, one, "bulk")});
    }
  }
  seeds.push_back({"all_calls", FrameBytes({.kind = FrameKind::kCalls,
                                            .record_count = number,
                                            .sequence = 2,
                                            .acknowledged = 1,
                                            .first_call = 1},
                                           calls, {})});
  seeds.push_back({"all_replies",
                   FrameBytes({.kind = FrameKind::kReplies, .record_count = number}, replies, {})});
  const std::string delivery(16, '\1');
  seeds.push_back(
      {"delivery", FrameBytes({.kind = FrameKind::kDelivery, .sequence = 3}, delivery, "bytes")});
  seeds.push_back({"heartbeat", FrameBytes({.kind = FrameKind::kHeartbeat}, {}, {})});
  seeds.push_back({"goodbye", FrameBytes({.kind = FrameKind::kGoodbye, .sequence = 4}, {}, {})});
  seeds.push_back({"open", FrameBytes({.kind = FrameKind::kOpen, .sequence = 1}, delivery, {})});
  return seeds;
}

}  // namespace fargpu::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fargpu::fuzz;   // NOLINT: one function
  namespace wire = fargpu::wire;  // NOLINT
  const auto bytes = absl::MakeConstSpan(reinterpret_cast<const char*>(data), size);
  wire::FrameHeader header;
  if (!wire::DecodeFrameHeader(bytes, &header).ok()) return 0;
  char again[wire::kFrameHeaderBytes];
  wire::EncodeFrameHeader(header, again);
  Require(std::memcmp(again, data, sizeof(again)) == 0, "a header encodes to what it came from");
  const absl::Span<const char> rest = bytes.subspan(wire::kFrameHeaderBytes);
  if (uint64_t{header.body_bytes} + header.bulk_bytes != rest.size()) return 0;
  const absl::Span<const char> body = rest.first(header.body_bytes);
  if (header.kind == wire::FrameKind::kCalls) {
    WalkRecords<wire::CallHeader>(body, header.record_count, /*is_reply=*/false);
  } else if (header.kind == wire::FrameKind::kReplies) {
    WalkRecords<wire::ReplyHeader>(body, header.record_count, /*is_reply=*/true);
  }
  return 0;
}
