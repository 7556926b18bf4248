#pragma once

#include <cstdint>

// What compiled code and the executor share. Compiled code knows the offsets of these fields and
// the numbers of the runtime functions; both are part of the key of cached objects (kAbiVersion).
namespace fargpu::softgpu {

inline constexpr int kWarpSize = 32;
inline constexpr uint64_t kParamBlockBytes = 32768;  // PTX allows 32764
inline constexpr int kAbiVersion = 5;
// Of the memory in which a warp that waits keeps its values.
inline constexpr int kFrameAlignment = 256;

// One warp about to run, or running. Code of more extent (CompiledKernel::extent) runs all warps of
// `block_count` blocks from `block_index` on, in the order of their index, and keeps `block_index`
// and `warp_index` up to date for messages.
struct WarpContext {
  uint64_t params = 0;        // address of the parameter block
  uint64_t shared_base = 0;   // of the block
  uint64_t shared_bytes = 0;  // static and dynamic
  uint64_t local_base = 0;    // of lane 0; lane i has it at + i * the kernel's local bytes
  const uint64_t* variables = nullptr;  // addresses of the program's variables
  void* const* runtime = nullptr;       // kRuntimeFunctions, by RuntimeFunction
  uint32_t block_index[3] = {0, 0, 0};
  uint32_t grid_size[3] = {1, 1, 1};
  uint32_t block_size[3] = {1, 1, 1};
  uint32_t warp_index = 0;
  uint32_t active = 0;  // lanes that exist
  uint32_t dynamic_shared_bytes = 0;
  uint32_t block_count = 1;
  uint32_t yielded = 0;         // for compiled code: the warp that suspended spins
  uint32_t multiprocessor = 0;  // %smid
  uint32_t multiprocessors = 1;
  uint32_t total_shared_bytes = 0;       // what the kernel declared and the launch added
  uint32_t reserved_shared_offset = 0;   // %reserved_smem_offset_1
  uint32_t cluster_size[3] = {1, 1, 1};  // in blocks
  uint32_t explicit_cluster = 0;         // %is_explicit_cluster
  uint64_t cluster_shared = 0;  // shared memory of the cluster's first block; the others' follow,
  uint64_t cluster_stride = 0;  // ... each so many bytes further
  uint64_t grid_number = 0;     // %gridid
  uint64_t grid_workspace = 0;  // 64 bytes, zero when the grid starts
  void* block = nullptr;        // the executor's
};

// Addresses in .shared::cluster: below 1 << kClusterShift those of the block's own shared memory,
// else (rank + 1) << kClusterShift and the offset in that block's.
inline constexpr unsigned kClusterShift = 24;

// In the bytes of kRuntimeFault: the addresses are offsets into shared or local memory.
inline constexpr uint32_t kFaultInBlock = 1u << 31;

// Functions that compiled code calls, all of the form R f(WarpContext*, ...). Arrays hold one
// element per lane; only lanes in `mask` count.
enum RuntimeFunction : int {
  kRuntimeFault,  // noreturn (ctx, u64* addresses, u32 mask, u32 bytes, u32 line)
  kRuntimeTrap,   // noreturn (ctx, u32 line)
  // Barriers for the whole warp, whichever of its lanes have not ended.
  kRuntimeBarrier,        // (ctx, u32 id, u32 threads or 0)
  kRuntimeBarrierReduce,  // u32 (ctx, u32 id, u32 threads, u32 BarrierOp, u32 predicates, u32 mask)
  kRuntimeYield,          // (ctx): lets other warps run
  kRuntimeLoad,           // (ctx, u64* addresses, u32 mask, u32 bytes, void* out, u32 acquire)
  kRuntimeStore,          // (ctx, u64* addresses, u32 mask, u32 bytes, void* in, u32 release)
  kRuntimeAtomic,         // (ctx, u32 code, u64* addresses, u32 mask, void* a, void* b, void* out)
  kRuntimePrintf,         // (ctx, u64* formats, u64* arguments, u32 mask, u32* results)
  kRuntimeAssert,  // noreturn (ctx, u64* message, u64* file, u32* line, u64* function, u32 mask)
  kRuntimeRound,   // (ctx, u32 code, void* a, void* b, void* c, void* out): 32 lanes
  kRuntimeClock,   // u64 (ctx)
  kRuntimeTimer,   // u64 (ctx): nanoseconds
  kRuntimeFence,   // (ctx)
  kRuntimeBarrierArrive,  // (ctx, u32 id, u32 threads, u32 lanes or 0: the whole warp)
  // Called when no lane can go on before a barrier: lets the lanes in `waiting` wait at barriers of
  // their own until some are through, and returns those. u32 (ctx, u32 waiting, u32* ids,
  // u32* threads, u32* BarrierOps, u32 predicates, u32* results)
  kRuntimeBarrierLanes,
  kRuntimeHeap,         // (ctx, u32 free, u64* sizes or addresses, u32 mask, u64* addresses)
  kRuntimeClusterWait,  // (ctx): for what kRuntimeBarrierArrive counted at kClusterBarrier
  kRuntimeOperation,    // (ctx, u32 Operation, u64 code, u32 mask, void* slots, u32 line)
  kRuntimeFrame,        // void* (ctx, u32 warp, u64 bytes): memory for a warp that waits
  kRuntimeCallFault,    // noreturn (ctx, u32 CallFault, u32 line)
  kRuntimeFunctionCount,
};

// Why a call cannot be made.
enum class CallFault : uint32_t { kStackOverflow, kNoFunction };

enum class BarrierOp : uint32_t { kSync, kAnd, kOr, kCount };
inline constexpr uint32_t kBarriers = 16;               // that a kernel can name
inline constexpr uint32_t kClusterBarrier = kBarriers;  // barrier.cluster

// What kRuntimeOperation does for the lanes in the mask: instructions that are long anyway.
// Operands lie in slots of kSlotBytes, one element per lane in each; which slot holds what is said
// here.
inline constexpr unsigned kSlotBytes = 8 * kWarpSize;
inline constexpr unsigned kSlots = 48;
enum class Operation : uint32_t {
  // Textures. 0-3: results; 4: u64 handle; 5: u64 handle of the sampler (kTextureSampler); 6:
  // layer;
  // 7-9: coordinates; 10: level; 11-13, 14-16: gradient; 17-19: offset.
  kTexture,
  kTextureGather,
  kTextureQuery,  // code: ImageQuery; 0: result; 4: handle; 10: level
  kSurfaceQuery,
  // Surfaces. 0-3: loaded; 4: u64 handle; 5-7: coordinates; 8-11: stored. Elements of 8 to 64 bits.
  kSurfaceLoad,
  kSurfaceStore,
  kSurfaceReduce,
  // Matrices of a warp. 0-7: D; 8-15: A; 16-23: B; 24-31: C, registers of 32 bits, of f64 64 bits.
  // code: MatrixCode.
  kMatrixMultiply,
  kMatrixLoad,   // 0-7: the fragment; 8: u64 address; 9: u32 stride in elements
  kMatrixStore,  // the same
  // code: matrices | kTileTransposed | kTileShared; 0-3: registers; 8: u64 addresses of rows
  kTileLoad,
  kTileStore,
  kTileTranspose,  // 0: result; 8: source
  // Copies happen at once. code: bytes | kToShared | kFromShared; 0: u64 to; 1: u64 from;
  // 2: u32 bytes to read, what is missing becomes zero.
  kCopy,
  // 0: u64 to; 1: u64 from; 2: u32 bytes; 3: u64 address of an mbarrier (kBulkBarrier).
  // 4: u16 mask of the cluster's blocks (kMulticast): the copy and the barrier object are those at
  // the same offsets in each of them.
  // code: kToShared | kFromShared | kBulkBarrier | kBulkReduce | kMulticast,
  // AtomicOp << 8 | AtomicType << 16.
  kBulkCopy,
  // 0: u64 address in shared memory; 1: u64 address of the tensor map; 2-6: s32 coordinates; 7: u64
  // address of an mbarrier (kTensorLoad); 8: u16 mask of blocks (kMulticast); 9-11: u16 offsets
  // (kTensorIm2col and kTensorLoad). code: rank | kTensor... | kBulkReduce, AtomicOp << 8.
  kTensorCopy,
  // 1: u64 address of the map; 2: u64 value. code: TensorField | kToShared, ordinal << 8.
  kTensorReplace,
  // code: BarrierObjectOp | kToShared; 0: u64 state or u32 done; 1: u64 address; 2: u32 count or
  // parity; 3: u64 state.
  kBarrierObject,
  // 0, 1: u64 halves of the result; 2: u64 address; 3, 4: new; 5, 6: compared. code: kExchange or
  // kCompareExchange.
  kAtomic128,
  // code: DeviceCall (passes/device_functions.h); 0: u64 result; from 1 on: arguments.
  kDeviceCall,
};
inline constexpr uint64_t kToShared = uint64_t{1}
                                      << 40;  // the address is an offset in shared memory
inline constexpr uint64_t kFromShared = uint64_t{1} << 41;
inline constexpr uint64_t kBulkBarrier = uint64_t{1} << 42;
inline constexpr uint64_t kBulkReduce = uint64_t{1} << 43;
inline constexpr uint64_t kMulticast = uint64_t{1} << 44;
enum class TensorField : uint32_t {
  kAddress,
  kRank,
  kBox,
  kSize,
  kStride,
  kStep,
  kType,
  kInterleave,
  kSwizzle,
  kFill
};
inline constexpr uint64_t kTensorLoad = uint64_t{1} << 16;  // to shared memory, else from it
inline constexpr uint64_t kTensorRows = uint64_t{1} << 17;  // four rows, one coordinate for each
inline constexpr uint64_t kTensorIm2col = uint64_t{1} << 18;
enum class BarrierObjectOp : uint32_t {
  kInit,
  kInvalidate,
  kArrive,  // slot 2: how many
  kArriveDrop,
  kExpect,  // slot 2: bytes
  kArriveExpect,
  kComplete,    // slot 2: bytes
  kTestState,   // slot 3: the state that arrive gave
  kTestParity,  // slot 2: parity
  kPendingCount,
};
inline constexpr uint64_t kTileTransposed = 16;
inline constexpr uint64_t kTileShared = 32;  // addresses are offsets in shared memory

enum class MatrixType : uint8_t {
  kF16,
  kBF16,
  kTF32,
  kF32,
  kF64,
  kS8,
  kU8,
  kS4,
  kU4,
  kB1,
  kS32,
  kE4M3,
  kE5M2
};
// Which matrix a wmma load or store is about.
enum class MatrixRole : uint8_t { kA, kB, kAccumulator };
struct MatrixCode {
  uint16_t m = 0, n = 0, k = 0;
  MatrixType a = MatrixType::kF16, b = MatrixType::kF16;
  MatrixType c = MatrixType::kF32, d = MatrixType::kF32;
  MatrixRole role = MatrixRole::kA;  // of loads and stores; their type is `a`
  bool column_major_a = false;       // of m8n8k4, and what is loaded or stored
  bool row_major_b = false;          // of m8n8k4
  bool clamp = false;                // .satfinite
  bool and_bits = false;             // of b1: and instead of xor
  bool quads = false;                // the m8n8k4 of f16: one product per quarter of the warp
  bool shared = false;               // the address is an offset in shared memory

  constexpr uint64_t Pack() const {
    const uint64_t flags = (column_major_a ? 1 : 0) | (row_major_b ? 2 : 0) | (clamp ? 4 : 0) |
                           (and_bits ? 8 : 0) | (quads ? 16 : 0) | (shared ? 32 : 0);
    return m | uint64_t{n} << 8 | uint64_t{k} << 16 | static_cast<uint64_t>(a) << 32 |
           static_cast<uint64_t>(b) << 36 | static_cast<uint64_t>(c) << 40 |
           static_cast<uint64_t>(d) << 44 | static_cast<uint64_t>(role) << 48 | flags << 52;
  }
  static constexpr MatrixCode Unpack(uint64_t bits) {
    MatrixCode code;
    code.m = bits & 0xff;
    code.n = bits >> 8 & 0xff;
    code.k = bits >> 16 & 0xffff;
    code.a = static_cast<MatrixType>(bits >> 32 & 15);
    code.b = static_cast<MatrixType>(bits >> 36 & 15);
    code.c = static_cast<MatrixType>(bits >> 40 & 15);
    code.d = static_cast<MatrixType>(bits >> 44 & 15);
    code.role = static_cast<MatrixRole>(bits >> 48 & 15);
    code.column_major_a = (bits >> 52 & 1) != 0;
    code.row_major_b = (bits >> 53 & 1) != 0;
    code.clamp = (bits >> 54 & 1) != 0;
    code.and_bits = (bits >> 55 & 1) != 0;
    code.quads = (bits >> 56 & 1) != 0;
    code.shared = (bits >> 57 & 1) != 0;
    return code;
  }
};
// code of kTexture and kTextureGather
inline constexpr uint64_t kTextureInteger = 1;   // integer coordinates
inline constexpr uint64_t kTextureLevel = 2;     // slot 10 is given
inline constexpr uint64_t kTextureGradient = 4;  // slots 11-16 are given
inline constexpr uint64_t kTextureOffset = 8;    // slots 17-19 are given
inline constexpr uint64_t kTextureSampler = 16;  // slot 5 is given
inline constexpr int kTextureComponentShift = 8;
enum class ImageQuery : uint32_t {
  kWidth,
  kHeight,
  kDepth,
  kArraySize,
  kLevels,
  kSamples,
  kChannelType,
  kChannelOrder,
  kNormalizedCoordinates,
  kForceUnnormalized,
  kFilterMode,
  kAddressMode0,
  kAddressMode1,
  kAddressMode2,
  kMemoryLayout,
};
enum class SurfaceBounds : uint32_t { kTrap, kClamp, kZero };
// code of surface operations: bytes of an element | elements << 8 | SurfaceBounds << 16
// | AtomicOp << 24 | AtomicType << 32 and these:
inline constexpr uint64_t kSurfaceFormatted = 1u << 20;  // x counts elements; converts
inline constexpr uint64_t kSurfaceFloat = 1u << 21;      // what is stored are floats

enum class AtomicOp : uint32_t {
  kAdd,
  kMin,
  kMax,
  kInc,
  kDec,
  kAnd,
  kOr,
  kXor,
  kExchange,
  kCompareExchange,
};
enum class AtomicType : uint32_t {
  kU32,
  kS32,
  kU64,
  kS64,
  kF32,
  kF64,
  kF16x2,
  kBF16x2,
  kF16,
  kBF16,
  kU16
};
// code = op | type << 8 | (shared by one block only) << 16
inline constexpr uint32_t kAtomicBlockPrivate = 1u << 16;

enum class RoundedOp : uint32_t {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kSqrt,
  kFma,
  kFromS32,
  kFromU32,
  kFromS64,
  kFromU64,
  kNarrow,
};
// kNearestAway is for the compiler only, not for the runtime function.
enum class RoundingMode : uint32_t { kNearest, kZero, kDown, kUp, kNearestAway };
// code = op | mode << 8 | (f64) << 16

}  // namespace fargpu::softgpu
