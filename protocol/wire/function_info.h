#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "protocol/wire/codec.h"

namespace fargpu::wire {

// What a client must know of a kernel to launch it and to answer questions about it locally.
struct FunctionInfo {
  std::string name;
  FunctionId function;  // the worker's choice is never used; echoes the id the client gave, or 0
  // Parameter i lies at param_offsets[i] and has param_sizes[i] bytes in the parameter block.
  std::vector<uint32_t> param_offsets;
  std::vector<uint32_t> param_sizes;
  // CUfunction_attribute 0, 1, 2... in order, as the driver says on the session's first device.
  std::vector<int32_t> attributes;

  template <typename Visitor>
  void VisitFields(Visitor& visitor) {
    visitor(name);
    visitor(function);
    visitor(param_offsets);
    visitor(param_sizes);
    visitor(attributes);
  }
};

}  // namespace fargpu::wire
