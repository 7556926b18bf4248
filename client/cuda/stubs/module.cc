// Modules and their functions.
#include <string>
#include <utility>

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

absl::Status LoadModule(Session& session, CUmodule* module, const void* image, unsigned count,
                        CUjit_option* options, void** values) {
  RETURN_IF_ERROR(NotNull(module, "module"));
  RETURN_IF_ERROR(NotNull(image, "image"));
  RETURN_IF_ERROR(session.CurrentActive().status());
  ASSIGN_OR_RETURN(JitOptions jit, TakeJitOptions(count, options, values));
  wire::ModuleLoadDataExRequest request;
  ASSIGN_OR_RETURN(request.image, SendImage(session, image));
  ASSIGN_OR_RETURN(Module * made, session.NewModule());
  request.module = made->id;
  request.first_function = session.NewFunctionIds();
  request.options = std::move(jit.options);
  request.values = std::move(jit.values);
  wire::ModuleLoadDataExReply reply;
  absl::Status loaded = session.Call(request, &reply);
  if (loaded.ok()) {
    GiveJitLogs(count, options, values, reply.info_log, reply.error_log);
    loaded = FromCuResult(static_cast<CUresult>(reply.result),
                          absl::StrCat("the image does not load: ", reply.error_log));
  }
  if (loaded.ok()) {
    MutexLock lock(&made->functions.mutex);
    made->functions.first = request.first_function;
    loaded = AddListedFunctions(session, &made->functions, reply.functions);
  }
  if (!loaded.ok()) {
    session.Delete(made);
    return loaded;
  }
  *module = made->handle;
  return absl::OkStatus();
}

// A module that belongs to a library has the library's functions.
absl::StatusOr<std::vector<CUfunction>> ListFunctions(Session& session, CUmodule mod) {
  ASSIGN_OR_RETURN(Module * module, session.FindModule(mod));
  std::vector<CUfunction> handles;
  if (module->library != nullptr) {
    ASSIGN_OR_RETURN(Library * library, session.FindLibrary(module->library));
    FunctionSet& set = library->functions;
    MutexLock lock(&set.mutex);
    RETURN_IF_ERROR(session.EnsureLoaded(&set));
    for (const auto& function : set.functions) handles.push_back(function->handle);
    return handles;
  }
  MutexLock lock(&module->functions.mutex);
  for (size_t i = 0; i < module->functions.listed; ++i) {
    handles.push_back(module->functions.functions[i]->handle);
  }
  return handles;
}

}  // namespace

CUresult cuModuleLoad(CUmodule* module, const char* fname) {
  return AtCudaEdge("cuModuleLoad", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    RETURN_IF_ERROR(NotNull(module, "module"));
    RETURN_IF_ERROR(NotNull(fname, "fname"));
    // The string's final NUL ends PTX text.
    ASSIGN_OR_RETURN(const std::string bytes, ReadImageFile(fname));
    return LoadModule(session, module, bytes.c_str(), 0, nullptr, nullptr);
  });
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return AtCudaEdge("cuModuleLoadData", [&](Session& session) {
    return LoadModule(session, module, image, 0, nullptr, nullptr);
  });
}

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int numOptions,
                            CUjit_option* options, void** optionValues) {
  return AtCudaEdge("cuModuleLoadDataEx", [&](Session& session) {
    return LoadModule(session, module, image, numOptions, options, optionValues);
  });
}

CUresult cuModuleLoadFatBinary(CUmodule* module, const void* fatCubin) {
  return AtCudaEdge("cuModuleLoadFatBinary", [&](Session& session) {
    return LoadModule(session, module, fatCubin, 0, nullptr, nullptr);
  });
}

CUresult cuModuleUnload(CUmodule hmod) {
  return AtCudaEdge("cuModuleUnload", [&](Session& session) -> absl::Status {
    ASSIGN_OR_RETURN(Module * module, session.FindModule(hmod));
    if (module->library != nullptr) {
      return CudaError(CUDA_ERROR_NOT_PERMITTED, "the module belongs to a library");
    }
    const absl::Status sent = session.Send(wire::ModuleUnloadRequest{.module = module->id});
    session.Delete(module);
    return sent;
  });
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  return AtCudaEdge("cuModuleGetLoadingMode", [&](Session&) -> absl::Status {
    RETURN_IF_ERROR(NotNull(mode, "mode"));
    *mode = CU_MODULE_LAZY_LOADING;
    return absl::OkStatus();
  });
}

CUresult cuModuleGetFunction(CUfunction* hfunc, CUmodule hmod, const char* name) {
  return AtCudaEdge("cuModuleGetFunction", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    RETURN_IF_ERROR(NotNull(hfunc, "hfunc"));
    RETURN_IF_ERROR(NotNull(name, "name"));
    ASSIGN_OR_RETURN(Module * module, session.FindModule(hmod));
    FunctionSet* set = &module->functions;
    if (module->library != nullptr) {
      ASSIGN_OR_RETURN(Library * library, session.FindLibrary(module->library));
      set = &library->functions;
      MutexLock lock(&set->mutex);
      RETURN_IF_ERROR(session.EnsureLoaded(set));
    }
    MutexLock lock(&set->mutex);
    if (const Function* known = FindByName(*set, name)) {
      *hfunc = known->handle;
      return absl::OkStatus();
    }
    wire::ModuleGetFunctionRequest request{
        .module = module->id, .name = name, .function = {session.NewId()}};
    wire::ModuleGetFunctionReply reply;
    RETURN_IF_ERROR(session.Call(request, &reply));
    reply.info.name = name;
    const absl::StatusOr<Function*> added = session.AddFunction(set, reply.info, request.function);
    if (absl::IsInvalidArgument(added.status())) {
      session.calls().Distrust(added.status());
      return session.calls().status();
    }
    RETURN_IF_ERROR(added.status());
    *hfunc = (*added)->handle;
    return absl::OkStatus();
  });
}

CUresult cuModuleGetFunctionCount(unsigned int* count, CUmodule mod) {
  return AtCudaEdge("cuModuleGetFunctionCount", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    RETURN_IF_ERROR(NotNull(count, "count"));
    ASSIGN_OR_RETURN(const std::vector<CUfunction> functions, ListFunctions(session, mod));
    *count = static_cast<unsigned>(functions.size());
    return absl::OkStatus();
  });
}

CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned int numFunctions,
                                    CUmodule mod) {
  return AtCudaEdge("cuModuleEnumerateFunctions", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    RETURN_IF_ERROR(NotNull(functions, "functions"));
    ASSIGN_OR_RETURN(const std::vector<CUfunction> all, ListFunctions(session, mod));
    std::copy_n(all.begin(), std::min<size_t>(all.size(), numFunctions), functions);
    return absl::OkStatus();
  });
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr* dptr, size_t* bytes, CUmodule hmod, const char* name) {
  return AtCudaEdge("cuModuleGetGlobal_v2", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(name, "name"));
    ASSIGN_OR_RETURN(const Module* module, session.FindModule(hmod));
    wire::ModuleGetGlobalV2Request request{.module = module->id, .name = name};
    wire::ModuleGetGlobalV2Reply reply;
    RETURN_IF_ERROR(session.Call(request, &reply));
    if (reply.managed) {
      RETURN_IF_ERROR(RememberManagedVariable(session, reply.dptr, reply.bytes, module));
    } else {
      RememberVariable(session, reply.dptr, reply.bytes);
    }
    if (dptr != nullptr) *dptr = reply.dptr;
    if (bytes != nullptr) *bytes = reply.bytes;
    return absl::OkStatus();
  });
}

CUresult cuFuncGetAttribute(int* pi, CUfunction_attribute attrib, CUfunction hfunc) {
  return AtCudaEdge("cuFuncGetAttribute", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    RETURN_IF_ERROR(NotNull(pi, "pi"));
    ASSIGN_OR_RETURN(const Function* function, session.FindFunction(hfunc));
    return FunctionAttribute(*function, attrib, pi);
  });
}

CUresult cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value) {
  return AtCudaEdge("cuFuncSetAttribute", [&](Session& session) -> absl::Status {
    ASSIGN_OR_RETURN(Function * function, session.FindFunction(hfunc));
    ASSIGN_OR_RETURN(const Context* context, session.CurrentActive());
    RETURN_IF_ERROR(SetFunctionAttribute(session, *function, attrib, value, context->device));
    return session.Send(wire::FuncSetAttributeRequest{
        .function = function->id, .attribute = attrib, .value = value});
  });
}

// Hints that change no result; current cards ignore them.
CUresult cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config) {
  return AtCudaEdge("cuFuncSetCacheConfig", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    RETURN_IF_ERROR(session.FindFunction(hfunc).status());
    return CheckCacheConfig(config);
  });
}

CUresult cuFuncSetSharedMemConfig(CUfunction hfunc, CUsharedconfig config) {
  return AtCudaEdge("cuFuncSetSharedMemConfig", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    return session.FindFunction(hfunc).status();
  });
}

CUresult cuFuncGetModule(CUmodule* hmod, CUfunction hfunc) {
  return AtCudaEdge("cuFuncGetModule", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    RETURN_IF_ERROR(NotNull(hmod, "hmod"));
    ASSIGN_OR_RETURN(const Function* function, session.FindFunction(hfunc));
    if (function->module == nullptr) {
      return FromCuResult(api::cuLibraryGetModule(hmod, function->library), "module of a kernel");
    }
    *hmod = function->module;
    return absl::OkStatus();
  });
}

CUresult cuFuncGetName(const char** name, CUfunction hfunc) {
  return AtCudaEdge("cuFuncGetName", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(name, "name"));
    ASSIGN_OR_RETURN(const Function* function, session.FindFunction(hfunc));
    *name = function->name.c_str();
    return absl::OkStatus();
  });
}

CUresult cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t* paramOffset,
                            size_t* paramSize) {
  return AtCudaEdge("cuFuncGetParamInfo", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(NotNull(paramOffset, "paramOffset"));
    ASSIGN_OR_RETURN(const Function* function, session.FindFunction(func));
    return FunctionParameter(*function, paramIndex, paramOffset, paramSize);
  });
}

// A function that has a handle here is loaded as far as the program can tell.
CUresult cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction function) {
  return AtCudaEdge("cuFuncIsLoaded", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    RETURN_IF_ERROR(NotNull(state, "state"));
    RETURN_IF_ERROR(session.FindFunction(function).status());
    *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return absl::OkStatus();
  });
}

CUresult cuFuncLoad(CUfunction function) {
  return AtCudaEdge("cuFuncLoad", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    return session.FindFunction(function).status();
  });
}

}  // namespace fargpu::client::api
