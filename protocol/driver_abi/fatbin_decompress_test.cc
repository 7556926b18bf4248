#include "protocol/driver_abi/fatbin_decompress.h"

#include <zstd.h>

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/status_matchers.h"
#include "protocol/driver_abi/image_testing.h"
#include <lz4.h>

namespace fargpu::driver_abi {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

std::string Ptx(int arch) {
  std::string text = ".version 9.0\n.target sm_" + std::to_string(arch) + "\n";
  for (int i = 0; i < 50; ++i) text += "// the same line again\n";
  return text;
}

std::string Zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

std::string Lz4(const std::string& text) {
  std::string out(LZ4_compressBound(static_cast<int>(text.size())), '\0');
  out.resize(LZ4_compress_default(text.data(), out.data(), static_cast<int>(text.size()),
                                  static_cast<int>(out.size())));
  return out;
}

EntrySpec ZstdPtx(int arch) {
  const std::string text = Ptx(arch) + std::string(1, '\0');
  return {EntryKind::kPtx, static_cast<uint32_t>(arch), Zstd(text), kZstdFlag, text.size()};
}

EntrySpec Lz4Ptx(int arch) {
  const std::string text = Ptx(arch);
  return {EntryKind::kPtx, static_cast<uint32_t>(arch), Lz4(text), kLz4Flag, text.size(), 72};
}

EntrySpec RawPtx(int arch) { return {EntryKind::kPtx, static_cast<uint32_t>(arch), Ptx(arch)}; }

Image Fatbin(const std::string& bytes) { return {ImageKind::kFatbin, {bytes}}; }

TEST(PtxTextsTest, EveryCompression) {
  for (const EntrySpec& spec : {ZstdPtx(75), Lz4Ptx(75), RawPtx(75)}) {
    const std::string fatbin = FatbinBytes({{EntryKind::kElf, 75, "cubin"}, spec});
    ASSERT_OK_AND_ASSIGN(const std::vector<PtxText> texts, PtxTexts(Fatbin(fatbin), 130));
    ASSERT_THAT(texts, SizeIs(1));
    EXPECT_EQ(texts[0].text, Ptx(75));
    EXPECT_EQ(texts[0].arch, 75u);
    EXPECT_EQ(texts[0].part, 0u);
  }
}

TEST(PtxTextsTest, BestOfEachContainer) {
  const std::string fatbin = FatbinBytes({Lz4Ptx(75), ZstdPtx(121), RawPtx(90)});
  ASSERT_OK_AND_ASSIGN(const std::vector<PtxText> newest, PtxTexts(Fatbin(fatbin), 130));
  ASSERT_THAT(newest, SizeIs(1));
  EXPECT_EQ(newest[0].text, Ptx(121));
  ASSERT_OK_AND_ASSIGN(const std::vector<PtxText> older, PtxTexts(Fatbin(fatbin), 100));
  ASSERT_THAT(older, SizeIs(1));
  EXPECT_EQ(older[0].text, Ptx(90));
}

TEST(PtxTextsTest, LinkedImageTakesTheList) {
  const std::string none = FatbinBytes({});
  const std::string linked = FatbinBytes({RawPtx(70)});
  const std::string first = FatbinBytes({ZstdPtx(75)});
  const std::string second = FatbinBytes({{EntryKind::kElf, 75, "cubin"}});
  const std::string third = FatbinBytes({Lz4Ptx(80)});
  ASSERT_OK_AND_ASSIGN(
      const std::vector<PtxText> texts,
      PtxTexts({ImageKind::kLinkedFatbinWrapper, {linked, first, second, third}}, 130));
  ASSERT_THAT(texts, SizeIs(2));
  EXPECT_EQ(texts[0].part, 1u);
  EXPECT_EQ(texts[0].text, Ptx(75));
  EXPECT_EQ(texts[1].part, 3u);
  EXPECT_EQ(texts[1].text, Ptx(80));

  ASSERT_OK_AND_ASSIGN(const std::vector<PtxText> alone,
                       PtxTexts({ImageKind::kLinkedFatbinWrapper, {linked, second}}, 130));
  ASSERT_THAT(alone, SizeIs(1));
  EXPECT_EQ(alone[0].text, Ptx(70));
  EXPECT_THAT(*PtxTexts({ImageKind::kLinkedFatbinWrapper, {absl::Span<const char>(), none}}, 130),
              IsEmpty());
}

TEST(PtxTextsTest, TextElfAndNothing) {
  const std::string text = Ptx(90);
  ASSERT_OK_AND_ASSIGN(const std::vector<PtxText> texts, PtxTexts({ImageKind::kPtx, {text}}, 130));
  ASSERT_THAT(texts, SizeIs(1));
  EXPECT_EQ(texts[0].text, text);
  const std::string cubin = "cubin";
  EXPECT_THAT(*PtxTexts({ImageKind::kElf, {cubin}}, 130), IsEmpty());
  const std::string fatbin = FatbinBytes({{EntryKind::kElf, 75, "cubin"}});
  EXPECT_THAT(*PtxTexts(Fatbin(fatbin), 130), IsEmpty());
}

TEST(DecompressEntryTest, RefusesDamageAndFalseSizes) {
  for (const EntrySpec& good : {ZstdPtx(75), Lz4Ptx(75)}) {
    for (const int64_t change : {-1, 1}) {
      EntrySpec spec = good;
      spec.uncompressed_size += change;
      const std::string fatbin = FatbinBytes({spec});
      EXPECT_THAT(PtxTexts(Fatbin(fatbin), 130), IsCudaError(CUDA_ERROR_INVALID_IMAGE)) << change;
    }
    EntrySpec cut = good;
    cut.payload.resize(cut.payload.size() / 2);
    const std::string fatbin = FatbinBytes({cut});
    EXPECT_THAT(PtxTexts(Fatbin(fatbin), 130), IsCudaError(CUDA_ERROR_INVALID_IMAGE));
  }
}

TEST(DecompressEntryTest, ChecksTheClaimBeforeAllocating) {
  for (EntrySpec spec : {ZstdPtx(75), Lz4Ptx(75)}) {
    spec.uncompressed_size = ~uint64_t{0};
    const std::string huge = FatbinBytes({spec});
    EXPECT_THAT(PtxTexts(Fatbin(huge), 130), IsCudaError(CUDA_ERROR_INVALID_IMAGE));
    spec.uncompressed_size = 1001;
    const std::string fatbin = FatbinBytes({spec});
    ASSERT_OK_AND_ASSIGN(const std::vector<FatbinEntry> entries, FatbinEntries(fatbin));
    EXPECT_THAT(DecompressEntry(entries[0], 1000), IsCudaError(CUDA_ERROR_INVALID_IMAGE));
  }
}

}  // namespace
}  // namespace fargpu::driver_abi
