#include "softgpu/driver/compiler_standins.h"

#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <string>

#include "absl/strings/str_cat.h"

#include "common/log.h"
#include "protocol/driver_abi/caller.h"

namespace fargpu::softgpu {

void LoadCompilerStandIns() {
  char program[PATH_MAX] = {};
  if (readlink("/proc/self/exe", program, sizeof(program) - 1) > 0 &&
      driver_abi::CallerOfFile(program) == driver_abi::Caller::kLibrary) {
    return;
  }
  Dl_info self = {};
  if (dladdr(reinterpret_cast<const void*>(&LoadCompilerStandIns), &self) == 0) return;
  std::string folder = self.dli_fname;
  const size_t slash = folder.rfind('/');
  if (slash == std::string::npos) return;
  folder.resize(slash);
  for (const char* const name :
       {"libnvrtc.so.13", "libnvrtc.so.12", "libnvJitLink.so.13", "libnvJitLink.so.12"}) {
    const std::string path = absl::StrCat(folder, "/standins/", name);
    // Installed without them, programs that compile for PTX still work.
    if (access(path.c_str(), R_OK) != 0) continue;
    if (dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL) == nullptr) {
      FARGPU_LOG(kWarning, "no stand-in for ", name, ": ", dlerror());
    }
  }
}

}  // namespace fargpu::softgpu
