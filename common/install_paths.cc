#include "common/install_paths.h"

#include <unistd.h>

#include <filesystem>
#include <initializer_list>
#include <system_error>

#include "absl/strings/str_cat.h"

#include "common/status_macros.h"

namespace fargpu {
namespace {

absl::StatusOr<std::string> BinDir() {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::NotFoundError(absl::StrCat("read /proc/self/exe: ", error.message()));
  return program.parent_path().string();
}

// The folder of `file` in the first of `folders`, each relative to `bin_dir`, that holds it.
absl::StatusOr<std::string> FindFolder(const std::string& bin_dir, const std::string& file,
                                       std::initializer_list<const char*> folders) {
  std::string looked;
  for (const char* folder : folders) {
    const std::filesystem::path path = (std::filesystem::path(bin_dir) / folder).lexically_normal();
    if (access((path / file).c_str(), R_OK) == 0) return path.string();
    absl::StrAppend(&looked, looked.empty() ? "" : " and ", path.string());
  }
  return absl::NotFoundError(absl::StrCat("no ", file, " in ", looked));
}

}  // namespace

absl::StatusOr<std::string> ProgramPath(absl::string_view name) {
  ASSIGN_OR_RETURN(const std::string bin_dir, BinDir());
  const std::string path = absl::StrCat(bin_dir, "/", name);
  if (access(path.c_str(), X_OK) != 0) {
    return absl::NotFoundError(absl::StrCat("no program ", path));
  }
  return path;
}

absl::StatusOr<std::string> ClientLibraryDirFrom(const std::string& bin_dir) {
  return FindFolder(bin_dir, "libcuda.so.1", {"../lib/fargpu/client", "../client"});
}

absl::StatusOr<std::string> SoftgpuLibraryPathFrom(const std::string& bin_dir) {
  ASSIGN_OR_RETURN(const std::string folder,
                   FindFolder(bin_dir, "libcuda.so.1", {"../lib/fargpu/softgpu", "../softgpu"}));
  return absl::StrCat(folder, "/libcuda.so.1");
}

absl::StatusOr<std::string> ClientLibraryDir() {
  ASSIGN_OR_RETURN(const std::string bin_dir, BinDir());
  return ClientLibraryDirFrom(bin_dir);
}

absl::StatusOr<std::string> SoftgpuLibraryPath() {
  ASSIGN_OR_RETURN(const std::string bin_dir, BinDir());
  return SoftgpuLibraryPathFrom(bin_dir);
}

}  // namespace fargpu
