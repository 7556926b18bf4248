#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace fargpu {

// Where our files are, seen from the running program. Two layouts: an installed tree
// (PREFIX/bin, PREFIX/lib/fargpu/client, PREFIX/lib/fargpu/softgpu) and a build tree (bin, client,
// softgpu beside each other). All paths are absolute. kNotFound names every place looked at.
absl::StatusOr<std::string> ProgramPath(absl::string_view name);  // e.g. "fargpud"
// The folder that holds our libcuda.so.1: for LD_LIBRARY_PATH.
absl::StatusOr<std::string> ClientLibraryDir();
// The software device's driver library.
absl::StatusOr<std::string> SoftgpuLibraryPath();

// The same for a program in `bin_dir`.
absl::StatusOr<std::string> ClientLibraryDirFrom(const std::string& bin_dir);
absl::StatusOr<std::string> SoftgpuLibraryPathFrom(const std::string& bin_dir);

}  // namespace fargpu
