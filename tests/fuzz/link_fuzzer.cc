#include <atomic>
#include <memory>
#include <utility>

#include "absl/time/clock.h"

#include "protocol/wire/frame.h"
#include "protocol/wire/record.h"
#include "tests/fuzz/fuzz_target.h"
#include "transport/inproc/in_process_connection.h"
#include "transport/link.h"

// Input: u8, odd to have magic numbers and sequences put right | messages, each as u16 size |
// bytes. They arrive at a Link, which must end with the peer's death or its nonsense, and soon.
namespace fargpu::fuzz {
namespace {

using wire::FrameHeader;
using wire::FrameKind;

constexpr absl::Duration kLimit = absl::Seconds(5);

void PutMessage(std::string* out, FrameHeader header, absl::string_view body,
                absl::string_view bulk) {
  header.body_bytes = static_cast<uint32_t>(body.size());
  header.bulk_bytes = static_cast<uint32_t>(bulk.size());
  std::string bytes(wire::kFrameHeaderBytes, '\0');
  wire::EncodeFrameHeader(header, absl::MakeSpan(&bytes[0], bytes.size()));
  PutPlain(out, static_cast<uint16_t>(bytes.size() + body.size() + bulk.size()));
  out->append(bytes);
  out->append(body.data(), body.size());
  out->append(bulk.data(), bulk.size());
}

// So that mutations get behind the two checks that random bytes hardly ever pass.
void PutRight(std::string* message, uint64_t* sequence) {
  if (message->size() < wire::kFrameHeaderBytes) return;
  uint16_t kind = 0;
  std::memcpy(&kind, message->data() + 4, sizeof(kind));
  const uint64_t number = kind == static_cast<uint16_t>(FrameKind::kHeartbeat) ? 0 : ++*sequence;
  std::memcpy(&(*message)[0], &wire::kFrameMagic, sizeof(wire::kFrameMagic));
  std::memcpy(&(*message)[16], &number, sizeof(number));
}

}  // namespace

std::vector<Seed> Seeds() {
  std::string orderly(1, '\0');
  PutMessage(&orderly, {.kind = FrameKind::kCalls, .record_count = 1, .sequence = 1},
             std::string(24, '\1'), "bulk");
  PutMessage(&orderly, {.kind = FrameKind::kHeartbeat}, "", "");
  PutMessage(&orderly, {.kind = FrameKind::kDelivery, .sequence = 2}, std::string(16, '\2'), "b");
  PutMessage(&orderly, {.kind = FrameKind::kGoodbye, .sequence = 3}, "", "");
  std::string corrected = orderly;
  corrected[0] = '\1';
  std::string cut = orderly;
  cut.resize(cut.size() - 60);
  return {{"orderly", orderly}, {"corrected", corrected}, {"cut", cut}};
}

}  // namespace fargpu::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fargpu;             // NOLINT: one function
  using namespace fargpu::fuzz;       // NOLINT
  using namespace fargpu::transport;  // NOLINT
  InputReader input(data, size);
  const bool put_right = (input.U8() & 1) != 0;
  auto [ours, theirs] = NewInProcessPair();
  std::atomic<bool> dead{false};
  std::atomic<uint64_t> bytes_seen{0};
  uint64_t last_sequence = 0;
  const std::unique_ptr<Link> link = Link::Start(
      std::move(ours), LinkOptions{.spin = absl::ZeroDuration()},
      [&](IncomingFrame frame) {
        Require(frame.header.sequence == ++last_sequence, "frames arrive in order");
        Require(frame.body().size() + frame.bulk().size() + wire::kFrameHeaderBytes ==
                    frame.message.size,
                "body and bulk are the whole message");
        // Touches every byte.
        uint64_t sum = 0;
        for (const char byte : frame.body()) sum += static_cast<uint8_t>(byte);
        for (const char byte : frame.bulk()) sum += static_cast<uint8_t>(byte);
        bytes_seen.fetch_add(sum, std::memory_order_relaxed);
      },
      [&](const absl::Status& cause) {
        Require(cause.code() == absl::StatusCode::kUnavailable ||
                    cause.code() == absl::StatusCode::kInvalidArgument,
                "a link dies of a dead peer or of nonsense");
        dead.store(true);
      });
  uint64_t sequence = 0;
  while (!input.empty()) {
    std::string message = ToBytes(input.Take(input.U16()));
    if (put_right) PutRight(&message, &sequence);
    // Refused once the link has given the connection up.
    if (!theirs->Send(message, {}).ok()) break;
  }
  theirs->Abort();
  const absl::Status ended = link->WaitUntil([&] { return dead.load(); }, absl::Now() + kLimit);
  Require(ended.ok(), "a link notices that its peer is gone");
  Require(!link->status().ok(), "a dead link says so");
  return 0;
}
