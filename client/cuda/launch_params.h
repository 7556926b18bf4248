#pragma once

#include <array>
#include <cuda.h>
#include <map>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "client/cuda/graph.h"
#include "client/cuda/session.h"

// What launches and kernel nodes of graphs share: shape, parameters, attributes. What CUDA refuses
// at once is refused here.
namespace fargpu::client {

struct Geometry {
  std::array<unsigned, 3> grid;
  std::array<unsigned, 3> block;
  unsigned shared_bytes;
};

// Parameters of most kernels fit without an allocation.
using ParameterBytes = absl::InlinedVector<char, 512>;

absl::Status CheckGeometry(Session& session, const Function& function, const Geometry& geometry);
absl::Status PackParameters(const Function& function, void** params, void** extra,
                            ParameterBytes* bytes);

// Attributes of a launch: all that were given, and the event that one of them wants recorded when
// the kernel has ended.
struct LaunchAttributes {
  std::map<int, CUlaunchAttributeValue> values;  // by CUlaunchAttributeID
  CUevent event = nullptr;
};
// CUDA_ERROR_INVALID_VALUE for what is no attribute, CUDA_ERROR_NOT_SUPPORTED for what would change
// what the program can observe and cannot be kept.
absl::Status CheckLaunchAttribute(CUlaunchAttributeID id, const CUlaunchAttributeValue& value);
absl::StatusOr<LaunchAttributes> ReadLaunchAttributes(const CUlaunchAttribute* attributes,
                                                      unsigned count);
// Those that travel; the others only change speed.
std::vector<CUlaunchAttribute> TravellingAttributes(
    const std::map<int, CUlaunchAttributeValue>& values);

// A kernel node that does what a launch in the current context would do.
absl::StatusOr<KernelWork> KernelWorkOf(Session& session, const Function& function,
                                        const Geometry& geometry, void** params, void** extra);

}  // namespace fargpu::client
