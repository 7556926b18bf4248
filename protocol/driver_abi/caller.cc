#include "protocol/driver_abi/caller.h"

#include <dlfcn.h>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace fargpu::driver_abi {

Caller CallerOfFile(const char* path) {
  absl::string_view name = path == nullptr ? "" : path;
  if (const size_t slash = name.rfind('/'); slash != absl::string_view::npos) {
    name.remove_prefix(slash + 1);
  }
  for (absl::string_view prefix :
       {"libcublas", "libcudnn", "libcufft", "libcurand", "libcusolver", "libcusparse",
        "libcutensor", "libnccl", "libnpp", "libnvjpeg", "fargpu"}) {
    if (absl::StartsWith(name, prefix)) return Caller::kLibrary;
  }
  return Caller::kProgram;
}

Caller CallerOf(const void* return_address) {
  Dl_info info = {};
  if (dladdr(return_address, &info) == 0) return Caller::kProgram;
  return CallerOfFile(info.dli_fname);
}

}  // namespace fargpu::driver_abi
