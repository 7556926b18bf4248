// Links of code by the program (cuLink*). The inputs go to the card's machine, which links; the
// image comes back, because the program may keep it.
#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "client/cuda/arguments.h"
#include "client/cuda/edge.h"
#include "client/cuda/image_file.h"
#include "client/cuda/image_upload.h"
#include "client/cuda/session.h"
#include "client_api.h"
#include "protocol/driver_abi/image.h"

namespace fargpu::client::api {
namespace {

absl::Status CheckInputType(CUjitInputType type) {
  switch (type) {
    case CU_JIT_INPUT_PTX:
    case CU_JIT_INPUT_FATBINARY:
    case CU_JIT_INPUT_CUBIN:
    case CU_JIT_INPUT_OBJECT:
    case CU_JIT_INPUT_LIBRARY:
      return absl::OkStatus();
    case CU_JIT_INPUT_NVVM:
      return CudaError(CUDA_ERROR_NOT_SUPPORTED, "linking of NVVM code");
    default:
      return CudaError(CUDA_ERROR_INVALID_VALUE,
                       absl::StrCat("input type ", static_cast<int>(type)));
  }
}

// A fat binary may be given as the wrapper that the compiler puts around it, whose pointers mean
// nothing elsewhere.
absl::StatusOr<absl::Span<const char>> BytesOf(CUjitInputType type, const void* data, size_t size) {
  const auto bytes = absl::MakeConstSpan(static_cast<const char*>(data), size);
  if (type != CU_JIT_INPUT_FATBINARY) return bytes;
  ASSIGN_OR_RETURN(const driver_abi::Image image, driver_abi::ImageParts(data));
  return image.parts.front();
}

absl::Status AddInput(Session& session, Link* link, CUjitInputType type,
                      absl::Span<const char> bytes, const char* name, unsigned count,
                      const CUjit_option* options, void* const* values) {
  ASSIGN_OR_RETURN(JitOptions jit, TakeJitOptions(count, options, values));
  RETURN_IF_ERROR(session.SendBulk(bytes, [&](size_t offset, size_t) {
    return wire::LinkInputPartRequest{.link = link->id, .offset = offset};
  }));
  std::string label = name == nullptr ? "(no name)" : name;
  label.resize(std::min(label.size(), wire::kMaxStringBytes));
  wire::LinkAddDataV2Request request{.link = link->id,
                                     .type = type,
                                     .bytes = bytes.size(),
                                     .name = std::move(label),
                                     .options = std::move(jit.options),
                                     .values = std::move(jit.values)};
  wire::LinkAddDataV2Reply reply;
  RETURN_IF_ERROR(session.Call(request, &reply));
  const auto result = static_cast<CUresult>(reply.result);
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  GiveJitLogs(link->option_count, link->options, link->values, reply.info_log, reply.error_log);
  return CudaError(result, absl::StrCat("the input is refused: ", reply.error_log));
}

absl::Status FetchImage(Session& session, Link* link, size_t bytes) {
  std::vector<char> image(bytes);
  for (size_t offset = 0; offset < bytes; offset += Session::kChunkBytes) {
    const size_t size = std::min(Session::kChunkBytes, bytes - offset);
    PendingReply pending;
    pending.bulk = absl::MakeSpan(image).subspan(offset, size);
    RETURN_IF_ERROR(session.Send(
        wire::LinkOutputPartRequest{.link = link->id, .offset = offset, .bytes = size}, &pending));
    session.calls().CountRoundTrip();
    RETURN_IF_ERROR(session.calls().Wait(&pending));
    RETURN_IF_ERROR(session.ResultOf("LinkOutputPart", pending));
  }
  link->image = std::move(image);
  return absl::OkStatus();
}

}  // namespace

CUresult cuLinkCreate_v2(unsigned int numOptions, CUjit_option* options, void** optionValues,
                         CUlinkState* stateOut) {
  return AtCudaEdge("cuLinkCreate_v2", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    RETURN_IF_ERROR(NotNull(stateOut, "stateOut"));
    ASSIGN_OR_RETURN(JitOptions jit, TakeJitOptions(numOptions, options, optionValues));
    ASSIGN_OR_RETURN(Link * link, session.NewLink());
    wire::LinkCreateV2Request request{
        .link = link->id, .options = std::move(jit.options), .values = std::move(jit.values)};
    wire::LinkCreateV2Reply reply;
    if (absl::Status made = session.Call(request, &reply); !made.ok()) {
      session.Delete(link);
      return made;
    }
    link->option_count = numOptions;
    link->options = options;
    link->values = optionValues;
    *stateOut = link->handle;
    return absl::OkStatus();
  });
}

CUresult cuLinkCreate(unsigned int numOptions, CUjit_option* options, void** optionValues,
                      CUlinkState* stateOut) {
  return api::cuLinkCreate_v2(numOptions, options, optionValues, stateOut);
}

CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void* data, size_t size,
                          const char* name, unsigned int numOptions, CUjit_option* options,
                          void** optionValues) {
  return AtCudaEdge("cuLinkAddData_v2", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    ASSIGN_OR_RETURN(Link * link, session.FindLink(state));
    RETURN_IF_ERROR(NotNull(data, "data"));
    if (size == 0) return CudaError(CUDA_ERROR_INVALID_VALUE, "no data");
    RETURN_IF_ERROR(CheckInputType(type));
    ASSIGN_OR_RETURN(const absl::Span<const char> bytes, BytesOf(type, data, size));
    return AddInput(session, link, type, bytes, name, numOptions, options, optionValues);
  });
}

CUresult cuLinkAddData(CUlinkState state, CUjitInputType type, void* data, size_t size,
                       const char* name, unsigned int numOptions, CUjit_option* options,
                       void** optionValues) {
  return api::cuLinkAddData_v2(state, type, data, size, name, numOptions, options, optionValues);
}

CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char* path,
                          unsigned int numOptions, CUjit_option* options, void** optionValues) {
  return AtCudaEdge("cuLinkAddFile_v2", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    ASSIGN_OR_RETURN(Link * link, session.FindLink(state));
    RETURN_IF_ERROR(NotNull(path, "path"));
    RETURN_IF_ERROR(CheckInputType(type));
    ASSIGN_OR_RETURN(const std::string bytes, ReadImageFile(path));
    return AddInput(session, link, type, absl::MakeConstSpan(bytes.data(), bytes.size()), path,
                    numOptions, options, optionValues);
  });
}

CUresult cuLinkAddFile(CUlinkState state, CUjitInputType type, const char* path,
                       unsigned int numOptions, CUjit_option* options, void** optionValues) {
  return api::cuLinkAddFile_v2(state, type, path, numOptions, options, optionValues);
}

CUresult cuLinkComplete(CUlinkState state, void** cubinOut, size_t* sizeOut) {
  return AtCudaEdge("cuLinkComplete", [&](Session& session) -> absl::Status {
    RETURN_IF_ERROR(session.CurrentActive().status());
    ASSIGN_OR_RETURN(Link * link, session.FindLink(state));
    RETURN_IF_ERROR(NotNull(cubinOut, "cubinOut"));
    wire::LinkCompleteRequest request{.link = link->id};
    wire::LinkCompleteReply reply;
    RETURN_IF_ERROR(session.Call(request, &reply));
    GiveJitLogs(link->option_count, link->options, link->values, reply.info_log, reply.error_log);
    RETURN_IF_ERROR(FromCuResult(static_cast<CUresult>(reply.result),
                                 absl::StrCat("nothing is linked: ", reply.error_log)));
    RETURN_IF_ERROR(FetchImage(session, link, reply.bytes));
    *cubinOut = link->image.data();
    if (sizeOut != nullptr) *sizeOut = link->image.size();
    return absl::OkStatus();
  });
}

CUresult cuLinkDestroy(CUlinkState state) {
  return AtCudaEdge("cuLinkDestroy", [&](Session& session) -> absl::Status {
    ASSIGN_OR_RETURN(Link * link, session.FindLink(state));
    const absl::Status sent = session.Send(wire::LinkDestroyRequest{.link = link->id});
    session.Delete(link);
    return sent;
  });
}

}  // namespace fargpu::client::api
