#pragma once

#include <cuda.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "client/cuda/session.h"

// What calls about functions and kernels share: one object is both.
namespace fargpu::client {

absl::Status FunctionAttribute(const Function& function, CUfunction_attribute attribute,
                               int* value);
// Checks what CUDA refuses at once, and keeps the value for later questions.
absl::Status SetFunctionAttribute(Session& session, Function& function,
                                  CUfunction_attribute attribute, int value, CUdevice device);
absl::Status FunctionParameter(const Function& function, size_t index, size_t* offset,
                               size_t* size);

// Adds the functions that a load's reply lists.
absl::Status AddListedFunctions(Session& session, FunctionSet* set,
                                const std::vector<wire::FunctionInfo>& infos)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(set->mutex);
// nullptr: none of that name.
Function* FindByName(FunctionSet& set, absl::string_view name)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(set.mutex);

// Makes a `__managed__` variable memory of this process too. `owner` is its Module or Library.
// CUDA_ERROR_OUT_OF_MEMORY if something else lies at its address.
absl::Status RememberManagedVariable(Session& session, CUdeviceptr address, size_t bytes,
                                     const void* owner);

// The address of a module's variable becomes known as device memory.
void RememberVariable(Session& session, CUdeviceptr address, size_t bytes);

}  // namespace fargpu::client
