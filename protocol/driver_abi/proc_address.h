#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda.h>
#include <memory>
#include <vector>

#include "absl/types/span.h"

namespace fargpu::driver_abi {

// One exported function under the name that programs ask cuGetProcAddress for. A name has one row
// for each ABI that it has had, e.g. cuMemAlloc: {2000, cuMemAlloc} and {3020, cuMemAlloc_v2}.
struct ProcRow {
  const char* name;    // "cuMemAlloc"
  const char* symbol;  // "cuMemAlloc_v2"
  int since;           // first CUDA version with this ABI, e.g. 3020
  void* function;      // nullptr: this ABI exists but we do not offer it
  int twin_since;      // first version of the per-thread-default-stream twin; 0 if it has none
  void* twin;          // symbol_ptds or symbol_ptsz; nullptr if it has none
};

// What the runtime gets in place of a function, where it must behave otherwise for it.
struct ProcReplacement {
  void* function;
  void* for_runtime;
};

// Answers cuGetProcAddress_v2 from rows that never change. Immutable after construction: lookups
// take no lock and allocate nothing.
class ProcAddressTable {
 public:
  // `rows`, in any order, must outlive the table. Programs keep one for ever (leaked on purpose).
  explicit ProcAddressTable(absl::Span<const ProcRow> rows,
                            std::vector<ProcReplacement> replacements = {});

  // The newest ABI of `name` whose `since` is at most `version`, or its twin if `flags` asks for
  // the per-thread default stream and that twin is old enough. CUDA_ERROR_NOT_FOUND, with
  // `*function` null and `*status` saying why, if there is none; CUDA_ERROR_INVALID_VALUE for null
  // arguments or flags that cuda.h does not define. `status` may be null. To a thread on which the
  // runtime starts up, replacements are given.
  CUresult Find(const char* name, int version, cuuint64_t flags, void** function,
                CUdriverProcAddressQueryResult* status) const;

 private:
  struct Bucket {
    uint32_t hash = 0;
    uint32_t first = 0;  // index into rows_
    uint32_t count = 0;  // 0: empty bucket
  };

  // Rows of one name lie together, newest first.
  std::vector<const ProcRow*> rows_;
  std::vector<Bucket> buckets_;  // open addressing, a power of two, at most half full
  const std::vector<ProcReplacement> replacements_;
};

// NVIDIA's runtime asks for the name "" of version 0 first, then for all of its functions on the
// same thread, then for an export table (found by experiment, for 12.x and 13.0). Called at the end
// of that.
void RuntimeHasItsFunctions();

}  // namespace fargpu::driver_abi
