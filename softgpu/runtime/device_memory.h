#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/fd.h"
#include "common/mutex.h"
#include "softgpu/compiler.h"
#include "softgpu/runtime/address_space.h"
#include "softgpu/runtime/shared_file.h"

namespace fargpu::softgpu {

// What physical memory is dealt out in, and what a wild access is noticed in.
inline constexpr uint64_t kBlockBytes = uint64_t{2} << 20;

enum class AllocationKind {
  kDevice,   // cuMemAlloc and stream-ordered allocation
  kHost,     // cuMemHostAlloc: lies in the window so that kernels reach it, charged to no device
  kManaged,  // cuMemAllocManaged
  kMapped,   // cuMemCreate + cuMemMap
  kArray,    // of a CUDA array: programs never see the address
  kGraph,    // of a graph: the address stays while its bytes come and go
  kShared,   // of another process (cuIpcOpenMemHandle and the like), charged there
};

struct Allocation {
  uint64_t base = 0;
  uint64_t size = 0;  // as asked for
  AllocationKind kind = AllocationKind::kDevice;
  int device = 0;
  uint64_t context = 0;  // id of the context that asked; 0 for mapped memory
  uint64_t buffer_id = 0;
  uint32_t flags = 0;  // the caller's; host memory keeps its CU_MEMHOSTALLOC_* here
};

enum class Access : uint8_t { kNone, kRead, kReadWrite };

// All memory of all devices of this process: which addresses of the window are in use, what backs
// them, and how much each device has left. Errors carry the CUresult that the program sees.
// Thread-safe. Addresses that are not in use are PROT_NONE.
class DeviceMemory {
 public:
  // `capacities[i]` is the size of device i in bytes.
  DeviceMemory(AddressWindow window, std::vector<uint64_t> capacities);
  ~DeviceMemory();

  // At least 512-byte aligned. CUDA_ERROR_OUT_OF_MEMORY beyond the device's capacity.
  absl::StatusOr<uint64_t> Allocate(AllocationKind kind, int device, uint64_t context,
                                    uint64_t size, uint32_t flags = 0);
  // `address` must be what Allocate() gave; CUDA_ERROR_INVALID_VALUE otherwise.
  absl::Status Free(uint64_t address);
  // Takes the allocation out of the table, so that it is found and freed no more, without giving
  // up its bytes: work queued earlier may still use them. FreeDetached() ends it.
  absl::StatusOr<Allocation> Detach(uint64_t address);
  void FreeDetached(const Allocation& allocation);
  // Frees everything that `context` allocated.
  void FreeContext(uint64_t context);

  // The allocation or mapping that holds `address`.
  std::optional<Allocation> Find(uint64_t address) const;
  // Whether all of [address, address + size) is memory that may be read (or written). kNone:
  // whether it is memory at all, be it memory of a graph that has no bytes yet.
  bool Accessible(uint64_t address, uint64_t size, Access wanted) const;
  bool InWindow(uint64_t address) const { return address - window_.base < window_.size; }

  uint64_t Capacity(int device) const { return capacities_[device]; }
  uint64_t FreeBytes(int device) const;

  // Memory of graphs (graph_memory.cc). Reserve gives an address; Commit gives it bytes, zeroed and
  // charged to the device (CUDA_ERROR_INVALID_VALUE if it has some); Decommit takes them back
  // (CUDA_ERROR_INVALID_VALUE if there are none). After Drop the address goes with its bytes.
  absl::StatusOr<uint64_t> ReserveGraphRange(int device, uint64_t size);
  absl::Status CommitGraphRange(uint64_t address);
  absl::Status DecommitGraphRange(uint64_t address);
  void DropGraphRange(uint64_t address);
  struct GraphUse {
    uint64_t current = 0;
    uint64_t high = 0;
  };
  GraphUse GetGraphUse(int device) const;
  void ResetGraphHigh(int device);

  // Memory between processes (shared_memory.cc). Share makes the allocation around `address` one
  // that others can open, in place: nothing may be running that writes to it.
  // CUDA_ERROR_INVALID_VALUE if it is none of kDevice.
  absl::StatusOr<SharedFileName> Share(uint64_t address);
  // Maps what `name` means; the result is freed as any allocation. CUDA_ERROR_INVALID_VALUE if it
  // is no more.
  absl::StatusOr<uint64_t> OpenShared(const SharedFileName& name, uint64_t context);
  // A descriptor of physical memory that was created to be exported, and such memory again.
  absl::StatusOr<UniqueFd> ExportPhysical(uint64_t handle) const;
  absl::StatusOr<uint64_t> ImportPhysical(int fd);

  // The virtual memory interface (virtual_memory.cc). All sizes, offsets and addresses must be
  // multiples of kBlockBytes, else CUDA_ERROR_INVALID_VALUE.
  absl::StatusOr<uint64_t> Reserve(uint64_t size, uint64_t alignment, uint64_t hint);
  absl::Status Unreserve(uint64_t address, uint64_t size);
  enum class Export { kNo, kYes };
  absl::StatusOr<uint64_t> CreatePhysical(int device, uint64_t size,
                                          Export exportable = Export::kNo);
  absl::Status ReleasePhysical(uint64_t handle);
  // A further reference to the physical memory mapped at `address`.
  absl::StatusOr<uint64_t> RetainPhysical(uint64_t address);
  // Device of a live handle.
  absl::StatusOr<int> PhysicalDevice(uint64_t handle) const;
  absl::Status Map(uint64_t address, uint64_t size, uint64_t offset, uint64_t handle);
  absl::Status Unmap(uint64_t address, uint64_t size);
  absl::Status SetAccess(uint64_t address, uint64_t size, Access access);
  absl::StatusOr<Access> GetAccess(uint64_t address) const;

 private:
  // One 2 MiB block that small allocations of one context on one device share.
  struct SharedBlock {
    SharedBlock(uint64_t base, int owner_device) : space(base, kBlockBytes), device(owner_device) {}
    AddressSpace space;
    int device;
  };
  struct Record {
    Allocation allocation;
    bool in_shared_block = false;
    Access access = Access::kReadWrite;
    uint64_t physical = 0;  // kMapped only
    bool dropped = false;   // kGraph only: the address goes with its bytes
  };
  struct Physical {
    int device = 0;
    uint64_t size = 0;
    uint64_t file_offset = 0;
    uint64_t handle_references = 0;
    uint64_t mappings = 0;
    // A file of its own, for memory that crosses processes; else it is part of its device's file.
    std::shared_ptr<UniqueFd> own_file;
    bool imported = false;  // charged in another process
  };
  // One sparse file holds all physical memory of a device that came from cuMemCreate.
  struct BackingFile {
    UniqueFd fd;
    std::unique_ptr<AddressSpace> space;
  };
  using Records = std::map<uint64_t, Record>;

  absl::Status Charge(int device, uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<uint64_t> TakeBlocks(uint64_t size, Access access = Access::kReadWrite)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GiveBlocks(uint64_t address, uint64_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<uint64_t> AllocateShared(int device, uint64_t context, uint64_t size)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ReleaseBytes(const Record& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Records::const_iterator FindRecord(uint64_t address) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t AddPhysical(Physical physical) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropPhysicalIfUnused(uint64_t handle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckReserved(uint64_t address, uint64_t size) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<std::vector<Records::iterator>> MappingsOf(uint64_t address, uint64_t size)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const AddressWindow window_;
  const std::vector<uint64_t> capacities_;

  mutable Mutex mutex_;
  AddressSpace addresses_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> used_ ABSL_GUARDED_BY(mutex_);
  Records records_ ABSL_GUARDED_BY(mutex_);
  // Detached records by base: their bytes are still taken.
  Records detached_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, std::vector<SharedBlock>> shared_blocks_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, uint64_t> reservations_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, Physical> physicals_ ABSL_GUARDED_BY(mutex_);
  std::vector<BackingFile> files_ ABSL_GUARDED_BY(mutex_);
  std::vector<GraphUse> graph_use_ ABSL_GUARDED_BY(mutex_);
  // The files of shared blocks of memory, by the blocks' address.
  struct SharedBlocks {
    SharedFile file;
    uint64_t size = 0;
  };
  std::map<uint64_t, SharedBlocks> shared_files_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_buffer_id_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t next_physical_ ABSL_GUARDED_BY(mutex_) = 1;
};

}  // namespace fargpu::softgpu
