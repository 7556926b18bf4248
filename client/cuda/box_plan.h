#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <cuda.h>

#include "absl/types/span.h"

#include "protocol/wire/copy_box.h"

namespace fargpu::client {

// A side of a copy as it was found to be.
struct FoundSide {
  enum class Kind { kHost, kDevice, kArray };
  Kind kind = Kind::kHost;
  uint64_t address = 0;  // of the box's first byte; not for arrays
  uint64_t pitch = 0;
  uint64_t slice = 0;  // bytes from slice to slice
  wire::ArrayId array;
  CUarray array_handle = nullptr;
  uint64_t x_bytes = 0, y = 0, z = 0;

  char* host() const { return reinterpret_cast<char*>(address); }
};

// A copy whose sides were found and checked.
struct BoxPlan {
  FoundSide to;
  FoundSide from;
  wire::BoxShape shape;

  bool empty() const { return shape.width == 0 || shape.height == 0 || shape.depth == 0; }
};

// A box in the program's memory, whose bytes go to or come from the worker row by row.
struct HostBox {
  char* address = nullptr;
  uint64_t pitch = 0;
  uint64_t slice = 0;
  wire::BoxShape shape;

  uint64_t bytes() const { return shape.width * shape.height * shape.depth; }
  bool is_close() const {
    return (shape.height <= 1 || pitch == shape.width) &&
           (shape.depth <= 1 || slice == shape.width * shape.height);
  }
  bool Overlaps(const void* memory, size_t count) const {
    const auto begin = reinterpret_cast<uintptr_t>(memory);
    const auto other = reinterpret_cast<uintptr_t>(address);
    const uint64_t extent = (shape.depth - 1) * slice + (shape.height - 1) * pitch + shape.width;
    return begin < other + extent && other < begin + count;
  }
  // Calls visit(memory, offset, size) for the runs that make up `count` bytes from `offset` on.
  template <typename Visit>
  void ForEachRun(uint64_t offset, uint64_t count, Visit visit) const {
    const uint64_t end = offset + count;
    while (offset < end) {
      const uint64_t row = offset / shape.width;
      const uint64_t in_row = offset % shape.width;
      const uint64_t size = std::min(shape.width - in_row, end - offset);
      visit(address + row / shape.height * slice + row % shape.height * pitch + in_row, offset,
            size);
      offset += size;
    }
  }
};

inline HostBox HostBoxOf(const FoundSide& side, const wire::BoxShape& shape) {
  return {.address = side.host(), .pitch = side.pitch, .slice = side.slice, .shape = shape};
}

// A copy within the program's memory.
inline void CopyInMemory(const FoundSide& to, const FoundSide& from, const wire::BoxShape& shape) {
  for (uint64_t z = 0; z < shape.depth; ++z) {
    for (uint64_t y = 0; y < shape.height; ++y) {
      std::memmove(to.host() + z * to.slice + y * to.pitch,
                   from.host() + z * from.slice + y * from.pitch, shape.width);
    }
  }
}

}  // namespace fargpu::client
