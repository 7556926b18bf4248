#include "client/cuda/functions.h"

#include "absl/strings/str_cat.h"

namespace fargpu::client {

absl::Status FunctionAttribute(const Function& function, CUfunction_attribute attribute,
                               int* value) {
  if (attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX) {
    return CudaError(CUDA_ERROR_INVALID_VALUE,
                     absl::StrCat("function attribute ", static_cast<int>(attribute)));
  }
  *value = function.attribute(attribute);
  return absl::OkStatus();
}

absl::Status SetFunctionAttribute(Session& session, Function& function,
                                  CUfunction_attribute attribute, int value, CUdevice device) {
  const auto refuse = [&](const char* why) {
    return CudaError(CUDA_ERROR_INVALID_VALUE,
                     absl::StrCat("attribute ", static_cast<int>(attribute), " of ", function.name,
                                  " to ", value, ": ", why));
  };
  switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: {
      const int limit = session.devices().Attribute(
                            device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN) -
                        function.attribute(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
      if (value < 0 || value > limit) return refuse("over the device's limit");
      break;
    }
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
      if (value < -1 || value > 100) return refuse("no percentage");
      break;
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
      break;
    default:
      return refuse("it cannot be set");
  }
  if (attribute < function.attribute_count) {
    function.attributes[attribute].store(value, std::memory_order_relaxed);
  }
  return absl::OkStatus();
}

absl::Status FunctionParameter(const Function& function, size_t index, size_t* offset,
                               size_t* size) {
  if (index >= function.param_offsets.size()) {
    return CudaError(CUDA_ERROR_INVALID_VALUE,
                     absl::StrCat("parameter ", index, " of ", function.param_offsets.size(),
                                  " of ", function.name));
  }
  *offset = function.param_offsets[index];
  if (size != nullptr) *size = function.param_sizes[index];
  return absl::OkStatus();
}

absl::Status AddListedFunctions(Session& session, FunctionSet* set,
                                const std::vector<wire::FunctionInfo>& infos) {
  for (size_t i = 0; i < infos.size(); ++i) {
    const absl::StatusOr<Function*> added =
        session.AddFunction(set, infos[i], wire::FunctionId{set->first.value + i});
    if (absl::IsInvalidArgument(added.status())) {
      session.calls().Distrust(added.status());
      return session.calls().status();
    }
    RETURN_IF_ERROR(added.status());
  }
  set->listed = set->functions.size();
  return absl::OkStatus();
}

Function* FindByName(FunctionSet& set, absl::string_view name) {
  const auto it = set.by_name.find(name);
  return it != set.by_name.end() ? it->second : nullptr;
}

absl::Status RememberManagedVariable(Session& session, CUdeviceptr address, size_t bytes,
                                     const void* owner) {
  if (address == 0 || bytes == 0) return absl::OkStatus();
  RETURN_IF_ERROR(session.shared().AddVariable(address, bytes, owner));
  // It may be there already: programs ask more than once.
  session.device_memory()
      .Insert({.begin = address, .bytes = bytes, .managed = true, .variable = true})
      .IgnoreError();
  return absl::OkStatus();
}

void RememberVariable(Session& session, CUdeviceptr address, size_t bytes) {
  const absl::StatusOr<Context*> context = session.CurrentActive();
  if (!context.ok() || address == 0 || bytes == 0) return;
  // It may be there already: programs ask more than once.
  session.device_memory()
      .Insert({.begin = address,
               .bytes = bytes,
               .context = (*context)->handle,
               .device = (*context)->device,
               .variable = true})
      .IgnoreError();
}

}  // namespace fargpu::client
