#include "client/cuda/launch_params.h"

#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"

#include "client/cuda/arguments.h"

namespace fargpu::client {
namespace {

absl::Status PackExtra(const Function& function, void** extra, ParameterBytes* bytes) {
  const void* buffer = nullptr;
  const size_t* size = nullptr;
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      buffer = extra[1];
    } else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE) {
      size = static_cast<const size_t*>(extra[1]);
    } else {
      return CudaError(CUDA_ERROR_INVALID_VALUE, "an unknown key in extra");
    }
  }
  if (buffer == nullptr || size == nullptr || *size < function.param_bytes) {
    return CudaError(CUDA_ERROR_INVALID_VALUE,
                     absl::StrCat("extra has ", size != nullptr ? *size : 0, " of the ",
                                  function.param_bytes, " parameter bytes of ", function.name));
  }
  std::memcpy(bytes->data(), buffer, function.param_bytes);
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckGeometry(Session& session, const Function& function, const Geometry& geometry) {
  const auto refuse = [&](const std::string& why) {
    return CudaError(CUDA_ERROR_INVALID_VALUE,
                     absl::StrCat("launch of ", function.name, ": ", why));
  };
  ASSIGN_OR_RETURN(const Context* context, session.CurrentActive());
  const auto limit = [&](int attribute) -> uint64_t {
    const int value = session.devices().Attribute(context->device, attribute);
    // A device that does not tell a limit has none.
    return value > 0 ? static_cast<uint64_t>(value) : std::numeric_limits<uint64_t>::max();
  };
  uint64_t threads = 1;
  for (int i = 0; i < 3; ++i) {
    const uint64_t most_blocks = limit(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + i);
    if (geometry.grid[i] == 0 || geometry.grid[i] > most_blocks) {
      return refuse(
          absl::StrCat("grid dimension ", i, " is ", geometry.grid[i], ", limit ", most_blocks));
    }
    const uint64_t most_threads = limit(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i);
    if (geometry.block[i] == 0 || geometry.block[i] > most_threads) {
      return refuse(
          absl::StrCat("block dimension ", i, " is ", geometry.block[i], ", limit ", most_threads));
    }
    threads *= geometry.block[i];
  }
  const int of_function = function.attribute(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  const uint64_t most = std::min(
      limit(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
      of_function > 0 ? static_cast<uint64_t>(of_function) : std::numeric_limits<uint64_t>::max());
  if (threads > most) return refuse(absl::StrCat(threads, " threads in a block, limit ", most));
  // What the function has raised its limit to, or else what every function may have.
  const auto dynamic = static_cast<uint64_t>(
      std::max(0, function.attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)));
  const uint64_t most_shared =
      std::max(dynamic, limit(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK));
  if (geometry.shared_bytes > most_shared) {
    return refuse(absl::StrCat(geometry.shared_bytes, " bytes of dynamic shared memory, limit ",
                               most_shared));
  }
  return absl::OkStatus();
}

absl::Status PackParameters(const Function& function, void** params, void** extra,
                            ParameterBytes* bytes) {
  if (params != nullptr && extra != nullptr) {
    return CudaError(CUDA_ERROR_INVALID_VALUE, "both kernelParams and extra are given");
  }
  // Gaps between parameters are zero.
  bytes->resize(function.param_bytes);
  if (extra != nullptr) return PackExtra(function, extra, bytes);
  if (params == nullptr && !function.param_offsets.empty()) {
    return CudaError(CUDA_ERROR_INVALID_VALUE,
                     absl::StrCat(function.name, " needs parameters, none are given"));
  }
  for (size_t i = 0; i < function.param_offsets.size(); ++i) {
    if (params[i] == nullptr) {
      return CudaError(CUDA_ERROR_INVALID_VALUE,
                       absl::StrCat("parameter ", i, " of ", function.name, " is null"));
    }
    std::memcpy(bytes->data() + function.param_offsets[i], params[i], function.param_sizes[i]);
  }
  return absl::OkStatus();
}

absl::Status CheckLaunchAttribute(CUlaunchAttributeID id, const CUlaunchAttributeValue& value) {
  switch (id) {
    case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
      if (value.deviceUpdatableKernelNode.deviceUpdatable == 0) return absl::OkStatus();
      return CudaError(CUDA_ERROR_NOT_SUPPORTED, "kernel nodes that the device updates");
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
    case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_IGNORE:
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
    case CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING:
      return absl::OkStatus();
    default:
      return CudaError(CUDA_ERROR_INVALID_VALUE,
                       absl::StrCat("launch attribute ", static_cast<int>(id)));
  }
}

absl::StatusOr<LaunchAttributes> ReadLaunchAttributes(const CUlaunchAttribute* attributes,
                                                      unsigned count) {
  LaunchAttributes read;
  if (count > 0) RETURN_IF_ERROR(NotNull(attributes, "config->attrs"));
  for (unsigned i = 0; i < count; ++i) {
    const CUlaunchAttribute& attribute = attributes[i];
    RETURN_IF_ERROR(CheckLaunchAttribute(attribute.id, attribute.value));
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_IGNORE) continue;
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT) {
      read.event = attribute.value.programmaticEvent.event;
    } else if (attribute.id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT) {
      read.event = attribute.value.launchCompletionEvent.event;
    }
    read.values[attribute.id] = attribute.value;
  }
  return read;
}

std::vector<CUlaunchAttribute> TravellingAttributes(
    const std::map<int, CUlaunchAttributeValue>& values) {
  std::vector<CUlaunchAttribute> travelling;
  for (const auto& [id, value] : values) {
    // Copied by members: padding of the program's struct is nobody's business.
    CUlaunchAttribute copy = {};
    copy.id = static_cast<CUlaunchAttributeID>(id);
    switch (copy.id) {
      case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
        if (value.cooperative == 0) continue;
        copy.value.cooperative = 1;
        break;
      case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
        copy.value.clusterDim = value.clusterDim;
        break;
      case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
        copy.value.clusterSchedulingPolicyPreference = value.clusterSchedulingPolicyPreference;
        break;
      case CU_LAUNCH_ATTRIBUTE_PRIORITY:
        copy.value.priority = value.priority;
        break;
      default:
        continue;
    }
    travelling.push_back(copy);
  }
  return travelling;
}

absl::StatusOr<KernelWork> KernelWorkOf(Session& session, const Function& function,
                                        const Geometry& geometry, void** params, void** extra) {
  RETURN_IF_ERROR(CheckGeometry(session, function, geometry));
  ParameterBytes bytes;
  RETURN_IF_ERROR(PackParameters(function, params, extra, &bytes));
  RETURN_IF_ERROR(session.shared().MapReferenced({bytes.data(), bytes.size()}));
  ASSIGN_OR_RETURN(const Context* context, session.CurrentActive());
  KernelWork work;
  work.context = context->id;
  work.function = function.id;
  work.name = function.name;
  work.param_offsets = function.param_offsets;
  work.grid = geometry.grid;
  work.block = geometry.block;
  work.shared_bytes = geometry.shared_bytes;
  work.params.assign(bytes.begin(), bytes.end());
  return work;
}

}  // namespace fargpu::client
