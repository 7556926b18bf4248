#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "softgpu/ptx/ast.h"

namespace fargpu::softgpu::ptx {

// Bytes of text up to which kBySize means kAtOnce.
inline constexpr size_t kParsedAtOnce = 1 << 20;

// When the bodies of functions are parsed: at once, so that every mistake is found when the module
// is loaded; or when ParseBody asks for them, because images of libraries hold a thousand kernels
// of which a program uses three. kBySize decides by the length of the text.
enum class Bodies { kBySize, kAtOnce, kWhenUsed };

// Parses one module. Time is linear in the text. kInvalidArgument, with "line L, column C: what"
// for the first mistake. Instructions are checked for their form only: an opcode or a modifier
// that nobody knows is the emitter's business, when a kernel that holds it is launched.
absl::StatusOr<std::unique_ptr<Module>> ParseModule(std::string source,
                                                    Bodies bodies = Bodies::kBySize);

// Parses the body of a function of `module`, unless that is done. Errors as above; after an error
// the body is useless. Not to be called from two threads for one function.
absl::Status ParseBody(const Module& module, Function* function);

}  // namespace fargpu::softgpu::ptx
