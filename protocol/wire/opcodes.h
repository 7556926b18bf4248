#pragma once

#include <cstdint>

namespace fargpu::wire {

// The name of the call with this op, e.g. "cuMemAlloc_v2"; nullptr if there is none.
const char* OpName(uint16_t op);

}  // namespace fargpu::wire
