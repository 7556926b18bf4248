#include "server/worker/call.h"

#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"

namespace fargpu::server {

absl::Status Call::Resolve(wire::StreamId id, CUstream* stream) {
  switch (id.value) {
    case 0:
      *stream = nullptr;
      return absl::OkStatus();
    case kLegacyStream:
      *stream = CU_STREAM_LEGACY;
      return absl::OkStatus();
    case kPerThreadStream: {
      // The driver would take the worker's thread for it; what counts is the client's.
      absl::StatusOr<CUstream> own = resources_.thread_streams.Get(header_.context, header_.thread);
      if (!own.ok()) return own.status();
      *stream = *own;
      return absl::OkStatus();
    }
  }
  return objects().streams.Find(id, stream);
}

absl::Status Call::Malformed(absl::string_view why) {
  if (malformed_.ok()) malformed_ = absl::InvalidArgumentError(why);
  return malformed_;
}

absl::Status Call::Named(absl::Status status) {
  if (absl::IsAlreadyExists(status) || absl::IsInvalidArgument(status) ||
      absl::IsResourceExhausted(status)) {
    return Malformed(status.message());
  }
  return status;
}

}  // namespace fargpu::server
