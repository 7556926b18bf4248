#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

// A stream has come to what only the client can do: a function of the program, or to give bytes of
// its memory. Bodies of the frames kHostFunction and kHostFunctionDone.
namespace fargpu::wire {

enum class HostRunKind : uint32_t {
  kFunction = 0,  // call it; kHostFunctionDone when it has returned
  kPull = 1,      // send the bytes that `token` names, as the bulk of frames kHostFunctionDone
  kGone = 2,      // nothing that names `token` will come any more; no answer
};

struct HostFunctionRun {
  // Names this run; the client sends it back when the function has returned. 0: nobody waits for
  // the end, because nothing of the stream follows.
  uint64_t run = 0;
  // What the call sent that queued it.
  uint64_t token = 0;
  // CUresult of the work before it. Unless it is CUDA_SUCCESS, host functions are not to be called;
  // callbacks are told.
  int32_t result = 0;
  uint32_t kind = 0;  // HostRunKind
};
static_assert(sizeof(HostFunctionRun) == 24, "as on the wire");

struct HostFunctionDone {
  uint64_t run = 0;
  uint64_t offset = 0;  // of a pull's bytes; the run ends with the last of them
};

// kInvalidArgument: the body is not of that size.
template <typename Body>
absl::Status DecodeFrameBody(absl::Span<const char> body, Body* out) {
  if (body.size() != sizeof(Body)) {
    return absl::InvalidArgumentError(absl::StrCat("a frame of a host function has a body of ",
                                                   body.size(), " bytes instead of ",
                                                   sizeof(Body)));
  }
  std::memcpy(out, body.data(), sizeof(Body));
  return absl::OkStatus();
}
template <typename Body>
absl::Span<const char> FrameBodyOf(const Body& body) {
  return absl::MakeConstSpan(reinterpret_cast<const char*>(&body), sizeof(body));
}

}  // namespace fargpu::wire
