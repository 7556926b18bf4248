// The virtual memory interface of DeviceMemory: address reservations, physical memory and mappings.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "softgpu/runtime/device_memory.h"

namespace fargpu::softgpu {
namespace {

absl::Status Invalid(absl::string_view message) {
  return CudaError(CUDA_ERROR_INVALID_VALUE, message);
}

bool IsWhole(uint64_t value) { return value % kBlockBytes == 0; }

void* ToPointer(uint64_t address) { return reinterpret_cast<void*>(address); }

int Protection(Access access) {
  switch (access) {
    case Access::kNone:
      return PROT_NONE;
    case Access::kRead:
      return PROT_READ;
    case Access::kReadWrite:
      return PROT_READ | PROT_WRITE;
  }
  return PROT_NONE;
}

}  // namespace

absl::StatusOr<uint64_t> DeviceMemory::Reserve(uint64_t size, uint64_t alignment, uint64_t hint) {
  if (size == 0 || !IsWhole(size)) {
    return Invalid(
        absl::StrCat("reservation of ", size, " bytes: not a multiple of ", kBlockBytes));
  }
  if ((alignment & (alignment - 1)) != 0) {
    return Invalid(absl::StrCat("alignment ", alignment, " is not a power of two"));
  }
  alignment = std::max(alignment, kBlockBytes);
  MutexLock lock(&mutex_);
  if (hint % alignment == 0 && InWindow(hint) && addresses_.TakeAt(hint, size)) {
    reservations_.emplace(hint, size);
    return hint;
  }
  // The upper half first: plain allocations grow from the bottom, and a later reservation with a
  // hint (a session that moved here) wants to find its range free.
  auto address = addresses_.Take(size, alignment, window_.base + window_.size / 2);
  if (!address) address = addresses_.Take(size, alignment);
  if (!address) {
    return CudaError(CUDA_ERROR_OUT_OF_MEMORY,
                     absl::StrCat("the device window has no free range of ", size, " bytes"));
  }
  reservations_.emplace(*address, size);
  return *address;
}

absl::Status DeviceMemory::Unreserve(uint64_t address, uint64_t size) {
  MutexLock lock(&mutex_);
  const auto reservation = reservations_.find(address);
  if (reservation == reservations_.end() || reservation->second != size) {
    return Invalid(absl::StrCat("0x", absl::Hex(address), " + ", size, " is not a reservation"));
  }
  const auto mapped = records_.lower_bound(address);
  if (mapped != records_.end() && mapped->first - address < size) {
    return Invalid(absl::StrCat("reservation 0x", absl::Hex(address), " is still mapped at 0x",
                                absl::Hex(mapped->first)));
  }
  reservations_.erase(reservation);
  addresses_.Give(address, size);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> DeviceMemory::CreatePhysical(int device, uint64_t size,
                                                      Export exportable) {
  if (size == 0 || !IsWhole(size)) {
    return Invalid(
        absl::StrCat("physical memory of ", size, " bytes: not a multiple of ", kBlockBytes));
  }
  MutexLock lock(&mutex_);
  RETURN_IF_ERROR(Charge(device, size));
  if (exportable == Export::kYes) {
    absl::StatusOr<SharedFile> file = CreateSharedFile(size, device);
    if (!file.ok()) {
      used_[device] -= size;
      return CudaError(CUDA_ERROR_OUT_OF_MEMORY, file.status().message());
    }
    return AddPhysical({.device = device,
                        .size = size,
                        .file_offset = 0,
                        .handle_references = 1,
                        .mappings = 0,
                        .own_file = std::make_shared<UniqueFd>(std::move(file->fd)),
                        .imported = false});
  }
  BackingFile& file = files_[device];
  if (!file.fd.valid()) {
    UniqueFd fd(memfd_create("fargpu-softgpu", MFD_CLOEXEC));
    // Offsets are dealt out over twice the capacity, so that fragments never stop an allocation
    // that the limit allows for long.
    const uint64_t bytes = 2 * capacities_[device];
    if (!fd.valid() || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
      used_[device] -= size;
      return CudaError(CUDA_ERROR_OUT_OF_MEMORY, ErrnoStatus("memfd_create").message());
    }
    file.fd = std::move(fd);
    file.space = std::make_unique<AddressSpace>(0, bytes / kBlockBytes * kBlockBytes);
  }
  const auto offset = file.space->Take(size, kBlockBytes);
  if (!offset) {
    used_[device] -= size;
    return CudaError(CUDA_ERROR_OUT_OF_MEMORY,
                     absl::StrCat("device ", device, " is too fragmented for ", size, " bytes"));
  }
  return AddPhysical({.device = device,
                      .size = size,
                      .file_offset = *offset,
                      .handle_references = 1,
                      .mappings = 0,
                      .own_file = nullptr,
                      .imported = false});
}

uint64_t DeviceMemory::AddPhysical(Physical physical) {
  const uint64_t handle = next_physical_++;
  physicals_.emplace(handle, std::move(physical));
  return handle;
}

void DeviceMemory::DropPhysicalIfUnused(uint64_t handle) {
  const auto found = physicals_.find(handle);
  const Physical physical = found->second;
  if (physical.handle_references > 0 || physical.mappings > 0) return;
  if (physical.own_file == nullptr) {
    BackingFile& file = files_[physical.device];
    fallocate(file.fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(physical.file_offset), static_cast<off_t>(physical.size));
    file.space->Give(physical.file_offset, physical.size);
  }
  if (!physical.imported) used_[physical.device] -= physical.size;
  physicals_.erase(found);
}

absl::Status DeviceMemory::ReleasePhysical(uint64_t handle) {
  MutexLock lock(&mutex_);
  const auto found = physicals_.find(handle);
  if (found == physicals_.end() || found->second.handle_references == 0) {
    return Invalid(absl::StrCat("physical memory ", handle, " does not exist"));
  }
  --found->second.handle_references;
  DropPhysicalIfUnused(handle);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> DeviceMemory::RetainPhysical(uint64_t address) {
  MutexLock lock(&mutex_);
  const auto record = FindRecord(address);
  if (record == records_.end() || record->second.allocation.kind != AllocationKind::kMapped) {
    return Invalid(absl::StrCat("nothing is mapped at 0x", absl::Hex(address)));
  }
  const uint64_t handle = record->second.physical;
  ++physicals_.at(handle).handle_references;
  return handle;
}

absl::StatusOr<int> DeviceMemory::PhysicalDevice(uint64_t handle) const {
  MutexLock lock(&mutex_);
  const auto found = physicals_.find(handle);
  if (found == physicals_.end() || found->second.handle_references == 0) {
    return Invalid(absl::StrCat("physical memory ", handle, " does not exist"));
  }
  return found->second.device;
}

absl::Status DeviceMemory::CheckReserved(uint64_t address, uint64_t size) const {
  if (size == 0 || !IsWhole(address) || !IsWhole(size)) {
    return Invalid(absl::StrCat("range 0x", absl::Hex(address), " + ", size, ": not multiples of ",
                                kBlockBytes));
  }
  auto reservation = reservations_.upper_bound(address);
  if (reservation != reservations_.begin()) {
    --reservation;
    const uint64_t offset = address - reservation->first;
    if (offset < reservation->second && size <= reservation->second - offset) {
      return absl::OkStatus();
    }
  }
  return Invalid(absl::StrCat("range 0x", absl::Hex(address), " + ", size, " is not reserved"));
}

absl::Status DeviceMemory::Map(uint64_t address, uint64_t size, uint64_t offset, uint64_t handle) {
  MutexLock lock(&mutex_);
  RETURN_IF_ERROR(CheckReserved(address, size));
  const auto found = physicals_.find(handle);
  if (found == physicals_.end() || found->second.handle_references == 0) {
    return Invalid(absl::StrCat("physical memory ", handle, " does not exist"));
  }
  Physical& physical = found->second;
  if (!IsWhole(offset) || offset > physical.size || size > physical.size - offset) {
    return Invalid(absl::StrCat("offset ", offset, " + ", size, " of physical memory of ",
                                physical.size, " bytes"));
  }
  const auto next = records_.lower_bound(address);
  if ((next != records_.end() && next->first - address < size) ||
      FindRecord(address) != records_.end()) {
    return Invalid(absl::StrCat("range 0x", absl::Hex(address), " + ", size, " is mapped already"));
  }
  void* const mapped = mmap(
      ToPointer(address), size, PROT_NONE, MAP_SHARED | MAP_FIXED,
      physical.own_file != nullptr ? physical.own_file->get() : files_[physical.device].fd.get(),
      static_cast<off_t>(physical.file_offset + offset));
  if (mapped == MAP_FAILED) {
    return CudaError(CUDA_ERROR_OUT_OF_MEMORY, ErrnoStatus("mmap of device memory").message());
  }
  madvise(mapped, size, MADV_DONTDUMP);
  ++physical.mappings;
  Record record;
  record.allocation = {.base = address,
                       .size = size,
                       .kind = AllocationKind::kMapped,
                       .device = physical.device,
                       .context = 0,
                       .buffer_id = next_buffer_id_++,
                       .flags = 0};
  record.access = Access::kNone;
  record.physical = handle;
  records_.emplace(address, record);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<DeviceMemory::Records::iterator>> DeviceMemory::MappingsOf(
    uint64_t address, uint64_t size) {
  std::vector<Records::iterator> mappings;
  const uint64_t end = address + size;
  auto it = records_.find(address);
  uint64_t reached = address;
  while (reached < end) {
    if (it == records_.end() || it->first != reached ||
        it->second.allocation.kind != AllocationKind::kMapped) {
      break;
    }
    mappings.push_back(it);
    reached += it->second.allocation.size;
    ++it;
  }
  if (size == 0 || reached != end) {
    return Invalid(absl::StrCat("range 0x", absl::Hex(address), " + ", size,
                                " is not a sequence of whole mappings"));
  }
  return mappings;
}

absl::Status DeviceMemory::Unmap(uint64_t address, uint64_t size) {
  MutexLock lock(&mutex_);
  ASSIGN_OR_RETURN(const auto mappings, MappingsOf(address, size));
  for (const Records::iterator& mapping : mappings) {
    const uint64_t handle = mapping->second.physical;
    mmap(ToPointer(mapping->first), mapping->second.allocation.size, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    madvise(ToPointer(mapping->first), mapping->second.allocation.size, MADV_DONTDUMP);
    records_.erase(mapping);
    --physicals_.at(handle).mappings;
    DropPhysicalIfUnused(handle);
  }
  return absl::OkStatus();
}

absl::Status DeviceMemory::SetAccess(uint64_t address, uint64_t size, Access access) {
  MutexLock lock(&mutex_);
  ASSIGN_OR_RETURN(const auto mappings, MappingsOf(address, size));
  if (mprotect(ToPointer(address), size, Protection(access)) != 0) {
    return CudaError(CUDA_ERROR_OUT_OF_MEMORY, ErrnoStatus("mprotect of a mapping").message());
  }
  for (const Records::iterator& mapping : mappings) mapping->second.access = access;
  return absl::OkStatus();
}

absl::StatusOr<Access> DeviceMemory::GetAccess(uint64_t address) const {
  MutexLock lock(&mutex_);
  const auto record = FindRecord(address);
  if (record == records_.end() || record->second.allocation.kind != AllocationKind::kMapped) {
    return Invalid(absl::StrCat("nothing is mapped at 0x", absl::Hex(address)));
  }
  return record->second.access;
}

}  // namespace fargpu::softgpu
