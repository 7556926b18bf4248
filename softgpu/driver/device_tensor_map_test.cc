// Tensor maps, and the copies that kernels make with them, against loops over the tensor.
#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include "softgpu/driver/ptx_test.h"

namespace fargpu::softgpu {
namespace {

constexpr size_t kTileBytes = 8192;

struct Tensor {
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_UINT32;
  unsigned element = 4;  // bytes
  std::vector<cuuint64_t> sizes = {};
  std::vector<cuuint32_t> box = {};
  std::vector<cuuint32_t> steps = {};
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
  CUtensorMapFloatOOBfill fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;

  cuuint32_t rank() const { return static_cast<cuuint32_t>(sizes.size()); }
  // Rows are padded to multiples of 16 bytes, and by 16 more.
  std::vector<cuuint64_t> Strides() const {
    std::vector<cuuint64_t> strides;
    uint64_t stride = element;
    for (size_t k = 0; k + 1 < sizes.size(); ++k) {
      stride = (stride * sizes[k] + 15) / 16 * 16 + (k == 0 ? 16 : 0);
      strides.push_back(stride);
    }
    return strides;
  }
  uint64_t Bytes() const {
    return sizes.size() == 1 ? sizes[0] * element : Strides().back() * sizes.back();
  }
  // Where element `at` lies, or -1 outside.
  int64_t OffsetOf(const std::vector<int64_t>& at) const {
    const std::vector<cuuint64_t> strides = Strides();
    int64_t offset = 0;
    for (size_t k = 0; k < sizes.size(); ++k) {
      if (at[k] < 0 || at[k] >= static_cast<int64_t>(sizes[k])) return -1;
      offset += at[k] * static_cast<int64_t>(k == 0 ? element : strides[k - 1]);
    }
    return offset;
  }
  CUresult Encode(CUtensorMap* map, CUdeviceptr memory) const {
    std::vector<cuuint32_t> one(sizes.size(), 1);
    const std::vector<cuuint64_t> strides = Strides();
    return cuTensorMapEncodeTiled(
        map, type, rank(), reinterpret_cast<void*>(memory), sizes.data(), strides.data(),
        box.data(), steps.empty() ? one.data() : steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
        swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B, fill);
  }
};

// Elements of the tile in the order of shared memory, for the tile at `start`.
void ForEachElement(const Tensor& t, const std::vector<int64_t>& start,
                    const std::function<void(size_t, const std::vector<int64_t>&)>& visit) {
  size_t total = 1;
  std::vector<size_t> counts;
  for (size_t k = 0; k < t.sizes.size(); ++k) {
    const size_t step = t.steps.empty() || k == 0 ? 1 : t.steps[k];
    counts.push_back((t.box[k] + step - 1) / step);
    total *= counts.back();
  }
  for (size_t n = 0; n < total; ++n) {
    std::vector<int64_t> at = start;
    size_t rest = n;
    for (size_t k = 0; k < counts.size(); ++k) {
      const size_t step = t.steps.empty() || k == 0 ? 1 : t.steps[k];
      at[k] += static_cast<int64_t>(rest % counts[k] * step);
      rest /= counts[k];
    }
    visit(n, at);
  }
}

size_t TileElements(const Tensor& t) {
  size_t n = 0;
  ForEachElement(t, std::vector<int64_t>(t.sizes.size()), [&](size_t, const auto&) { ++n; });
  return n;
}

// Where byte `at` of a tile lies when chunks are swapped: written down from the tables, line by
// line of 128 bytes.
size_t Swizzled(CUtensorMapSwizzle swizzle, size_t at) {
  const size_t line = at / 128;
  const size_t chunk = at % 128 / 16;
  size_t moved = chunk;
  if (swizzle == CU_TENSOR_MAP_SWIZZLE_32B) moved = chunk ^ (line % 2);
  if (swizzle == CU_TENSOR_MAP_SWIZZLE_64B) moved = chunk ^ (line % 4);
  if (swizzle == CU_TENSOR_MAP_SWIZZLE_128B) moved = chunk ^ (line % 8);
  if (swizzle == CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B) moved = chunk ^ (line % 4 * 2);
  return line * 128 + moved * 16 + at % 16;
}

class TensorMapTest : public PtxTest {
 protected:
  // Runs `code` with one thread between two copies of `tile` (in and out of shared memory) by all.
  // It sees the map's address in %map, the tile at `tile`, its bytes in %bytes, an mbarrier
  // `object` and coordinates in %c0 to %c4.
  std::vector<uint8_t> Run(const CUtensorMap& map, const std::string& code,
                           const std::vector<int64_t>& coordinates, size_t bytes,
                           const std::vector<uint8_t>& tile, CUresult expected = CUDA_SUCCESS) {
    const CUfunction function = LoadPtx(absl::StrCat(R"(
.visible .entry k(.param .align 64 .b8 tensor[128], .param .u64 out, .param .u32 size, .param .u32 p0, .param .u32 p1, .param .u32 p2, .param .u32 p3, .param .u32 p4) {
  .reg .b32 %t, %bytes, %c<5>, %r<20>; .reg .b16 %h<8>; .reg .b64 %map, %out, %rd<9>; .reg .pred %first, %p<5>;
  .shared .align 1024 .b8 tile[8192]; .shared .align 8 .b64 object;
  mov.b64 %map, tensor; cvta.param.u64 %map, %map; ld.param.u64 %out, [out]; ld.param.u32 %bytes, [size]; mov.u32 %t, %tid.x;
  ld.param.u32 %c0, [p0]; ld.param.u32 %c1, [p1]; ld.param.u32 %c2, [p2]; ld.param.u32 %c3, [p3]; ld.param.u32 %c4, [p4];
  setp.eq.u32 %first, %t, 0; @%first mbarrier.init.shared::cta.b64 [object], 1;
  mov.u32 %r1, %t;
IN: shl.b32 %r2, %r1, 2; cvt.u64.u32 %rd1, %r2; add.u64 %rd1, %rd1, %out; ld.global.u32 %r3, [%rd1]; mov.u32 %r4, tile; add.u32 %r4, %r4, %r2;
  st.shared.u32 [%r4], %r3; add.u32 %r1, %r1, 32; setp.lt.u32 %p1, %r1, 2048; @%p1 bra IN;
  bar.sync 0; @!%first bra WAIT;
  )",
                                                     code, R"(
WAIT: bar.sync 0; mov.u32 %r1, %t;
OUT: shl.b32 %r2, %r1, 2; cvt.u64.u32 %rd1, %r2; add.u64 %rd1, %rd1, %out; mov.u32 %r4, tile; add.u32 %r4, %r4, %r2;
  ld.shared.u32 %r3, [%r4]; st.global.u32 [%rd1], %r3; add.u32 %r1, %r1, 32; setp.lt.u32 %p1, %r1, 2048; @%p1 bra OUT; ret; })"));
    std::vector<uint8_t> whole = tile;
    whole.resize(kTileBytes, 0xcc);
    CUdeviceptr out = Upload(whole);
    CUtensorMap copy = map;
    uint32_t size = static_cast<uint32_t>(bytes);
    int32_t at[5] = {};
    for (size_t k = 0; k < coordinates.size(); ++k) at[k] = static_cast<int32_t>(coordinates[k]);
    void* params[] = {&copy, &out, &size, &at[0], &at[1], &at[2], &at[3], &at[4]};
    EXPECT_SUCCESS(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, nullptr, params, nullptr));
    EXPECT_CU(expected, cuCtxSynchronize());
    return expected == CUDA_SUCCESS ? Download<uint8_t>(out, kTileBytes) : whole;
  }

  static std::string Coordinates(size_t rank) {
    std::string text = "{";
    for (size_t k = 0; k < rank; ++k) absl::StrAppend(&text, k > 0 ? ", " : "", "%c", k);
    return text + "}";
  }
  static std::string Load(size_t rank, const std::string& mode = "", const std::string& more = "") {
    return absl::StrCat(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [object], %bytes; cp.async.bulk.tensor.",
        rank, "d.shared::cluster.global", mode, ".mbarrier::complete_tx::bytes [tile], [%map, ",
        Coordinates(mode == ".tile::gather4" ? 5 : rank), "], [object]", more,
        "; DONE: mbarrier.try_wait.parity.shared::cta.b64 %p2, [object], 0; @!%p2 bra DONE;");
  }

  std::vector<uint8_t> Noise(size_t bytes) {
    std::vector<uint8_t> noise(bytes);
    for (uint8_t& byte : noise)
      byte = static_cast<uint8_t>((state_ = state_ * 1664525 + 1013904223) >> 24);
    return noise;
  }
  uint32_t state_ = 1;
};

const Tensor kTensors[] = {
    {.type = CU_TENSOR_MAP_DATA_TYPE_UINT8, .element = 1, .sizes = {100}, .box = {64}},
    {.sizes = {20, 9}, .box = {8, 5}},
    {.type = CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
     .element = 2,
     .sizes = {70, 33},
     .box = {64, 16},
     .swizzle = CU_TENSOR_MAP_SWIZZLE_128B},
    {.type = CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
     .element = 2,
     .sizes = {70, 33},
     .box = {32, 24},
     .swizzle = CU_TENSOR_MAP_SWIZZLE_64B},
    {.type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
     .element = 2,
     .sizes = {70, 33},
     .box = {16, 32},
     .swizzle = CU_TENSOR_MAP_SWIZZLE_32B},
    {.sizes = {32, 16}, .box = {32, 16}, .swizzle = CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B},
    {.sizes = {12, 7, 5}, .box = {4, 3, 2}},
    {.type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
     .sizes = {12, 7, 5},
     .box = {4, 6, 4},
     .steps = {1, 2, 3},
     .fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA},
    {.type = CU_TENSOR_MAP_DATA_TYPE_FLOAT64,
     .element = 8,
     .sizes = {6, 5, 4, 3},
     .box = {2, 3, 2, 2}},
    {.type = CU_TENSOR_MAP_DATA_TYPE_INT32, .sizes = {8, 4, 3, 3, 4}, .box = {4, 2, 2, 2, 3}},
};

TEST_F(TensorMapTest, LoadsTilesOfEveryRank) {
  for (const Tensor& t : kTensors) {
    const std::vector<uint8_t> contents = Noise(t.Bytes());
    const CUdeviceptr memory = Upload(contents);
    CUtensorMap map;
    ASSERT_SUCCESS(t.Encode(&map, memory));
    const size_t bytes = TileElements(t) * t.element;
    // Inside, and over the edges on both sides.
    for (const int64_t shift : {0, 1, -2, 3}) {
      std::vector<int64_t> start(t.rank(), shift);
      start[0] = shift * 3;
      std::vector<uint8_t> expected(kTileBytes, 0xcc);
      ForEachElement(t, start, [&](size_t n, const std::vector<int64_t>& at) {
        const int64_t offset = t.OffsetOf(at);
        for (unsigned b = 0; b < t.element; ++b) {
          const uint8_t fill = t.fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE ? 0
                               : b + 1 == t.element                        ? 0x7f
                                                                           : 0xff;
          expected[Swizzled(t.swizzle, n * t.element + b)] =
              offset < 0 ? fill : contents[static_cast<size_t>(offset) + b];
        }
      });
      EXPECT_EQ(Run(map, Load(t.rank()), start, bytes, {}), expected)
          << "rank " << t.rank() << ", shift " << shift << ", swizzle " << t.swizzle;
    }
  }
}

TEST_F(TensorMapTest, StoresWhatLiesInside) {
  for (const Tensor& t : kTensors) {
    const std::vector<uint8_t> before = Noise(t.Bytes());
    const CUdeviceptr memory = Upload(before);
    CUtensorMap map;
    ASSERT_SUCCESS(t.Encode(&map, memory));
    const std::vector<uint8_t> tile = Noise(kTileBytes);
    std::vector<int64_t> start(t.rank(), 1);
    start[0] = -3;
    std::vector<uint8_t> expected = before;
    ForEachElement(t, start, [&](size_t n, const std::vector<int64_t>& at) {
      const int64_t offset = t.OffsetOf(at);
      for (unsigned b = 0; b < t.element && offset >= 0; ++b) {
        expected[static_cast<size_t>(offset) + b] = tile[Swizzled(t.swizzle, n * t.element + b)];
      }
    });
    Run(map,
        absl::StrCat("fence.proxy.async.shared::cta; cp.async.bulk.tensor.", t.rank(),
                     "d.global.shared::cta.bulk_group [%map, ", Coordinates(t.rank()),
                     "], [tile]; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;"),
        start, 0, tile);
    EXPECT_EQ(Download<uint8_t>(memory, before.size()), expected) << "rank " << t.rank();
  }
}

TEST_F(TensorMapTest, ReducesInMemory) {
  const Tensor t = {.sizes = {12, 6}, .box = {8, 4}};
  const std::vector<std::pair<const char*, std::function<uint32_t(uint32_t, uint32_t)>>>
      operations = {{"add", [](uint32_t a, uint32_t b) { return a + b; }},
                    {"min", [](uint32_t a, uint32_t b) { return std::min(a, b); }},
                    {"max", [](uint32_t a, uint32_t b) { return std::max(a, b); }},
                    {"and", [](uint32_t a, uint32_t b) { return a & b; }},
                    {"or", [](uint32_t a, uint32_t b) { return a | b; }},
                    {"xor", [](uint32_t a, uint32_t b) { return a ^ b; }}};
  for (const auto& operation : operations) {
    const std::vector<uint8_t> before = Noise(t.Bytes());
    const CUdeviceptr memory = Upload(before);
    CUtensorMap map;
    ASSERT_SUCCESS(t.Encode(&map, memory));
    const std::vector<uint8_t> tile = Noise(kTileBytes);
    std::vector<uint8_t> expected = before;
    ForEachElement(t, {6, 3}, [&](size_t n, const std::vector<int64_t>& at) {
      const int64_t offset = t.OffsetOf(at);
      if (offset < 0) return;
      uint32_t a = 0, b = 0;
      std::memcpy(&a, &before[static_cast<size_t>(offset)], 4);
      std::memcpy(&b, &tile[n * 4], 4);
      a = operation.second(a, b);
      std::memcpy(&expected[static_cast<size_t>(offset)], &a, 4);
    });
    Run(map,
        absl::StrCat("cp.reduce.async.bulk.tensor.2d.global.shared::cta.", operation.first,
                     ".tile.bulk_group [%map, {%c0, %c1}], [tile];"),
        {6, 3}, 0, tile);
    EXPECT_EQ(Download<uint8_t>(memory, before.size()), expected) << operation.first;
  }
}

TEST_F(TensorMapTest, GathersRows) {
  const Tensor t = {.sizes = {16, 10}, .box = {8, 1}};
  const std::vector<uint8_t> contents = Noise(t.Bytes());
  CUtensorMap map;
  ASSERT_SUCCESS(t.Encode(&map, Upload(contents)));
  const std::vector<int64_t> rows = {9, 0, 12, 3};  // 12 is outside
  std::vector<uint8_t> expected(kTileBytes, 0xcc);
  for (size_t r = 0; r < 4; ++r) {
    for (int64_t k = 0; k < 8; ++k) {
      const int64_t offset = t.OffsetOf({4 + k, rows[r]});
      for (size_t b = 0; b < 4; ++b) {
        expected[(r * 8 + static_cast<size_t>(k)) * 4 + b] =
            offset < 0 ? 0 : contents[static_cast<size_t>(offset) + b];
      }
    }
  }
  EXPECT_EQ(Run(map, Load(2, ".tile::gather4"), {4, 9, 0, 12, 3}, 128, {}), expected);
}

TEST_F(TensorMapTest, PixelsOfImages) {
  // Images of 8 channels: width 7, height 6, three of them. The box leaves one pixel on the left
  // and two at the bottom out, and reaches one beyond the right edge.
  Tensor t = {.type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32, .sizes = {8, 7, 6, 3}};
  const std::vector<uint8_t> contents = Noise(t.Bytes());
  const CUdeviceptr memory = Upload(contents);
  const std::vector<cuuint64_t> strides = t.Strides();
  for (const cuuint32_t step : {1u, 2u}) {
    const cuuint32_t steps[] = {1, step, step, 1};
    const int lower[] = {0, 1};   // height, width
    const int upper[] = {-2, 1};  // the box ends at size - 1 + upper
    const cuuint32_t pixels = 20, channels = 4;
    CUtensorMap map;
    ASSERT_SUCCESS(cuTensorMapEncodeIm2col(
        &map, t.type, 4, reinterpret_cast<void*>(memory), t.sizes.data(), strides.data(), lower,
        upper, channels, pixels, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
        CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    // All pixels in order; the copy takes 20 of them from (w 3, h 2) of image 1 on.
    std::vector<std::vector<int64_t>> order;
    bool found = false;
    for (int64_t n = 1; n < 9; ++n) {
      for (int64_t h = n == 1 ? 2 : 0; h <= 6 - 1 - 2; h += step) {
        for (int64_t w = !found ? 3 : 1; w <= 7 - 1 + 1; w += step) {
          found = true;
          order.push_back({w, h, n});
        }
      }
    }
    std::vector<uint8_t> expected(kTileBytes, 0xcc);
    for (size_t p = 0; p < pixels; ++p) {
      for (int64_t c = 0; c < channels; ++c) {
        // The offsets move every pixel by (2, 1).
        const int64_t offset = t.OffsetOf({2 + c, order[p][0] + 2, order[p][1] + 1, order[p][2]});
        for (size_t b = 0; b < 4; ++b) {
          expected[(p * channels + static_cast<size_t>(c)) * 4 + b] =
              offset < 0 ? 0 : contents[static_cast<size_t>(offset) + b];
        }
      }
    }
    EXPECT_EQ(Run(map, "mov.u16 %h1, 2; mov.u16 %h2, 1;" + Load(4, ".im2col", ", {%h1, %h2}"),
                  {2, 3, 2, 1}, pixels * channels * 4, {}),
              expected)
        << step;
  }
}

TEST_F(TensorMapTest, KernelsChangeMaps) {
  const Tensor t = {.sizes = {20, 9}, .box = {8, 5}};
  const std::vector<uint8_t> contents = Noise(2 * t.Bytes());
  const CUdeviceptr memory = Upload(contents);
  Tensor smaller = t;
  smaller.box = {8, 2};
  CUtensorMap map;
  ASSERT_SUCCESS(t.Encode(&map, 16));
  std::vector<uint8_t> expected(kTileBytes, 0xcc);
  const uint64_t start = t.Strides()[0];
  ForEachElement(smaller, {1, 2}, [&](size_t n, const std::vector<int64_t>& at) {
    for (unsigned b = 0; b < 4; ++b) {
      expected[n * 4 + b] = contents[start + static_cast<uint64_t>(t.OffsetOf(at)) + b];
    }
  });
  const std::string code = absl::StrCat("mov.u64 %rd5, ", memory + start, R"(; ld.u64 %rd6, [%map];
  tensormap.replace.tile.global_address.global.b1024.b64 [%map], %rd5; tensormap.replace.tile.box_dim.global.b1024.b32 [%map], 1, 2;
  fence.proxy.tensormap::generic.acquire.gpu [%map], 128; mov.u32 %bytes, 64; )",
                                        Load(2));
  EXPECT_EQ(Run(map, code, {1, 2}, 64, {}), expected);
}

TEST_F(TensorMapTest, WhatIsNoMapEndsTheKernel) {
  CUtensorMap map = {};
  Run(map, Load(2), {0, 0}, 64, {}, CUDA_ERROR_ILLEGAL_INSTRUCTION);
  StartAnew();
  const Tensor t = {.sizes = {20, 9}, .box = {8, 5}};
  ASSERT_SUCCESS(t.Encode(&map, Upload(Noise(t.Bytes()))));
  Run(map, Load(3), {0, 0, 0}, 64, {}, CUDA_ERROR_ILLEGAL_INSTRUCTION);
  StartAnew();
  ASSERT_SUCCESS(t.Encode(&map, 1 << 20));  // where nothing is
  Run(map, Load(2), {0, 0}, 160, {}, CUDA_ERROR_ILLEGAL_ADDRESS);
  StartAnew();
}

TEST_F(TensorMapTest, ArgumentsAreChecked) {
  const Tensor good = {.sizes = {32, 9}, .box = {8, 5}};
  CUtensorMap map[2];
  const CUdeviceptr memory = Upload(Noise(good.Bytes()));
  EXPECT_SUCCESS(good.Encode(map, memory));
  const auto with = [&](const std::function<void(Tensor*)>& change) {
    Tensor t = good;
    change(&t);
    return t.Encode(map, memory);
  };
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, with([](Tensor* t) { t->box[1] = 0; }));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, with([](Tensor* t) { t->box[1] = 257; }));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, with([](Tensor* t) { t->box[0] = 3; }));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, with([](Tensor* t) { t->sizes[1] = 0; }));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, with([](Tensor* t) { t->steps = {1, 9}; }));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, with([](Tensor* t) { t->steps = {1, 0}; }));
  EXPECT_SUCCESS(with([](Tensor* t) { t->steps = {0, 8}; }));  // the first is ignored
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            with([](Tensor* t) { t->fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA; }));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, with([](Tensor* t) {
              t->box[0] = 16;
              t->swizzle = CU_TENSOR_MAP_SWIZZLE_32B;
            }));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            with([](Tensor* t) { t->type = static_cast<CUtensorMapDataType>(99); }));
  EXPECT_CU(CUDA_ERROR_NOT_SUPPORTED,
            with([](Tensor* t) { t->type = CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B; }));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, good.Encode(map, memory + 8));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, good.Encode(nullptr, memory));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            good.Encode(reinterpret_cast<CUtensorMap*>(reinterpret_cast<char*>(map) + 8), memory));
  const cuuint64_t odd_stride[] = {136};
  EXPECT_CU(
      CUDA_ERROR_INVALID_VALUE,
      cuTensorMapEncodeTiled(map, good.type, 2, reinterpret_cast<void*>(memory), good.sizes.data(),
                             odd_stride, good.box.data(), good.box.data(),
                             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                             CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  // Another address in a map that stands.
  ASSERT_SUCCESS(good.Encode(map, memory));
  EXPECT_SUCCESS(cuTensorMapReplaceAddress(map, reinterpret_cast<void*>(memory + 16)));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuTensorMapReplaceAddress(map, reinterpret_cast<void*>(memory + 8)));
  std::memset(map, 0, sizeof map);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuTensorMapReplaceAddress(map, reinterpret_cast<void*>(memory)));
}

}  // namespace
}  // namespace fargpu::softgpu
