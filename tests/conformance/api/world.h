#pragma once

#include <dlfcn.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <cudaProfiler.h>
#include <functional>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

// What the battery's calls are made with.
namespace fargpu::conformance {

// The entry point `name` of the libcuda.so.1 that the loader finds; ends the process without one.
void* FindEntry(const char* name);
template <typename Function>
Function Entry(const char* name) {
  return reinterpret_cast<Function>(FindEntry(name));
}
#define CALL(name) ::fargpu::conformance::Entry<decltype(&::name)>(#name)

enum class Situation {
  kNormal,
  kBeforeInit,
  kNoContext,         // the objects' context is not current, and no other is
  kDestroyedContext,  // the objects' context is destroyed, and current
  kCapture,           // streams are captured
  kSticky,            // a kernel has broken the context
};

inline constexpr size_t kMemoryBytes = 64 << 10;  // of device memory that a case gets

// A context with whatever objects a call wants. Each object is made when it is asked for and
// belongs to one case.
class World {
 public:
  explicit World(Situation situation);
  ~World();

  enum class Memory { kHost, kPtx, kPage, kPinned, kDevice };

  // Begins and ends a case of `function`.
  void Begin(const std::string& function);
  // Brings about the situation, after the objects were made and before the call.
  void Arrange();
  void End();

  template <typename T>
  T Make();
  // Ends what Make gave.
  template <typename T>
  void Destroy(T object);

  CUdeviceptr MakeMemory();
  void* MakeMemory(Memory kind);
  CUtexObject MakeTexture();
  CUsurfObject MakeSurface();
  CUmemGenericAllocationHandle MakePhysical();

  // Runs `make` in another context, of device `device`.
  template <typename Make>
  auto InOther(CUdevice device, Make make) {
    EnterOther(device);
    auto object = make();
    LeaveOther();
    return object;
  }

  // Zeroed memory for one argument, aligned for anything.
  void* Scratch(int index);

  // Fills what a pointer to one `T` must point to for a call to be right.
  template <typename T>
  void Fill(T* value);

  Situation situation() const { return situation_; }

 private:
  CUgraphNode MakeNode();
  void EnterOther(CUdevice device);
  void LeaveOther();
  void FillBox(CUDA_MEMCPY3D* copy);

  const Situation situation_;
  CUcontext context_ = nullptr;
  std::string function_;
  std::vector<CUcontext> other_contexts_;
  std::vector<CUstream> streams_;
};

// The arguments of one call in one case: each asks for its value by its index.
class Arguments {
 public:
  Arguments(World* world, int varied, std::string variant)
      : world_(*world), varied_(varied), variant_(std::move(variant)) {}

  // Calls `name` once the situation has come about.
  template <typename Function, typename... Values>
  CUresult Call(const char* name, Values... values) {
    const auto function = Entry<Function>(name);
    world_.Arrange();
    return function(values...);
  }

  template <typename T>
  T Handle(int index) {
    const auto special = [](uintptr_t value) { return reinterpret_cast<T>(value); };
    if (index != varied_) return world_.Make<T>();
    if (variant_ == "null") return special(0);
    if (variant_ == "legacy") return special(1);
    if (variant_ == "per_thread") return special(2);
    if (variant_ == "bad") return reinterpret_cast<T>(world_.Scratch(index));
    if (variant_ == "other_context") return world_.InOther(0, [&] { return world_.Make<T>(); });
    if (variant_ == "other_device") return world_.InOther(1, [&] { return world_.Make<T>(); });
    T object = world_.Make<T>();
    world_.Destroy(object);
    return object;
  }
  CUtexObject Texture(int index) {
    return Numbered<CUtexObject>(
        index, [&] { return world_.MakeTexture(); },
        [](CUtexObject object) {
          CALL(cuTexObjectDestroy)
          (object);
        });
  }
  CUsurfObject Surface(int index) {
    return Numbered<CUsurfObject>(
        index, [&] { return world_.MakeSurface(); },
        [](CUsurfObject object) {
          CALL(cuSurfObjectDestroy)
          (object);
        });
  }
  CUmemGenericAllocationHandle Physical(int index) {
    return Numbered<CUmemGenericAllocationHandle>(
        index, [&] { return world_.MakePhysical(); },
        [](CUmemGenericAllocationHandle object) {
          CALL(cuMemRelease)
          (object);
        });
  }
  template <typename T>
  T Callback(int index) {
    if (index == varied_) return nullptr;
    if constexpr (std::is_same_v<T, CUoccupancyB2DSize>) {
      return [](int) { return size_t{0}; };
    } else if constexpr (std::is_same_v<T, CUhostFn>) {
      return [](void*) {};
    } else if constexpr (std::is_same_v<T, CUstreamCallback>) {
      return [](CUstream, CUresult, void*) {};
    } else if constexpr (std::is_same_v<T, CUlogsCallback>) {
      return [](void*, CUlogLevel, char*, size_t) {};
    } else {
      return [](CUasyncNotificationInfo*, void*, CUasyncCallbackHandle) {};
    }
  }
  template <typename T>
  T Struct(int index) {
    T value;
    std::memset(&value, 0, sizeof value);
    if (index == varied_) {
      std::memset(&value, 0x7f, sizeof value);
    } else {
      world_.Fill(&value);
    }
    return value;
  }
  CUdevice Device(int index) {
    if (index != varied_) return 0;
    if (variant_ != "count") return std::atoi(variant_.c_str());
    int count = 0;
    CALL(cuDeviceGetCount)(&count);
    return count;
  }
  CUdeviceptr Address(int index) {
    if (index == varied_ && variant_ == "0") return 0;
    if (index == varied_ && variant_ == "wild") return 4096;
    const CUdeviceptr address = world_.MakeMemory();
    if (index == varied_ && variant_ == "freed") CALL(cuMemFree_v2)(address);
    if (index == varied_ && variant_ == "end") return address + kMemoryBytes - 1;
    return address;
  }
  float Float(int index) {
    if (index != varied_) return 1;
    return variant_ == "nan" ? std::nanf("") : -1;
  }
  uint64_t Wide(int index, uint64_t value) {
    return index == varied_ ? std::strtoull(variant_.c_str(), nullptr, 10) : value;
  }
  uint32_t Narrow(int index, uint32_t value) { return static_cast<uint32_t>(Wide(index, value)); }
  int Int(int index, int value) { return index == varied_ ? std::atoi(variant_.c_str()) : value; }
  void* Memory(int index, World::Memory kind) {
    return index == varied_ ? nullptr : world_.MakeMemory(kind);
  }
  const char* Text(int index, const char* text) { return index == varied_ ? nullptr : text; }
  template <typename T>
  T* Pointer(int index) {
    if (index == varied_) return nullptr;
    auto* const value = static_cast<std::remove_const_t<T>*>(world_.Scratch(index));
    world_.Fill(value);
    return value;
  }

 private:
  template <typename T, typename Make, typename Destroy>
  T Numbered(int index, Make make, Destroy destroy) {
    if (index == varied_ && variant_ == "0") return 0;
    if (index == varied_ && variant_ == "bad") return 0x1234567;
    const T object = make();
    if (index == varied_) destroy(object);
    return object;
  }

  World& world_;
  const int varied_;
  const std::string variant_;
};

}  // namespace fargpu::conformance
