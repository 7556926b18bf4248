#include "softgpu/llvm/code_cache.h"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "llvm/Support/BLAKE3.h"

#include "common/fd.h"
#include "common/log.h"

namespace fargpu::softgpu {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kDefaultLimitBytes = uint64_t{1} << 30;
// After an eviction there is room for a while, so that not every store looks through the folder's
// files to remove one.
constexpr double kKeptShare = 0.8;
// Files under their temporary name that are older than this were left by a process that died.
constexpr auto kStaleAge = std::chrono::minutes(10);
constexpr char kSuffix[] = ".code";
constexpr char kTemporary[] = ".tmp-";

// What stands in front of an entry's contents.
struct Header {
  char magic[8] = {'f', 'a', 'r', 'g', 'p', 'u', '0', '1'};
  CodeCache::Key key = {};
  uint64_t size = 0;             // of the contents
  CodeCache::Key checksum = {};  // of the contents
};

CodeCache::Key HashOf(absl::string_view contents) { return CodeCacheHash().Add(contents).Finish(); }

std::string FileOf(const std::string& folder, const CodeCache::Key& key) {
  const absl::string_view bytes(reinterpret_cast<const char*>(key.data()), key.size());
  return absl::StrCat(folder, "/", absl::BytesToHexString(bytes), kSuffix);
}

bool ReadAll(int fd, char* to, size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = read(fd, to, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    to += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

bool WriteAll(int fd, const char* from, size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = write(fd, from, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    from += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

struct CodeCacheHash::State {
  llvm::BLAKE3 hash;
};

CodeCacheHash::CodeCacheHash() : state_(new State) {}
CodeCacheHash::~CodeCacheHash() { delete state_; }

CodeCacheHash& CodeCacheHash::Add(absl::string_view part) {
  Add(uint64_t{part.size()});
  state_->hash.update(llvm::StringRef(part.data(), part.size()));
  return *this;
}

CodeCacheHash& CodeCacheHash::Add(uint64_t number) {
  uint8_t bytes[sizeof number];
  std::memcpy(bytes, &number, sizeof number);
  state_->hash.update(llvm::ArrayRef<uint8_t>(bytes));
  return *this;
}

CodeCache::Key CodeCacheHash::Finish() { return state_->hash.final<32>(); }

CodeCache::CodeCache(std::string folder, uint64_t limit_bytes)
    : folder_(limit_bytes == 0 ? "" : std::move(folder)), limit_bytes_(limit_bytes) {}

CodeCache CodeCache::FromEnvironment() {
  uint64_t limit = kDefaultLimitBytes;
  const std::string text = Environment("FARGPU_CACHE_BYTES");
  if (!text.empty() && !absl::SimpleAtoi(text, &limit)) {
    FARGPU_LOG(kWarning, "softgpu: FARGPU_CACHE_BYTES is '", text,
               "', not a number of bytes; nothing is cached");
    limit = 0;
  }
  std::string folder = Environment("FARGPU_CACHE_DIR");
  if (folder.empty()) {
    folder = Environment("XDG_CACHE_HOME");
    const std::string home = Environment("HOME");
    // Relative names are to be ignored, says the XDG specification.
    if (!absl::StartsWith(folder, "/")) folder = home.empty() ? "" : absl::StrCat(home, "/.cache");
    if (!folder.empty()) absl::StrAppend(&folder, "/fargpu");
  }
  if (!folder.empty()) absl::StrAppend(&folder, "/softgpu");
  return CodeCache(std::move(folder), limit);
}

std::optional<std::string> CodeCache::Find(const Key& key) const {
  if (!enabled()) return std::nullopt;
  const std::string path = FileOf(folder_, key);
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd.valid()) return std::nullopt;
  struct stat status = {};
  Header header;
  const Header expected;
  if (fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) return std::nullopt;
  // What others can write is not ours to run.
  if (status.st_uid != geteuid() || (status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    FARGPU_LOG(kWarning, "softgpu: ", path, " belongs to somebody else, or others may write it");
    return std::nullopt;
  }
  std::string contents;
  const bool whole = ReadAll(fd.get(), reinterpret_cast<char*>(&header), sizeof header) &&
                     std::memcmp(header.magic, expected.magic, sizeof header.magic) == 0 &&
                     header.key == key && header.size <= limit_bytes_ &&
                     static_cast<uint64_t>(status.st_size) == sizeof header + header.size;
  bool good = whole;
  if (good) {
    contents.resize(header.size);
    good =
        ReadAll(fd.get(), contents.data(), contents.size()) && HashOf(contents) == header.checksum;
  }
  if (!good) {
    FARGPU_LOG(kWarning, "softgpu: ", path, " is damaged; it is removed");
    unlink(path.c_str());
    return std::nullopt;
  }
  // Used just now: the last to be evicted.
  futimens(fd.get(), nullptr);
  return contents;
}

void CodeCache::Store(const Key& key, absl::string_view contents) const {
  const uint64_t bytes = sizeof(Header) + contents.size();
  if (!enabled() || bytes > limit_bytes_) return;
  std::error_code error;
  fs::create_directories(fs::path(folder_).parent_path(), error);
  if (mkdir(folder_.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
    FARGPU_LOG(kInfo, "softgpu: cannot make ", folder_, ": ", std::strerror(errno));
    return;
  }
  Evict(bytes);
  std::string name = absl::StrCat(folder_, "/", kTemporary, "XXXXXX");
  const UniqueFd fd(mkostemp(name.data(), O_CLOEXEC));
  if (!fd.valid()) {
    FARGPU_LOG(kInfo, "softgpu: cannot write to ", folder_, ": ", std::strerror(errno));
    return;
  }
  Header header;
  header.key = key;
  header.size = contents.size();
  header.checksum = HashOf(contents);
  // No fsync: what a crash of the machine leaves behind fails the checksum.
  if (!WriteAll(fd.get(), reinterpret_cast<const char*>(&header), sizeof header) ||
      !WriteAll(fd.get(), contents.data(), contents.size()) ||
      rename(name.c_str(), FileOf(folder_, key).c_str()) != 0) {
    FARGPU_LOG(kInfo, "softgpu: cannot write to ", folder_, ": ", std::strerror(errno));
    unlink(name.c_str());
  }
}

void CodeCache::Evict(uint64_t room) const {
  struct File {
    fs::file_time_type used;
    uint64_t bytes = 0;
    fs::path path;
  };
  std::vector<File> files;
  uint64_t total = 0;
  const auto now = fs::file_time_type::clock::now();
  std::error_code error;
  for (fs::directory_iterator it(folder_, error), end; !error && it != end; it.increment(error)) {
    // Another process may remove the file meanwhile: then it counts no more.
    std::error_code gone;
    const std::string name = it->path().filename().string();
    const auto used = it->last_write_time(gone);
    const uint64_t bytes = gone ? 0 : it->file_size(gone);
    if (gone) continue;
    if (absl::StartsWith(name, kTemporary)) {
      if (now - used > kStaleAge) fs::remove(it->path(), gone);
      continue;
    }
    if (!absl::EndsWith(name, kSuffix)) continue;
    total += bytes;
    files.push_back({used, bytes, it->path()});
  }
  if (total + room <= limit_bytes_) return;
  std::sort(files.begin(), files.end(),
            [](const File& a, const File& b) { return a.used < b.used; });
  const auto kept = static_cast<uint64_t>(static_cast<double>(limit_bytes_) * kKeptShare);
  const uint64_t wanted = kept > room ? kept - room : 0;
  for (const File& file : files) {
    if (total <= wanted) break;
    std::error_code gone;
    fs::remove(file.path, gone);
    total -= file.bytes;
  }
}

std::string CompilerBuildId() {
  struct Search {
    uintptr_t inside;
    std::string id;
  };
  Search search = {reinterpret_cast<uintptr_t>(&CompilerBuildId), ""};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto* wanted = static_cast<Search*>(data);
        bool ours = false;
        for (int k = 0; k < info->dlpi_phnum; ++k) {
          const auto& segment = info->dlpi_phdr[k];
          ours = ours || (segment.p_type == PT_LOAD &&
                          wanted->inside - (info->dlpi_addr + segment.p_vaddr) < segment.p_memsz);
        }
        if (!ours) return 0;
        for (int k = 0; k < info->dlpi_phnum; ++k) {
          const auto& segment = info->dlpi_phdr[k];
          if (segment.p_type != PT_NOTE) continue;
          const char* at = reinterpret_cast<const char*>(info->dlpi_addr + segment.p_vaddr);
          const char* const end = at + segment.p_memsz;
          while (at + sizeof(ElfW(Nhdr)) <= end) {
            ElfW(Nhdr) note;
            std::memcpy(&note, at, sizeof note);
            const char* const name = at + sizeof note;
            const char* const value = name + (note.n_namesz + 3) / 4 * 4;
            at = value + (note.n_descsz + 3) / 4 * 4;
            if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 && at <= end &&
                std::memcmp(name, "GNU", 4) == 0) {
              wanted->id.assign(value, note.n_descsz);
            }
          }
        }
        return 1;
      },
      &search);
  return search.id;
}

}  // namespace fargpu::softgpu
