#include "absl/strings/str_replace.h"

#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/message_table.h"

// Input: u16 op | u8, odd for a reply | the encoded fields. What decodes must encode to the same
// bytes: two encodings of one message would be a way around whatever compares or hashes them.
namespace fargpu::fuzz {

std::vector<Seed> Seeds() {
  std::vector<Seed> seeds;
  for (const MessageRow& row : Messages()) {
    Seed seed{absl::StrReplaceAll(row.name, {{" ", "_"}}), ""};
    PutPlain<uint16_t>(&seed.bytes, row.op);
    PutPlain<uint8_t>(&seed.bytes, row.is_reply ? 1 : 0);
    seed.bytes += ToBytes(row.filled());
    seeds.push_back(std::move(seed));
  }
  return seeds;
}

}  // namespace fargpu::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fargpu::fuzz;  // NOLINT: one function
  InputReader input(data, size);
  const uint16_t op = input.U16();
  const bool is_reply = (input.U8() & 1) != 0;
  const MessageRow* const row = FindMessage(op, is_reply);
  if (row == nullptr) return 0;
  std::vector<char> again;
  if (!row->decode(input.rest(), &again).ok()) return 0;
  Require(absl::MakeConstSpan(again) == input.rest(), "a message encodes to what it came from");
  return 0;
}
