// Stands in for NVIDIA's libnvrtc and libnvJitLink in the stand-ins' tests: keeps the options it
// was given and answers with texts that say what was asked.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct FakeProgram {
  std::string options;
};

std::string Join(const char* const* options, uint32_t count) {
  std::string text;
  for (uint32_t i = 0; i < count; ++i) text += std::string(options[i]) + " ";
  return text;
}

std::string Text(const char* kind, void* program) {
  return std::string(kind) + ": " + static_cast<FakeProgram*>(program)->options;
}

int Size(const std::string& text, size_t* size) {
  *size = text.size() + 1;
  return 0;
}

int Copy(const std::string& text, void* out) {
  std::memcpy(out, text.c_str(), text.size() + 1);
  return 0;
}

}  // namespace

FAKE_EXPORT int nvrtcVersion(int* major, int* minor) {
  *major = 13;
  *minor = 7;
  return 0;
}
// Six arguments, to see that a trampoline keeps them all.
FAKE_EXPORT int nvrtcCreateProgram(void** program, const char* source, const char* name,
                                   int headers, const char* const* contents,
                                   const char* const* names) {
  if (std::string(source) != "source" || std::string(name) != "name" || headers != 1) return 3;
  if (std::string(contents[0]) != "contents" || std::string(names[0]) != "header") return 3;
  *program = new FakeProgram;
  return 0;
}
FAKE_EXPORT int nvrtcDestroyProgram(void** program) {
  delete static_cast<FakeProgram*>(*program);
  *program = nullptr;
  return 0;
}
FAKE_EXPORT int nvrtcCompileProgram(void* program, int count, const char* const* options) {
  static_cast<FakeProgram*>(program)->options = Join(options, static_cast<uint32_t>(count));
  return static_cast<FakeProgram*>(program)->options.find("bad") == std::string::npos ? 0 : 5;
}
FAKE_EXPORT int nvrtcGetPTXSize(void* program, size_t* size) {
  return Size(Text("ptx", program), size);
}
FAKE_EXPORT int nvrtcGetPTX(void* program, char* out) { return Copy(Text("ptx", program), out); }
FAKE_EXPORT int nvrtcGetCUBINSize(void* program, size_t* size) {
  return Size(Text("cubin", program), size);
}
FAKE_EXPORT int nvrtcGetCUBIN(void* program, char* out) {
  return Copy(Text("cubin", program), out);
}
FAKE_EXPORT const char* nvrtcGetErrorString(int result) { return result == 5 ? "five" : "other"; }

FAKE_EXPORT int nvJitLinkCreate(void** handle, uint32_t count, const char** options) {
  *handle = new FakeProgram{Join(options, count)};
  return 0;
}
FAKE_EXPORT int nvJitLinkDestroy(void** handle) {
  delete static_cast<FakeProgram*>(*handle);
  *handle = nullptr;
  return 0;
}
FAKE_EXPORT int nvJitLinkAddData(void*, int, const void*, size_t, const char*) { return 0; }
FAKE_EXPORT int __nvJitLinkComplete_13_0(void*) { return 0; }  // NOLINT: NVIDIA's name
FAKE_EXPORT int nvJitLinkGetLinkedCubinSize(void* handle, size_t* size) {
  return Size(Text("cubin", handle), size);
}
FAKE_EXPORT int nvJitLinkGetLinkedCubin(void* handle, void* out) {
  return Copy(Text("cubin", handle), out);
}
FAKE_EXPORT int nvJitLinkGetLinkedPtxSize(void* handle, size_t* size) {
  return Size(Text("ptx", handle), size);
}
FAKE_EXPORT int nvJitLinkGetLinkedPtx(void* handle, char* out) {
  return Copy(Text("ptx", handle), out);
}
