#pragma once

#include <cstdint>

#include "protocol/wire/codec.h"

namespace fargpu::wire {

// One side of a copy that lies on the card: device memory, or an array.
struct BoxPlace {
  ArrayId array;         // 0: device memory
  uint64_t address = 0;  // device memory: of the box's first byte
  uint64_t pitch = 0;    // device memory: bytes from row to row
  uint64_t rows = 0;     // device memory: rows from slice to slice
  uint64_t x_bytes = 0;  // array: where the box begins
  uint64_t y = 0;
  uint64_t z = 0;
};

// `depth` slices of `height` rows of `width` bytes, the shape of cuMemcpy2D and cuMemcpy3D. On the
// way to or from the client's memory the rows lie close together, so that side needs no place.
struct BoxShape {
  uint64_t width = 0;
  uint64_t height = 0;
  uint64_t depth = 0;
};

}  // namespace fargpu::wire
