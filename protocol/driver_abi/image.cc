#include "protocol/driver_abi/image.h"

#include <elf.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"

namespace fargpu::driver_abi {
namespace {

constexpr uint32_t kWrapperMagic = FatbinWrapper().magic;
constexpr uint32_t kContainerMagic = 0xBA55ED50;
constexpr char kElfMagic[] = ELFMAG;

struct ContainerHeader {
  uint32_t magic = kContainerMagic;
  uint16_t version = 1;
  uint16_t header_size = 16;
  uint64_t entries_size = 0;
};
static_assert(sizeof(ContainerHeader) == 16);

// The part of an entry's header that every version has.
struct EntryHeader {
  uint16_t kind;
  uint16_t version;
  uint32_t header_size;
  uint64_t payload_size;
  uint32_t compressed_size;
  uint32_t options_offset;
  uint16_t isa_minor;
  uint16_t isa_major;
  uint32_t arch;
  uint32_t name_offset;
  uint32_t name_size;
  uint64_t flags;
  uint64_t reserved;
  uint64_t uncompressed_size;
};
static_assert(sizeof(EntryHeader) == 64);

constexpr uint64_t kFlagLz4 = 0x2000;
constexpr uint64_t kFlagZstd = 0x8000;

// No program links this many objects; a longer list has lost its end.
constexpr size_t kMaxLinkedContainers = size_t{1} << 20;

template <typename... Pieces>
absl::Status InvalidImage(const Pieces&... pieces) {
  return CudaError(CUDA_ERROR_INVALID_IMAGE, absl::StrCat(pieces...));
}

// Memory from `data` on of which `size` bytes may be read; for images of this process, whose length
// nobody told us, the limit is what the image says of itself.
class Reader {
 public:
  explicit Reader(absl::Span<const char> bytes) : data_(bytes.data()), size_(bytes.size()) {}
  explicit Reader(const void* trusted)
      : data_(static_cast<const char*>(trusted)), size_(std::numeric_limits<size_t>::max()) {}

  // nullopt if the value does not lie within the limit. Images need not be aligned.
  template <typename T>
  std::optional<T> Read(uint64_t offset) const {
    static_assert(std::is_trivially_copyable_v<T>);
    if (!Contains(offset, sizeof(T))) return std::nullopt;
    T value;
    std::memcpy(&value, data_ + offset, sizeof(T));
    return value;
  }

  bool Contains(uint64_t offset, uint64_t size) const {
    return offset <= size_ && size <= size_ - offset;
  }

  // True if the bytes begin with `magic`. Looks at no byte beyond the first difference, because a
  // text may be shorter than a magic number.
  bool BeginsWith(const void* magic, size_t magic_size) const {
    if (magic_size > size_) return false;
    for (size_t i = 0; i < magic_size; ++i) {
      if (data_[i] != static_cast<const char*>(magic)[i]) return false;
    }
    return true;
  }

  const char* data() const { return data_; }
  uint64_t size() const { return size_; }

 private:
  const char* data_;
  uint64_t size_;
};

absl::StatusOr<uint64_t> ContainerExtent(const Reader& reader) {
  const std::optional<ContainerHeader> header = reader.Read<ContainerHeader>(0);
  if (!header.has_value()) {
    return InvalidImage("fatbin of ", reader.size(), " bytes is shorter than its header, ",
                        sizeof(ContainerHeader), " bytes");
  }
  if (header->magic != kContainerMagic) {
    return InvalidImage("fatbin begins with 0x", absl::Hex(header->magic), ", not 0x",
                        absl::Hex(kContainerMagic));
  }
  if (header->header_size < sizeof(ContainerHeader)) {
    return InvalidImage("fatbin header size ", header->header_size, " is less than ",
                        sizeof(ContainerHeader));
  }
  if (!reader.Contains(header->header_size, header->entries_size)) {
    return InvalidImage("fatbin entries of ", header->entries_size, " bytes do not fit in ",
                        reader.size(), " bytes");
  }
  return header->header_size + header->entries_size;
}

// Grows `*extent` to the end of a piece of the file.
absl::Status Extend(const Reader& reader, absl::string_view what, uint64_t offset, uint64_t size,
                    uint64_t* extent) {
  if (!reader.Contains(offset, size)) {
    return InvalidImage("ELF ", what, " at ", offset, " of ", size, " bytes does not fit in ",
                        reader.size(), " bytes");
  }
  *extent = std::max(*extent, offset + size);
  return absl::OkStatus();
}

// An ELF file does not say how long it is: it ends where its last table, section or segment ends.
absl::StatusOr<uint64_t> ElfExtent(const Reader& reader) {
  if (!reader.Contains(0, sizeof(Elf64_Ehdr))) {
    return InvalidImage("ELF image of ", reader.size(), " bytes is shorter than its header");
  }
  const Elf64_Ehdr header = *reader.Read<Elf64_Ehdr>(0);
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB) {
    return InvalidImage("ELF image is not 64-bit little-endian");
  }
  uint64_t extent = sizeof(Elf64_Ehdr);
  if (header.e_shoff != 0) {
    if (header.e_shentsize < sizeof(Elf64_Shdr)) {
      return InvalidImage("ELF section header size ", header.e_shentsize, " is less than ",
                          sizeof(Elf64_Shdr));
    }
    RETURN_IF_ERROR(
        Extend(reader, "first section header", header.e_shoff, header.e_shentsize, &extent));
    // From 0xff00 sections on, the number is in the size field of section 0.
    const uint64_t count =
        header.e_shnum != 0 ? header.e_shnum : reader.Read<Elf64_Shdr>(header.e_shoff)->sh_size;
    if (count > reader.size() / header.e_shentsize) {
      return InvalidImage("ELF section count ", count, " does not fit in ", reader.size(),
                          " bytes");
    }
    RETURN_IF_ERROR(
        Extend(reader, "section table", header.e_shoff, count * header.e_shentsize, &extent));
    for (uint64_t i = 0; i < count; ++i) {
      const Elf64_Shdr section = *reader.Read<Elf64_Shdr>(header.e_shoff + i * header.e_shentsize);
      // Section 0 is no section; its fields serve extended numbering.
      if (section.sh_type == SHT_NOBITS || section.sh_type == SHT_NULL) continue;
      RETURN_IF_ERROR(Extend(reader, "section", section.sh_offset, section.sh_size, &extent));
    }
  }
  if (header.e_phoff != 0) {
    if (header.e_phentsize < sizeof(Elf64_Phdr)) {
      return InvalidImage("ELF program header size ", header.e_phentsize, " is less than ",
                          sizeof(Elf64_Phdr));
    }
    const uint64_t table_size = uint64_t{header.e_phnum} * header.e_phentsize;
    RETURN_IF_ERROR(Extend(reader, "program header table", header.e_phoff, table_size, &extent));
    for (uint64_t i = 0; i < header.e_phnum; ++i) {
      const Elf64_Phdr segment = *reader.Read<Elf64_Phdr>(header.e_phoff + i * header.e_phentsize);
      RETURN_IF_ERROR(Extend(reader, "segment", segment.p_offset, segment.p_filesz, &extent));
    }
  }
  return extent;
}

// PTX begins with its version directive; only space and comments may stand before it. Looks at no
// byte beyond a NUL, so that it also serves texts of unknown length.
bool LooksLikePtx(const char* text, uint64_t size) {
  constexpr absl::string_view kDirective = ".version";
  uint64_t i = 0;
  const auto at = [&](uint64_t index) { return index < size ? text[index] : '\0'; };
  while (true) {
    while (absl::ascii_isspace(static_cast<unsigned char>(at(i)))) ++i;
    if (at(i) != '/') break;
    if (at(i + 1) == '/') {
      while (at(i) != '\0' && at(i) != '\n') ++i;
    } else if (at(i + 1) == '*') {
      i += 2;
      while (at(i) != '\0' && !(at(i) == '*' && at(i + 1) == '/')) ++i;
      if (at(i) == '\0') return false;
      i += 2;
    } else {
      return false;
    }
  }
  for (const char expected : kDirective) {
    if (at(i++) != expected) return false;
  }
  return true;
}

absl::StatusOr<absl::Span<const char>> MeasureContainer(const void* container) {
  ASSIGN_OR_RETURN(const uint64_t size, ContainerExtent(Reader(container)));
  return absl::MakeConstSpan(static_cast<const char*>(container), size);
}

}  // namespace

absl::StatusOr<Image> ImageParts(const void* image) {
  if (image == nullptr) return CudaError(CUDA_ERROR_INVALID_VALUE, "image is null");
  const Reader reader(image);
  Image result;
  if (reader.BeginsWith(&kWrapperMagic, sizeof(kWrapperMagic))) {
    const FatbinWrapper wrapper = *reader.Read<FatbinWrapper>(0);
    if (wrapper.version != 1 && wrapper.version != 2) {
      return InvalidImage("fatbin wrapper has version ", wrapper.version, ", known are 1 and 2");
    }
    if (wrapper.container == nullptr && wrapper.version == 1) {
      return InvalidImage("fatbin wrapper has no container");
    }
    absl::Span<const char> container;
    if (wrapper.container != nullptr) {
      ASSIGN_OR_RETURN(container, MeasureContainer(wrapper.container));
    }
    result.parts.push_back(container);
    if (wrapper.version == 1) {
      result.kind = ImageKind::kFatbinWrapper;
      return result;
    }
    result.kind = ImageKind::kLinkedFatbinWrapper;
    for (const void* const* link = wrapper.links; link != nullptr && *link != nullptr; ++link) {
      if (result.parts.size() > kMaxLinkedContainers) {
        return InvalidImage("fatbin wrapper lists more than ", kMaxLinkedContainers, " containers");
      }
      ASSIGN_OR_RETURN(const absl::Span<const char> linked, MeasureContainer(*link));
      result.parts.push_back(linked);
    }
    return result;
  }
  if (reader.BeginsWith(&kContainerMagic, sizeof(kContainerMagic))) {
    result.kind = ImageKind::kFatbin;
    ASSIGN_OR_RETURN(const absl::Span<const char> container, MeasureContainer(image));
    result.parts.push_back(container);
    return result;
  }
  if (reader.BeginsWith(kElfMagic, SELFMAG)) {
    result.kind = ImageKind::kElf;
    ASSIGN_OR_RETURN(const uint64_t size, ElfExtent(reader));
    result.parts.push_back(absl::MakeConstSpan(reader.data(), size));
    return result;
  }
  if (LooksLikePtx(reader.data(), reader.size())) {
    result.kind = ImageKind::kPtx;
    result.parts.push_back(absl::MakeConstSpan(reader.data(), std::strlen(reader.data())));
    return result;
  }
  return InvalidImage("image is no fatbin, ELF file or PTX text");
}

absl::Status CheckImage(ImageKind kind, absl::Span<const absl::Span<const char>> parts) {
  const bool linked = kind == ImageKind::kLinkedFatbinWrapper;
  if (parts.empty() || (parts.size() > 1 && !linked) || parts.size() > kMaxLinkedContainers + 1) {
    return InvalidImage("image of kind ", static_cast<int>(kind), " has ", parts.size(), " parts");
  }
  switch (kind) {
    case ImageKind::kFatbinWrapper:
    case ImageKind::kLinkedFatbinWrapper:
    case ImageKind::kFatbin:
      for (size_t i = 0; i < parts.size(); ++i) {
        if (linked && i == 0 && parts[i].empty()) continue;
        RETURN_IF_ERROR(FatbinEntries(parts[i]).status());
        ASSIGN_OR_RETURN(const uint64_t extent, ContainerExtent(Reader(parts[i])));
        if (extent != parts[i].size()) {
          return InvalidImage("fatbin of ", extent, " bytes came in ", parts[i].size(), " bytes");
        }
      }
      return absl::OkStatus();
    case ImageKind::kElf: {
      const Reader reader(parts[0]);
      if (!reader.BeginsWith(kElfMagic, SELFMAG)) {
        return InvalidImage("ELF image does not begin like one");
      }
      return ElfExtent(reader).status();
    }
    case ImageKind::kPtx:
      if (!LooksLikePtx(parts[0].data(), parts[0].size())) {
        return InvalidImage("PTX text does not begin with .version");
      }
      if (std::memchr(parts[0].data(), '\0', parts[0].size()) != nullptr) {
        return InvalidImage("PTX text of ", parts[0].size(), " bytes contains a NUL");
      }
      return absl::OkStatus();
  }
  return InvalidImage("unknown image kind ", static_cast<int>(kind));
}

absl::StatusOr<std::vector<FatbinEntry>> FatbinEntries(absl::Span<const char> container) {
  const Reader reader(container);
  ASSIGN_OR_RETURN(const uint64_t end, ContainerExtent(reader));
  std::vector<FatbinEntry> entries;
  for (uint64_t offset = reader.Read<ContainerHeader>(0)->header_size; offset < end;) {
    const uint64_t left = end - offset;
    const std::optional<EntryHeader> header = reader.Read<EntryHeader>(offset);
    if (left < sizeof(EntryHeader) || !header.has_value()) {
      return InvalidImage("fatbin entry ", entries.size(), " at ", offset, ": ", left,
                          " bytes are left, its header needs ", sizeof(EntryHeader));
    }
    if (header->header_size < sizeof(EntryHeader) || header->header_size > left) {
      return InvalidImage("fatbin entry ", entries.size(), " at ", offset, ": header size ",
                          header->header_size, " is not between ", sizeof(EntryHeader), " and ",
                          left);
    }
    if (header->payload_size > left - header->header_size) {
      return InvalidImage("fatbin entry ", entries.size(), " at ", offset, ": payload of ",
                          header->payload_size, " bytes does not fit in ",
                          left - header->header_size);
    }
    if (header->compressed_size > header->payload_size) {
      return InvalidImage("fatbin entry ", entries.size(), " at ", offset, ": compressed size ",
                          header->compressed_size, " exceeds the payload, ", header->payload_size,
                          " bytes");
    }
    FatbinEntry entry;
    entry.kind = static_cast<EntryKind>(header->kind);
    entry.arch = header->arch;
    entry.isa_major = header->isa_major;
    entry.isa_minor = header->isa_minor;
    entry.flags = header->flags;
    if ((header->flags & kFlagZstd) != 0) {
      entry.compression = Compression::kZstd;
    } else if ((header->flags & kFlagLz4) != 0) {
      entry.compression = Compression::kLz4;
    }
    uint64_t payload_size = header->payload_size;
    if (entry.compression != Compression::kNone && header->compressed_size != 0) {
      payload_size = header->compressed_size;
    }
    entry.payload = container.subspan(offset + header->header_size, payload_size);
    entry.uncompressed_size =
        entry.compression == Compression::kNone ? payload_size : header->uncompressed_size;
    const uint64_t whole = header->header_size + header->payload_size;
    entry.whole = container.subspan(offset, whole);
    entries.push_back(entry);
    offset += whole;
  }
  return entries;
}

std::string BuildFatbin(absl::Span<const FatbinEntry> entries) {
  ContainerHeader header;
  for (const FatbinEntry& entry : entries) header.entries_size += entry.whole.size();
  std::string container(reinterpret_cast<const char*>(&header), sizeof(header));
  container.reserve(sizeof(header) + header.entries_size);
  for (const FatbinEntry& entry : entries) {
    container.append(entry.whole.data(), entry.whole.size());
  }
  return container;
}

absl::StatusOr<std::string> TrimFatbin(absl::Span<const char> container,
                                       const FatbinTarget& target) {
  ASSIGN_OR_RETURN(const std::vector<FatbinEntry> entries, FatbinEntries(container));
  const FatbinEntry* best_ptx = BestPtx(entries, target.capability);
  const uint32_t capability = static_cast<uint32_t>(target.capability);
  std::vector<FatbinEntry> kept;
  for (const FatbinEntry& entry : entries) {
    bool keep = true;
    switch (entry.kind) {
      case EntryKind::kPtx:
        keep = &entry == best_ptx;
        break;
      case EntryKind::kElf:
        keep = target.runs_cubins && entry.arch / 10 == capability / 10 && entry.arch <= capability;
        break;
      case EntryKind::kLtoIr:
        keep = target.links;
        break;
    }
    if (keep) kept.push_back(entry);
  }
  if (kept.empty() && target.runs_cubins) return BuildFatbin(entries);
  return BuildFatbin(kept);
}

const FatbinEntry* BestPtx(absl::Span<const FatbinEntry> entries, int capability) {
  const uint32_t limit = static_cast<uint32_t>(std::max(capability, 0));
  const FatbinEntry* best = nullptr;
  for (const FatbinEntry& entry : entries) {
    if (entry.kind != EntryKind::kPtx) continue;
    if (best == nullptr) {
      best = &entry;
    } else if (entry.arch <= limit) {
      if (best->arch > limit || entry.arch > best->arch) best = &entry;
    } else if (best->arch > limit && entry.arch < best->arch) {
      best = &entry;
    }
  }
  return best;
}

absl::StatusOr<ReassembledImage> ReassembledImage::Create(ImageKind kind,
                                                          std::vector<std::string> parts) {
  const std::vector<absl::Span<const char>> spans(parts.begin(), parts.end());
  RETURN_IF_ERROR(CheckImage(kind, spans));
  ReassembledImage image;
  image.kind_ = kind;
  image.parts_ = std::move(parts);
  // A string's contents move with the vector, never within it: short ones lie in the vector's own
  // memory, which is handed over as a whole.
  const std::vector<std::string>& kept = image.parts_;
  switch (kind) {
    case ImageKind::kFatbin:
    case ImageKind::kElf:
    case ImageKind::kPtx:  // the string's own terminator ends the text
      image.data_ = kept[0].c_str();
      return image;
    case ImageKind::kFatbinWrapper:
    case ImageKind::kLinkedFatbinWrapper:
      break;
  }
  if (kept[0].empty()) image.parts_[0] = BuildFatbin({});
  image.wrapper_ = std::make_unique<FatbinWrapper>();
  image.wrapper_->container = kept[0].data();
  if (kind == ImageKind::kLinkedFatbinWrapper) {
    image.links_ = std::make_unique<const void*[]>(kept.size());
    for (size_t i = 1; i < kept.size(); ++i) image.links_[i - 1] = kept[i].data();
    image.wrapper_->version = 2;
    image.wrapper_->links = image.links_.get();
  }
  image.data_ = image.wrapper_.get();
  return image;
}

Image ReassembledImage::image() const {
  return {kind_, std::vector<absl::Span<const char>>(parts_.begin(), parts_.end())};
}

}  // namespace fargpu::driver_abi
