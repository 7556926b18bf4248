#include "client/cuda/image_upload.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

#include "protocol/driver_abi/image.h"

namespace fargpu::client {

absl::StatusOr<wire::ImageId> SendImage(Session& session, const void* image) {
  ASSIGN_OR_RETURN(const driver_abi::Image parts, driver_abi::ImageParts(image));
  wire::SessionImageBeginRequest begin;
  begin.image.value = session.NewId();
  begin.kind = static_cast<uint8_t>(parts.kind);
  for (const absl::Span<const char>& part : parts.parts) begin.part_bytes.push_back(part.size());
  RETURN_IF_ERROR(session.Send(begin));
  for (uint32_t index = 0; index < parts.parts.size(); ++index) {
    RETURN_IF_ERROR(session.SendBulk(parts.parts[index], [&](size_t offset, size_t size) {
      return wire::SessionImagePartRequest{.image = begin.image, .part = index, .offset = offset};
    }));
  }
  return begin.image;
}

absl::StatusOr<JitOptions> TakeJitOptions(unsigned count, const CUjit_option* options,
                                          void* const* values) {
  JitOptions taken;
  if (count > 0 && options == nullptr) {
    return CudaError(CUDA_ERROR_INVALID_VALUE, absl::StrCat(count, " options, but no array"));
  }
  for (unsigned i = 0; i < count; ++i) {
    switch (options[i]) {
      case CU_JIT_INFO_LOG_BUFFER:
      case CU_JIT_ERROR_LOG_BUFFER:
      case CU_JIT_WALL_TIME:
      case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
      case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
        continue;  // outputs: the reply brings the logs anyway
      case CU_JIT_GLOBAL_SYMBOL_NAMES:
      case CU_JIT_GLOBAL_SYMBOL_ADDRESSES:
      case CU_JIT_GLOBAL_SYMBOL_COUNT:
        return CudaError(CUDA_ERROR_NOT_SUPPORTED,
                         absl::StrCat("JIT option ", static_cast<int>(options[i])));
      default:
        taken.options.push_back(static_cast<uint32_t>(options[i]));
        taken.values.push_back(values == nullptr ? 0 : reinterpret_cast<uintptr_t>(values[i]));
    }
  }
  return taken;
}

void GiveJitLogs(unsigned count, const CUjit_option* options, void** values,
                 const std::string& info_log, const std::string& error_log) {
  if (values == nullptr) return;
  const auto give = [&](CUjit_option buffer, CUjit_option size, const std::string& log) {
    char* to = nullptr;
    void** size_value = nullptr;
    for (unsigned i = 0; i < count; ++i) {
      if (options[i] == buffer) to = static_cast<char*>(values[i]);
      if (options[i] == size) size_value = &values[i];
    }
    if (size_value == nullptr) return;
    const auto room = static_cast<size_t>(reinterpret_cast<uintptr_t>(*size_value));
    if (to == nullptr || room == 0) return;
    const size_t length = std::min(room - 1, log.size());
    std::memcpy(to, log.data(), length);
    to[length] = '\0';
    *size_value = reinterpret_cast<void*>(length);
  };
  give(CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, info_log);
  give(CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, error_log);
}

}  // namespace fargpu::client
