// Modules: images loaded into the current context.

#include <algorithm>
#include <chrono>

#include "softgpu/driver/edge.h"

namespace fargpu::softgpu {
namespace {

int Capability(Driver& driver, int device) {
  const DeviceSpec& spec = driver.config().devices[device];
  // The newest code that the image has: all of it runs.
  return std::max(spec.capability_major * 10 + spec.capability_minor,
                  spec.library_capability_major * 10 + spec.library_capability_minor);
}

// Links and places `texts`; the logs say what was wrong.
absl::Status LoadTexts(Driver& driver, Context& context,
                       const absl::StatusOr<std::vector<std::string>>& texts,
                       const JitOptions& options, CUmodule* out) {
  if (!texts.ok()) return texts.status();
  const int64_t start = NowNs();
  std::unique_ptr<Program> program;
  std::string log;
  absl::Status linked;
  // An image without PTX loads; asking it for a function tells that there is no code for it.
  if (!texts->empty()) {
    absl::StatusOr<std::unique_ptr<Program>> result = LinkProgram(*texts, &log);
    linked = result.status();
    if (result.ok()) program = *std::move(result);
  }
  options.WriteLogs(log, static_cast<float>(NowNs() - start) * 1e-6f);
  RETURN_IF_ERROR(linked);
  ASSIGN_OR_RETURN(const std::shared_ptr<Module> module,
                   PlaceProgram(driver, std::move(program), context));
  driver.RegisterModule(module);
  *out = module->handle;
  return absl::OkStatus();
}

CUresult LoadData(const char* call, CUmodule* out, const void* image, unsigned count,
                  CUjit_option* options, void** values) {
  return WithContext(call, [&](Driver& driver, Context& context) -> absl::Status {
    RETURN_IF_NULL(out);
    RETURN_IF_NULL(image);
    ASSIGN_OR_RETURN(const JitOptions parsed, JitOptions::Parse(count, options, values));
    return LoadTexts(driver, context, ReadImage(image, Capability(driver, context.device)), parsed,
                     out);
  });
}

absl::StatusOr<std::shared_ptr<Module>> FindModule(Driver& driver, CUmodule handle) {
  if (std::shared_ptr<Module> module = driver.modules.Find(handle)) return module;
  return InvalidHandle("not a module");
}

}  // namespace
}  // namespace fargpu::softgpu

using namespace fargpu;           // NOLINT: edge functions only
using namespace fargpu::softgpu;  // NOLINT: edge functions only

CU_API CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  return WithDriver("cuModuleGetLoadingMode", [&](Driver&) -> absl::Status {
    RETURN_IF_NULL(mode);
    *mode = CU_MODULE_LAZY_LOADING;
    return absl::OkStatus();
  });
}

CU_API CUresult cuModuleLoad(CUmodule* out, const char* path) {
  return WithContext("cuModuleLoad", [&](Driver& driver, Context& context) -> absl::Status {
    RETURN_IF_NULL(out);
    RETURN_IF_NULL(path);
    return LoadTexts(driver, context, ReadImageFile(path, Capability(driver, context.device)),
                     JitOptions{}, out);
  });
}

CU_API CUresult cuModuleLoadData(CUmodule* out, const void* image) {
  return LoadData("cuModuleLoadData", out, image, 0, nullptr, nullptr);
}

CU_API CUresult cuModuleLoadDataEx(CUmodule* out, const void* image, unsigned count,
                                   CUjit_option* options, void** values) {
  return LoadData("cuModuleLoadDataEx", out, image, count, options, values);
}

CU_API CUresult cuModuleLoadFatBinary(CUmodule* out, const void* image) {
  return LoadData("cuModuleLoadFatBinary", out, image, 0, nullptr, nullptr);
}

CU_API CUresult cuModuleUnload(CUmodule handle) {
  return WithContext("cuModuleUnload", [&](Driver& driver, Context& context) -> absl::Status {
    ASSIGN_OR_RETURN(const std::shared_ptr<Module> module, FindModule(driver, handle));
    if (module->of_library) {
      return CudaError(CUDA_ERROR_NOT_PERMITTED, "the module belongs to a library");
    }
    driver.UnloadModule(module);
    return absl::OkStatus();
  });
}

CU_API CUresult cuModuleGetFunction(CUfunction* out, CUmodule handle, const char* name) {
  return WithContext("cuModuleGetFunction", [&](Driver& driver, Context&) -> absl::Status {
    RETURN_IF_NULL(out);
    RETURN_IF_NULL(name);
    ASSIGN_OR_RETURN(const std::shared_ptr<Module> module, FindModule(driver, handle));
    if (!module->has_code) {
      return CudaError(CUDA_ERROR_NO_BINARY_FOR_GPU, "the module's image holds no PTX");
    }
    const std::shared_ptr<Function> function = module->FindFunction(name);
    if (function == nullptr) {
      return CudaError(CUDA_ERROR_NOT_FOUND, absl::StrCat("no function ", name));
    }
    *out = function->handle;
    return absl::OkStatus();
  });
}

CU_API CUresult cuModuleGetFunctionCount(unsigned* count, CUmodule handle) {
  return WithContext("cuModuleGetFunctionCount", [&](Driver& driver, Context&) -> absl::Status {
    RETURN_IF_NULL(count);
    ASSIGN_OR_RETURN(const std::shared_ptr<Module> module, FindModule(driver, handle));
    *count = static_cast<unsigned>(module->functions.size());
    return absl::OkStatus();
  });
}

CU_API CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned count, CUmodule handle) {
  return WithContext("cuModuleEnumerateFunctions", [&](Driver& driver, Context&) -> absl::Status {
    RETURN_IF_NULL(functions);
    ASSIGN_OR_RETURN(const std::shared_ptr<Module> module, FindModule(driver, handle));
    for (size_t i = 0; i < module->functions.size() && i < count; ++i) {
      functions[i] = module->functions[i]->handle;
    }
    return absl::OkStatus();
  });
}

CU_API CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* size, CUmodule handle,
                                     const char* name) {
  return WithContext("cuModuleGetGlobal_v2", [&](Driver& driver, Context&) -> absl::Status {
    RETURN_IF_NULL(name);
    if (address == nullptr && size == nullptr) return InvalidValue("address and size are null");
    ASSIGN_OR_RETURN(const std::shared_ptr<Module> module, FindModule(driver, handle));
    const Variable* const variable = module->FindVariable(name);
    if (variable == nullptr) {
      return CudaError(CUDA_ERROR_NOT_FOUND, absl::StrCat("no variable ", name));
    }
    if (address != nullptr) *address = variable->address;
    if (size != nullptr) *size = variable->info.size;
    return absl::OkStatus();
  });
}
