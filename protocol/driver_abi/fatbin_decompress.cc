#include "protocol/driver_abi/fatbin_decompress.h"

#include <zstd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"
#include <lz4.h>

namespace fargpu::driver_abi {
namespace {

// Of all texts of one image together.
constexpr uint64_t kMaxImageBytes = uint64_t{1} << 30;

absl::Status Damaged(absl::string_view what) { return CudaError(CUDA_ERROR_INVALID_IMAGE, what); }

// Raw text is padded with NULs to a multiple of 8, compressed text may end with one.
void DropFinalNuls(std::string* text) {
  while (!text->empty() && text->back() == '\0') text->pop_back();
}

}  // namespace

absl::StatusOr<std::string> DecompressEntry(const FatbinEntry& entry, uint64_t limit) {
  if (entry.uncompressed_size > limit) {
    return Damaged(absl::StrCat("fatbin entry claims ", entry.uncompressed_size,
                                " bytes, the limit is ", limit));
  }
  if (entry.compression == Compression::kNone) {
    return std::string(entry.payload.data(), entry.payload.size());
  }
  constexpr uint64_t kMaxInt = std::numeric_limits<int>::max();
  if (entry.compression == Compression::kLz4 &&
      (entry.payload.size() > kMaxInt || entry.uncompressed_size > kMaxInt)) {
    return Damaged(
        absl::StrCat("fatbin entry of ", entry.uncompressed_size, " bytes is too large for LZ4"));
  }
  std::string contents(entry.uncompressed_size, '\0');
  if (entry.compression == Compression::kZstd) {
    const size_t size = ZSTD_decompress(contents.data(), contents.size(), entry.payload.data(),
                                        entry.payload.size());
    if (ZSTD_isError(size)) {
      return Damaged(absl::StrCat("fatbin entry does not decompress: ", ZSTD_getErrorName(size)));
    }
    if (size != contents.size()) {
      return Damaged(
          absl::StrCat("fatbin entry decompresses to ", size, " bytes, not ", contents.size()));
    }
    return contents;
  }
  const int size = LZ4_decompress_safe(entry.payload.data(), contents.data(),
                                       static_cast<int>(entry.payload.size()),
                                       static_cast<int>(contents.size()));
  if (size < 0 || static_cast<size_t>(size) != contents.size()) {
    return Damaged(absl::StrCat("fatbin entry decompresses by LZ4 to ", size, " bytes, not ",
                                contents.size()));
  }
  return contents;
}

absl::StatusOr<std::vector<PtxText>> PtxTexts(const Image& image, int capability) {
  std::vector<PtxText> texts;
  if (image.kind == ImageKind::kElf) return texts;
  if (image.kind == ImageKind::kPtx) {
    texts.push_back({0, 0, std::string(image.parts[0].data(), image.parts[0].size())});
    return texts;
  }
  uint64_t left = kMaxImageBytes;
  const auto add_part = [&](size_t part) -> absl::Status {
    if (image.parts[part].empty()) return absl::OkStatus();
    ASSIGN_OR_RETURN(const std::vector<FatbinEntry> entries, FatbinEntries(image.parts[part]));
    const FatbinEntry* best = BestPtx(entries, capability);
    if (best == nullptr) return absl::OkStatus();
    ASSIGN_OR_RETURN(std::string text, DecompressEntry(*best, std::min(left, kMaxEntryBytes)));
    left -= text.size();
    DropFinalNuls(&text);
    texts.push_back({part, best->arch, std::move(text)});
    return absl::OkStatus();
  };
  for (size_t part = 1; part < image.parts.size(); ++part) RETURN_IF_ERROR(add_part(part));
  if (texts.empty()) RETURN_IF_ERROR(add_part(0));
  return texts;
}

}  // namespace fargpu::driver_abi
