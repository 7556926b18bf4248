#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "protocol/driver_abi/image.h"

// For tests: makes fatbins byte by byte, apart from the code under test.
namespace fargpu::driver_abi {

inline constexpr uint64_t kLz4Flag = 0x2000;
inline constexpr uint64_t kZstdFlag = 0x8000;

// Offsets of fields within an entry, for tests that damage them.
inline constexpr size_t kEntryHeaderSizeAt = 4;
inline constexpr size_t kEntryPayloadSizeAt = 8;
inline constexpr size_t kEntryCompressedSizeAt = 16;
inline constexpr size_t kEntryUncompressedSizeAt = 56;

template <typename T>
void PutAt(std::string* bytes, size_t offset, T value) {
  std::memcpy(bytes->data() + offset, &value, sizeof(value));
}

struct EntrySpec {
  EntryKind kind;
  uint32_t arch;
  std::string payload;
  uint64_t flags = 0;
  uint64_t uncompressed_size = 0;
  uint32_t header_size = 64;
};

inline std::string EntryBytes(const EntrySpec& spec) {
  std::string header(spec.header_size, '\0');
  std::string payload = spec.payload;
  payload.resize((payload.size() + 7) / 8 * 8);
  PutAt<uint16_t>(&header, 0, static_cast<uint16_t>(spec.kind));
  PutAt<uint16_t>(&header, 2, 0x0101);
  PutAt<uint32_t>(&header, kEntryHeaderSizeAt, spec.header_size);
  PutAt<uint64_t>(&header, kEntryPayloadSizeAt, payload.size());
  if (spec.flags != 0) {
    PutAt<uint32_t>(&header, kEntryCompressedSizeAt, static_cast<uint32_t>(spec.payload.size()));
    PutAt<uint64_t>(&header, kEntryUncompressedSizeAt, spec.uncompressed_size);
  }
  PutAt<uint16_t>(&header, 24, 0);
  PutAt<uint16_t>(&header, 26, 9);
  PutAt<uint32_t>(&header, 28, spec.arch);
  PutAt<uint64_t>(&header, 40, spec.flags | 0x11);
  return header + payload;
}

inline std::string FatbinBytes(const std::vector<EntrySpec>& specs) {
  std::string entries;
  for (const EntrySpec& spec : specs) entries += EntryBytes(spec);
  std::string header(16, '\0');
  PutAt<uint32_t>(&header, 0, 0xBA55ED50);
  PutAt<uint16_t>(&header, 4, 1);
  PutAt<uint16_t>(&header, 6, 16);
  PutAt<uint64_t>(&header, 8, entries.size());
  return header + entries;
}

inline std::string Text(absl::Span<const char> bytes) {
  return std::string(bytes.data(), bytes.size());
}

}  // namespace fargpu::driver_abi
