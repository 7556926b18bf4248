#include "client/cuda/proc_table.h"

#include <cuda.h>
#include <cudaProfiler.h>

#include "protocol/driver_abi/runtime_launch.h"

namespace fargpu::client {
// cuda.h has prototypes of some per-thread twins only. Their addresses are all that is wanted, so
// they get names of ours.
#define X(name, symbol, since)
#define X_TWIN(name, symbol, since, twin, twin_since) void AddressOf_##twin() asm(#twin);
#include "proc_address_rows.inc"
#undef X
#undef X_TWIN

namespace {

const driver_abi::ProcRow kRows[] = {
#define X(name, symbol, since) {name, #symbol, since, reinterpret_cast<void*>(&symbol), 0, nullptr},
#define X_TWIN(name, symbol, since, twin, twin_since) \
  {name,       #symbol,                               \
   since,      reinterpret_cast<void*>(&symbol),      \
   twin_since, reinterpret_cast<void*>(&AddressOf_##twin)},
#include "proc_address_rows.inc"
#undef X
#undef X_TWIN
};

}  // namespace

const driver_abi::ProcAddressTable& ProcTable() {
  static const auto* const table =
      new driver_abi::ProcAddressTable(kRows, driver_abi::LaunchesForRuntime());
  return *table;
}

}  // namespace fargpu::client
