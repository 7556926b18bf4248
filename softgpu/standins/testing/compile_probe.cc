// Compiles a kernel by the stand-in and NVIDIA's NVRTC, as a program does that wants machine code.
// Ends with 0 if it gets PTX. With the path of a driver library it initialises that first and then
// loads NVRTC by name, which must give the stand-in.
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <string>

namespace {

int LoadAfter(const char* driver) {
  void* const cuda = dlopen(driver, RTLD_NOW);
  if (cuda == nullptr) return std::fprintf(stderr, "%s\n", dlerror()), 1;
  if (reinterpret_cast<int (*)(unsigned)>(dlsym(cuda, "cuInit"))(0) != 0) return 1;
  for (const char* const name :
       {"libnvrtc.so.12", "libnvrtc.so.13", "libnvJitLink.so.12", "libnvJitLink.so.13"}) {
    void* const library = dlopen(name, RTLD_NOW);
    if (library == nullptr) return std::fprintf(stderr, "%s\n", dlerror()), 1;
    if (dlsym(library, "fargpu_stands_in") == nullptr) {
      return std::fprintf(stderr, "%s is not the stand-in\n", name), 1;
    }
  }
  return dlsym(RTLD_DEFAULT, "nvrtcVersion") == nullptr ? 0 : 1;  // local to who loaded it
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) return LoadAfter(argv[1]);
  void* const nvrtc = dlopen(FARGPU_STANDINS "/libnvrtc.so.13", RTLD_NOW);
  if (nvrtc == nullptr) return std::fprintf(stderr, "%s\n", dlerror()), 1;
  const auto get = [&](const char* name) { return dlsym(nvrtc, name); };
  void* program = nullptr;
  const auto create =
      reinterpret_cast<int (*)(void**, const char*, const char*, int, const char* const*,
                               const char* const*)>(get("nvrtcCreateProgram"));
  int result = create(&program, "extern \"C\" __global__ void twice(float* a) { a[0] *= 2; }",
                      "twice.cu", 0, nullptr, nullptr);
  const char* const options[] = {"--gpu-architecture=sm_90"};
  result |= reinterpret_cast<int (*)(void*, int, const char* const*)>(get("nvrtcCompileProgram"))(
      program, 1, options);
  size_t size = 0;
  result |= reinterpret_cast<int (*)(void*, size_t*)>(get("nvrtcGetCUBINSize"))(program, &size);
  std::string code(size, '\0');
  result |= reinterpret_cast<int (*)(void*, char*)>(get("nvrtcGetCUBIN"))(program, code.data());
  const bool is_ptx = code.find(".visible .entry twice") != std::string::npos;
  std::printf("result %d, %zu bytes, %s\n", result, size, is_ptx ? "PTX" : "no PTX");
  return result == 0 && is_ptx ? 0 : 1;
}
