#include "protocol/wire/frame.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace fargpu::wire {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire is little endian, so are we");

template <typename T>
void Put(char* out, size_t offset, T value) {
  std::memcpy(out + offset, &value, sizeof(value));
}
template <typename T>
T Get(const char* in, size_t offset) {
  T value;
  std::memcpy(&value, in + offset, sizeof(value));
  return value;
}

}  // namespace

void EncodeFrameHeader(const FrameHeader& header, absl::Span<char> out) {
  std::memset(out.data(), 0, kFrameHeaderBytes);
  Put(out.data(), 0, kFrameMagic);
  Put(out.data(), 4, static_cast<uint16_t>(header.kind));
  Put(out.data(), 6, header.record_count);
  Put(out.data(), 8, header.body_bytes);
  Put(out.data(), 12, header.bulk_bytes);
  Put(out.data(), 16, header.sequence);
  Put(out.data(), 24, header.acknowledged);
  Put(out.data(), 32, header.first_call);
}

absl::Status DecodeFrameHeader(absl::Span<const char> in, FrameHeader* header) {
  if (in.size() < kFrameHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat("frame of ", in.size(), " bytes has no header"));
  }
  if (Get<uint32_t>(in.data(), 0) != kFrameMagic) {
    return absl::InvalidArgumentError("frame does not begin with the magic number");
  }
  const auto kind = Get<uint16_t>(in.data(), 4);
  if (kind < static_cast<uint16_t>(FrameKind::kCalls) ||
      kind > static_cast<uint16_t>(FrameKind::kHostFunctionDone)) {
    return absl::InvalidArgumentError(absl::StrCat("unknown frame kind ", kind));
  }
  header->kind = static_cast<FrameKind>(kind);
  header->record_count = Get<uint16_t>(in.data(), 6);
  header->body_bytes = Get<uint32_t>(in.data(), 8);
  header->bulk_bytes = Get<uint32_t>(in.data(), 12);
  header->sequence = Get<uint64_t>(in.data(), 16);
  header->acknowledged = Get<uint64_t>(in.data(), 24);
  header->first_call = Get<uint64_t>(in.data(), 32);
  if (Get<uint64_t>(in.data(), 40) != 0) {
    return absl::InvalidArgumentError("reserved bytes of the frame header are not zero");
  }
  if (header->body_bytes > kMaxBodyBytes) {
    return absl::InvalidArgumentError(absl::StrCat("frame body of ", header->body_bytes,
                                                   " bytes is over the limit of ", kMaxBodyBytes));
  }
  if (header->bulk_bytes > kMaxBulkBytes) {
    return absl::InvalidArgumentError(absl::StrCat("frame bulk of ", header->bulk_bytes,
                                                   " bytes is over the limit of ", kMaxBulkBytes));
  }
  return absl::OkStatus();
}

}  // namespace fargpu::wire
