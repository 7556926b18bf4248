#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cuda.h>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

#include "common/mutex.h"
#include "softgpu/compiler.h"
#include "softgpu/driver/context.h"
#include "softgpu/runtime/device_memory.h"

namespace fargpu::softgpu {

class Driver;

struct Library;
struct Module;

// The attributes of a function that a program can set; -1 means not set.
struct FunctionSettings {
  std::atomic<int> max_dynamic_shared_bytes{-1};
  std::atomic<int> preferred_carveout{-1};
  std::atomic<int> non_portable_cluster_size{0};
  std::atomic<int> cluster[3] = {0, 0, 0};  // required; 0: not set
  std::atomic<int> cluster_scheduling{0};
};

// A kernel in a module of one context (CUfunction).
struct Function {
  CUfunction handle = nullptr;
  KernelInfo info;
  size_t index = 0;  // in Program::kernels()
  // Shared with launches in flight: unloading the module does not pull the code from under them.
  std::shared_ptr<Program> program;
  std::weak_ptr<Context> context;
  uint64_t context_id = 0;
  int device = 0;
  CUmodule module = nullptr;
  // A kernel of a library has its settings there, one set per device for all contexts.
  std::shared_ptr<FunctionSettings> settings = std::make_shared<FunctionSettings>();
};

struct Variable {
  VariableInfo info;
  uint64_t address = 0;
};

// A program placed into one context (CUmodule).
struct Module {
  CUmodule handle = nullptr;
  std::weak_ptr<Context> context;
  uint64_t context_id = 0;
  bool has_code = true;                              // false: the image held no PTX
  bool of_library = false;                           // unloaded with its library only
  std::vector<std::shared_ptr<Function>> functions;  // in the order of the program
  std::vector<Variable> variables;
  uint64_t variable_memory = 0;          // 0 if it has none
  std::vector<uint64_t> managed_memory;  // of its managed variables, unless they are a library's

  std::shared_ptr<Function> FindFunction(absl::string_view name) const;
  const Variable* FindVariable(absl::string_view name) const;
};

// A kernel independent of any context (CUkernel). Whoever gets one instead of a CUfunction takes
// the function of the current context.
struct Kernel {
  CUkernel handle = nullptr;
  KernelInfo info;
  size_t index = 0;
  std::weak_ptr<Library> library;
  CUlibrary library_handle = nullptr;
  bool has_code = true;
  std::vector<std::shared_ptr<FunctionSettings>> settings;  // by device
};

// An image loaded for all contexts (CUlibrary). It is linked when first needed and placed into a
// context when first used there.
struct Library {
  CUlibrary handle = nullptr;
  std::vector<std::string> texts;  // PTX; empty if the image had none

  Mutex mutex;
  bool linked ABSL_GUARDED_BY(mutex) = false;
  absl::Status link_status ABSL_GUARDED_BY(mutex);
  // What the first link gave, until the first context takes it.
  std::unique_ptr<Program> spare ABSL_GUARDED_BY(mutex);
  std::vector<std::shared_ptr<Kernel>> kernels ABSL_GUARDED_BY(mutex);
  std::vector<VariableInfo> variables ABSL_GUARDED_BY(mutex);
  // The addresses of managed variables, which are the same in all contexts; 0 for others.
  std::vector<uint64_t> managed ABSL_GUARDED_BY(mutex);
  absl::flat_hash_map<uint64_t, std::shared_ptr<Module>> modules
      ABSL_GUARDED_BY(mutex);  // by context id
};

// The log buffers and other JIT options of a load call.
struct JitOptions {
  char* info_log = nullptr;
  char* error_log = nullptr;
  size_t info_log_bytes = 0;
  size_t error_log_bytes = 0;
  void** info_log_bytes_value = nullptr;
  void** error_log_bytes_value = nullptr;
  void** wall_time_value = nullptr;

  static absl::StatusOr<JitOptions> Parse(unsigned count, const CUjit_option* options,
                                          void** values);
  // Copies `log` into the error log buffer and writes back how many bytes the logs took.
  void WriteLogs(absl::string_view log, float milliseconds) const;
};

// The PTX in `image` (any kind that cuModuleLoadData takes), for a device of `capability` (e.g.
// 130). Empty if it has none.
absl::StatusOr<std::vector<std::string>> ReadImage(const void* image, int capability);
// The same for a file that holds a fatbin, a cubin or PTX. CUDA_ERROR_FILE_NOT_FOUND.
absl::StatusOr<std::vector<std::string>> ReadImageFile(const char* path, int capability);

// One text that stands for several PTX modules, and PTX that may be such a text.
std::string JoinPtx(const std::vector<std::string>& texts);
std::vector<std::string> ReadPtx(std::string text);

// Links PTX; CUDA_ERROR_INVALID_PTX with the compiler's message for bad PTX.
absl::StatusOr<std::unique_ptr<Program>> LinkProgram(const std::vector<std::string>& texts,
                                                     std::string* log);

// Places `program` into `context`: allocates and initialises its variables and makes its functions.
// `program` may be null (an image without code). `managed` says where managed variables are, by
// variable, if they exist already.
absl::StatusOr<std::shared_ptr<Module>> PlaceProgram(Driver& driver,
                                                     std::unique_ptr<Program> program,
                                                     Context& context,
                                                     absl::Span<const uint64_t> managed = {});
// Allocates a managed variable and gives it its initial contents. `context` is 0 for a library's.
absl::StatusOr<uint64_t> PlaceManagedVariable(Driver& driver, const Program& program, size_t index,
                                              int device, uint64_t context);

}  // namespace fargpu::softgpu
