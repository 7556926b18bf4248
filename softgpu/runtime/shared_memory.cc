// Memory between processes.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "softgpu/runtime/device_memory.h"

namespace fargpu::softgpu {
namespace {

absl::Status Invalid(absl::string_view message) {
  return CudaError(CUDA_ERROR_INVALID_VALUE, message);
}

void* ToPointer(uint64_t address) { return reinterpret_cast<void*>(address); }

uint64_t WholeBlocks(uint64_t size) { return (size + kBlockBytes - 1) / kBlockBytes * kBlockBytes; }

}  // namespace

absl::StatusOr<SharedFileName> DeviceMemory::Share(uint64_t address) {
  MutexLock lock(&mutex_);
  const auto record = FindRecord(address);
  if (record == records_.end() || record->second.allocation.kind != AllocationKind::kDevice) {
    return Invalid(absl::StrCat("0x", absl::Hex(address), " is not memory of cuMemAlloc"));
  }
  const Allocation& allocation = record->second.allocation;
  // Small allocations share their block, which is shared as a whole.
  const uint64_t base = record->second.in_shared_block ? allocation.base / kBlockBytes * kBlockBytes
                                                       : allocation.base;
  const uint64_t size = record->second.in_shared_block ? kBlockBytes : WholeBlocks(allocation.size);
  auto found = shared_files_.find(base);
  if (found == shared_files_.end()) {
    absl::StatusOr<SharedFile> file = CreateSharedFile(size, allocation.device);
    if (!file.ok()) return CudaError(CUDA_ERROR_OUT_OF_MEMORY, file.status().message());
    void* const copy = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd.get(), 0);
    if (copy == MAP_FAILED) {
      return CudaError(CUDA_ERROR_OUT_OF_MEMORY, ErrnoStatus("mmap of shared memory").message());
    }
    std::memcpy(copy, ToPointer(base), size);
    munmap(copy, size);
    if (mmap(ToPointer(base), size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file->fd.get(),
             0) == MAP_FAILED) {
      return CudaError(CUDA_ERROR_OUT_OF_MEMORY, ErrnoStatus("mmap of shared memory").message());
    }
    found = shared_files_.emplace(base, SharedBlocks{*std::move(file), size}).first;
  }
  SharedFileName name;
  name.pid = getpid();
  name.fd = found->second.file.fd.get();
  name.device = allocation.device;
  name.number = found->second.file.number;
  name.offset = allocation.base - base;
  name.size = allocation.size;
  name.file_size = size;
  return name;
}

absl::StatusOr<uint64_t> DeviceMemory::OpenShared(const SharedFileName& name, uint64_t context) {
  absl::StatusOr<UniqueFd> fd = OpenSharedFile(name);
  if (!fd.ok()) return Invalid(fd.status().message());
  struct stat facts = {};
  if (fstat(fd->get(), &facts) != 0 || static_cast<uint64_t>(facts.st_size) != name.file_size ||
      name.file_size % kBlockBytes != 0 || name.offset > name.file_size ||
      name.size > name.file_size - name.offset || name.size == 0 || name.device < 0 ||
      static_cast<size_t>(name.device) >= capacities_.size()) {
    return Invalid("the handle does not fit the memory that it names");
  }
  MutexLock lock(&mutex_);
  ASSIGN_OR_RETURN(const uint64_t base, TakeBlocks(name.file_size, Access::kNone));
  if (mmap(ToPointer(base), name.file_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
           fd->get(), 0) == MAP_FAILED) {
    GiveBlocks(base, name.file_size);
    return CudaError(CUDA_ERROR_OUT_OF_MEMORY, ErrnoStatus("mmap of shared memory").message());
  }
  // The record is the whole file, so that it is given back whole; the caller sees its part.
  Record record;
  record.allocation = {.base = base,
                       .size = name.file_size,
                       .kind = AllocationKind::kShared,
                       .device = name.device,
                       .context = context,
                       .buffer_id = next_buffer_id_++,
                       .flags = 0};
  records_.emplace(base, record);
  return base + name.offset;
}

absl::StatusOr<UniqueFd> DeviceMemory::ExportPhysical(uint64_t handle) const {
  MutexLock lock(&mutex_);
  const auto found = physicals_.find(handle);
  if (found == physicals_.end() || found->second.own_file == nullptr) {
    return Invalid(absl::StrCat("physical memory ", handle, " was not created to be exported"));
  }
  UniqueFd copy(fcntl(found->second.own_file->get(), F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) {
    return CudaError(CUDA_ERROR_OPERATING_SYSTEM, ErrnoStatus("a further descriptor").message());
  }
  return copy;
}

absl::StatusOr<uint64_t> DeviceMemory::ImportPhysical(int fd) {
  const absl::StatusOr<int> device = DeviceOfSharedFile(fd);
  struct stat facts = {};
  if (!device.ok() || static_cast<size_t>(*device) >= capacities_.size() ||
      fstat(fd, &facts) != 0 || facts.st_size == 0 || facts.st_size % kBlockBytes != 0) {
    return Invalid(absl::StrCat("descriptor ", fd, " is not exported memory"));
  }
  auto own = std::make_shared<UniqueFd>(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!own->valid()) {
    return CudaError(CUDA_ERROR_OPERATING_SYSTEM, ErrnoStatus("a further descriptor").message());
  }
  MutexLock lock(&mutex_);
  return AddPhysical({.device = *device,
                      .size = static_cast<uint64_t>(facts.st_size),
                      .file_offset = 0,
                      .handle_references = 1,
                      .mappings = 0,
                      .own_file = std::move(own),
                      .imported = true});
}

}  // namespace fargpu::softgpu
