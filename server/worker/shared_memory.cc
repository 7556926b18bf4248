#include "server/worker/shared_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "memory/changed_runs.h"

namespace fargpu::server {
namespace {

constexpr uint64_t kWord = sizeof(uint32_t);
// Ranges are looked at in pieces of this size, so that no copy of a whole range is needed.
constexpr uint64_t kPiece = 1 << 20;

}  // namespace

void UnmapBytes::operator()(char* memory) const { munmap(memory, bytes); }

absl::StatusOr<SharedMemory::Known> SharedMemory::NewKnown(uint64_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return CudaError(CUDA_ERROR_OUT_OF_MEMORY, absl::StrCat("a copy of ", bytes, " bytes"));
  }
  return Known(static_cast<char*>(memory), UnmapBytes{bytes});
}

absl::StatusOr<CUstream> SharedMemory::StreamOf(wire::ContextId context) {
  MutexLock lock(&mutex_);
  if (const auto found = streams_.find(context.value); found != streams_.end()) {
    return found->second;
  }
  CUstream stream = nullptr;
  RETURN_IF_CUDA_ERROR(driver_->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  streams_[context.value] = stream;
  return stream;
}

void SharedMemory::ForgetContext(wire::ContextId context) {
  MutexLock lock(&mutex_);
  streams_.erase(context.value);
}

absl::Status SharedMemory::Watch(uint64_t address, uint64_t bytes) {
  bytes = (bytes + kWord - 1) / kWord * kWord;
  if (bytes == 0 || bytes > kMaxWatchedBytes || address > UINT64_MAX - bytes) {
    return CudaError(CUDA_ERROR_OUT_OF_MEMORY,
                     absl::StrCat("watching ", bytes, " bytes; at most ", kMaxWatchedBytes));
  }
  MutexLock lock(&mutex_);
  const auto old = watched_.find(address);
  const uint64_t old_bytes = old != watched_.end() ? old->second.bytes : 0;
  if (bytes <= old_bytes) return absl::OkStatus();
  if (watched_.size() >= kMaxWatches || watched_bytes_ + bytes - old_bytes > kMaxWatchedBytes) {
    return CudaError(CUDA_ERROR_OUT_OF_MEMORY,
                     absl::StrCat("watching more than ", kMaxWatchedBytes, " bytes"));
  }
  const auto next = watched_.upper_bound(address);
  const bool hits_next = next != watched_.end() && next->first - address < bytes;
  const bool hits_before = old == watched_.end() && next != watched_.begin() &&
                           address - std::prev(next)->first < std::prev(next)->second.bytes;
  if (hits_next || hits_before) {
    return CudaError(CUDA_ERROR_INVALID_VALUE, "two watched ranges overlap");
  }
  ASSIGN_OR_RETURN(Known known, NewKnown(bytes));
  if (old_bytes > 0) std::memcpy(known.get(), old->second.known.get(), old_bytes);
  watched_bytes_ += bytes - old_bytes;
  watched_[address] = {.bytes = bytes, .known = std::move(known)};
  return absl::OkStatus();
}

void SharedMemory::Unwatch(uint64_t address) {
  MutexLock lock(&mutex_);
  const auto found = watched_.find(address);
  if (found == watched_.end()) return;
  watched_bytes_ -= found->second.bytes;
  watched_.erase(found);
}

void SharedMemory::NoteWritten(uint64_t address, absl::Span<const char> bytes) {
  MutexLock lock(&mutex_);
  auto range = watched_.upper_bound(address);
  if (range == watched_.begin()) return;
  --range;
  const uint64_t offset = address - range->first;
  if (offset >= range->second.bytes) return;
  std::memcpy(range->second.known.get() + offset, bytes.data(),
              std::min<uint64_t>(bytes.size(), range->second.bytes - offset));
}

absl::Status SharedMemory::Write(wire::ContextId context, absl::Span<const uint64_t> addresses,
                                 absl::Span<const uint32_t> sizes, absl::Span<const char> bytes) {
  ASSIGN_OR_RETURN(const CUstream stream, StreamOf(context));
  CUresult copied = CUDA_SUCCESS;
  for (size_t i = 0; i < addresses.size() && copied == CUDA_SUCCESS; ++i) {
    const absl::Span<const char> run = bytes.subspan(0, sizes[i]);
    bytes.remove_prefix(run.size());
    copied = driver_->cuMemcpyHtoDAsync_v2(addresses[i], run.data(), run.size(), stream);
    if (copied == CUDA_SUCCESS) NoteWritten(addresses[i], run);
  }
  // Also after a failure: the bytes are the frame's and go with it.
  const CUresult waited = driver_->cuStreamSynchronize(stream);
  RETURN_IF_CUDA_ERROR(copied);
  RETURN_IF_CUDA_ERROR(waited);
  return absl::OkStatus();
}

absl::Status SharedMemory::Read(wire::ContextId context, uint64_t address, absl::Span<char> to) {
  ASSIGN_OR_RETURN(const CUstream stream, StreamOf(context));
  const CUresult copied = driver_->cuMemcpyDtoHAsync_v2(to.data(), address, to.size(), stream);
  const CUresult waited = driver_->cuStreamSynchronize(stream);
  RETURN_IF_CUDA_ERROR(copied);
  RETURN_IF_CUDA_ERROR(waited);
  return absl::OkStatus();
}

absl::StatusOr<SharedMemory::Changes> SharedMemory::TakeChanges(wire::ContextId context,
                                                                uint64_t from) {
  Changes changes;
  std::vector<char> now;
  while (true) {
    // The next piece of a range at or after `from`.
    uint64_t address = 0, bytes = 0;
    {
      MutexLock lock(&mutex_);
      auto range = watched_.upper_bound(from);
      if (range != watched_.begin() &&
          from - std::prev(range)->first < std::prev(range)->second.bytes) {
        --range;
      }
      if (range == watched_.end()) return changes;
      address = std::max(range->first, from);
      bytes = std::min(kPiece, range->first + range->second.bytes - address);
    }
    // Full, or what is to come may not fit.
    if (changes.addresses.size() >= kMaxRuns || changes.words.size() >= kMaxWords) {
      changes.next = address;
      return changes;
    }
    now.resize(bytes);
    const absl::Status read = Read(context, address, absl::MakeSpan(now));
    // The memory has gone with its context, and the watching with it.
    if (ToCuResult(read) == CUDA_ERROR_INVALID_VALUE) {
      from = address + bytes;
      continue;
    }
    RETURN_IF_ERROR(read);
    from = address + bytes;
    MutexLock lock(&mutex_);
    auto range = watched_.upper_bound(address);
    if (range == watched_.begin()) continue;
    --range;
    const uint64_t offset = address - range->first;
    if (offset >= range->second.bytes || bytes > range->second.bytes - offset) continue;
    char* const known = range->second.known.get() + offset;
    bool full = false;
    memory::ForEachChangedRun(now.data(), known, bytes, [&](size_t begin, size_t size) {
      if (full) return;
      size = std::min(size, (kMaxWords - changes.words.size()) * kWord);
      if (size == 0 || changes.addresses.size() >= kMaxRuns) {
        full = true;
        from = address + begin;
        return;
      }
      std::memcpy(known + begin, now.data() + begin, size);
      changes.addresses.push_back(address + begin);
      changes.sizes.push_back(static_cast<uint32_t>(size / kWord));
      const size_t words = changes.words.size();
      changes.words.resize(words + size / kWord);
      std::memcpy(&changes.words[words], now.data() + begin, size);
      if (changes.words.size() >= kMaxWords) {
        full = true;
        from = address + begin + size;
      }
    });
  }
}

}  // namespace fargpu::server
