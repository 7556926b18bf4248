#include "server/driver/loaded_driver.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace fargpu::server {

absl::StatusOr<std::unique_ptr<LoadedDriver>> LoadedDriver::Load(const std::string& path) {
  // Local, so that its symbols meet nobody else's; now, so that what is missing shows here and not
  // inside a session.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return absl::NotFoundError(absl::StrCat("cannot load the driver ", path, ": ",
                                            why != nullptr ? why : "no reason given"));
  }
  if (dlsym(library, "cuInit") == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is no CUDA driver: it has no cuInit"));
  }
  return std::unique_ptr<LoadedDriver>(new LoadedDriver(path, library));
}

void* LoadedDriver::Resolve(const char* symbol) const { return dlsym(library_, symbol); }

}  // namespace fargpu::server
