#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

// The images that cuModuleLoadData, cuLibraryLoadData and friends take: what they are, how long
// they are, what is in them, and how to build them again in another process. Decompression is in
// fatbin_decompress.h, because the client library does without it.
//
// What is no image, or a damaged one, is CUDA_ERROR_INVALID_IMAGE with a message that names the
// place, the value and the limit.
namespace fargpu::driver_abi {

// Values travel on the wire: never change one.
enum class ImageKind : uint8_t {
  kFatbinWrapper = 1,        // version 1: one container
  kLinkedFatbinWrapper = 2,  // version 2 (-rdc=true): a container and a list of containers to link
  kFatbin = 3,               // a container without a wrapper
  kElf = 4,                  // a cubin
  kPtx = 5,                  // text
};

// What nvcc puts into a program's .nvFatBinSegment and the runtime passes on.
struct FatbinWrapper {
  uint32_t magic = 0x466243B1;
  uint32_t version = 1;
  const void* container = nullptr;
  const void* const* links = nullptr;  // null-terminated; version 2 only
};
static_assert(sizeof(FatbinWrapper) == 24);

// An image as pieces of memory that can be shipped. Every kind has exactly one part, except
// kLinkedFatbinWrapper: parts[0] is what nvlink linked (an empty span or a container without
// entries if it left all to the driver), parts[1...] are the containers that the driver may link.
// A PTX part does not include the final NUL.
struct Image {
  ImageKind kind = ImageKind::kFatbin;
  std::vector<absl::Span<const char>> parts;
};

// Recognises an image of this process from its address alone, as a driver must, and measures it.
// The program vouches for the memory, so only what an image says of itself is checked.
// The parts borrow the program's memory.
absl::StatusOr<Image> ImageParts(const void* image);

// Bounds-checks `parts` that came from a peer: number, sizes and structure of each, as `kind` asks.
absl::Status CheckImage(ImageKind kind, absl::Span<const absl::Span<const char>> parts);

// Other kinds exist; they are kept as numbers.
enum class EntryKind : uint16_t { kPtx = 1, kElf = 2, kLtoIr = 8 };
enum class Compression { kNone, kLz4, kZstd };

struct FatbinEntry {
  EntryKind kind = EntryKind::kPtx;
  uint32_t arch = 0;  // 75 for sm_75 and compute_75
  uint16_t isa_major = 0;
  uint16_t isa_minor = 0;
  uint64_t flags = 0;
  Compression compression = Compression::kNone;
  uint64_t uncompressed_size = 0;  // as the entry claims; equal to payload.size() if not compressed
  absl::Span<const char> payload;  // without padding
  absl::Span<const char> whole;    // header, payload and padding
};

// Lists the entries of one container, of which every byte is treated as hostile. The entries borrow
// from `container`.
absl::StatusOr<std::vector<FatbinEntry>> FatbinEntries(absl::Span<const char> container);

// A container with only `entries`, in their order.
std::string BuildFatbin(absl::Span<const FatbinEntry> entries);

// What a card can take, for choosing what of a container is worth sending.
struct FatbinTarget {
  int capability = 0;       // 90 for 9.0
  bool runs_cubins = true;  // false on the software device
  bool links = false;       // keep LTO-IR too: the container goes to the driver's linker
};

// Drops what a driver would not look at on `target`: cubins of another major capability or a higher
// one, PTX other than BestPtx, LTO-IR unless `links`. Should nothing be left for a target that runs
// cubins, the container stays whole: the driver then gives the error of its own.
absl::StatusOr<std::string> TrimFatbin(absl::Span<const char> container,
                                       const FatbinTarget& target);

// The PTX entry a driver would compile for `capability`: the highest arch not above it, else the
// lowest above it (a software device runs those too). nullptr if there is no PTX.
const FatbinEntry* BestPtx(absl::Span<const FatbinEntry> entries, int capability);

// An image built again from parts that came from a peer, with pointers of this process.
class ReassembledImage {
 public:
  // Checks with CheckImage and takes the parts over.
  static absl::StatusOr<ReassembledImage> Create(ImageKind kind, std::vector<std::string> parts);

  ReassembledImage(ReassembledImage&&) noexcept = default;
  ReassembledImage& operator=(ReassembledImage&&) noexcept = default;

  // What cuModuleLoadData and cuLibraryLoadData take; valid as long as this object, moves included.
  // CU_LIBRARY_BINARY_IS_PRESERVED needs it to outlive the library.
  const void* data() const { return data_; }
  ImageKind kind() const { return kind_; }
  // The parts, as ImageParts(data()) would give them.
  Image image() const;

 private:
  ReassembledImage() = default;

  ImageKind kind_ = ImageKind::kFatbin;
  std::vector<std::string> parts_;
  std::unique_ptr<const void*[]> links_;  // the null-terminated list of a version 2 wrapper
  std::unique_ptr<FatbinWrapper> wrapper_;
  const void* data_ = nullptr;
};

}  // namespace fargpu::driver_abi
