#include "protocol/driver_abi/proc_address.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace fargpu::driver_abi {
namespace {

// FNV-1a: names are short and the table is built once.
uint32_t Hash(const char* name) {
  uint32_t hash = 2166136261u;
  for (; *name != '\0'; ++name) {
    hash = (hash ^ static_cast<uint8_t>(*name)) * 16777619u;
  }
  return hash;
}

// A runtime starts up on this thread.
thread_local bool runtime_starts = false;

}  // namespace

void RuntimeHasItsFunctions() { runtime_starts = false; }

ProcAddressTable::ProcAddressTable(absl::Span<const ProcRow> rows,
                                   std::vector<ProcReplacement> replacements)
    : replacements_(std::move(replacements)) {
  rows_.reserve(rows.size());
  for (const ProcRow& row : rows) rows_.push_back(&row);
  std::sort(rows_.begin(), rows_.end(), [](const ProcRow* a, const ProcRow* b) {
    const int order = std::strcmp(a->name, b->name);
    return order != 0 ? order < 0 : a->since > b->since;
  });
  size_t bucket_count = 16;
  while (bucket_count < 2 * rows_.size()) bucket_count *= 2;
  buckets_.resize(bucket_count);
  for (size_t first = 0; first < rows_.size();) {
    size_t end = first + 1;
    while (end < rows_.size() && std::strcmp(rows_[end]->name, rows_[first]->name) == 0) ++end;
    const uint32_t hash = Hash(rows_[first]->name);
    size_t index = hash & (bucket_count - 1);
    while (buckets_[index].count != 0) index = (index + 1) & (bucket_count - 1);
    buckets_[index] = {hash, static_cast<uint32_t>(first), static_cast<uint32_t>(end - first)};
    first = end;
  }
}

CUresult ProcAddressTable::Find(const char* name, int version, cuuint64_t flags, void** function,
                                CUdriverProcAddressQueryResult* status) const {
  if (name == nullptr || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (flags != CU_GET_PROC_ADDRESS_DEFAULT && flags != CU_GET_PROC_ADDRESS_LEGACY_STREAM &&
      flags != CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *function = nullptr;
  if (*name == '\0' && version == 0) runtime_starts = true;
  CUdriverProcAddressQueryResult reason = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  const uint32_t hash = Hash(name);
  const size_t mask = buckets_.size() - 1;
  for (size_t index = hash & mask; buckets_[index].count != 0; index = (index + 1) & mask) {
    const Bucket& bucket = buckets_[index];
    if (bucket.hash != hash || std::strcmp(rows_[bucket.first]->name, name) != 0) continue;
    reason = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    for (uint32_t i = bucket.first; i < bucket.first + bucket.count; ++i) {
      const ProcRow& row = *rows_[i];
      if (row.since > version) continue;
      const bool wants_twin = flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM &&
                              row.twin != nullptr && row.twin_since <= version;
      *function = wants_twin ? row.twin : row.function;
      // The ABI that was asked for is not offered; an older one would be called with wrong
      // arguments.
      reason =
          *function != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
      break;
    }
    break;
  }
  if (runtime_starts) {
    for (const ProcReplacement& replacement : replacements_) {
      if (*function == replacement.function) *function = replacement.for_runtime;
    }
  }
  if (status != nullptr) *status = reason;
  return *function != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

}  // namespace fargpu::driver_abi
