#include "protocol/driver_abi/fatbin_decompress.h"
#include "protocol/driver_abi/image.h"
#include "protocol/driver_abi/image_testing.h"
#include "tests/fuzz/fuzz_target.h"

// Input: u8 kind | the bytes as the part of an image that came from a peer. What passes the check
// must also list, trim, decompress and reassemble without harm.
namespace fargpu::fuzz {
namespace {

using driver_abi::EntryKind;
using driver_abi::ImageKind;

std::string WithKind(ImageKind kind, const std::string& bytes) {
  return std::string(1, static_cast<char>(kind)) + bytes;
}

}  // namespace

std::vector<Seed> Seeds() {
  const std::string ptx = ".version 9.0\n.target sm_75\n.address_size 64\n";
  // A frame of zstd that holds one raw block, and a block of LZ4 that holds literals only.
  const std::string zstd("\x28\xb5\x2f\xfd\x20\x05\x29\x00\x00hello", 14);
  const std::string lz4 = "\x50hello";
  const std::string fatbin = driver_abi::FatbinBytes({
      {.kind = EntryKind::kPtx, .arch = 75, .payload = ptx},
      {.kind = EntryKind::kElf,
       .arch = 90,
       .payload = std::string("\x7f"
                              "ELF",
                              4)},
      {.kind = EntryKind::kPtx,
       .arch = 80,
       .payload = zstd,
       .flags = driver_abi::kZstdFlag,
       .uncompressed_size = 5},
      {.kind = EntryKind::kPtx,
       .arch = 90,
       .payload = lz4,
       .flags = driver_abi::kLz4Flag,
       .uncompressed_size = 5},
  });
  return {{"fatbin", WithKind(ImageKind::kFatbin, fatbin)},
          {"wrapper", WithKind(ImageKind::kFatbinWrapper, fatbin)},
          {"linked_wrapper", WithKind(ImageKind::kLinkedFatbinWrapper, fatbin)},
          {"ptx", WithKind(ImageKind::kPtx, ptx)}};
}

}  // namespace fargpu::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fargpu::driver_abi;  // NOLINT: one function
  if (size == 0) return 0;
  const auto kind = static_cast<ImageKind>(data[0]);
  const auto bytes = absl::MakeConstSpan(reinterpret_cast<const char*>(data + 1), size - 1);
  if (!CheckImage(kind, {bytes}).ok()) return 0;
  PtxTexts({kind, {bytes}}, 130).status().IgnoreError();
  const auto image = ReassembledImage::Create(kind, {std::string(bytes.data(), bytes.size())});
  fargpu::fuzz::Require(image.ok() && image->data() != nullptr, "what is checked can be built");
  if (kind == ImageKind::kElf || kind == ImageKind::kPtx || bytes.empty()) return 0;
  TrimFatbin(bytes, {90, true, false}).status().IgnoreError();
  const auto entries = FatbinEntries(bytes);
  if (!entries.ok()) return 0;
  for (const FatbinEntry& entry : *entries) {
    DecompressEntry(entry, /*limit=*/1 << 20).status().IgnoreError();
  }
  return 0;
}
