#include "client/cuda/proc_table.h"

#include <cuda.h>
#include <cudaProfiler.h>

namespace fargpu::client {
namespace {

// cuda.h has no prototypes of the per-thread twins. Only their addresses are wanted.
extern "C" {
#define X(name, symbol, since)
#define X_TWIN(name, symbol, since, twin, twin_since) void twin();
#include "proc_address_rows.inc"
#undef X
#undef X_TWIN
}

const driver_abi::ProcRow kRows[] = {
#define X(name, symbol, since) {name, #symbol, since, reinterpret_cast<void*>(&symbol), 0, nullptr},
#define X_TWIN(name, symbol, since, twin, twin_since) \
  {name,       #symbol,                               \
   since,      reinterpret_cast<void*>(&symbol),      \
   twin_since, reinterpret_cast<void*>(&twin)},
#include "proc_address_rows.inc"
#undef X
#undef X_TWIN
};

}  // namespace

const driver_abi::ProcAddressTable& ProcTable() {
  static const auto* const table = new driver_abi::ProcAddressTable(kRows);
  return *table;
}

}  // namespace fargpu::client
