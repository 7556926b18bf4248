// Entry points that we do not answer: what concerns a card's hardware, which stands on another
// machine and is shared, or would change it for others. They are there so that programs that were
// linked against the library load; each says NVML_ERROR_NOT_SUPPORTED, as NVIDIA's library does for
// cards that lack a thing.
#include "client/nvml/lease_state.h"

// Whatever arguments a caller passes: they are in registers and on its own stack.
#define FARGPU_NVML_REFUSED(name)                                                    \
  extern "C" FARGPU_NVML_EXPORT nvmlReturn_t name() {                                \
    return fargpu::nvml::LeaseState::Get().initialized() ? NVML_ERROR_NOT_SUPPORTED  \
                                                         : NVML_ERROR_UNINITIALIZED; \
  }
#include "client/nvml/refused_calls.inc"
#undef FARGPU_NVML_REFUSED
