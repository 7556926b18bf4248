#include "protocol/driver_abi/managed_ranges.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"

namespace fargpu::driver_abi {
namespace {

absl::Status InvalidValue(absl::string_view message) {
  return CudaError(CUDA_ERROR_INVALID_VALUE, message);
}

bool SameLocation(const CUmemLocation& a, const CUmemLocation& b) {
  return a.type == b.type && (a.type != CU_MEM_LOCATION_TYPE_DEVICE || a.id == b.id);
}

// What all parts agree on, or "invalid".
CUmemLocation Common(const std::vector<ManagedRanges::Facts>& parts,
                     CUmemLocation ManagedRanges::Facts::*field) {
  for (const ManagedRanges::Facts& part : parts) {
    if (!SameLocation(part.*field, parts[0].*field)) return ManagedRanges::Facts{}.preferred;
  }
  return parts.empty() ? ManagedRanges::Facts{}.preferred : parts[0].*field;
}

int OldDevice(const CUmemLocation& location) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return location.id;
    case CU_MEM_LOCATION_TYPE_INVALID:
      return CU_DEVICE_INVALID;
    default:
      return CU_DEVICE_CPU;
  }
}

}  // namespace

CUmemLocation LocationOfDevice(CUdevice device) {
  CUmemLocation location = {};
  location.type = device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device == CU_DEVICE_CPU ? 0 : device;
  return location;
}

absl::Status CheckLocation(const CUmemLocation& location, int device_count) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      if (location.id >= 0 && location.id < device_count) return absl::OkStatus();
      return CudaError(CUDA_ERROR_INVALID_DEVICE,
                       absl::StrCat("device ", location.id, " of ", device_count));
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      return absl::OkStatus();
    default:
      return InvalidValue(absl::StrCat("location type ", static_cast<int>(location.type)));
  }
}

absl::Status Advise(ManagedRanges* ranges, int device_count, uint64_t address, uint64_t size,
                    CUmem_advise advice, const CUmemLocation& location) {
  const bool needs_location = advice != CU_MEM_ADVISE_SET_READ_MOSTLY &&
                              advice != CU_MEM_ADVISE_UNSET_READ_MOSTLY &&
                              advice != CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION;
  if (needs_location) RETURN_IF_ERROR(CheckLocation(location, device_count));
  const int who =
      location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : static_cast<int>(CU_DEVICE_CPU);
  const auto apply = [&](auto change) {
    ranges->Apply(address, size, change);
    return absl::OkStatus();
  };
  using Facts = ManagedRanges::Facts;
  switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
      return apply([](Facts& facts) { facts.read_mostly = true; });
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
      return apply([](Facts& facts) { facts.read_mostly = false; });
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
      return apply([&](Facts& facts) { facts.preferred = location; });
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
      return apply([](Facts& facts) { facts.preferred = Facts{}.preferred; });
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
      return apply([&](Facts& facts) { facts.accessed_by.insert(who); });
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
      return apply([&](Facts& facts) { facts.accessed_by.erase(who); });
  }
  return InvalidValue(absl::StrCat("advice ", static_cast<int>(advice)));
}

absl::Status WriteRangeAttribute(const ManagedRanges& ranges, uint64_t address, uint64_t count,
                                 CUmem_range_attribute attribute, void* data, size_t size) {
  if (data == nullptr) return InvalidValue("data is null");
  if (size < sizeof(int) || size % sizeof(int) != 0 ||
      (attribute != CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY && size != sizeof(int))) {
    return InvalidValue(absl::StrCat("data of ", size, " bytes"));
  }
  const std::vector<ManagedRanges::Facts> parts = ranges.Get(address, count);
  int* const out = static_cast<int*>(data);
  const CUmemLocation preferred = Common(parts, &ManagedRanges::Facts::preferred);
  const CUmemLocation prefetch = Common(parts, &ManagedRanges::Facts::last_prefetch);
  switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
      *out = std::all_of(parts.begin(), parts.end(),
                         [](const auto& part) { return part.read_mostly; });
      return absl::OkStatus();
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
      *out = OldDevice(preferred);
      return absl::OkStatus();
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
      *out = OldDevice(prefetch);
      return absl::OkStatus();
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
      *out = preferred.type;
      return absl::OkStatus();
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
      *out = preferred.id;
      return absl::OkStatus();
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
      *out = prefetch.type;
      return absl::OkStatus();
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
      *out = prefetch.id;
      return absl::OkStatus();
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY: {
      std::vector<int> all;
      if (!parts.empty()) all.assign(parts[0].accessed_by.begin(), parts[0].accessed_by.end());
      for (const auto& part : parts) {
        all.erase(std::remove_if(all.begin(), all.end(),
                                 [&](int who) { return part.accessed_by.count(who) == 0; }),
                  all.end());
      }
      for (size_t i = 0; i < size / sizeof(int); ++i) {
        out[i] = i < all.size() ? all[i] : static_cast<int>(CU_DEVICE_INVALID);
      }
      return absl::OkStatus();
    }
    default:
      return InvalidValue(absl::StrCat("range attribute ", static_cast<int>(attribute)));
  }
}

absl::Status CheckBatch(const RangeBatch& batch, int device_count) {
  if (batch.addresses == nullptr || batch.sizes == nullptr || batch.count == 0) {
    return InvalidValue("no ranges");
  }
  if (batch.flags != 0) return InvalidValue(absl::StrCat("flags ", batch.flags, ": must be 0"));
  for (size_t i = 0; i < batch.count; ++i) {
    if (batch.sizes[i] == 0) return InvalidValue(absl::StrCat("range ", i, " has 0 bytes"));
  }
  if (!batch.has_locations) return absl::OkStatus();
  if (batch.locations == nullptr || batch.location_indices == nullptr ||
      batch.location_count == 0 || batch.location_count > batch.count ||
      batch.location_indices[0] != 0) {
    return InvalidValue(absl::StrCat(batch.location_count, " locations for ", batch.count,
                                     " ranges; the first is for range 0"));
  }
  for (size_t i = 0; i < batch.location_count; ++i) {
    if (batch.location_indices[i] >= batch.count ||
        (i > 0 && batch.location_indices[i] <= batch.location_indices[i - 1])) {
      return InvalidValue(
          absl::StrCat("location ", i, " is for range ", batch.location_indices[i]));
    }
    RETURN_IF_ERROR(CheckLocation(batch.locations[i], device_count));
  }
  return absl::OkStatus();
}

CUmemLocation LocationInBatch(const RangeBatch& batch, size_t index) {
  size_t last = 0;
  while (last + 1 < batch.location_count && batch.location_indices[last + 1] <= index) ++last;
  return batch.locations[last];
}

void ManagedRanges::Split(uint64_t address) {
  auto it = ranges_.upper_bound(address);
  if (it == ranges_.begin()) return;
  --it;
  const uint64_t offset = address - it->first;
  if (offset == 0 || offset >= it->second.size) return;
  Range rest = it->second;
  rest.size -= offset;
  it->second.size = offset;
  ranges_.emplace(address, std::move(rest));
}

void ManagedRanges::Add(uint64_t address, uint64_t size) {
  MutexLock lock(&mutex_);
  // A context that ended took its memory along and said nothing.
  ranges_.erase(ranges_.lower_bound(address), ranges_.lower_bound(address + size));
  ranges_[address] = {.size = size, .facts = {}};
}

void ManagedRanges::Remove(uint64_t address, uint64_t size) {
  MutexLock lock(&mutex_);
  ranges_.erase(ranges_.lower_bound(address), ranges_.lower_bound(address + size));
}

std::vector<ManagedRanges::Facts> ManagedRanges::Get(uint64_t address, uint64_t size) const {
  MutexLock lock(&mutex_);
  std::vector<Facts> facts;
  auto it = ranges_.upper_bound(address);
  if (it != ranges_.begin()) --it;
  for (; it != ranges_.end() && it->first < address + size; ++it) {
    if (it->first + it->second.size > address) facts.push_back(it->second.facts);
  }
  return facts;
}

}  // namespace fargpu::driver_abi
