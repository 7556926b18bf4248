#include "softgpu/standins/real_library.h"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace fargpu::standins {
namespace {

class Folders {
 public:
  void Add(std::string folder) {
    while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
    if (folder.empty() || std::count(list_.begin(), list_.end(), folder) > 0) return;
    list_.push_back(std::move(folder));
  }
  void AddList(const char* text) {
    if (text == nullptr) return;
    std::istringstream in(text);
    for (std::string folder; std::getline(in, folder, ':');) Add(folder);
  }
  void AddMatches(const std::string& pattern) {
    glob_t found = {};
    if (glob(pattern.c_str(), 0, nullptr, &found) == 0) {
      for (size_t i = 0; i < found.gl_pathc; ++i) Add(found.gl_pathv[i]);
    }
    globfree(&found);
  }
  std::vector<std::string> Take() { return std::move(list_); }

 private:
  std::vector<std::string> list_;
};

// Where the loader looks for what the object `handle` needs: LD_LIBRARY_PATH, its RPATH or RUNPATH,
// the system's folders.
void AddSearchPath(void* handle, Folders* folders) {
  Dl_serinfo size = {};
  if (dlinfo(handle, RTLD_DI_SERINFOSIZE, &size) != 0) return;
  std::vector<char> memory(size.dls_size + sizeof(Dl_serinfo));
  auto* const info = reinterpret_cast<Dl_serinfo*>(memory.data());
  if (dlinfo(handle, RTLD_DI_SERINFOSIZE, info) != 0) return;
  if (dlinfo(handle, RTLD_DI_SERINFO, info) != 0) return;
  for (unsigned i = 0; i < info->dls_cnt; ++i) folders->Add(info->dls_serpath[i].dls_name);
}

std::vector<std::string> LoadedObjects() {
  std::vector<std::string> names;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        if (info->dlpi_name != nullptr && info->dlpi_name[0] == '/') {
          static_cast<std::vector<std::string>*>(out)->emplace_back(info->dlpi_name);
        }
        return 0;
      },
      &names);
  return names;
}

// A folder of Python's packages: one for all of CUDA from 13 on, one per library before.
void AddPackages(const std::string& site, const std::string& package, int major, Folders* folders) {
  folders->Add(site + "/nvidia/cu" + std::to_string(major) + "/lib");
  folders->Add(site + "/nvidia/" + package + "/lib");
}

}  // namespace

std::vector<std::string> LibraryFolders(const std::string& package, int major) {
  Folders folders;
  folders.AddList(std::getenv("FARGPU_NVIDIA_LIBRARY_PATH"));
  if (void* const program = dlopen(nullptr, RTLD_LAZY); program != nullptr) {
    AddSearchPath(program, &folders);
    dlclose(program);
  }
  const std::vector<std::string> objects = LoadedObjects();
  for (const std::string& name : objects) {
    if (void* const object = dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD); object != nullptr) {
      AddSearchPath(object, &folders);
      dlclose(object);
    }
  }
  for (const std::string& name : objects) {
    for (const char* const part : {"/site-packages/", "/dist-packages/"}) {
      const size_t at = name.find(part);
      if (at == std::string::npos) continue;
      AddPackages(name.substr(0, at) + std::string(part).substr(0, 14), package, major, &folders);
    }
  }
  for (const char* const variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const char* const prefix = std::getenv(variable);
    if (prefix == nullptr || *prefix == '\0') continue;
    const std::string site = std::string(prefix) + "/lib/python3*/site-packages/nvidia/";
    folders.AddMatches(site + "cu" + std::to_string(major) + "/lib");
    folders.AddMatches(site + package + "/lib");
    folders.Add(std::string(prefix) + "/lib");
  }
  for (const char* const variable : {"CUDA_HOME", "CUDA_PATH"}) {
    const char* const home = std::getenv(variable);
    if (home == nullptr || *home == '\0') continue;
    for (const char* const inside : {"/lib64", "/lib", "/targets/x86_64-linux/lib"}) {
      folders.Add(std::string(home) + inside);
    }
  }
  folders.AddMatches("/usr/local/cuda-" + std::to_string(major) + "*/lib64");
  folders.Add("/usr/local/cuda/lib64");
  folders.Add("/usr/lib/x86_64-linux-gnu");
  return folders.Take();
}

void* LoadRealLibrary(const std::string& name, const std::string& package, int major) {
  std::string failures;
  for (const std::string& folder : LibraryFolders(package, major)) {
    const std::string path = folder + "/" + name;
    if (access(path.c_str(), R_OK) != 0) continue;
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      failures += std::string("; ") + dlerror();
      continue;
    }
    if (dlsym(library, kMarker) == nullptr) return library;
    dlclose(library);
  }
  std::fprintf(
      stderr,
      "fargpu: error: no %s of NVIDIA's was found; FARGPU_NVIDIA_LIBRARY_PATH can name its "
      "folder%s\n",
      name.c_str(), failures.c_str());
  return nullptr;
}

}  // namespace fargpu::standins
