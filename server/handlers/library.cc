// Libraries and their kernels.
#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "server/handlers/functions.h"
#include "server_handlers.h"

namespace fargpu::server::handlers {
namespace {

// A library of which no kernel is known: none in it, or none for this card?
absl::Status CheckHasCode(Call& call, CUlibrary library) {
  CUkernel kernel = nullptr;
  const CUresult found = call.driver().cuLibraryGetKernel(&kernel, library, "no kernel's name");
  if (found == CUDA_ERROR_NOT_FOUND) return absl::OkStatus();
  // A driver that looks for code only when a kernel is launched has one of any name until then.
  RETURN_IF_CUDA_ERROR(found == CUDA_SUCCESS ? CUDA_ERROR_NO_BINARY_FOR_GPU : found);
  return absl::OkStatus();
}

// Names all kernels of a library that was just loaded and describes them.
absl::Status TakeUpKernels(Call& call, const wire::LibraryLoadDataRequest& request,
                           CUlibrary library, std::vector<wire::FunctionInfo>* infos) {
  unsigned count = 0;
  RETURN_IF_CUDA_ERROR(call.driver().cuLibraryGetKernelCount(&count, library));
  if (count > kMaxFunctionsOfALoad) {
    return CudaError(CUDA_ERROR_NOT_SUPPORTED, absl::StrCat("a library of ", count, " kernels; ",
                                                            kMaxFunctionsOfALoad, " are possible"));
  }
  if (count == 0) return CheckHasCode(call, library);
  std::vector<CUkernel> kernels(count);
  RETURN_IF_CUDA_ERROR(call.driver().cuLibraryEnumerateKernels(kernels.data(), count, library));
  size_t bytes = 0;
  for (unsigned i = 0; i < count; ++i) {
    Function function;
    function.owner = request.library.value;
    wire::FunctionInfo info;
    RETURN_IF_ERROR(DescribeKernel(call, kernels[i], &function, &info));
    bytes += EncodedBytes(info);
    if (bytes > kMaxFunctionInfoBytes) {
      FARGPU_LOG(kWarning, "a library of ", count, " kernels: only the first ", i,
                 " fit into the reply, the others will not be found");
      break;
    }
    const wire::FunctionId id{request.first_function.value + i};
    RETURN_IF_ERROR(call.Named(call.objects().functions.Insert(id, std::move(function))));
    infos->push_back(std::move(info));
  }
  return absl::OkStatus();
}

void ForgetKernels(Call& call, wire::LibraryId library) {
  call.objects().functions.EraseIf([&](const Function& function, wire::ContextId) {
    return function.is_kernel && function.owner == library.value;
  });
  call.objects().modules.EraseIf(
      [&](const Module& module, wire::ContextId) { return module.library == library.value; });
}

}  // namespace

absl::Status LibraryLoadData(const wire::LibraryLoadDataRequest& request, Call& call,
                             wire::LibraryLoadDataReply* reply) {
  JitOptions options;
  RETURN_IF_ERROR(ParseJitOptions(call, request.options, request.values, &options));
  auto image = call.resources().images.Take(request.image);
  if (absl::IsInvalidArgument(image.status())) return call.Malformed(image.status().message());
  RETURN_IF_ERROR(image.status());
  // We keep the image as long as the library, so the driver need not copy it.
  CUlibraryOption preserved = CU_LIBRARY_BINARY_IS_PRESERVED;
  void* yes = reinterpret_cast<void*>(uintptr_t{1});
  CUlibrary library = nullptr;
  RETURN_IF_CUDA_ERROR(call.driver().cuLibraryLoadData(
      &library, (*image)->data(), options.names.data(), options.values.data(),
      static_cast<unsigned>(options.names.size()), &preserved, &yes, 1));
  absl::Status status = call.Named(
      call.objects().libraries.Insert(request.library, {.handle = library, .image = *image}));
  if (status.ok()) status = TakeUpKernels(call, request, library, &reply->functions);
  if (!status.ok()) {
    ForgetKernels(call, request.library);
    call.objects().libraries.Erase(request.library);
    call.driver().cuLibraryUnload(library);
  }
  return status;
}

absl::Status LibraryUnload(const wire::LibraryUnloadRequest& request, Call& call,
                           wire::LibraryUnloadReply* reply) {
  Library library;
  RETURN_IF_ERROR(call.objects().libraries.Find(request.library, &library));
  ForgetKernels(call, request.library);
  call.objects().libraries.Erase(request.library);
  RETURN_IF_CUDA_ERROR(call.driver().cuLibraryUnload(library.handle));
  return absl::OkStatus();
}

absl::Status LibraryGetModule(const wire::LibraryGetModuleRequest& request, Call& call,
                              wire::LibraryGetModuleReply* reply) {
  Library library;
  RETURN_IF_ERROR(call.objects().libraries.Find(request.library, &library));
  CUmodule module = nullptr;
  RETURN_IF_CUDA_ERROR(call.driver().cuLibraryGetModule(&module, library.handle));
  return call.Named(call.objects().modules.Insert(
      request.module, {.handle = module, .image = library.image, .library = request.library.value},
      call.header().context));
}

absl::Status LibraryGetGlobal(const wire::LibraryGetGlobalRequest& request, Call& call,
                              wire::LibraryGetGlobalReply* reply) {
  Library library;
  RETURN_IF_ERROR(call.objects().libraries.Find(request.library, &library));
  CUdeviceptr address = 0;
  size_t bytes = 0;
  RETURN_IF_CUDA_ERROR(
      call.driver().cuLibraryGetGlobal(&address, &bytes, library.handle, request.name.c_str()));
  reply->dptr = address;
  reply->bytes = bytes;
  reply->managed = IsManaged(call, address);
  return absl::OkStatus();
}

absl::Status LibraryGetManaged(const wire::LibraryGetManagedRequest& request, Call& call,
                               wire::LibraryGetManagedReply* reply) {
  Library library;
  RETURN_IF_ERROR(call.objects().libraries.Find(request.library, &library));
  CUdeviceptr address = 0;
  size_t bytes = 0;
  RETURN_IF_CUDA_ERROR(
      call.driver().cuLibraryGetManaged(&address, &bytes, library.handle, request.name.c_str()));
  reply->dptr = address;
  reply->bytes = bytes;
  return absl::OkStatus();
}

absl::Status KernelSetAttribute(const wire::KernelSetAttributeRequest& request, Call& call,
                                wire::KernelSetAttributeReply* reply) {
  RETURN_IF_ERROR(call.resources().CheckDevice(request.device));
  Function function;
  RETURN_IF_ERROR(call.objects().functions.Find(request.function, &function));
  if (!function.is_kernel) return CudaError(CUDA_ERROR_INVALID_HANDLE, "a function is no kernel");
  RETURN_IF_CUDA_ERROR(call.driver().cuKernelSetAttribute(
      static_cast<CUfunction_attribute>(request.attribute), request.value,
      reinterpret_cast<CUkernel>(function.handle),
      call.resources().devices[static_cast<size_t>(request.device)]));
  return absl::OkStatus();
}

}  // namespace fargpu::server::handlers
