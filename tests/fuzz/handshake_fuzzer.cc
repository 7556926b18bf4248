#include "protocol/handshake.h"
#include "protocol/wire/filled_message.h"
#include "tests/fuzz/fuzz_target.h"
#include "transport/ucx/place_info.h"

// Input: u8, odd for the server's Welcome | the message as it came over the control socket.
namespace fargpu::fuzz {
namespace {

template <typename Message>
bool Decode(absl::Span<const char> bytes, Message* message) {
  if (!wire::DecodeMessage(bytes, message).ok()) return false;
  std::vector<char> again;
  wire::EncodeMessage(*message, &again);
  Require(absl::MakeConstSpan(again) == bytes, "a message encodes to what it came from");
  return true;
}

void UsePlace(const std::string& bytes) {
  const absl::StatusOr<transport::PlaceInfo> place = transport::DecodePlaceInfo(bytes);
  if (!place.ok()) return;
  transport::SharedMemoryIsPossible(*place, transport::PlaceInfo::Local()).IgnoreError();
  Require(transport::EncodePlaceInfo(*place) == bytes, "a place encodes to what it came from");
}

template <typename Message>
std::string WithKind(uint8_t kind, const Message& message) {
  std::vector<char> bytes;
  wire::EncodeMessage(message, &bytes);
  return std::string(1, static_cast<char>(kind)) + ToBytes(bytes);
}

}  // namespace

std::vector<Seed> Seeds() {
  Hello hello;
  hello.program = "vector_add";
  hello.transports = kTransportTcp | kTransportSharedMemory;
  hello.place = transport::EncodePlaceInfo(transport::PlaceInfo());
  hello.address = "address";
  Welcome welcome;
  wire::FillVisitor fill;
  welcome.VisitFields(fill);
  welcome.refusal = 0;
  return {{"hello", WithKind(0, hello)},
          {"welcome", WithKind(1, welcome)},
          {"refusal", WithKind(1, RefusingWelcome(absl::NotFoundError("no such lease")))}};
}

}  // namespace fargpu::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fargpu;        // NOLINT: one function
  using namespace fargpu::fuzz;  // NOLINT
  InputReader input(data, size);
  if ((input.U8() & 1) == 0) {
    Hello hello;
    if (!Decode(input.rest(), &hello)) return 0;
    const auto version = NegotiateVersion(hello.version_min, hello.version_max);
    Require(!version.ok() || (*version >= hello.version_min && *version <= hello.version_max),
            "the version is one that was offered");
    UsePlace(hello.place);
  } else {
    Welcome welcome;
    if (!Decode(input.rest(), &welcome)) return 0;
    Require(RefusalOf(welcome).ok() == (welcome.refusal == 0), "a refusal is an error");
    UsePlace(welcome.place);
  }
  return 0;
}
