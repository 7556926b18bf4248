#pragma once

#include <cuda.h>
#include <new>

// What the calls of this folder have in common: they run inside a driver library, the client's or
// the software device's, and ask that library's own entry points for all that they do not know.
namespace fargpu::driver_abi::local {

// CUDA_SUCCESS after cuInit, else what the library says before and after its life.
CUresult CheckInitialised();
// As above, and for a calling thread whose current context can be used.
CUresult CheckContext();

#define FARGPU_RETURN_IF_FAILED(call)                                          \
  do {                                                                         \
    if (const CUresult failed = (call); failed != CUDA_SUCCESS) return failed; \
  } while (false)

// Runs `body` and lets no exception out.
template <typename Body>
CUresult AtLocalEdge(Body body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (...) {
    return CUDA_ERROR_UNKNOWN;
  }
}

}  // namespace fargpu::driver_abi::local
