#include "server/handlers/functions.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"

namespace fargpu::server::handlers {
namespace {

// Beyond what any card takes; a driver that says more is not asked further.
constexpr size_t kMaxParameters = 4096;
constexpr size_t kMaxParameterBytes = 64 << 10;

// `param_info(index, offset, size)` fails at the first index that there is not.
template <typename ParamInfo, typename Attribute>
absl::Status Describe(const char* name, ParamInfo param_info, Attribute attribute,
                      Function* function, wire::FunctionInfo* info) {
  auto layout = std::make_shared<Function::Layout>();
  info->name = name != nullptr ? name : "";
  for (size_t index = 0; index < kMaxParameters; ++index) {
    size_t offset = 0;
    size_t size = 0;
    if (param_info(index, &offset, &size) != CUDA_SUCCESS) break;
    if (offset > kMaxParameterBytes || size > kMaxParameterBytes) {
      return absl::InternalError(absl::StrCat("the driver says that parameter ", index, " of ",
                                              info->name, " has ", size, " bytes at ", offset));
    }
    layout->offsets.push_back(static_cast<uint32_t>(offset));
    layout->sizes.push_back(static_cast<uint32_t>(size));
    layout->bytes = std::max(layout->bytes, offset + size);
  }
  info->param_offsets = layout->offsets;
  info->param_sizes = layout->sizes;
  for (int i = 0; i < CU_FUNC_ATTRIBUTE_MAX; ++i) {
    int value = 0;
    if (attribute(&value, static_cast<CUfunction_attribute>(i)) != CUDA_SUCCESS) value = 0;
    info->attributes.push_back(value);
  }
  function->layout = std::move(layout);
  return absl::OkStatus();
}

}  // namespace

absl::Status DescribeKernel(Call& call, CUkernel kernel, Function* function,
                            wire::FunctionInfo* info) {
  Driver& driver = call.driver();
  const char* name = nullptr;
  RETURN_IF_CUDA_ERROR(driver.cuKernelGetName(&name, kernel));
  function->handle = reinterpret_cast<CUfunction>(kernel);
  function->is_kernel = true;
  const CUdevice device = call.resources().devices.front();
  return Describe(
      name,
      [&](size_t index, size_t* offset, size_t* size) {
        return driver.cuKernelGetParamInfo(kernel, index, offset, size);
      },
      [&](int* value, CUfunction_attribute attribute) {
        return driver.cuKernelGetAttribute(value, attribute, kernel, device);
      },
      function, info);
}

absl::Status DescribeFunction(Call& call, CUfunction handle, Function* function,
                              wire::FunctionInfo* info) {
  Driver& driver = call.driver();
  const char* name = nullptr;
  // Older drivers lack it; who asks for a function by name knows its name.
  if (driver.cuFuncGetName(&name, handle) != CUDA_SUCCESS) name = info->name.c_str();
  const std::string kept = name;
  function->handle = handle;
  return Describe(
      kept.c_str(),
      [&](size_t index, size_t* offset, size_t* size) {
        return driver.cuFuncGetParamInfo(handle, index, offset, size);
      },
      [&](int* value, CUfunction_attribute attribute) {
        return driver.cuFuncGetAttribute(value, attribute, handle);
      },
      function, info);
}

bool IsManaged(Call& call, CUdeviceptr address) {
  unsigned managed = 0;
  const CUresult asked =
      call.driver().cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address);
  return asked == CUDA_SUCCESS && managed != 0;
}

size_t EncodedBytes(const wire::FunctionInfo& info) {
  return info.name.size() +
         4 * (info.param_offsets.size() + info.param_sizes.size() + info.attributes.size()) + 32;
}

absl::Status ParseJitOptions(Call& call, const std::vector<uint32_t>& names,
                             const std::vector<uint64_t>& values, JitOptions* options) {
  if (names.size() != values.size()) {
    return call.Malformed(
        absl::StrCat(names.size(), " JIT options came with ", values.size(), " values"));
  }
  for (size_t i = 0; i < names.size(); ++i) {
    switch (names[i]) {
      case CU_JIT_MAX_REGISTERS:
      case CU_JIT_THREADS_PER_BLOCK:
      case CU_JIT_OPTIMIZATION_LEVEL:
      case CU_JIT_TARGET_FROM_CUCONTEXT:
      case CU_JIT_TARGET:
      case CU_JIT_FALLBACK_STRATEGY:
      case CU_JIT_GENERATE_DEBUG_INFO:
      case CU_JIT_LOG_VERBOSE:
      case CU_JIT_GENERATE_LINE_INFO:
      case CU_JIT_CACHE_MODE:
      case CU_JIT_POSITION_INDEPENDENT_CODE:
      case CU_JIT_MIN_CTA_PER_SM:
      case CU_JIT_MAX_THREADS_PER_BLOCK:
      case CU_JIT_OVERRIDE_DIRECTIVE_VALUES:
        options->names.push_back(static_cast<CUjit_option>(names[i]));
        options->values.push_back(reinterpret_cast<void*>(values[i]));
        break;
      default:
        break;  // pointers of the client mean nothing here
    }
  }
  return absl::OkStatus();
}

}  // namespace fargpu::server::handlers
