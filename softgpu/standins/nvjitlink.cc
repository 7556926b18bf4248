// libnvJitLink.so.N for programs on the software device: what they link is given as PTX.
//
// With -lto the real one makes PTX of LTO-IR if it is asked to (-ptx). PTX among the inputs is kept
// and given back as it is: the software device links modules itself (kNextModule).
#include <cstddef>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "softgpu/standins/forward.h"

// Of nvJitLink.h, which not every toolkit brings.
using nvJitLinkResult = int;
using nvJitLinkHandle = void*;

namespace fargpu::standins {
namespace {

constexpr nvJitLinkResult kInternalError = 6;  // NVJITLINK_ERROR_INTERNAL
constexpr int kPtxInput = 2;                   // NVJITLINK_INPUT_PTX
constexpr int kAnyInput = 10;                  // NVJITLINK_INPUT_ANY

// What the driver takes apart again (softgpu/driver/module.cc).
constexpr char kNextModule[] = "\n//// the next module of a linked image\n";

nvJitLinkResult Missing() { return kInternalError; }
void* MissingFunction(const char*) { return reinterpret_cast<void*>(&Missing); }

struct Linking {
  bool lto = false;      // with -ptx added by us
  bool only_ptx = true;  // of the inputs that are not LTO-IR: all are PTX
  std::vector<std::string> ptx;
};

// By handle. Never destroyed: other threads may link while the process ends.
class Linkings {
 public:
  static Linkings& Get() {
    static Linkings* const linkings = new Linkings;
    return *linkings;
  }
  void Add(nvJitLinkHandle handle, Linking linking) {
    const std::lock_guard<std::mutex> lock(mutex_);
    linkings_[handle] = std::move(linking);
  }
  void Remove(nvJitLinkHandle handle) {
    const std::lock_guard<std::mutex> lock(mutex_);
    linkings_.erase(handle);
  }
  // Of a program that asked for PTX itself there is none.
  bool Find(nvJitLinkHandle handle, Linking* linking) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = linkings_.find(handle);
    if (at == linkings_.end()) return false;
    *linking = at->second;
    return true;
  }
  void AddInput(nvJitLinkHandle handle, int type, const char* data, size_t size) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = linkings_.find(handle);
    if (at == linkings_.end()) return;
    // Text that begins with a directive, a comment or white space: no binary format does.
    const bool text = size > 0 && std::strchr("./ \t\r\n", data[0]) != nullptr;
    if (type == kPtxInput || (type == kAnyInput && text)) {
      at->second.ptx.emplace_back(data, strnlen(data, size));
    } else if (!at->second.lto) {
      at->second.only_ptx = false;
    }
  }

 private:
  std::mutex mutex_;
  std::map<nvJitLinkHandle, Linking> linkings_;
};

// What stands in for the machine code; false if that is the real thing's.
bool LinkedText(nvJitLinkHandle handle, std::string* text, nvJitLinkResult* result) {
  Linking linking;
  if (!Linkings::Get().Find(handle, &linking)) return false;
  if (!linking.lto && (linking.ptx.empty() || !linking.only_ptx)) return false;
  *result = 0;
  std::vector<std::string> texts;
  if (linking.lto) {
    size_t size = 0;
    *result =
        Real<nvJitLinkResult(nvJitLinkHandle, size_t*)>("nvJitLinkGetLinkedPtxSize")(handle, &size);
    if (*result == 0 && size > 0) {
      std::string ptx(size, '\0');
      *result = Real<nvJitLinkResult(nvJitLinkHandle, char*)>("nvJitLinkGetLinkedPtx")(handle,
                                                                                       ptx.data());
      ptx.resize(strnlen(ptx.data(), ptx.size()));
      if (!ptx.empty()) texts.push_back(std::move(ptx));
    }
    // Without LTO-IR there is nothing for it to give.
    if (*result != 0 && linking.ptx.empty()) return true;
    *result = 0;
  }
  texts.insert(texts.end(), linking.ptx.begin(), linking.ptx.end());
  for (size_t i = 0; i < texts.size(); ++i) {
    if (i > 0) *text += kNextModule;
    *text += texts[i];
  }
  text->push_back('\0');
  return true;
}

}  // namespace

const Identity kIdentity = {FARGPU_STANDIN_NAME, "nvjitlink", FARGPU_STANDIN_MAJOR,
                            &MissingFunction};

}  // namespace fargpu::standins

#define STANDIN_EXPORT extern "C" __attribute__((visibility("default")))

using fargpu::standins::Linking;
using fargpu::standins::Linkings;
using fargpu::standins::Real;

STANDIN_EXPORT nvJitLinkResult nvJitLinkCreate(nvJitLinkHandle* handle, uint32_t count,
                                               const char** options) {
  auto* const create =
      Real<nvJitLinkResult(nvJitLinkHandle*, uint32_t, const char**)>("nvJitLinkCreate");
  std::vector<const char*> given;
  Linking linking;
  bool asks_for_ptx = false;
  for (uint32_t i = 0; options != nullptr && i < count; ++i) {
    given.push_back(options[i]);
    if (options[i] == nullptr) continue;
    linking.lto |= std::strcmp(options[i], "-lto") == 0;
    asks_for_ptx |= std::strcmp(options[i], "-ptx") == 0;
  }
  if (given.size() != count) return create(handle, count, options);
  if (linking.lto && !asks_for_ptx) given.push_back("-ptx");
  const nvJitLinkResult result = create(handle, static_cast<uint32_t>(given.size()), given.data());
  if (result == 0 && !asks_for_ptx) Linkings::Get().Add(*handle, std::move(linking));
  return result;
}

STANDIN_EXPORT nvJitLinkResult nvJitLinkDestroy(nvJitLinkHandle* handle) {
  if (handle != nullptr) Linkings::Get().Remove(*handle);
  return Real<nvJitLinkResult(nvJitLinkHandle*)>("nvJitLinkDestroy")(handle);
}

STANDIN_EXPORT nvJitLinkResult nvJitLinkAddData(nvJitLinkHandle handle, int type, const void* data,
                                                size_t size, const char* name) {
  const nvJitLinkResult result =
      Real<nvJitLinkResult(nvJitLinkHandle, int, const void*, size_t, const char*)>(
          "nvJitLinkAddData")(handle, type, data, size, name);
  if (result == 0 && data != nullptr) {
    Linkings::Get().AddInput(handle, type, static_cast<const char*>(data), size);
  }
  return result;
}

STANDIN_EXPORT nvJitLinkResult nvJitLinkAddFile(nvJitLinkHandle handle, int type,
                                                const char* path) {
  const nvJitLinkResult result = Real<nvJitLinkResult(nvJitLinkHandle, int, const char*)>(
      "nvJitLinkAddFile")(handle, type, path);
  if (result != 0) return result;
  std::ifstream file(path, std::ios::binary);
  const std::string contents((std::istreambuf_iterator<char>(file)),
                             std::istreambuf_iterator<char>());
  Linkings::Get().AddInput(handle, type, contents.data(), contents.size());
  return result;
}

STANDIN_EXPORT nvJitLinkResult nvJitLinkGetLinkedCubinSize(nvJitLinkHandle handle, size_t* size) {
  std::string text;
  nvJitLinkResult result = 0;
  if (size == nullptr || !fargpu::standins::LinkedText(handle, &text, &result)) {
    return Real<nvJitLinkResult(nvJitLinkHandle, size_t*)>("nvJitLinkGetLinkedCubinSize")(handle,
                                                                                          size);
  }
  *size = text.size();
  return result;
}

STANDIN_EXPORT nvJitLinkResult nvJitLinkGetLinkedCubin(nvJitLinkHandle handle, void* code) {
  std::string text;
  nvJitLinkResult result = 0;
  if (code == nullptr || !fargpu::standins::LinkedText(handle, &text, &result)) {
    return Real<nvJitLinkResult(nvJitLinkHandle, void*)>("nvJitLinkGetLinkedCubin")(handle, code);
  }
  if (result == 0) std::memcpy(code, text.data(), text.size());
  return result;
}
