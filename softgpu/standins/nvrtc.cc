// libnvrtc.so.N for programs on the software device: where they ask for machine code they get PTX.
#include <cstddef>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "softgpu/standins/forward.h"
#include "softgpu/standins/nvrtc_options.h"

// Of nvrtc.h, which not every toolkit brings.
using nvrtcResult = int;
using nvrtcProgram = void*;

namespace fargpu::standins {
namespace {

constexpr nvrtcResult kInternalError = 11;  // NVRTC_ERROR_INTERNAL_ERROR

nvrtcResult Missing() { return kInternalError; }
const char* MissingErrorString(nvrtcResult) { return "FarGPU found no NVRTC of NVIDIA's"; }

void* MissingFunction(const char* name) {
  return std::strcmp(name, "nvrtcGetErrorString") == 0
             ? reinterpret_cast<void*>(&MissingErrorString)
             : reinterpret_cast<void*>(&Missing);
}

// Programs that were compiled for PTX and asked for machine code. Never destroyed: other threads
// may compile while the process ends.
class Programs {
 public:
  static Programs& Get() {
    static Programs* const programs = new Programs;
    return *programs;
  }
  void Set(nvrtcProgram program, bool machine_code) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (machine_code) {
      programs_.insert(program);
    } else {
      programs_.erase(program);
    }
  }
  bool AskedForCode(nvrtcProgram program) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return programs_.count(program) > 0;
  }

 private:
  std::mutex mutex_;
  std::unordered_set<nvrtcProgram> programs_;
};

}  // namespace

const Identity kIdentity = {FARGPU_STANDIN_NAME, "cuda_nvrtc", FARGPU_STANDIN_MAJOR,
                            &MissingFunction};

}  // namespace fargpu::standins

#define STANDIN_EXPORT extern "C" __attribute__((visibility("default")))

using fargpu::standins::Programs;
using fargpu::standins::Real;

STANDIN_EXPORT nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count,
                                               const char* const* options) {
  auto* const compile =
      Real<nvrtcResult(nvrtcProgram, int, const char* const*)>("nvrtcCompileProgram");
  // What is wrong is for the real one to say.
  if (count <= 0 || options == nullptr) return compile(program, count, options);
  std::vector<std::string> given;
  for (int i = 0; i < count; ++i) {
    if (options[i] == nullptr) return compile(program, count, options);
    given.emplace_back(options[i]);
  }
  const fargpu::standins::CompileOptions changed = fargpu::standins::CompileForPtx(given);
  std::vector<const char*> pointers;
  for (const std::string& option : changed.options) pointers.push_back(option.c_str());
  const nvrtcResult result = compile(program, count, pointers.data());
  Programs::Get().Set(program, result == 0 && changed.machine_code);
  return result;
}

STANDIN_EXPORT nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, size_t* size) {
  const bool as_ptx = Programs::Get().AskedForCode(program);
  return Real<nvrtcResult(nvrtcProgram, size_t*)>(as_ptx ? "nvrtcGetPTXSize" : "nvrtcGetCUBINSize")(
      program, size);
}

STANDIN_EXPORT nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* code) {
  const bool as_ptx = Programs::Get().AskedForCode(program);
  return Real<nvrtcResult(nvrtcProgram, char*)>(as_ptx ? "nvrtcGetPTX" : "nvrtcGetCUBIN")(program,
                                                                                          code);
}

STANDIN_EXPORT nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
  if (program != nullptr) Programs::Get().Set(*program, false);
  return Real<nvrtcResult(nvrtcProgram*)>("nvrtcDestroyProgram")(program);
}
