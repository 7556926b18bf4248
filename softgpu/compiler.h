#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

// What the driver half of the software device (softgpu/driver, softgpu/runtime) needs from the
// compiler half (softgpu/ptx, passes, llvm, exec). Nothing else crosses between the two.
namespace fargpu::softgpu {

struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
};

struct KernelParam {
  uint32_t offset = 0;  // in the parameter block, bytes
  uint32_t size = 0;    // bytes
};

struct KernelInfo {
  std::string name;
  std::vector<KernelParam> params;
  uint32_t param_bytes = 0;
  uint32_t static_shared_bytes = 0;
  uint32_t local_bytes = 0;  // per thread
  uint32_t const_bytes = 0;
  uint32_t max_threads_per_block = 1024;  // smaller with .maxntid
  uint32_t registers = 0;                 // estimate, at most 255; cuFuncGetAttribute reports it
  Dim3 cluster{0, 0, 0};                  // .reqnctapercluster; zeros: not said
  bool needs_cluster = false;             // .explicitcluster: the launch must say it if that is so
  uint32_t max_cluster_blocks = 0;        // .maxclusterrank; 0: not said
  bool blocks_are_clusters = false;       // the grid is counted in clusters
  int ptx_version = 0;                    // the virtual architecture: 75 for compute_75
  int binary_version = 0;                 // 75 for .target sm_75
};

enum class VariableSpace { kGlobal, kConst };

struct VariableInfo {
  std::string name;
  VariableSpace space = VariableSpace::kGlobal;
  uint64_t size = 0;
  uint32_t alignment = 1;
  bool managed = false;
};

// What kernels ask the driver half (cudaDeviceGetAttribute and the like in device code). Any
// thread.
class DeviceQueries {
 public:
  virtual ~DeviceQueries() = default;
  virtual int device() const = 0;  // that the kernel runs on
  virtual int device_count() const = 0;
  // Numbers of cuda.h; false for what it does not know.
  virtual bool Attribute(int attribute, int device, int* value) const = 0;
  virtual bool Limit(int limit, uint64_t* value) const = 0;
  virtual int ActiveBlocksPerMultiprocessor(const KernelInfo& kernel, int block_threads,
                                            uint64_t dynamic_shared_bytes) const = 0;
};

struct LaunchConfig {
  Dim3 grid;  // in blocks; a multiple of `cluster` on each axis
  Dim3 block;
  Dim3 cluster;                   // in blocks
  bool explicit_cluster = false;  // the kernel or the launch says how large it is
  uint32_t dynamic_shared_bytes = 0;
  bool cooperative = false;       // all blocks are alive at once
  absl::Span<const char> params;  // KernelInfo::param_bytes, laid out as KernelInfo::params says
  std::function<void(absl::string_view)> printf_sink;  // formatted text of device printf
  std::function<void(absl::string_view)> error_sink;   // failed assertions; null: standard error
  // Whose memory malloc of kernels gives: ReleaseHeap(heap) takes all of it back.
  uint64_t heap = 0;
  // malloc of kernels fails beyond (CU_LIMIT_MALLOC_HEAP_SIZE).
  uint64_t heap_bytes = uint64_t{8} << 20;
  // Per thread, for calls that are not inlined (CU_LIMIT_STACK_SIZE): at least as much is there.
  uint64_t stack_bytes = 1024;
  // What InterruptLaunches ends the launch by; outlives it. Null: it runs until it ends by itself.
  std::atomic<bool>* interrupted = nullptr;
  const DeviceQueries* queries = nullptr;  // outlives the launch; null: kernels get errors
};

// Sets `flag` and ends all launches that have it, with CUDA_ERROR_LAUNCH_FAILED, whatever their
// code does; later ones fail at once. Returns when no thread runs any of them. Not from a kernel's
// printf_sink or error_sink.
void InterruptLaunches(std::atomic<bool>* flag);
// Gives back what kernels with LaunchConfig::heap == `heap` took by malloc. None of them runs.
void ReleaseHeap(uint64_t heap);

// One loaded program: one or more PTX modules linked together (several for -rdc=true). Immutable
// after BindVariables; all methods may be called from any thread.
class Program {
 public:
  // Parses and links. Only syntax and link errors are reported here, with line and column, and are
  // appended to `log`; an instruction we lack fails when its kernel is launched. kInvalidArgument:
  // PTX is wrong (CUDA_ERROR_INVALID_PTX).
  static absl::StatusOr<std::unique_ptr<Program>> Link(absl::Span<const std::string> ptx_modules,
                                                       std::string* log);
  virtual ~Program() = default;

  virtual const std::vector<KernelInfo>& kernels() const = 0;
  virtual const std::vector<VariableInfo>& variables() const = 0;

  // Tells where each variable lies in device memory, once, before the first launch.
  virtual void BindVariables(absl::Span<const uint64_t> addresses) = 0;
  // The initial bytes of a variable after BindVariables (initialisers may hold addresses).
  virtual std::vector<char> InitialContents(size_t variable) const = 0;

  // Runs the whole grid on the process-wide pool of threads and returns when its last block has
  // ended. Compiles on first use. CUDA errors as by common/cuda_error.h: a wild address is
  // CUDA_ERROR_ILLEGAL_ADDRESS, trap is CUDA_ERROR_LAUNCH_FAILED, an instruction we lack
  // CUDA_ERROR_NOT_SUPPORTED... with a message that names kernel, line and instruction.
  virtual absl::Status Launch(size_t kernel, const LaunchConfig& config) = 0;
};

// The address range in which all device memory lies. Reserved (PROT_NONE) once per process by
// DeviceWindow(); memory is made accessible by the driver half. The size is a power of two and the
// base a multiple of it, so that compiled code checks an address by one shift and compare.
struct AddressWindow {
  uint64_t base = 0;
  uint64_t size = 0;
};
// Defined by softgpu/runtime/device_window.cc.
AddressWindow DeviceWindow();

// Takes `bytes` (rounded up to whole pages) of the window and makes them readable and writable,
// zeroed; the pages before and after stay inaccessible. The executor keeps shared memory, local
// memory and kernel parameters there, so that generic addresses are plain addresses. The memory
// is not charged to any quota. Returns 0 when the window is exhausted. Any thread.
uint64_t ReserveWindowRange(uint64_t bytes);
// Gives back what ReserveWindowRange returned, with the same size.
void ReleaseWindowRange(uint64_t address, uint64_t bytes);

// Whether all of [address, address + bytes), outside of the window, is memory of the program that
// it registered for the device: kernels reach it at its own address. Any thread; takes a lock.
// Defined by softgpu/driver/driver.cc.
bool HostRangeReachable(uint64_t address, uint64_t bytes);

}  // namespace fargpu::softgpu
