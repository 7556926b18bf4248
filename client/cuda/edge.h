#pragma once

#include <cuda.h>
#include <memory>
#include <new>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/no_cancellation.h"

// The edge between the program and us: what is extern "C" goes through here, so that no exception
// crosses it, every error is a CUresult, and calls that come too early or too late get CUDA's
// answers.
#define FARGPU_EXPORT __attribute__((visibility("default")))

namespace fargpu::client {

class Session;
struct SessionParts;

// The process's session: CUDA_ERROR_NOT_INITIALIZED before cuInit and in the child of a fork after
// it, CUDA_ERROR_DEINITIALIZED when the process has all but ended.
CUresult EnterEdge(Session** session) noexcept;
// Logs what was no success (FARGPU_LOG=debug).
CUresult LeaveEdge(const char* name, const absl::Status& status) noexcept;
CUresult LeaveEdgeAfterException(const char* name, CUresult result) noexcept;

// Runs `function`, an absl::Status(Session&), as the body of the entry point `name`.
template <typename Function>
CUresult AtCudaEdge(const char* name, Function&& function) noexcept {
  const NoCancellation whole;
  Session* session = nullptr;
  if (const CUresult result = EnterEdge(&session); result != CUDA_SUCCESS) return result;
  try {
    const absl::Status status = function(*session);
    if (status.ok()) return CUDA_SUCCESS;
    return LeaveEdge(name, status);
  } catch (const std::bad_alloc&) {
    return LeaveEdgeAfterException(name, CUDA_ERROR_OUT_OF_MEMORY);
  } catch (...) {
    return LeaveEdgeAfterException(name, CUDA_ERROR_UNKNOWN);
  }
}

// The body of an entry point that is not supported.
CUresult RefuseCall(const char* name, CUresult refusal) noexcept;

// The body of cuInit: connects once per process. CUDA_ERROR_NO_DEVICE, and one line at
// FARGPU_LOG=info, if there is no server or it refuses.
CUresult InitProcess(unsigned flags) noexcept;

// For what asks outside of calls (export tables): nullptr unless cuInit succeeded.
Session* SessionOrNull() noexcept;

// Version of the driver that we stand in for. The same before and after cuInit, because the runtime
// puts it into its integrity check, and asks before it connects.
inline constexpr int kDriverVersion = 13000;

// Tests: how cuInit connects, and back to the state before cuInit (the session is destroyed).
using Connector = absl::StatusOr<SessionParts> (*)();
void SetConnectorForTest(Connector connector);
void ResetProcessForTest();

}  // namespace fargpu::client
