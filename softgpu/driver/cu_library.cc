// Libraries: images loaded for all contexts, and their kernels.

#include <algorithm>

#include "softgpu/driver/edge.h"

namespace fargpu::softgpu {
namespace {

int Capability(Driver& driver) {
  const DeviceSpec& spec = driver.config().devices[0];
  // The newest code that the image has: all of it runs.
  return std::max(spec.capability_major * 10 + spec.capability_minor,
                  spec.library_capability_major * 10 + spec.library_capability_minor);
}

absl::Status CheckLibraryOptions(unsigned count, const CUlibraryOption* options) {
  if (count > 0) RETURN_IF_NULL(options);
  for (unsigned i = 0; i < count; ++i) {
    // The image is copied in any case; the values, which may be null, do not matter.
    if (options[i] != CU_LIBRARY_HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE &&
        options[i] != CU_LIBRARY_BINARY_IS_PRESERVED) {
      return InvalidValue(absl::StrCat("library option ", static_cast<int>(options[i])));
    }
  }
  return absl::OkStatus();
}

absl::Status LoadLibrary(Driver& driver, absl::StatusOr<std::vector<std::string>> texts,
                         const JitOptions& options, bool wants_logs, CUlibrary* out) {
  if (!texts.ok()) return texts.status();
  auto library = std::make_shared<Library>();
  library->handle = driver.libraries.NewHandle();
  library->texts = *std::move(texts);
  // Linked on first use, as lazy loading has it; whoever asks for a log wants it now.
  if (wants_logs) {
    const int64_t start = NowNs();
    std::string log;
    const absl::Status linked = driver.LinkLibrary(library, &log);
    options.WriteLogs(log, static_cast<float>(NowNs() - start) * 1e-6f);
    RETURN_IF_ERROR(linked);
  }
  driver.libraries.Insert(library->handle, library);
  *out = library->handle;
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Library>> FindLibrary(Driver& driver, CUlibrary handle) {
  if (std::shared_ptr<Library> library = driver.libraries.Find(handle)) return library;
  return InvalidHandle("not a library");
}

absl::StatusOr<std::shared_ptr<Kernel>> FindKernel(Driver& driver, CUkernel handle) {
  if (std::shared_ptr<Kernel> kernel = driver.kernels.Find(handle)) return kernel;
  return InvalidHandle("not a kernel");
}

// A kernel of an image without PTX: it can be asked for, and launching it says why it cannot run.
// Libraries of NVIDIA's crash when the question itself fails.
std::shared_ptr<Kernel> KernelWithoutCode(Driver& driver, const std::shared_ptr<Library>& library,
                                          const char* name) {
  MutexLock lock(&library->mutex);
  for (const std::shared_ptr<Kernel>& known : library->kernels) {
    if (known->info.name == name) return known;
  }
  auto kernel = std::make_shared<Kernel>();
  kernel->handle = driver.kernels.NewHandle();
  kernel->info.name = name;
  kernel->has_code = false;
  kernel->library = library;
  kernel->library_handle = library->handle;
  for (int device = 0; device < driver.device_count(); ++device) {
    kernel->settings.push_back(std::make_shared<FunctionSettings>());
  }
  driver.kernels.Insert(kernel->handle, kernel);
  library->kernels.push_back(kernel);
  return kernel;
}

absl::Status WriteVariable(uint64_t address, uint64_t size, CUdeviceptr* out, size_t* out_size) {
  if (out != nullptr) *out = address;
  if (out_size != nullptr) *out_size = size;
  return absl::OkStatus();
}

}  // namespace
}  // namespace fargpu::softgpu

using namespace fargpu;           // NOLINT: edge functions only
using namespace fargpu::softgpu;  // NOLINT: edge functions only

CU_API CUresult cuLibraryLoadData(CUlibrary* out, const void* image, CUjit_option* jit_options,
                                  void** jit_values, unsigned jit_count, CUlibraryOption* options,
                                  void** values, unsigned count) {
  return WithDriver("cuLibraryLoadData", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(out);
    RETURN_IF_NULL(image);
    ASSIGN_OR_RETURN(const JitOptions jit, JitOptions::Parse(jit_count, jit_options, jit_values));
    RETURN_IF_ERROR(CheckLibraryOptions(count, options));
    return LoadLibrary(driver, ReadImage(image, Capability(driver)), jit, jit_count > 0, out);
  });
}

CU_API CUresult cuLibraryLoadFromFile(CUlibrary* out, const char* path, CUjit_option* jit_options,
                                      void** jit_values, unsigned jit_count,
                                      CUlibraryOption* options, void** values, unsigned count) {
  return WithDriver("cuLibraryLoadFromFile", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(out);
    RETURN_IF_NULL(path);
    ASSIGN_OR_RETURN(const JitOptions jit, JitOptions::Parse(jit_count, jit_options, jit_values));
    RETURN_IF_ERROR(CheckLibraryOptions(count, options));
    return LoadLibrary(driver, ReadImageFile(path, Capability(driver)), jit, jit_count > 0, out);
  });
}

CU_API CUresult cuLibraryUnload(CUlibrary handle) {
  return WithDriver("cuLibraryUnload", [&](Driver& driver) -> absl::Status {
    const std::shared_ptr<Library> library = driver.libraries.Remove(handle);
    if (library == nullptr) return InvalidHandle("not a library");
    std::vector<std::shared_ptr<Module>> modules;
    {
      MutexLock lock(&library->mutex);
      for (const std::shared_ptr<Kernel>& kernel : library->kernels) {
        driver.kernels.Remove(kernel->handle);
      }
      for (const auto& [context, module] : library->modules) modules.push_back(module);
      library->modules.clear();
    }
    for (const std::shared_ptr<Module>& module : modules) driver.UnloadModule(module);
    MutexLock lock(&library->mutex);
    for (uint64_t variable : library->managed) {
      if (variable != 0) driver.FreeManaged(variable);
    }
    library->managed.clear();
    return absl::OkStatus();
  });
}

CU_API CUresult cuLibraryGetKernel(CUkernel* out, CUlibrary handle, const char* name) {
  return WithDriver("cuLibraryGetKernel", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(out);
    RETURN_IF_NULL(name);
    ASSIGN_OR_RETURN(const std::shared_ptr<Library> library, FindLibrary(driver, handle));
    RETURN_IF_ERROR(driver.LinkLibrary(library));
    if (library->texts.empty()) {
      *out = KernelWithoutCode(driver, library, name)->handle;
      return absl::OkStatus();
    }
    MutexLock lock(&library->mutex);
    for (const std::shared_ptr<Kernel>& kernel : library->kernels) {
      if (kernel->info.name == name) {
        *out = kernel->handle;
        return absl::OkStatus();
      }
    }
    return CudaError(CUDA_ERROR_NOT_FOUND, absl::StrCat("no kernel ", name));
  });
}

CU_API CUresult cuLibraryGetKernelCount(unsigned* count, CUlibrary handle) {
  return WithDriver("cuLibraryGetKernelCount", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(count);
    ASSIGN_OR_RETURN(const std::shared_ptr<Library> library, FindLibrary(driver, handle));
    RETURN_IF_ERROR(driver.LinkLibrary(library));
    MutexLock lock(&library->mutex);
    *count = library->texts.empty() ? 0 : static_cast<unsigned>(library->kernels.size());
    return absl::OkStatus();
  });
}

CU_API CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned count, CUlibrary handle) {
  return WithDriver("cuLibraryEnumerateKernels", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(kernels);
    ASSIGN_OR_RETURN(const std::shared_ptr<Library> library, FindLibrary(driver, handle));
    RETURN_IF_ERROR(driver.LinkLibrary(library));
    MutexLock lock(&library->mutex);
    if (library->texts.empty()) return absl::OkStatus();
    for (size_t i = 0; i < library->kernels.size() && i < count; ++i) {
      kernels[i] = library->kernels[i]->handle;
    }
    return absl::OkStatus();
  });
}

CU_API CUresult cuLibraryGetModule(CUmodule* out, CUlibrary handle) {
  return WithContext("cuLibraryGetModule", [&](Driver& driver, Context& context) -> absl::Status {
    RETURN_IF_NULL(out);
    ASSIGN_OR_RETURN(const std::shared_ptr<Library> library, FindLibrary(driver, handle));
    RETURN_IF_ERROR(driver.LinkLibrary(library));
    ASSIGN_OR_RETURN(const std::shared_ptr<Module> module, driver.LibraryModule(*library, context));
    *out = module->handle;
    return absl::OkStatus();
  });
}

CU_API CUresult cuLibraryGetGlobal(CUdeviceptr* address, size_t* size, CUlibrary handle,
                                   const char* name) {
  return WithContext("cuLibraryGetGlobal", [&](Driver& driver, Context& context) -> absl::Status {
    RETURN_IF_NULL(name);
    if (address == nullptr && size == nullptr) return InvalidValue("address and size are null");
    ASSIGN_OR_RETURN(const std::shared_ptr<Library> library, FindLibrary(driver, handle));
    RETURN_IF_ERROR(driver.LinkLibrary(library));
    ASSIGN_OR_RETURN(const std::shared_ptr<Module> module, driver.LibraryModule(*library, context));
    const Variable* const variable = module->FindVariable(name);
    if (variable == nullptr || variable->info.managed) {
      return CudaError(CUDA_ERROR_NOT_FOUND, absl::StrCat("no variable ", name));
    }
    return WriteVariable(variable->address, variable->info.size, address, size);
  });
}

// Needs no context: the runtime asks before there is one.
CU_API CUresult cuLibraryGetManaged(CUdeviceptr* address, size_t* size, CUlibrary handle,
                                    const char* name) {
  return WithDriver("cuLibraryGetManaged", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(name);
    if (address == nullptr && size == nullptr) return InvalidValue("address and size are null");
    ASSIGN_OR_RETURN(const std::shared_ptr<Library> library, FindLibrary(driver, handle));
    RETURN_IF_ERROR(driver.LinkLibrary(library));
    MutexLock lock(&library->mutex);
    for (size_t i = 0; i < library->variables.size(); ++i) {
      const VariableInfo& info = library->variables[i];
      if (info.managed && info.name == name) {
        return WriteVariable(library->managed[i], info.size, address, size);
      }
    }
    return CudaError(CUDA_ERROR_NOT_FOUND, absl::StrCat("no managed variable ", name));
  });
}

CU_API CUresult cuKernelGetFunction(CUfunction* out, CUkernel handle) {
  return WithContext("cuKernelGetFunction", [&](Driver& driver, Context& context) -> absl::Status {
    RETURN_IF_NULL(out);
    ASSIGN_OR_RETURN(const std::shared_ptr<Kernel> kernel, FindKernel(driver, handle));
    ASSIGN_OR_RETURN(const std::shared_ptr<Function> function, driver.FunctionOf(*kernel, context));
    *out = function->handle;
    return absl::OkStatus();
  });
}

CU_API CUresult cuKernelGetLibrary(CUlibrary* out, CUkernel handle) {
  return WithDriver("cuKernelGetLibrary", [&](Driver& driver) -> absl::Status {
    RETURN_IF_NULL(out);
    ASSIGN_OR_RETURN(const std::shared_ptr<Kernel> kernel, FindKernel(driver, handle));
    *out = kernel->library_handle;
    return absl::OkStatus();
  });
}
