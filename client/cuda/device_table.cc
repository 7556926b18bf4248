#include "client/cuda/device_table.h"

#include <utility>

#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "protocol/driver_abi/caller.h"

namespace fargpu::client {
namespace {

// Attributes that promise what a far card, or this version, cannot keep. A program that asks is
// told so and takes another way; one that does not ask gets CUDA_ERROR_NOT_SUPPORTED from the
// calls. Everything not listed is the card's own answer.
constexpr int kAttributesThatWeCannotKeep[] = {
    // Memory that CPU and card both see: it would have to be kept the same over the network.
    CU_DEVICE_ATTRIBUTE_INTEGRATED,
    // Each side has its own bytes, brought to the other when work starts and ends: a program may
    // not
    // use managed memory while a kernel does.
    CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
    CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST,
    CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
    CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
    CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
    CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED,
    // Memory pools.
    CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES,
    // Sharing with other processes, devices and interfaces of this machine: the card is not here.
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_WIN32_HANDLE_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_WIN32_KMT_HANDLE_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS,
    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING,
    CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_TIMELINE_SEMAPHORE_INTEROP_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_HOST_NUMA_MULTINODE_IPC_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED,
    // Stream memory operations.
    CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1,
    CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1,
    CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1,
    CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
    CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR,
    // Arrays and function pointers that only the card's own host can make.
    CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_DEFERRED_MAPPING_CUDA_ARRAY_SUPPORTED,
    CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS,
    CU_DEVICE_ATTRIBUTE_COOPERATIVE_MULTI_DEVICE_LAUNCH,
};

}  // namespace

DeviceTable::DeviceTable(std::vector<DeviceInfo> devices) : devices_(std::move(devices)) {}

absl::Status DeviceTable::Check(CUdevice device) const {
  if (Has(device)) return absl::OkStatus();
  return CudaError(CUDA_ERROR_INVALID_DEVICE,
                   absl::StrCat("device ", device, " of ", count(), " devices"));
}

int DeviceTable::Attribute(CUdevice device, int attribute) const {
  // Device and host addresses never coincide: see AddressWindow.
  if (attribute == CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING) return 1;
  for (int kept_back : kAttributesThatWeCannotKeep) {
    if (attribute == kept_back) return 0;
  }
  const std::vector<int32_t>& attributes = devices_[device].attributes;
  if (attribute < 0 || static_cast<size_t>(attribute) >= attributes.size()) return 0;
  return attributes[attribute];
}

int DeviceTable::Attribute(CUdevice device, int attribute, const void* caller) const {
  const bool is_major = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
  const bool is_minor = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR;
  const int program = devices_[device].program_capability;
  if ((is_major || is_minor) && program != 0 &&
      driver_abi::CallerOf(caller) == driver_abi::Caller::kProgram) {
    return is_major ? program / 10 : program % 10;
  }
  return Attribute(device, attribute);
}

std::vector<driver_abi::DeviceIdentity> DeviceTable::Identities() const {
  std::vector<driver_abi::DeviceIdentity> identities;
  for (CUdevice device = 0; device < count(); ++device) {
    identities.push_back({.uuid = devices_[device].uuid,
                          .pci_domain = Attribute(device, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID),
                          .pci_bus = Attribute(device, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID),
                          .pci_device = Attribute(device, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)});
  }
  return identities;
}

}  // namespace fargpu::client
