#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace fargpu::wire {

// The unit that travels on the data path: a header, a body of whole records, and at most one run
// of bulk bytes that belongs to the last record. Layout: protocol/README.md. All numbers are
// little endian.
enum class FrameKind : uint16_t {
  kCalls = 1,     // client -> worker: call records
  kReplies = 2,   // worker -> client: reply records
  kDelivery = 3,  // worker -> client: bytes of an asynchronous device-to-host copy
  kHeartbeat = 4,
  kGoodbye = 5,           // the sender ends the session in an orderly way
  kOpen = 6,              // first frame in each direction; see Connection
  kHostFunction = 7,      // worker -> client: a stream has come to a function of the program
  kHostFunctionDone = 8,  // client -> worker: it has returned
};

struct FrameHeader {
  FrameKind kind = FrameKind::kHeartbeat;
  uint16_t record_count = 0;
  uint32_t body_bytes = 0;
  uint32_t bulk_bytes = 0;
  uint64_t sequence = 0;  // 1, 2, 3... in each direction; 0 on heartbeats, which are not numbered
  uint64_t acknowledged = 0;  // highest sequence the sender of this frame has taken from its peer
  uint64_t first_call = 0;    // number of the first call record; the others follow one by one
};

inline constexpr uint32_t kFrameMagic = 0x55504746;  // "FGPU"
inline constexpr size_t kFrameHeaderBytes = 48;
// Limits that a receiver enforces before it allocates anything.
inline constexpr uint32_t kMaxBodyBytes = 1 << 20;
inline constexpr uint32_t kMaxBulkBytes = 4 << 20;

void EncodeFrameHeader(const FrameHeader& header, absl::Span<char> out);  // kFrameHeaderBytes
// kInvalidArgument: not a frame, or over a limit; `header` is then unspecified.
absl::Status DecodeFrameHeader(absl::Span<const char> in, FrameHeader* header);

}  // namespace fargpu::wire
