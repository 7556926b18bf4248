#include "client/cuda/deliveries.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace fargpu::client {

uint64_t Deliveries::Expect(void* destination, size_t bytes) {
  MutexLock lock(&mutex_);
  pending_[++last_token_] = {static_cast<char*>(destination), bytes, bytes};
  return last_token_;
}

uint64_t Deliveries::ExpectRepeatedly(const HostBox& destination) {
  MutexLock lock(&mutex_);
  repeated_[++last_token_] = {.box = destination, .due = 0, .cancelled = false};
  return last_token_;
}

void Deliveries::Due(uint64_t token) {
  MutexLock lock(&mutex_);
  const auto it = repeated_.find(token);
  if (it == repeated_.end()) return;
  ++it->second.due;
  it->second.cancelled = false;
}

void Deliveries::Gone(uint64_t token) {
  MutexLock lock(&mutex_);
  repeated_.erase(token);
}

absl::Status Deliveries::Apply(uint64_t token, uint64_t offset, absl::Span<const char> bytes) {
  MutexLock lock(&mutex_);
  if (const auto it = repeated_.find(token); it != repeated_.end()) {
    Repeated& entry = it->second;
    if (offset > entry.box.bytes() || bytes.size() > entry.box.bytes() - offset) {
      return absl::InvalidArgumentError(absl::StrCat("delivery ", token, " brings ", bytes.size(),
                                                     " bytes at ", offset, " of ",
                                                     entry.box.bytes()));
    }
    if (!entry.cancelled) {
      entry.box.ForEachRun(offset, bytes.size(), [&](char* memory, uint64_t at, uint64_t size) {
        std::memcpy(memory, bytes.data() + (at - offset), size);
      });
    }
    if (offset + bytes.size() == entry.box.bytes() && entry.due > 0) --entry.due;
    return absl::OkStatus();
  }
  const auto it = pending_.find(token);
  if (it == pending_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("bytes came for delivery ", token, ", which nobody expects"));
  }
  Destination& entry = it->second;
  if (offset > entry.bytes || bytes.size() > entry.bytes - offset || bytes.size() > entry.missing) {
    return absl::InvalidArgumentError(absl::StrCat("delivery ", token, " brings ", bytes.size(),
                                                   " bytes at ", offset, " of ", entry.bytes, ", ",
                                                   entry.missing, " of them missing"));
  }
  if (entry.memory != nullptr && !bytes.empty()) {
    std::memcpy(entry.memory + offset, bytes.data(), bytes.size());
  }
  entry.missing -= bytes.size();
  if (entry.missing == 0) pending_.erase(it);
  return absl::OkStatus();
}

bool Deliveries::OverlapsEntry(const Destination& entry, const void* memory, size_t bytes) const {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t other = reinterpret_cast<uintptr_t>(entry.memory);
  return entry.memory != nullptr && begin < other + entry.bytes && other < begin + bytes;
}

bool Deliveries::Overlaps(const void* memory, size_t bytes) const {
  MutexLock lock(&mutex_);
  for (const auto& [token, entry] : pending_) {
    if (OverlapsEntry(entry, memory, bytes)) return true;
  }
  for (const auto& [token, entry] : repeated_) {
    if (entry.due > 0 && entry.box.Overlaps(memory, bytes)) return true;
  }
  return false;
}

void Deliveries::Cancel(const void* memory, size_t bytes) {
  MutexLock lock(&mutex_);
  for (auto& [token, entry] : pending_) {
    if (OverlapsEntry(entry, memory, bytes)) entry.memory = nullptr;
  }
  for (auto& [token, entry] : repeated_) {
    if (entry.due == 0 || !entry.box.Overlaps(memory, bytes)) continue;
    entry.due = 0;
    entry.cancelled = true;
  }
}

}  // namespace fargpu::client
