// Libraries and their kernels. A load is not waited for: its reply brings what the first question
// about a kernel needs, and is waited for there.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "client/cuda/arguments.h"
#include "client/cuda/edge.h"
#include "client/cuda/functions.h"
#include "client/cuda/image_file.h"
#include "client/cuda/image_upload.h"
#include "client/cuda/session.h"
#include "client_api.h"

namespace fargpu::client::api {
namespace {

// Kernels and functions are one kind of object.
CUfunction AsFunction(CUkernel kernel) { return reinterpret_cast<CUfunction>(kernel); }
CUkernel AsKernel(CUfunction function) { return reinterpret_cast<CUkernel>(function); }

absl::StatusOr<std::vector<CUkernel>> ListKernels(Session& session, CUlibrary lib) {
  ASSIGN_OR_RETURN(Library * library, session.FindLibrary(lib));
  MutexLock lock(&library->functions.mutex);
  RETURN_IF_ERROR(session.EnsureLoaded(&library->functions));
  std::vector<CUkernel> kernels;
  for (const auto& function : library->functions.functions) {
    kernels.push_back(AsKernel(function->handle));
  }
  return kernels;
}

}  // namespace

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* jitOptions,
                           void** jitOptionsValues, unsigned int numJitOptions,
                           CUlibraryOption* libraryOptions, void** libraryOptionValues,
                           unsigned int numLibraryOptions) {
  return AtCudaEdge("cuLibraryLoadData", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(library, "library"));
    RETURN_IF_ERROR(NotNull(code, "code"));
    // Library options say how long the program keeps the image, which is all the same to a copy.
    ASSIGN_OR_RETURN(JitOptions jit, TakeJitOptions(numJitOptions, jitOptions, jitOptionsValues));
    wire::LibraryLoadDataRequest request;
    ASSIGN_OR_RETURN(request.image, SendImage(session, code));
    ASSIGN_OR_RETURN(Library * made, session.NewLibrary());
    request.library = made->id;
    request.first_function = session.NewFunctionIds();
    request.options = std::move(jit.options);
    request.values = std::move(jit.values);
    absl::Status sent;
    {
      MutexLock lock(&made->functions.mutex);
      made->functions.first = request.first_function;
      made->functions.pending = std::make_unique<PendingReply>();
      sent = session.Send(request, made->functions.pending.get());
      if (!sent.ok()) made->functions.pending.reset();
    }
    if (!sent.ok()) {
      session.Delete(made);
      return sent;
    }
    *library = made->handle;
    return absl::OkStatus();
  });
}

CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* fileName, CUjit_option* jitOptions,
                               void** jitOptionsValues, unsigned int numJitOptions,
                               CUlibraryOption* libraryOptions, void** libraryOptionValues,
                               unsigned int numLibraryOptions) {
  return AtCudaEdge("cuLibraryLoadFromFile", [&](Session&) -> absl::Status {
    RETURN_IF_ERROR(NotNull(library, "library"));
    RETURN_IF_ERROR(NotNull(fileName, "fileName"));
    ASSIGN_OR_RETURN(const std::string bytes, ReadImageFile(fileName));
    return FromCuResult(
        api::cuLibraryLoadData(library, bytes.c_str(), jitOptions, jitOptionsValues, numJitOptions,
                               libraryOptions, libraryOptionValues, numLibraryOptions),
        fileName);
  });
}

CUresult cuLibraryUnload(CUlibrary library) {
  return AtCudaEdge("cuLibraryUnload", [&](Session& session) -> absl::Status {
    ASSIGN_OR_RETURN(Library * found, session.FindLibrary(library));
    const absl::Status sent = session.Send(wire::LibraryUnloadRequest{.library = found->id});
    session.Delete(found);
    return sent;
  });
}

CUresult cuLibraryGetKernel(CUkernel* pKernel, CUlibrary library, const char* name) {
  return AtCudaEdge("cuLibraryGetKernel", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(pKernel, "pKernel"));
    RETURN_IF_ERROR(NotNull(name, "name"));
    ASSIGN_OR_RETURN(Library * found, session.FindLibrary(library));
    MutexLock lock(&found->functions.mutex);
    RETURN_IF_ERROR(session.EnsureLoaded(&found->functions));
    const Function* function = FindByName(found->functions, name);
    if (function == nullptr) {
      return CudaError(CUDA_ERROR_NOT_FOUND, absl::StrCat("the library has no kernel ", name));
    }
    *pKernel = AsKernel(function->handle);
    return absl::OkStatus();
  });
}

CUresult cuLibraryGetKernelCount(unsigned int* count, CUlibrary lib) {
  return AtCudaEdge("cuLibraryGetKernelCount", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(count, "count"));
    ASSIGN_OR_RETURN(const std::vector<CUkernel> kernels, ListKernels(session, lib));
    *count = static_cast<unsigned>(kernels.size());
    return absl::OkStatus();
  });
}

CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int numKernels, CUlibrary lib) {
  return AtCudaEdge("cuLibraryEnumerateKernels", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(kernels, "kernels"));
    ASSIGN_OR_RETURN(const std::vector<CUkernel> all, ListKernels(session, lib));
    std::copy_n(all.begin(), std::min<size_t>(all.size(), numKernels), kernels);
    return absl::OkStatus();
  });
}

CUresult cuLibraryGetModule(CUmodule* pMod, CUlibrary library) {
  return AtCudaEdge("cuLibraryGetModule", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(pMod, "pMod"));
    ASSIGN_OR_RETURN(Library * found, session.FindLibrary(library));
    MutexLock lock(&found->mutex);
    // The library outlives contexts; the module it had in one may be gone.
    const absl::StatusOr<Module*> known = session.FindModule(found->module);
    if (!known.ok() || (*known)->library != library) {
      ASSIGN_OR_RETURN(Module * made, session.NewModule());
      made->library = library;
      wire::LibraryGetModuleRequest request{.library = found->id, .module = made->id};
      wire::LibraryGetModuleReply reply;
      if (absl::Status got = session.Call(request, &reply); !got.ok()) {
        session.Delete(made);
        return got;
      }
      found->module = made->handle;
    }
    *pMod = found->module;
    return absl::OkStatus();
  });
}

CUresult cuLibraryGetGlobal(CUdeviceptr* dptr, size_t* bytes, CUlibrary library, const char* name) {
  return AtCudaEdge("cuLibraryGetGlobal", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(name, "name"));
    ASSIGN_OR_RETURN(const Library* found, session.FindLibrary(library));
    wire::LibraryGetGlobalRequest request{.library = found->id, .name = name};
    wire::LibraryGetGlobalReply reply;
    RETURN_IF_ERROR(session.Call(request, &reply));
    if (reply.managed) {
      RETURN_IF_ERROR(RememberManagedVariable(session, reply.dptr, reply.bytes, found));
    } else {
      RememberVariable(session, reply.dptr, reply.bytes);
    }
    if (dptr != nullptr) *dptr = reply.dptr;
    if (bytes != nullptr) *bytes = reply.bytes;
    return absl::OkStatus();
  });
}

// The runtime asks before there is any context.
CUresult cuLibraryGetManaged(CUdeviceptr* dptr, size_t* bytes, CUlibrary library,
                             const char* name) {
  return AtCudaEdge("cuLibraryGetManaged", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(name, "name"));
    if (dptr == nullptr && bytes == nullptr) {
      return CudaError(CUDA_ERROR_INVALID_VALUE, "dptr and bytes are null");
    }
    ASSIGN_OR_RETURN(const Library* found, session.FindLibrary(library));
    wire::LibraryGetManagedRequest request{.library = found->id, .name = name};
    wire::LibraryGetManagedReply reply;
    RETURN_IF_ERROR(session.Call(request, &reply));
    RETURN_IF_ERROR(RememberManagedVariable(session, reply.dptr, reply.bytes, found));
    if (dptr != nullptr) *dptr = reply.dptr;
    if (bytes != nullptr) *bytes = reply.bytes;
    return absl::OkStatus();
  });
}

CUresult cuKernelGetFunction(CUfunction* pFunc, CUkernel kernel) {
  return AtCudaEdge("cuKernelGetFunction", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    RETURN_IF_ERROR(NotNull(pFunc, "pFunc"));
    RETURN_IF_ERROR(session.FindFunction(AsFunction(kernel)).status());
    *pFunc = AsFunction(kernel);
    return absl::OkStatus();
  });
}

CUresult cuKernelGetLibrary(CUlibrary* pLib, CUkernel kernel) {
  return AtCudaEdge("cuKernelGetLibrary", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(pLib, "pLib"));
    ASSIGN_OR_RETURN(const Function* function, session.FindFunction(AsFunction(kernel)));
    if (function->library == nullptr) {
      return CudaError(CUDA_ERROR_INVALID_HANDLE, "the function belongs to a module");
    }
    *pLib = function->library;
    return absl::OkStatus();
  });
}

CUresult cuKernelGetAttribute(int* pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice dev) {
  return AtCudaEdge("cuKernelGetAttribute", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(pi, "pi"));
    RETURN_IF_ERROR(session.devices().Check(dev));
    ASSIGN_OR_RETURN(const Function* function, session.FindFunction(AsFunction(kernel)));
    return FunctionAttribute(*function, attrib, pi);
  });
}

CUresult cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel, CUdevice dev) {
  return AtCudaEdge("cuKernelSetAttribute", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.devices().Check(dev));
    ASSIGN_OR_RETURN(Function * function, session.FindFunction(AsFunction(kernel)));
    RETURN_IF_ERROR(SetFunctionAttribute(session, *function, attrib, val, dev));
    return session.Send(wire::KernelSetAttributeRequest{
        .function = function->id, .attribute = attrib, .value = val, .device = dev});
  });
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev) {
  return AtCudaEdge("cuKernelSetCacheConfig", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.devices().Check(dev));
    RETURN_IF_ERROR(session.FindFunction(AsFunction(kernel)).status());
    return CheckCacheConfig(config);
  });
}

CUresult cuKernelGetName(const char** name, CUkernel hfunc) {
  return api::cuFuncGetName(name, AsFunction(hfunc));
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex, size_t* paramOffset,
                              size_t* paramSize) {
  return api::cuFuncGetParamInfo(AsFunction(kernel), paramIndex, paramOffset, paramSize);
}

}  // namespace fargpu::client::api
