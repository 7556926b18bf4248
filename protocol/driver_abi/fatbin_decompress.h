#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "protocol/driver_abi/image.h"

// Decompression of fatbin entries, in a library of its own (fargpu_fatbin_decompress) because it
// needs zstd and lz4, which the client library must not.
namespace fargpu::driver_abi {

// The largest PTX text in NVIDIA's own libraries has a few MiB.
inline constexpr uint64_t kMaxEntryBytes = uint64_t{256} << 20;

// The entry's contents. kInvalidArgument for damaged data or a size that does not agree with the
// header; kResourceExhausted if the entry claims more than `limit` bytes (checked before anything
// is allocated).
absl::StatusOr<std::string> DecompressEntry(const FatbinEntry& entry,
                                            uint64_t limit = kMaxEntryBytes);

struct PtxText {
  size_t part = 0;    // index into Image::parts
  uint32_t arch = 0;  // 0 for a bare PTX image; its .target tells
  std::string text;   // without the final NUL
};

// The PTX of an image, ready to be compiled and linked together: BestPtx of each container, or the
// text itself. For a linked image the PTX of the list, and of parts[0] only if the list has none.
// Empty if the image holds no PTX; that is not an error here, since loading such an image succeeds
// and launching from it gives CUDA_ERROR_NO_BINARY_FOR_GPU.
absl::StatusOr<std::vector<PtxText>> PtxTexts(const Image& image, int capability);

}  // namespace fargpu::driver_abi
