#pragma once

#include <string>
#include <vector>

#include "world.h"

namespace fargpu::conformance {

// One entry point of the driver.
struct Row {
  const char* function;
  std::vector<const char*> arguments;
  std::vector<const char*> cases;  // "good", or "argument=variant"
  CUresult (*call)(Arguments&);
};

// All entry points of cuda.h.
const std::vector<Row>& Rows();

}  // namespace fargpu::conformance
