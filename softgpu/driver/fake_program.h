#pragma once

#include <functional>
#include <string>

#include "absl/status/status.h"

#include "softgpu/compiler.h"

namespace fargpu::softgpu {

// Takes the place of the compiler half in unit tests: it defines Program::Link(), and kernels are
// functions of the test. A "PTX" text is then a list of lines:
//
//   .version 9.0                  first line, so that the text is recognised as PTX
//   .entry NAME                   a kernel that RegisterFakeKernel() knows
//   .global NAME BYTES VALUE      a variable, each byte VALUE at first
//   .managed NAME BYTES VALUE
//   .error MESSAGE                linking fails with that message
using FakeKernelBody = std::function<absl::Status(const LaunchConfig&)>;

// `info.name` names the kernel; a second one of that name replaces the first.
void RegisterFakeKernel(KernelInfo info, FakeKernelBody body);
// A kernel whose parameters have the given sizes, laid out with their natural alignment.
KernelInfo FakeKernelInfo(std::string name, std::vector<uint32_t> param_sizes);

// The parameter of a launch at `index` of kernel `info`.
template <typename T>
T FakeParam(const KernelInfo& info, const LaunchConfig& config, size_t index) {
  T value;
  __builtin_memcpy(&value, config.params.data() + info.params[index].offset, sizeof(value));
  return value;
}

}  // namespace fargpu::softgpu
