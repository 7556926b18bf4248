#pragma once

#include <cstdint>

// What the generated trampolines (make_trampolines.py) and a stand-in share.
//
// Every exported function that a stand-in does not define itself jumps to the real one, which is
// looked up when it is first called: a program that only links the library pays nothing.
namespace fargpu::standins {

// The real function, or what stands for it: never null. Any thread.
void* RealFunction(const char* name);

template <typename Function>
Function* Real(const char* name) {
  return reinterpret_cast<Function*>(RealFunction(name));
}

// Given by each stand-in.
struct Identity {
  const char* name;     // "libnvrtc.so.13"
  const char* package;  // see LibraryFolders
  int major;            // of CUDA
  // What a function does that the real library does not have, or that has no real library.
  void* (*missing)(const char* name);
};
extern const Identity kIdentity;

}  // namespace fargpu::standins
