// Links of code by the program (cuLink*).
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "protocol/wire/frame.h"
#include "server/handlers/functions.h"
#include "server_handlers.h"

namespace fargpu::server::handlers {
namespace {

// Larger than any object or library that a program links.
constexpr uint64_t kMaxInputBytes = uint64_t{1} << 30;

std::string TextOf(const std::string& log) { return log.substr(0, log.find('\0')); }

void AddLog(Link* link, CUjit_option buffer, CUjit_option size, std::string* log) {
  log->assign(wire::kMaxStringBytes, '\0');
  link->options.push_back(buffer);
  link->values.push_back(log->data());
  link->options.push_back(size);
  link->values.push_back(reinterpret_cast<void*>(log->size() - 1));
}

}  // namespace

absl::Status LinkCreateV2(const wire::LinkCreateV2Request& request, Call& call,
                          wire::LinkCreateV2Reply* reply) {
  JitOptions options;
  RETURN_IF_ERROR(ParseJitOptions(call, request.options, request.values, &options));
  auto link = std::make_shared<Link>();
  link->options = std::move(options.names);
  link->values = std::move(options.values);
  AddLog(link.get(), CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, &link->info_log);
  AddLog(link.get(), CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, &link->error_log);
  RETURN_IF_CUDA_ERROR(call.driver().cuLinkCreate_v2(static_cast<unsigned>(link->options.size()),
                                                     link->options.data(), link->values.data(),
                                                     &link->handle));
  const CUlinkState handle = link->handle;
  const absl::Status named =
      call.Named(call.objects().links.Insert(request.link, std::move(link), call.header().context));
  if (!named.ok()) call.driver().cuLinkDestroy(handle);
  return named;
}

absl::Status LinkInputPart(const wire::LinkInputPartRequest& request, Call& call,
                           wire::LinkInputPartReply* reply) {
  std::shared_ptr<Link> link;
  RETURN_IF_ERROR(call.objects().links.Find(request.link, &link));
  if (request.offset == 0) link->input.clear();
  if (request.offset != link->input.size()) {
    return call.Malformed(absl::StrCat("a link's input goes on at ", request.offset, ", not at ",
                                       link->input.size()));
  }
  if (link->input.size() + call.bulk().size() > kMaxInputBytes) {
    return CudaError(CUDA_ERROR_OUT_OF_MEMORY,
                     absl::StrCat("an input of more than ", kMaxInputBytes, " bytes"));
  }
  link->input.append(call.bulk().data(), call.bulk().size());
  return absl::OkStatus();
}

absl::Status LinkAddDataV2(const wire::LinkAddDataV2Request& request, Call& call,
                           wire::LinkAddDataV2Reply* reply) {
  JitOptions options;
  RETURN_IF_ERROR(ParseJitOptions(call, request.options, request.values, &options));
  std::shared_ptr<Link> link;
  RETURN_IF_ERROR(call.objects().links.Find(request.link, &link));
  std::string input = std::move(link->input);
  link->input.clear();
  if (input.size() != request.bytes) {
    return CudaError(CUDA_ERROR_INVALID_VALUE, absl::StrCat("an input of ", request.bytes,
                                                            " bytes came with ", input.size()));
  }
  reply->result = static_cast<int32_t>(call.driver().cuLinkAddData_v2(
      link->handle, static_cast<CUjitInputType>(request.type), input.data(), input.size(),
      request.name.c_str(), static_cast<unsigned>(options.names.size()), options.names.data(),
      options.values.data()));
  reply->info_log = TextOf(link->info_log);
  reply->error_log = TextOf(link->error_log);
  return absl::OkStatus();
}

absl::Status LinkComplete(const wire::LinkCompleteRequest& request, Call& call,
                          wire::LinkCompleteReply* reply) {
  std::shared_ptr<Link> link;
  RETURN_IF_ERROR(call.objects().links.Find(request.link, &link));
  void* image = nullptr;
  size_t bytes = 0;
  const CUresult result = call.driver().cuLinkComplete(link->handle, &image, &bytes);
  reply->result = static_cast<int32_t>(result);
  reply->info_log = TextOf(link->info_log);
  reply->error_log = TextOf(link->error_log);
  if (result != CUDA_SUCCESS) return absl::OkStatus();
  link->image = static_cast<const char*>(image);
  link->image_bytes = reply->bytes = bytes;
  return absl::OkStatus();
}

absl::Status LinkOutputPart(const wire::LinkOutputPartRequest& request, Call& call,
                            wire::LinkOutputPartReply* reply) {
  std::shared_ptr<Link> link;
  RETURN_IF_ERROR(call.objects().links.Find(request.link, &link));
  if (request.bytes > wire::kMaxBulkBytes || request.offset > link->image_bytes ||
      request.bytes > link->image_bytes - request.offset) {
    return call.Malformed(absl::StrCat(request.bytes, " bytes at ", request.offset,
                                       " of an image of ", link->image_bytes));
  }
  transport::Message part = transport::NewMessage(request.bytes);
  std::memcpy(part.storage.get(), link->image + request.offset, request.bytes);
  call.SetReplyBulk(std::move(part));
  return absl::OkStatus();
}

absl::Status LinkDestroy(const wire::LinkDestroyRequest& request, Call& call,
                         wire::LinkDestroyReply* reply) {
  std::shared_ptr<Link> link;
  RETURN_IF_ERROR(call.objects().links.Find(request.link, &link));
  call.objects().links.Erase(request.link);
  RETURN_IF_CUDA_ERROR(call.driver().cuLinkDestroy(link->handle));
  return absl::OkStatus();
}

}  // namespace fargpu::server::handlers
