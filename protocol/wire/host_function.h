#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

// A stream has come to a function of the program, which can only run where the program is. Body of
// the frames kHostFunction and kHostFunctionDone.
namespace fargpu::wire {

struct HostFunctionRun {
  // Names this run; the client sends it back when the function has returned. 0: nobody waits for
  // the end, because nothing of the stream follows.
  uint64_t run = 0;
  // What cuLaunchHostFunc or cuStreamAddCallback sent.
  uint64_t token = 0;
  // CUresult of the work before it. Unless it is CUDA_SUCCESS, host functions are not to be called;
  // callbacks are told.
  int32_t result = 0;
  int32_t reserved = 0;
};
static_assert(sizeof(HostFunctionRun) == 24, "as on the wire");

struct HostFunctionDone {
  uint64_t run = 0;
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
