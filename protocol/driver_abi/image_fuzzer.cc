#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

#include "protocol/driver_abi/fatbin_decompress.h"
#include "protocol/driver_abi/image.h"

// libFuzzer entry: the bytes as the part of an image that came from a peer. The first byte says of
// which kind; what passes the check must also list, trim and decompress without harm.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fargpu::driver_abi;  // NOLINT: one function
  if (size == 0) return 0;
  const auto kind = static_cast<ImageKind>(data[0]);
  const auto bytes = absl::MakeConstSpan(reinterpret_cast<const char*>(data + 1), size - 1);
  if (!CheckImage(kind, {bytes}).ok()) return 0;
  PtxTexts({kind, {bytes}}, 130).status().IgnoreError();
  if (kind == ImageKind::kElf || kind == ImageKind::kPtx || bytes.empty()) return 0;
  TrimFatbin(bytes, {90, true, false}).status().IgnoreError();
  const auto entries = FatbinEntries(bytes);
  if (!entries.ok()) return 0;
  for (const FatbinEntry& entry : *entries) {
    DecompressEntry(entry, /*limit=*/1 << 20).status().IgnoreError();
  }
  return 0;
}
