#include "softgpu/standins/forward.h"

#include <dlfcn.h>

#include "softgpu/standins/real_library.h"

namespace fargpu::standins {

void* RealFunction(const char* name) {
  static void* const library = LoadRealLibrary(kIdentity.name, kIdentity.package, kIdentity.major);
  void* const function = library == nullptr ? nullptr : dlsym(library, name);
  return function == nullptr ? kIdentity.missing(name) : function;
}

}  // namespace fargpu::standins

#define STANDIN_EXPORT extern "C" __attribute__((visibility("default")))

// Tells a stand-in from the real one.
STANDIN_EXPORT const int fargpu_stands_in;
const int fargpu_stands_in = 1;

// Generated: one of each per trampoline.
extern "C" const char* const fargpu_forward_names[];
extern "C" void* fargpu_forward_targets[];

// Called by a trampoline that has no target yet.
extern "C" __attribute__((visibility("hidden"))) void* fargpu_forward_resolve(uint32_t index) {
  void* const target = fargpu::standins::RealFunction(fargpu_forward_names[index]);
  __atomic_store_n(&fargpu_forward_targets[index], target, __ATOMIC_RELEASE);
  return target;
}
