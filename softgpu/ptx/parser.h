#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "softgpu/ptx/ast.h"

namespace fargpu::softgpu::ptx {

// Parses one module. Time is linear in the text. kInvalidArgument, with "line L, column C: what"
// for the first mistake. Instructions are checked for their form only: an opcode or a modifier
// that nobody knows is the emitter's business, when a kernel that holds it is launched.
absl::StatusOr<std::unique_ptr<Module>> ParseModule(std::string source);

}  // namespace fargpu::softgpu::ptx
