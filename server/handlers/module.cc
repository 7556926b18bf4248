// Modules and their functions.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "server/handlers/functions.h"
#include "server_handlers.h"

namespace fargpu::server::handlers {
namespace {

// What the compiler has to say; a string of the protocol is no longer.
class LogBuffer {
 public:
  LogBuffer(JitOptions* options, CUjit_option buffer, CUjit_option size) {
    options->names.push_back(buffer);
    options->values.push_back(text_);
    options->names.push_back(size);
    options->values.push_back(reinterpret_cast<void*>(sizeof(text_) - 1));
  }
  std::string text() const { return std::string(text_, strnlen(text_, sizeof(text_) - 1)); }

 private:
  char text_[wire::kMaxStringBytes] = {};
};

// Names all functions of a module that was just loaded. A driver that cannot list them leaves them
// to be asked for by name.
absl::Status TakeUpFunctions(Call& call, const wire::ModuleLoadDataExRequest& request,
                             CUmodule module, std::vector<wire::FunctionInfo>* infos) {
  unsigned count = 0;
  if (call.driver().cuModuleGetFunctionCount(&count, module) != CUDA_SUCCESS) {
    return absl::OkStatus();
  }
  count = std::min<unsigned>(count, kMaxFunctionsOfALoad);
  std::vector<CUfunction> handles(count);
  RETURN_IF_CUDA_ERROR(call.driver().cuModuleEnumerateFunctions(handles.data(), count, module));
  size_t bytes = 0;
  for (unsigned i = 0; i < count; ++i) {
    Function function;
    function.owner = request.module.value;
    wire::FunctionInfo info;
    RETURN_IF_ERROR(DescribeFunction(call, handles[i], &function, &info));
    bytes += EncodedBytes(info);
    if (bytes > kMaxFunctionInfoBytes) break;
    const wire::FunctionId id{request.first_function.value + i};
    RETURN_IF_ERROR(call.Named(
        call.objects().functions.Insert(id, std::move(function), call.header().context)));
    infos->push_back(std::move(info));
  }
  return absl::OkStatus();
}

void ForgetFunctions(Call& call, wire::ModuleId module) {
  call.objects().functions.EraseIf([&](const Function& function, wire::ContextId) {
    return !function.is_kernel && function.owner == module.value;
  });
}

}  // namespace

absl::Status ModuleLoadDataEx(const wire::ModuleLoadDataExRequest& request, Call& call,
                              wire::ModuleLoadDataExReply* reply) {
  JitOptions options;
  RETURN_IF_ERROR(ParseJitOptions(call, request.options, request.values, &options));
  auto image = call.resources().images.Take(request.image);
  if (absl::IsInvalidArgument(image.status())) return call.Malformed(image.status().message());
  RETURN_IF_ERROR(image.status());
  auto info_log = std::make_unique<LogBuffer>(&options, CU_JIT_INFO_LOG_BUFFER,
                                              CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES);
  auto error_log = std::make_unique<LogBuffer>(&options, CU_JIT_ERROR_LOG_BUFFER,
                                               CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);
  CUmodule module = nullptr;
  const CUresult result = call.driver().cuModuleLoadDataEx(
      &module, (*image)->data(), static_cast<unsigned>(options.names.size()), options.names.data(),
      options.values.data());
  reply->info_log = info_log->text();
  reply->error_log = error_log->text();
  reply->result = static_cast<int32_t>(result);
  if (result != CUDA_SUCCESS) return absl::OkStatus();
  absl::Status status = call.Named(call.objects().modules.Insert(
      request.module, {.handle = module, .image = *image, .library = 0}, call.header().context));
  if (status.ok()) status = TakeUpFunctions(call, request, module, &reply->functions);
  if (!status.ok()) {
    ForgetFunctions(call, request.module);
    call.objects().modules.Erase(request.module);
    call.driver().cuModuleUnload(module);
  }
  return status;
}

absl::Status ModuleUnload(const wire::ModuleUnloadRequest& request, Call& call,
                          wire::ModuleUnloadReply* reply) {
  Module module;
  RETURN_IF_ERROR(call.objects().modules.Find(request.module, &module));
  if (module.library != 0) {
    return CudaError(CUDA_ERROR_INVALID_HANDLE, "the module belongs to a library");
  }
  ForgetFunctions(call, request.module);
  call.objects().modules.Erase(request.module);
  RETURN_IF_CUDA_ERROR(call.driver().cuModuleUnload(module.handle));
  return absl::OkStatus();
}

absl::Status ModuleGetFunction(const wire::ModuleGetFunctionRequest& request, Call& call,
                               wire::ModuleGetFunctionReply* reply) {
  Module module;
  RETURN_IF_ERROR(call.objects().modules.Find(request.module, &module));
  CUfunction handle = nullptr;
  RETURN_IF_CUDA_ERROR(
      call.driver().cuModuleGetFunction(&handle, module.handle, request.name.c_str()));
  Function function;
  function.owner = request.module.value;
  reply->info.name = request.name;
  RETURN_IF_ERROR(DescribeFunction(call, handle, &function, &reply->info));
  reply->info.function = request.function;
  return call.Named(call.objects().functions.Insert(request.function, std::move(function),
                                                    call.header().context));
}

absl::Status ModuleGetGlobalV2(const wire::ModuleGetGlobalV2Request& request, Call& call,
                               wire::ModuleGetGlobalV2Reply* reply) {
  Module module;
  RETURN_IF_ERROR(call.objects().modules.Find(request.module, &module));
  CUdeviceptr address = 0;
  size_t bytes = 0;
  RETURN_IF_CUDA_ERROR(
      call.driver().cuModuleGetGlobal_v2(&address, &bytes, module.handle, request.name.c_str()));
  reply->dptr = address;
  reply->bytes = bytes;
  reply->managed = IsManaged(call, address);
  return absl::OkStatus();
}

absl::Status FuncSetAttribute(const wire::FuncSetAttributeRequest& request, Call& call,
                              wire::FuncSetAttributeReply* reply) {
  Function function;
  RETURN_IF_ERROR(call.objects().functions.Find(request.function, &function));
  CUfunction handle = function.handle;
  if (function.is_kernel) {
    RETURN_IF_CUDA_ERROR(
        call.driver().cuKernelGetFunction(&handle, reinterpret_cast<CUkernel>(function.handle)));
  }
  RETURN_IF_CUDA_ERROR(call.driver().cuFuncSetAttribute(
      handle, static_cast<CUfunction_attribute>(request.attribute), request.value));
  return absl::OkStatus();
}

}  // namespace fargpu::server::handlers
