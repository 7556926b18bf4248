#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "protocol/wire/function_info.h"
#include "server/worker/call.h"

namespace fargpu::server::handlers {

// More than any load brings; the client keeps so many ids free for it.
inline constexpr size_t kMaxFunctionsOfALoad = 65536;
// What a load's reply may take of a frame's body.
inline constexpr size_t kMaxFunctionInfoBytes = 900 << 10;

// Asks the driver for all that a client wants to know of a kernel of a library, or of a function of
// a module, and fills the function's layout.
absl::Status DescribeKernel(Call& call, CUkernel kernel, Function* function,
                            wire::FunctionInfo* info);
absl::Status DescribeFunction(Call& call, CUfunction handle, Function* function,
                              wire::FunctionInfo* info);

// Is this the address of a `__managed__` variable? A driver that cannot tell has none.
bool IsManaged(Call& call, CUdeviceptr address);

// About how many bytes `info` takes in a reply.
size_t EncodedBytes(const wire::FunctionInfo& info);

// The JIT options whose values are plain numbers; the others are left out.
struct JitOptions {
  std::vector<CUjit_option> names;
  std::vector<void*> values;
};
// Malformed unless there is a value for each option.
absl::Status ParseJitOptions(Call& call, const std::vector<uint32_t>& names,
                             const std::vector<uint64_t>& values, JitOptions* options);

}  // namespace fargpu::server::handlers
