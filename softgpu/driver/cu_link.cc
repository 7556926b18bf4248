// Linking of PTX by programs (cuLink*).

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/match.h"

#include "protocol/driver_abi/image.h"
#include "softgpu/driver/edge.h"
#include "softgpu/driver/link_state.h"

namespace fargpu::softgpu {
namespace {

absl::StatusOr<std::shared_ptr<LinkState>> FindState(Driver& driver, CUlinkState handle) {
  if (std::shared_ptr<LinkState> state = driver.links.Find(handle)) return state;
  return InvalidHandle("not a link in progress");
}

absl::Status AddTexts(LinkState& state, const absl::StatusOr<std::vector<std::string>>& texts,
                      absl::string_view name) {
  // What is wrong with an input is said at once, in the log that the program asked for.
  const auto fail = [&](const absl::Status& status, absl::string_view log) {
    state.options.WriteLogs(absl::StrCat("error: input ", name, ": ", log), 0);
    return status;
  };
  if (!texts.ok()) return fail(texts.status(), texts.status().message());
  // The device runtime is built in; any other machine code cannot be run.
  if (texts->empty() && !absl::StrContains(name, "cudadevrt")) {
    return fail(
        CudaError(CUDA_ERROR_NO_BINARY_FOR_GPU, absl::StrCat("input ", name, " holds no PTX")),
        "holds no PTX");
  }
  if (!texts->empty()) {
    std::string log;
    const absl::Status linked = LinkProgram(*texts, &log).status();
    if (!linked.ok()) return fail(linked, log);
  }
  MutexLock lock(&state.mutex);
  state.texts.insert(state.texts.end(), texts->begin(), texts->end());
  state.image.clear();
  return absl::OkStatus();
}

absl::Status CheckInputType(CUjitInputType type) {
  switch (type) {
    case CU_JIT_INPUT_PTX:
    case CU_JIT_INPUT_FATBINARY:
    case CU_JIT_INPUT_CUBIN:
    case CU_JIT_INPUT_OBJECT:
    case CU_JIT_INPUT_LIBRARY:
      return absl::OkStatus();
    case CU_JIT_INPUT_NVVM:
      return NotSupported("linking of NVVM code");
    default:
      return InvalidValue(absl::StrCat("input type ", static_cast<int>(type)));
  }
}

int Capability(Driver& driver) {
  const DeviceSpec& spec = driver.config().devices[0];
  return spec.library_capability_major * 10 + spec.library_capability_minor;
}

CUresult AddData(const char* call, CUlinkState handle, CUjitInputType type, const void* data,
                 size_t size, const char* name, unsigned count, CUjit_option* options,
                 void** values) {
  return WithContext(call, [&](Driver& driver, Context&) -> absl::Status {
    ASSIGN_OR_RETURN(const std::shared_ptr<LinkState> state, FindState(driver, handle));
    RETURN_IF_NULL(data);
    if (size == 0) return InvalidValue("no data");
    RETURN_IF_ERROR(CheckInputType(type));
    RETURN_IF_ERROR(JitOptions::Parse(count, options, values).status());
    const absl::string_view label = name == nullptr ? "(no name)" : name;
    if (type == CU_JIT_INPUT_PTX) {
      // With or without a NUL at the end.
      std::string text(static_cast<const char*>(data), size);
      text.resize(std::min(text.find('\0'), text.size()));
      return AddTexts(*state, ReadPtx(std::move(text)), label);
    }
    if (type == CU_JIT_INPUT_OBJECT || type == CU_JIT_INPUT_LIBRARY) {
      return AddTexts(*state, std::vector<std::string>{}, label);
    }
    return AddTexts(*state, ReadImage(data, Capability(driver)), label);
  });
}

CUresult AddFile(const char* call, CUlinkState handle, CUjitInputType type, const char* path,
                 unsigned count, CUjit_option* options, void** values) {
  return WithContext(call, [&](Driver& driver, Context&) -> absl::Status {
    ASSIGN_OR_RETURN(const std::shared_ptr<LinkState> state, FindState(driver, handle));
    RETURN_IF_NULL(path);
    RETURN_IF_ERROR(CheckInputType(type));
    RETURN_IF_ERROR(JitOptions::Parse(count, options, values).status());
    if (type == CU_JIT_INPUT_OBJECT || type == CU_JIT_INPUT_LIBRARY) {
      if (access(path, R_OK) != 0) {
        return CudaError(CUDA_ERROR_FILE_NOT_FOUND, absl::StrCat("cannot open ", path));
      }
      return AddTexts(*state, std::vector<std::string>{}, path);
    }
    return AddTexts(*state, ReadImageFile(path, Capability(driver)), path);
  });
}

CUresult CreateLink(const char* call, unsigned count, CUjit_option* options, void** values,
                    CUlinkState* out) {
  return WithContext(call, [&](Driver& driver, Context&) -> absl::Status {
    RETURN_IF_NULL(out);
    ASSIGN_OR_RETURN(const JitOptions parsed, JitOptions::Parse(count, options, values));
    auto state = std::make_shared<LinkState>();
    state->options = parsed;
    const CUlinkState handle = driver.links.NewHandle();
    driver.links.Insert(handle, std::move(state));
    *out = handle;
    return absl::OkStatus();
  });
}

}  // namespace
}  // namespace fargpu::softgpu

using namespace fargpu;           // NOLINT: edge functions only
using namespace fargpu::softgpu;  // NOLINT: edge functions only

CU_API CUresult cuLinkCreate(unsigned count, CUjit_option* options, void** values,
                             CUlinkState* out) {
  return CreateLink("cuLinkCreate", count, options, values, out);
}
CU_API CUresult cuLinkCreate_v2(unsigned count, CUjit_option* options, void** values,
                                CUlinkState* out) {
  return CreateLink("cuLinkCreate_v2", count, options, values, out);
}

CU_API CUresult cuLinkAddData(CUlinkState state, CUjitInputType type, void* data, size_t size,
                              const char* name, unsigned count, CUjit_option* options,
                              void** values) {
  return AddData("cuLinkAddData", state, type, data, size, name, count, options, values);
}
CU_API CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void* data, size_t size,
                                 const char* name, unsigned count, CUjit_option* options,
                                 void** values) {
  return AddData("cuLinkAddData_v2", state, type, data, size, name, count, options, values);
}
CU_API CUresult cuLinkAddFile(CUlinkState state, CUjitInputType type, const char* path,
                              unsigned count, CUjit_option* options, void** values) {
  return AddFile("cuLinkAddFile", state, type, path, count, options, values);
}
CU_API CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char* path,
                                 unsigned count, CUjit_option* options, void** values) {
  return AddFile("cuLinkAddFile_v2", state, type, path, count, options, values);
}

// What is given back is PTX again, checked to link; whoever loads it gets it compiled.
CU_API CUresult cuLinkComplete(CUlinkState handle, void** image, size_t* size) {
  return WithContext("cuLinkComplete", [&](Driver& driver, Context&) -> absl::Status {
    ASSIGN_OR_RETURN(const std::shared_ptr<LinkState> state, FindState(driver, handle));
    RETURN_IF_NULL(image);
    MutexLock lock(&state->mutex);
    if (state->image.empty()) {
      const int64_t start = NowNs();
      std::string log;
      absl::Status linked = InvalidValue("nothing was added");
      if (!state->texts.empty()) linked = LinkProgram(state->texts, &log).status();
      state->options.WriteLogs(log, static_cast<float>(NowNs() - start) * 1e-6f);
      RETURN_IF_ERROR(linked);
      state->image = JoinPtx(state->texts);
    }
    *image = state->image.data();
    // With the NUL that ends it.
    if (size != nullptr) *size = state->image.size() + 1;
    return absl::OkStatus();
  });
}

CU_API CUresult cuLinkDestroy(CUlinkState handle) {
  return WithDriver("cuLinkDestroy", [&](Driver& driver) -> absl::Status {
    if (driver.links.Remove(handle) == nullptr) return InvalidHandle("not a link in progress");
    return absl::OkStatus();
  });
}
