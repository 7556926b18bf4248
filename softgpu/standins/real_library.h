#pragma once

#include <string>
#include <vector>

// How a stand-in finds the library that it stands in for.
namespace fargpu::standins {

// Folders to look in, best first, each once: FARGPU_NVIDIA_LIBRARY_PATH, where the loader would
// look for any object of this process, Python's packages, CUDA_HOME and CUDA_PATH, the usual
// places. `package` is the folder of NVIDIA's Python package for CUDA 12, "cuda_nvrtc"; `major` is
// CUDA's.
std::vector<std::string> LibraryFolders(const std::string& package, int major);

// NVIDIA's library called `name`, loaded by its path, once per process; null if there is none.
// Other stand-ins of that name, which show kMarker, are passed over.
void* LoadRealLibrary(const std::string& name, const std::string& package, int major);

inline constexpr char kMarker[] = "fargpu_stands_in";

}  // namespace fargpu::standins
