#include "protocol/driver_abi/image.h"

#include <elf.h>

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/status_matchers.h"
#include "protocol/driver_abi/image_testing.h"

namespace fargpu::driver_abi {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr char kPtx[] = ".version 9.0\n.target sm_75\n.address_size 64\n";

// Memory of exactly this size on the heap, so that AddressSanitizer sees every byte read beyond it.
class Exact {
 public:
  explicit Exact(absl::string_view bytes) : size_(bytes.size()), data_(new char[bytes.size()]) {
    std::memcpy(data_.get(), bytes.data(), bytes.size());
  }
  const char* data() const { return data_.get(); }
  absl::Span<const char> span() const { return {data_.get(), size_}; }

 private:
  size_t size_;
  std::unique_ptr<char[]> data_;
};

std::string SampleFatbin() {
  return FatbinBytes({{EntryKind::kElf, 75, "cubin75"},
                      {EntryKind::kPtx, 75, kPtx},
                      {EntryKind::kPtx, 120, "lz4 bytes", kLz4Flag, 1000, 72},
                      {EntryKind::kLtoIr, 80, "ir", kZstdFlag, 2000, 144}});
}

// 64 header + 100 contents + section table of three: null, text, one without bits.
std::string SampleElf() {
  std::string elf(64 + 100 + 3 * sizeof(Elf64_Shdr), '\0');
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_shoff = 164;
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = 3;
  Elf64_Shdr text{};
  text.sh_type = SHT_PROGBITS;
  text.sh_offset = 64;
  text.sh_size = 100;
  Elf64_Shdr nobits{};
  nobits.sh_type = SHT_NOBITS;
  nobits.sh_offset = 164;
  nobits.sh_size = 1 << 30;
  PutAt(&elf, 0, header);
  PutAt(&elf, 164 + sizeof(Elf64_Shdr), text);
  PutAt(&elf, 164 + 2 * sizeof(Elf64_Shdr), nobits);
  return elf;
}

TEST(ImagePartsTest, WrapperVersion1) {
  const Exact fatbin(SampleFatbin());
  FatbinWrapper wrapper;
  wrapper.container = fatbin.data();
  ASSERT_OK_AND_ASSIGN(const Image image, ImageParts(&wrapper));
  EXPECT_EQ(image.kind, ImageKind::kFatbinWrapper);
  ASSERT_THAT(image.parts, SizeIs(1));
  EXPECT_EQ(image.parts[0].data(), fatbin.data());
  EXPECT_EQ(image.parts[0].size(), fatbin.span().size());
}

TEST(ImagePartsTest, WrapperVersion2ListsWhatToLink) {
  const Exact linked(FatbinBytes({}));
  const Exact first(SampleFatbin());
  const Exact second(FatbinBytes({{EntryKind::kPtx, 75, kPtx}}));
  const void* const links[] = {first.data(), second.data(), nullptr};
  FatbinWrapper wrapper;
  wrapper.version = 2;
  wrapper.container = linked.data();
  wrapper.links = links;
  ASSERT_OK_AND_ASSIGN(const Image image, ImageParts(&wrapper));
  EXPECT_EQ(image.kind, ImageKind::kLinkedFatbinWrapper);
  EXPECT_THAT(image.parts, ElementsAre(linked.span(), first.span(), second.span()));

  wrapper.container = nullptr;
  ASSERT_OK_AND_ASSIGN(const Image without, ImageParts(&wrapper));
  EXPECT_THAT(without.parts, ElementsAre(IsEmpty(), first.span(), second.span()));
  wrapper.container = linked.data();
  wrapper.links = nullptr;
  ASSERT_OK_AND_ASSIGN(const Image alone, ImageParts(&wrapper));
  EXPECT_THAT(alone.parts, ElementsAre(linked.span()));
}

TEST(ImagePartsTest, BareContainerElfAndText) {
  const Exact fatbin(SampleFatbin());
  ASSERT_OK_AND_ASSIGN(const Image container, ImageParts(fatbin.data()));
  EXPECT_EQ(container.kind, ImageKind::kFatbin);
  EXPECT_THAT(container.parts, ElementsAre(fatbin.span()));

  const Exact elf(SampleElf());
  ASSERT_OK_AND_ASSIGN(const Image cubin, ImageParts(elf.data()));
  EXPECT_EQ(cubin.kind, ImageKind::kElf);
  EXPECT_THAT(cubin.parts, ElementsAre(elf.span()));

  const std::string commented = std::string("// made by hand\n/* .version 1 **/ \t\r\n") + kPtx;
  const Exact text(absl::string_view(commented.c_str(), commented.size() + 1));
  ASSERT_OK_AND_ASSIGN(const Image ptx, ImageParts(text.data()));
  EXPECT_EQ(ptx.kind, ImageKind::kPtx);
  EXPECT_THAT(ptx.parts, ElementsAre(text.span().first(commented.size())));
}

TEST(ImagePartsTest, RefusesWhatIsNoImage) {
  EXPECT_THAT(ImageParts(nullptr), IsCudaError(CUDA_ERROR_INVALID_VALUE));
  // Each is as short as it can be, for the sanitizer.
  for (const absl::string_view text : {"", "P", "\x7f",
                                       "\x7f"
                                       "EL",
                                       "hello", "/", "//", "/*", "/* *", ".vers", " \n", "/x"}) {
    const Exact bytes(absl::string_view(std::string(text).c_str(), text.size() + 1));
    EXPECT_THAT(ImageParts(bytes.data()), IsCudaError(CUDA_ERROR_INVALID_IMAGE)) << text;
  }
  FatbinWrapper wrapper;
  EXPECT_THAT(ImageParts(&wrapper), IsCudaError(CUDA_ERROR_INVALID_IMAGE));
  wrapper.version = 3;
  EXPECT_THAT(ImageParts(&wrapper), IsCudaError(CUDA_ERROR_INVALID_IMAGE));
  const Exact elf(SampleElf());
  wrapper.version = 1;
  wrapper.container = elf.data();
  EXPECT_THAT(ImageParts(&wrapper), IsCudaError(CUDA_ERROR_INVALID_IMAGE));
}

TEST(ImagePartsTest, ElfWithManySectionsAndSegments) {
  std::string elf = SampleElf();
  PutAt<uint16_t>(&elf, offsetof(Elf64_Ehdr, e_shnum), 0);
  PutAt<uint64_t>(&elf, 164 + offsetof(Elf64_Shdr, sh_size), 3);
  const Exact extended(elf);
  ASSERT_OK_AND_ASSIGN(const Image image, ImageParts(extended.data()));
  EXPECT_THAT(image.parts, ElementsAre(extended.span()));

  // A segment that reaches beyond the section table.
  Elf64_Phdr segment{};
  segment.p_offset = elf.size() + sizeof(segment);
  segment.p_filesz = 10;
  PutAt<uint64_t>(&elf, offsetof(Elf64_Ehdr, e_phoff), elf.size());
  PutAt<uint16_t>(&elf, offsetof(Elf64_Ehdr, e_phentsize), sizeof(segment));
  PutAt<uint16_t>(&elf, offsetof(Elf64_Ehdr, e_phnum), 1);
  elf.append(reinterpret_cast<const char*>(&segment), sizeof(segment));
  elf.append(10, 'x');
  const Exact longer(elf);
  ASSERT_OK_AND_ASSIGN(const Image with_segment, ImageParts(longer.data()));
  EXPECT_THAT(with_segment.parts, ElementsAre(longer.span()));
}

TEST(FatbinEntriesTest, ListsEntries) {
  const Exact fatbin(SampleFatbin());
  ASSERT_OK_AND_ASSIGN(const std::vector<FatbinEntry> entries, FatbinEntries(fatbin.span()));
  ASSERT_THAT(entries, SizeIs(4));
  EXPECT_EQ(entries[0].kind, EntryKind::kElf);
  EXPECT_EQ(entries[0].arch, 75u);
  EXPECT_EQ(entries[0].isa_major, 9);
  EXPECT_EQ(entries[0].isa_minor, 0);
  EXPECT_EQ(entries[0].compression, Compression::kNone);
  EXPECT_EQ(Text(entries[0].payload), std::string("cubin75\0", 8));
  EXPECT_EQ(entries[0].uncompressed_size, 8u);
  EXPECT_EQ(entries[0].whole.size(), 64u + 8u);
  EXPECT_EQ(entries[1].kind, EntryKind::kPtx);
  EXPECT_EQ(entries[2].compression, Compression::kLz4);
  EXPECT_EQ(Text(entries[2].payload), "lz4 bytes");
  EXPECT_EQ(entries[2].uncompressed_size, 1000u);
  EXPECT_EQ(entries[2].whole.size(), 72u + 16u);
  EXPECT_EQ(entries[3].kind, EntryKind::kLtoIr);
  EXPECT_EQ(entries[3].compression, Compression::kZstd);
  EXPECT_EQ(Text(entries[3].payload), "ir");

  const Exact empty(FatbinBytes({}));
  EXPECT_THAT(*FatbinEntries(empty.span()), IsEmpty());
  EXPECT_EQ(BuildFatbin(entries), SampleFatbin());
  EXPECT_EQ(BuildFatbin({}), FatbinBytes({}));
}

TEST(FatbinEntriesTest, EveryTruncationIsRefused) {
  const std::string fatbin = SampleFatbin();
  for (size_t size = 0; size < fatbin.size(); ++size) {
    const Exact cut(fatbin.substr(0, size));
    EXPECT_THAT(FatbinEntries(cut.span()), IsCudaError(CUDA_ERROR_INVALID_IMAGE)) << size;
    EXPECT_THAT(CheckImage(ImageKind::kFatbin, {cut.span()}),
                IsCudaError(CUDA_ERROR_INVALID_IMAGE));
  }
  // The same with a container header that agrees: entries end in the middle.
  for (size_t size = 17; size < fatbin.size(); ++size) {
    std::string bytes = fatbin.substr(0, size);
    PutAt<uint64_t>(&bytes, 8, size - 16);
    const Exact cut(bytes);
    const auto entries = FatbinEntries(cut.span());
    if (entries.ok()) {
      EXPECT_LT(entries->size(), 4u) << size;  // cut between two entries
    } else {
      EXPECT_THAT(entries, IsCudaError(CUDA_ERROR_INVALID_IMAGE));
    }
  }
}

TEST(FatbinEntriesTest, NamesWhatIsWrong) {
  const std::string good = FatbinBytes({{EntryKind::kElf, 75, "cubin75"}});
  const struct {
    size_t at;
    uint64_t value;
    size_t size;
    const char* message;
  } rows[] = {
      {0, 1, 4, "begins with 0x1"},
      {6, 8, 2, "header size 8"},
      {8, ~uint64_t{0}, 8, "do not fit in 88"},
      {16 + kEntryHeaderSizeAt, 63, 4, "header size 63"},
      {16 + kEntryHeaderSizeAt, 73, 4, "header size 73"},
      {16 + kEntryPayloadSizeAt, 9, 8, "payload of 9"},
      {16 + kEntryPayloadSizeAt, ~uint64_t{0}, 8, "does not fit in 8"},
      {16 + kEntryCompressedSizeAt, 9, 4, "compressed size 9"},
  };
  for (const auto& row : rows) {
    std::string bytes = good;
    std::memcpy(bytes.data() + row.at, &row.value, row.size);
    const Exact damaged(bytes);
    const auto entries = FatbinEntries(damaged.span());
    ASSERT_THAT(entries, IsCudaError(CUDA_ERROR_INVALID_IMAGE)) << row.message;
    EXPECT_THAT(std::string(entries.status().message()), HasSubstr(row.message));
  }
}

TEST(CheckImageTest, SurvivesRandomDamage) {
  std::mt19937 random(1);
  for (const std::string& good : {SampleFatbin(), SampleElf()}) {
    for (int round = 0; round < 20000; ++round) {
      std::string bytes = good;
      for (int i = 0; i < 3; ++i) {
        constexpr uint32_t kValues[] = {0, 0xffffffff, 0x80000000, 0x7fffffff, 64};
        const size_t at = random() % (bytes.size() - 3);
        PutAt<uint32_t>(&bytes, at, kValues[random() % 5]);
      }
      const Exact damaged(bytes);
      // Either is fine; reading beyond the end is not.
      CheckImage(ImageKind::kFatbin, {damaged.span()}).IgnoreError();
      CheckImage(ImageKind::kElf, {damaged.span()}).IgnoreError();
      CheckImage(ImageKind::kPtx, {damaged.span()}).IgnoreError();
    }
  }
}

TEST(CheckImageTest, PartsMustSuitTheKind) {
  const std::string fatbin = SampleFatbin();
  const std::string elf = SampleElf();
  const std::string ptx = kPtx;
  const std::string none;
  EXPECT_OK(CheckImage(ImageKind::kFatbin, {fatbin}));
  EXPECT_OK(CheckImage(ImageKind::kFatbinWrapper, {fatbin}));
  EXPECT_OK(CheckImage(ImageKind::kLinkedFatbinWrapper, {none, fatbin, fatbin}));
  EXPECT_OK(CheckImage(ImageKind::kElf, {elf}));
  EXPECT_OK(CheckImage(ImageKind::kPtx, {ptx}));

  const auto refused = [](ImageKind kind, std::vector<absl::Span<const char>> parts) {
    return CheckImage(kind, parts);
  };
  EXPECT_THAT(refused(ImageKind::kFatbin, {}), IsCudaError(CUDA_ERROR_INVALID_IMAGE));
  EXPECT_THAT(refused(ImageKind::kFatbin, {fatbin, fatbin}), IsCudaError(CUDA_ERROR_INVALID_IMAGE));
  EXPECT_THAT(refused(ImageKind::kFatbin, {fatbin + "x"}), IsCudaError(CUDA_ERROR_INVALID_IMAGE));
  EXPECT_THAT(refused(ImageKind::kFatbin, {elf}), IsCudaError(CUDA_ERROR_INVALID_IMAGE));
  EXPECT_THAT(refused(ImageKind::kLinkedFatbinWrapper, {fatbin, none}),
              IsCudaError(CUDA_ERROR_INVALID_IMAGE));
  EXPECT_THAT(refused(ImageKind::kElf, {absl::Span<const char>(elf).first(elf.size() - 1)}),
              IsCudaError(CUDA_ERROR_INVALID_IMAGE));
  EXPECT_THAT(refused(ImageKind::kElf, {ptx}), IsCudaError(CUDA_ERROR_INVALID_IMAGE));
  EXPECT_THAT(refused(ImageKind::kPtx, {ptx + std::string(1, '\0')}),
              IsCudaError(CUDA_ERROR_INVALID_IMAGE));
  EXPECT_THAT(refused(ImageKind::kPtx, {none}), IsCudaError(CUDA_ERROR_INVALID_IMAGE));
  EXPECT_THAT(refused(static_cast<ImageKind>(0), {fatbin}), IsCudaError(CUDA_ERROR_INVALID_IMAGE));
  EXPECT_THAT(refused(static_cast<ImageKind>(200), {fatbin}),
              IsCudaError(CUDA_ERROR_INVALID_IMAGE));
}

// What ImageParts finds, shipped as bytes, must be found again in what the peer builds.
void ExpectRoundTrip(const void* original) {
  ASSERT_OK_AND_ASSIGN(const Image image, ImageParts(original));
  std::vector<std::string> shipped;
  for (const auto& part : image.parts) shipped.push_back(Text(part));
  const std::vector<std::string> expected = shipped;
  ASSERT_OK_AND_ASSIGN(ReassembledImage built,
                       ReassembledImage::Create(image.kind, std::move(shipped)));
  const ReassembledImage moved = std::move(built);
  ASSERT_OK_AND_ASSIGN(const Image again, ImageParts(moved.data()));
  EXPECT_EQ(again.kind, image.kind);
  ASSERT_EQ(again.parts.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(Text(again.parts[i]), expected[i]);
  EXPECT_EQ(moved.image().parts, again.parts);
}

TEST(ReassembledImageTest, EveryKindComesBack) {
  const Exact fatbin(SampleFatbin());
  const Exact empty(FatbinBytes({}));
  const Exact elf(SampleElf());
  const void* const links[] = {fatbin.data(), fatbin.data(), nullptr};
  FatbinWrapper wrapper;
  wrapper.container = fatbin.data();
  FatbinWrapper linked;
  linked.version = 2;
  linked.container = empty.data();
  linked.links = links;
  ExpectRoundTrip(&wrapper);
  ExpectRoundTrip(&linked);
  ExpectRoundTrip(fatbin.data());
  ExpectRoundTrip(elf.data());
  ExpectRoundTrip(kPtx);
  ExpectRoundTrip(".version 1");  // short enough to lie within a std::string
}

TEST(ReassembledImageTest, GivesALinkedImageAContainerEvenIfItHadNone) {
  ASSERT_OK_AND_ASSIGN(
      const ReassembledImage built,
      ReassembledImage::Create(ImageKind::kLinkedFatbinWrapper, {"", SampleFatbin()}));
  const auto* wrapper = static_cast<const FatbinWrapper*>(built.data());
  EXPECT_EQ(wrapper->version, 2u);
  ASSERT_NE(wrapper->container, nullptr);
  EXPECT_EQ(built.image().parts[0].size(), 16u);
  EXPECT_EQ(wrapper->links[0], built.image().parts[1].data());
  EXPECT_EQ(wrapper->links[1], nullptr);
}

TEST(ReassembledImageTest, ChecksItsParts) {
  EXPECT_THAT(ReassembledImage::Create(ImageKind::kFatbin, {"garbage"}).status(),
              IsCudaError(CUDA_ERROR_INVALID_IMAGE));
}

std::vector<std::pair<EntryKind, uint32_t>> KindsAndArchs(absl::Span<const char> container) {
  std::vector<std::pair<EntryKind, uint32_t>> result;
  const auto entries = FatbinEntries(container);
  EXPECT_OK(entries);
  for (const FatbinEntry& entry : *entries) result.emplace_back(entry.kind, entry.arch);
  return result;
}

TEST(BestPtxTest, HighestNotAboveElseLowestAbove) {
  const std::string fatbin = FatbinBytes({{EntryKind::kPtx, 80, "b"},
                                          {EntryKind::kPtx, 120, "c"},
                                          {EntryKind::kElf, 86, "d"},
                                          {EntryKind::kPtx, 75, "a"}});
  ASSERT_OK_AND_ASSIGN(const std::vector<FatbinEntry> entries, FatbinEntries(fatbin));
  const struct {
    int capability;
    uint32_t arch;
  } rows[] = {{130, 120}, {120, 120}, {119, 80}, {80, 80}, {79, 75}, {75, 75}, {70, 75}, {-1, 75}};
  for (const auto& row : rows) {
    EXPECT_EQ(BestPtx(entries, row.capability)->arch, row.arch) << row.capability;
  }
  EXPECT_EQ(BestPtx({}, 90), nullptr);
}

TEST(TrimFatbinTest, KeepsWhatTheTargetLooksAt) {
  const std::string fatbin = FatbinBytes({{EntryKind::kElf, 75, "a"},
                                          {EntryKind::kElf, 80, "b"},
                                          {EntryKind::kElf, 86, "c"},
                                          {EntryKind::kElf, 89, "d"},
                                          {EntryKind::kPtx, 75, "e"},
                                          {EntryKind::kPtx, 120, "f"},
                                          {EntryKind::kLtoIr, 75, "g"}});
  using Kinds = std::vector<std::pair<EntryKind, uint32_t>>;
  ASSERT_OK_AND_ASSIGN(const std::string ampere, TrimFatbin(fatbin, {86, true, false}));
  EXPECT_EQ(KindsAndArchs(ampere),
            (Kinds{{EntryKind::kElf, 80}, {EntryKind::kElf, 86}, {EntryKind::kPtx, 75}}));
  ASSERT_OK_AND_ASSIGN(const std::string soft, TrimFatbin(fatbin, {130, false, true}));
  EXPECT_EQ(KindsAndArchs(soft), (Kinds{{EntryKind::kPtx, 120}, {EntryKind::kLtoIr, 75}}));
}

TEST(TrimFatbinTest, LeavesTheErrorToTheDriver) {
  const std::string fatbin = FatbinBytes({{EntryKind::kElf, 75, "a"}, {EntryKind::kElf, 80, "b"}});
  EXPECT_EQ(*TrimFatbin(fatbin, {90, true, false}), fatbin);
  EXPECT_EQ(*TrimFatbin(fatbin, {130, false, false}), FatbinBytes({}));
}

}  // namespace
}  // namespace fargpu::driver_abi
