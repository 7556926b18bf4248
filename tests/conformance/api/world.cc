#include <sys/mman.h>

#include <array>
#include <cstdio>

#include "objects.h"

namespace fargpu::conformance {
namespace {

constexpr size_t kScratchBytes = 128 << 10;
constexpr int kScratches = 24;

}  // namespace

void* FindEntry(const char* name) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  void* const entry = library == nullptr ? nullptr : dlsym(library, name);
  if (entry == nullptr) {
    std::fprintf(stderr, "libcuda.so.1 has no %s: %s\n", name, dlerror());
    std::_Exit(1);
  }
  return entry;
}

World::World(Situation situation) : situation_(situation) {}

World::~World() = default;

void World::Begin(const std::string& function) {
  function_ = function;
  if (situation_ == Situation::kBeforeInit) return;
  CALL(cuCtxCreate_v2)(&context_, 0, 0);
}

void World::Arrange() {
  CUcontext ignored = nullptr;
  switch (situation_) {
    case Situation::kNormal:
    case Situation::kBeforeInit:
      break;
    case Situation::kNoContext:
      CALL(cuCtxPopCurrent_v2)(&ignored);
      break;
    case Situation::kDestroyedContext:
      // Destroying pops it once.
      CALL(cuCtxPushCurrent_v2)(context_);
      CALL(cuCtxDestroy_v2)(context_);
      break;
    case Situation::kCapture:
      for (const CUstream stream : streams_) {
        CALL(cuStreamBeginCapture_v2)(stream, CU_STREAM_CAPTURE_MODE_RELAXED);
      }
      break;
    case Situation::kSticky: {
      const CUmodule module = Make<CUmodule>();
      CALL(cuLaunchKernel)
      (FunctionOf(module, "wild"), 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
      CALL(cuCtxSynchronize)();
      break;
    }
  }
}

void World::End() {
  if (situation_ == Situation::kBeforeInit) return;
  streams_.clear();
  CUcontext current = nullptr;
  // Whatever the call did to the stack of contexts.
  for (int k = 0; k < 8 && CALL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current != nullptr;
       ++k) {
    CALL(cuCtxPopCurrent_v2)(&current);
  }
  CALL(cuCtxDestroy_v2)(context_);
  for (const CUcontext other : other_contexts_) CALL(cuCtxDestroy_v2)(other);
  other_contexts_.clear();
  context_ = nullptr;
}

void World::EnterOther(CUdevice device) {
  CUcontext other = nullptr;
  CALL(cuCtxCreate_v2)(&other, 0, device);
  other_contexts_.push_back(other);
}

void World::LeaveOther() {
  CUcontext other = nullptr;
  CALL(cuCtxPopCurrent_v2)(&other);
}

void* World::Scratch(int index) {
  alignas(64) static std::array<std::array<char, kScratchBytes>, kScratches> scratch;
  auto& memory = scratch[static_cast<size_t>(index)];
  memory.fill(0);
  return memory.data();
}

CUdeviceptr World::MakeMemory() {
  CUdeviceptr memory = 0;
  if (situation_ == Situation::kBeforeInit) return 4096;
  CALL(cuMemAlloc_v2)(&memory, kMemoryBytes);
  if (memory != 0) CALL(cuMemsetD8_v2)(memory, 0, kMemoryBytes);
  return memory;
}

void* World::MakeMemory(Memory kind) {
  static char host[kScratchBytes];
  switch (kind) {
    case Memory::kHost:
      return host;
    case Memory::kPtx:
      return const_cast<char*>(kPtx);
    case Memory::kPage: {
      static void* const page =
          mmap(nullptr, kMemoryBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      return page;
    }
    case Memory::kPinned: {
      void* pinned = nullptr;
      if (situation_ != Situation::kBeforeInit) {
        CALL(cuMemHostAlloc)(&pinned, kMemoryBytes, CU_MEMHOSTALLOC_DEVICEMAP);
      }
      return pinned != nullptr ? pinned : host;
    }
    case Memory::kDevice:
      return reinterpret_cast<void*>(MakeMemory());
  }
  return nullptr;
}

CUtexObject World::MakeTexture() {
  CUDA_RESOURCE_DESC resource = {};
  CUDA_TEXTURE_DESC texture = {};
  Fill(&resource);
  CUtexObject object = 0;
  CALL(cuTexObjectCreate)(&object, &resource, &texture, nullptr);
  return object;
}

CUsurfObject World::MakeSurface() {
  CUDA_RESOURCE_DESC resource = {};
  Fill(&resource);
  CUsurfObject object = 0;
  CALL(cuSurfObjectCreate)(&object, &resource);
  return object;
}

CUmemGenericAllocationHandle World::MakePhysical() {
  CUmemAllocationProp prop = {};
  Fill(&prop);
  CUmemGenericAllocationHandle handle = 0;
  CALL(cuMemCreate)(&handle, 2 << 20, &prop, 0);
  return handle;
}

CUgraphNode World::MakeNode() {
  CUgraph graph = Make<CUgraph>();
  CUgraphNode node = nullptr;
  if (Has(function_, "Memcpy")) {
    CUDA_MEMCPY3D copy = {};
    Fill(&copy);
    CALL(cuGraphAddMemcpyNode)(&node, graph, nullptr, 0, &copy, context_);
  } else if (Has(function_, "Memset")) {
    CUDA_MEMSET_NODE_PARAMS set = {};
    Fill(&set);
    CALL(cuGraphAddMemsetNode)(&node, graph, nullptr, 0, &set, context_);
  } else if (Has(function_, "Host")) {
    CUDA_HOST_NODE_PARAMS host = {};
    Fill(&host);
    CALL(cuGraphAddHostNode)(&node, graph, nullptr, 0, &host);
  } else if (Has(function_, "ChildGraph")) {
    CALL(cuGraphAddChildGraphNode)(&node, graph, nullptr, 0, Make<CUgraph>());
  } else if (Has(function_, "EventRecord")) {
    CALL(cuGraphAddEventRecordNode)(&node, graph, nullptr, 0, Make<CUevent>());
  } else if (Has(function_, "EventWait")) {
    CALL(cuGraphAddEventWaitNode)(&node, graph, nullptr, 0, Make<CUevent>());
  } else if (Has(function_, "BatchMemOp")) {
    CUDA_BATCH_MEM_OP_NODE_PARAMS operations = {};
    Fill(&operations);
    CALL(cuGraphAddBatchMemOpNode)(&node, graph, nullptr, 0, &operations);
  } else if (Has(function_, "MemAlloc")) {
    CUDA_MEM_ALLOC_NODE_PARAMS allocation = {};
    Fill(&allocation);
    CALL(cuGraphAddMemAllocNode)(&node, graph, nullptr, 0, &allocation);
  } else if (Has(function_, "Kernel")) {
    CUDA_KERNEL_NODE_PARAMS kernel = {};
    Fill(&kernel);
    CALL(cuGraphAddKernelNode_v2)(&node, graph, nullptr, 0, &kernel);
  } else {
    CALL(cuGraphAddEmptyNode)(&node, graph, nullptr, 0);
  }
  return node;
}

void World::FillBox(CUDA_MEMCPY3D* copy) {
  copy->srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy->srcDevice = MakeMemory();
  copy->srcPitch = 64;
  copy->dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy->dstDevice = MakeMemory();
  copy->dstPitch = 64;
  copy->srcHeight = copy->dstHeight = 4;
  copy->WidthInBytes = 16;
  copy->Height = 4;
  copy->Depth = 1;
}

}  // namespace fargpu::conformance
