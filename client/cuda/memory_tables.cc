#include "client/cuda/memory_tables.h"

#include <sys/mman.h>

#include <cerrno>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/fd.h"

namespace fargpu::client {

absl::Status MemoryTable::Insert(MemoryRange range) {
  MutexLock lock(&mutex_);
  const auto next = ranges_.lower_bound(range.begin);
  const bool hits_next = next != ranges_.end() && next->first < range.end();
  const bool hits_previous = next != ranges_.begin() && std::prev(next)->second.end() > range.begin;
  if (hits_next || hits_previous) {
    return CudaError(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
                     absl::StrCat("memory at 0x", absl::Hex(range.begin), " of ", range.bytes,
                                  " bytes overlaps what is there"));
  }
  range.number = ++last_number_;
  ranges_.emplace_hint(next, range.begin, range);
  return absl::OkStatus();
}

std::optional<MemoryRange> MemoryTable::Find(uintptr_t address) const {
  MutexLock lock(&mutex_);
  auto it = ranges_.upper_bound(address);
  if (it == ranges_.begin()) return std::nullopt;
  --it;
  if (address >= it->second.end()) return std::nullopt;
  return it->second;
}

std::optional<MemoryRange> MemoryTable::Remove(uintptr_t address) {
  MutexLock lock(&mutex_);
  const auto it = ranges_.find(address);
  if (it == ranges_.end()) return std::nullopt;
  MemoryRange range = it->second;
  ranges_.erase(it);
  return range;
}

void MemoryTable::RemoveContext(CUcontext context) {
  MutexLock lock(&mutex_);
  for (auto it = ranges_.begin(); it != ranges_.end();) {
    it = it->second.context == context ? ranges_.erase(it) : std::next(it);
  }
}

void MemoryTable::RemoveShared(CUcontext context) {
  MutexLock lock(&mutex_);
  std::erase_if(ranges_, [&](const auto& entry) {
    return entry.second.shared && entry.second.context == context;
  });
}

absl::StatusOr<AddressWindow> AddressWindow::Reserve(uint64_t base, uint64_t bytes) {
  if (bytes == 0) return AddressWindow();
  const std::string where = absl::StrCat("0x", absl::Hex(base), " to 0x", absl::Hex(base + bytes));
  if (base % 4096 != 0 || bytes % 4096 != 0 || base + bytes < base) {
    return absl::InvalidArgumentError(
        absl::StrCat("the window of device addresses, ", where, ", is no range of pages"));
  }
  void* wanted = reinterpret_cast<void*>(base);
  void* memory = mmap(wanted, bytes, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
  // Kernels before 4.17 take the flag for a hint.
  if (memory != MAP_FAILED && memory != wanted) {
    munmap(memory, bytes);
    memory = MAP_FAILED;
    errno = EEXIST;
  }
  if (memory == MAP_FAILED) {
    return absl::FailedPreconditionError(
        absl::StrCat("the window of device addresses, ", where,
                     ", cannot be reserved in this process: ", ErrnoStatus("mmap").message()));
  }
  return AddressWindow(base, bytes);
}

AddressWindow::AddressWindow(AddressWindow&& other) noexcept
    : base_(other.base_), bytes_(std::exchange(other.bytes_, 0)) {}

AddressWindow& AddressWindow::operator=(AddressWindow&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

AddressWindow::~AddressWindow() {
  if (bytes_ > 0) munmap(reinterpret_cast<void*>(base_), bytes_);
}

}  // namespace fargpu::client
