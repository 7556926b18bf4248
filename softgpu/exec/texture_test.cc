// Texture and surface instructions on images in device memory.
#include "softgpu/texture.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "common/status_matchers.h"
#include "softgpu/exec/testing/ptx_runner.h"

namespace fargpu::softgpu {
namespace {

// k(object, in, out): lane t finds three floats (or integers) of `in` in %f0..%f2 (%r0..%r2) and
// leaves four words in %q0..%q3. %h is the handle.
std::string Kernel(const std::string& code) {
  return absl::StrCat(R"(
.version 8.7
.target sm_90
.address_size 64
.visible .entry k(.param .u64 object, .param .u64 in, .param .u64 out) {
  .reg .b32 %t, %q<4>, %r<8>; .reg .f32 %f<4>; .reg .b64 %h, %rd<8>; .reg .b16 %s<4>; .reg .pred %p<3>;
  mov.u32 %t, %tid.x; ld.param.u64 %h, [object];
  ld.param.u64 %rd1, [in]; mul.wide.u32 %rd2, %t, 12; add.u64 %rd1, %rd1, %rd2;
  ld.global.f32 %f0, [%rd1]; ld.global.f32 %f1, [%rd1+4]; ld.global.f32 %f2, [%rd1+8];
  mov.b32 %r0, %f0; mov.b32 %r1, %f1; mov.b32 %r2, %f2; mov.u32 %r4, %laneid;
  mov.u32 %q0, 0; mov.u32 %q1, 0; mov.u32 %q2, 0; mov.u32 %q3, 0;
  )",
                      code, R"(
  ld.param.u64 %rd3, [out]; mul.wide.u32 %rd4, %t, 16; add.u64 %rd3, %rd3, %rd4;
  st.global.v4.u32 [%rd3], {%q0, %q1, %q2, %q3}; ret;
})");
}

struct Point {
  float x = 0, y = 0, z = 0;
};
Point Ints(int x, int y = 0, int z = 0) {
  return {absl::bit_cast<float>(x), absl::bit_cast<float>(y), absl::bit_cast<float>(z)};
}
float F(uint32_t bits) { return absl::bit_cast<float>(bits); }

absl::StatusOr<std::vector<uint32_t>> RunKernel(const std::string& code, uint64_t handle,
                                                const std::vector<Point>& points) {
  absl::StatusOr<std::unique_ptr<PtxRunner>> runner = PtxRunner::Load({Kernel(code)});
  if (!runner.ok()) return runner.status();
  DeviceBuffer<Point> in(points);
  DeviceBuffer<uint32_t> out(points.size() * 4, 0xabcdu);
  const absl::Status status = (*runner)->Run("k", {1}, {static_cast<uint32_t>(points.size())}, 0,
                                             handle, in.address(), out.address());
  if (!status.ok()) return status;
  return out.Values();
}

ImageLevel LevelAt(uint64_t address, uint32_t width, uint32_t height, uint32_t depth,
                   uint32_t element) {
  return {.address = address,
          .row_pitch = uint64_t{width} * element,
          .slice_pitch = uint64_t{width} * height * element,
          .width = width,
          .height = height,
          .depth = depth};
}

TEST(TextureTest, LinearMemoryIsZeroOutside) {
  DeviceBuffer<uint32_t> data({10, 11, 12, 13, 14});
  TextureDescriptor t;
  t.image = {.shape = ImageShape::kLinear, .channel = ChannelType::kU32, .channels = 1};
  t.image.levels[0] = LevelAt(data.address(), 5, 1, 1, 4);
  const auto handle = RegisterTexture(t);
  ASSERT_OK(handle);
  const auto got = RunKernel("tex.1d.v4.u32.s32 {%q0, %q1, %q2, %q3}, [%h, {%r0}];", *handle,
                             {Ints(0), Ints(4), Ints(5), Ints(-1), Ints(2)});
  ASSERT_OK(got);
  const uint32_t want[] = {10, 14, 0, 0, 12};
  for (int k = 0; k < 5; ++k) EXPECT_EQ((*got)[4 * k], want[k]) << k;
  EXPECT_TRUE(UnregisterTexture(*handle));
  EXPECT_FALSE(UnregisterTexture(*handle));
  const auto gone =
      RunKernel("tex.1d.v4.u32.s32 {%q0, %q1, %q2, %q3}, [%h, %r0];", *handle, {Ints(0)});
  EXPECT_THAT(gone, IsCudaError(CUDA_ERROR_ILLEGAL_ADDRESS));
  EXPECT_THAT(
      RunKernel("tex.1d.v4.u32.s32 {%q0, %q1, %q2, %q3}, [%h, %r0];", 0xdeadbeef, {Ints(0)}),
      IsCudaError(CUDA_ERROR_ILLEGAL_ADDRESS));
}

// Filtering as the programming guide states it, one dimension at a time.
double Filter1(const std::function<double(int)>& texel, double x) {
  const double b = std::floor((x - 0.5) * 256 + 0.5) / 256;
  const double i = std::floor(b);
  const double alpha = b - i;
  return (1 - alpha) * texel(static_cast<int>(i)) + alpha * texel(static_cast<int>(i) + 1);
}
int Index(int i, int n, AddressMode mode) {
  switch (mode) {
    case AddressMode::kWrap:
      return ((i % n) + n) % n;
    case AddressMode::kMirror:
      i = ((i % (2 * n)) + 2 * n) % (2 * n);
      return i < n ? i : 2 * n - 1 - i;
    case AddressMode::kClamp:
      return std::clamp(i, 0, n - 1);
    case AddressMode::kBorder:
      return i < 0 || i >= n ? -1 : i;
  }
  return 0;
}

TEST(TextureTest, FiltersAndAddresses2D) {
  constexpr int kW = 5, kH = 3;
  std::vector<float> values;
  for (int k = 0; k < kW * kH; ++k) values.push_back(static_cast<float>(k * k) / 7 - 3);
  DeviceBuffer<float> data(values);
  std::vector<Point> points;
  for (int k = 0; k < 32; ++k) {
    points.push_back(
        {static_cast<float>(k) * 0.137f - 1.3f, static_cast<float>(k) * -0.21f + 2.2f});
  }
  for (const AddressMode mode :
       {AddressMode::kWrap, AddressMode::kMirror, AddressMode::kClamp, AddressMode::kBorder}) {
    for (const bool normalized : {true, false}) {
      for (const bool linear : {true, false}) {
        TextureDescriptor t;
        t.image = {.shape = ImageShape::k2D, .channel = ChannelType::kF32, .channels = 1};
        t.image.levels[0] = LevelAt(data.address(), kW, kH, 1, 4);
        t.address_mode[0] = t.address_mode[1] = mode;
        t.normalized_coordinates = normalized;
        t.linear_filter = linear;
        t.border[0] = 0.5f;
        const auto handle = RegisterTexture(t);
        ASSERT_OK(handle);
        const auto got =
            RunKernel("tex.2d.v4.f32.f32 {%q0, %q1, %q2, %q3}, [%h, {%f0, %f1}];", *handle, points);
        ASSERT_OK(got);
        const bool wraps = mode == AddressMode::kWrap || mode == AddressMode::kMirror;
        const AddressMode effective = wraps && !normalized ? AddressMode::kClamp : mode;
        for (size_t k = 0; k < points.size(); ++k) {
          const double x = normalized ? points[k].x * kW : points[k].x;
          const double y = normalized ? points[k].y * kH : points[k].y;
          const auto texel = [&](int i, int j) -> double {
            const int a = Index(i, kW, effective), b = Index(j, kH, effective);
            return a < 0 || b < 0 ? 0.5 : values[b * kW + a];
          };
          const double want =
              linear ? Filter1(
                           [&](int j) { return Filter1([&](int i) { return texel(i, j); }, x); }, y)
                     : texel(static_cast<int>(std::floor(x)), static_cast<int>(std::floor(y)));
          // A coordinate that falls between two fractions may go either way.
          ASSERT_NEAR(F((*got)[4 * k]), want, linear ? 0.15 : 1e-6)
              << "mode " << static_cast<int>(mode) << " normalized " << normalized << " linear "
              << linear << " at " << x << ", " << y;
        }
        UnregisterTexture(*handle);
      }
    }
  }
}

TEST(TextureTest, FractionsHaveEightBits) {
  DeviceBuffer<float> data(std::vector<float>{0, 256});
  TextureDescriptor t;
  t.image = {.shape = ImageShape::k1D, .channel = ChannelType::kF32, .channels = 1};
  t.image.levels[0] = LevelAt(data.address(), 2, 1, 1, 4);
  t.linear_filter = true;
  const auto handle = RegisterTexture(t);
  ASSERT_OK(handle);
  const auto got =
      RunKernel("tex.1d.v4.f32.f32 {%q0, %q1, %q2, %q3}, [%h, %f0];", *handle,
                {{0.5f + 1.0f / 256}, {0.5f + 1.4f / 256}, {0.5f + 1.6f / 256}, {1.0f}, {9.0f}});
  ASSERT_OK(got);
  const float want[] = {1, 1, 2, 128, 256};
  for (int k = 0; k < 5; ++k) EXPECT_EQ(F((*got)[4 * k]), want[k]) << k;
}

TEST(TextureTest, NarrowChannelsBecomeNumbers) {
  DeviceBuffer<uint8_t> data(std::vector<uint8_t>{255, 51, 0, 128});
  TextureDescriptor t;
  t.image = {.shape = ImageShape::k2D, .channel = ChannelType::kU8, .channels = 4};
  t.image.levels[0] = LevelAt(data.address(), 1, 1, 1, 4);
  t.normalized_values = true;
  const auto handle = RegisterTexture(t);
  ASSERT_OK(handle);
  auto got =
      RunKernel("tex.2d.v4.f32.f32 {%q0, %q1, %q2, %q3}, [%h, {%f0, %f1}];", *handle, {{0, 0}});
  ASSERT_OK(got);
  const float want[] = {1, 0.2f, 0, 128.0f / 255};
  for (int k = 0; k < 4; ++k) EXPECT_EQ(F((*got)[k]), want[k]);
  t.image.channel = ChannelType::kS8;
  const auto is_signed = RegisterTexture(t);
  ASSERT_OK(is_signed);
  got =
      RunKernel("tex.2d.v4.f32.f32 {%q0, %q1, %q2, %q3}, [%h, {%f0, %f1}];", *is_signed, {{0, 0}});
  ASSERT_OK(got);
  EXPECT_EQ(F((*got)[0]), -1.0f / 127);
  EXPECT_EQ(F((*got)[3]), -1.0f);
  t.normalized_values = false;
  const auto integer = RegisterTexture(t);
  ASSERT_OK(integer);
  got = RunKernel("tex.2d.v4.s32.f32 {%q0, %q1, %q2, %q3}, [%h, {%f0, %f1}];", *integer, {{0, 0}});
  ASSERT_OK(got);
  EXPECT_EQ((*got)[3], static_cast<uint32_t>(-128));
}

TEST(TextureTest, LayersDepthAndCubes) {
  std::vector<float> values(2 * 2 * 12);
  for (size_t k = 0; k < values.size(); ++k) values[k] = static_cast<float>(k);
  DeviceBuffer<float> data(values);
  TextureDescriptor t;
  t.image = {.shape = ImageShape::k2DLayered, .channel = ChannelType::kF32, .channels = 1};
  t.image.levels[0] = LevelAt(data.address(), 2, 2, 12, 4);
  auto handle = RegisterTexture(t);
  ASSERT_OK(handle);
  auto got = RunKernel("tex.a2d.v4.f32.f32 {%q0, %q1, %q2, %q3}, [%h, {%r2, %f0, %f1, %f1}];",
                       *handle, {{1.5f, 0.5f, Ints(3).x}, {0.5f, 1.5f, Ints(40).x}});
  ASSERT_OK(got);
  EXPECT_EQ(F((*got)[0]), 13);
  EXPECT_EQ(F((*got)[4]), 46);  // the last layer
  t.image.shape = ImageShape::k3D;
  handle = RegisterTexture(t);
  ASSERT_OK(handle);
  got = RunKernel("tex.3d.v4.f32.f32 {%q0, %q1, %q2, %q3}, [%h, {%f0, %f1, %f2, %f2}];", *handle,
                  {{1.5f, 1.5f, 5.5f}});
  ASSERT_OK(got);
  EXPECT_EQ(F((*got)[0]), 23);
  t.image.shape = ImageShape::kCube;
  t.normalized_coordinates = true;
  handle = RegisterTexture(t);
  ASSERT_OK(handle);
  // One direction per face, towards its element (1, 1), which is s > 0, t > 0.
  got = RunKernel("tex.cube.v4.f32.f32 {%q0, %q1, %q2, %q3}, [%h, {%f0, %f1, %f2, %f2}];", *handle,
                  {{1, -0.5f, -0.5f},
                   {-1, -0.5f, 0.5f},
                   {0.5f, 1, 0.5f},
                   {0.5f, -1, -0.5f},
                   {0.5f, -0.5f, 1},
                   {-0.5f, -0.5f, -1}});
  ASSERT_OK(got);
  for (int face = 0; face < 6; ++face) {
    EXPECT_EQ(F((*got)[4 * face]), static_cast<float>(4 * face + 3)) << face;
  }
}

TEST(TextureTest, MipmapLevels) {
  DeviceBuffer<float> data(std::vector<float>{1, 1, 1, 1, 5});
  TextureDescriptor t;
  t.image = {
      .shape = ImageShape::k2D, .channel = ChannelType::kF32, .channels = 1, .level_count = 2};
  t.image.levels[0] = LevelAt(data.address(), 2, 2, 1, 4);
  t.image.levels[1] = LevelAt(data.address() + 16, 1, 1, 1, 4);
  t.normalized_coordinates = true;
  t.linear_mip_filter = true;
  t.max_level = 1;
  const auto handle = RegisterTexture(t);
  ASSERT_OK(handle);
  auto got = RunKernel("tex.level.2d.v4.f32.f32 {%q0, %q1, %q2, %q3}, [%h, {%f0, %f1}], %f2;",
                       *handle, {{0, 0, 0}, {0, 0, 1}, {0, 0, 0.25f}, {0, 0, 7}, {0, 0, -3}});
  ASSERT_OK(got);
  const float want[] = {1, 5, 2, 5, 1};
  for (int k = 0; k < 5; ++k) EXPECT_EQ(F((*got)[4 * k]), want[k]) << k;
  // One element of level 0 per step is level 0, two are level 1.
  got = RunKernel(
      "mov.f32 %f3, 0f00000000; tex.grad.2d.v4.f32.f32 {%q0, %q1, %q2, %q3}, [%h, {%f3, %f3}],"
      " {%f0, %f3}, {%f3, %f1};",
      *handle, {{0.5f, 0.5f}, {1, 0.5f}});
  ASSERT_OK(got);
  EXPECT_EQ(F((*got)[0]), 1);
  EXPECT_EQ(F((*got)[4]), 5);
}

TEST(TextureTest, GathersAndQueries) {
  DeviceBuffer<float> data(std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8});
  TextureDescriptor t;
  t.image = {.shape = ImageShape::k2D, .channel = ChannelType::kF32, .channels = 2};
  t.image.levels[0] = LevelAt(data.address(), 2, 2, 1, 8);
  const auto handle = RegisterTexture(t);
  ASSERT_OK(handle);
  auto got =
      RunKernel("tld4.g.2d.v4.f32.f32 {%q0, %q1, %q2, %q3}, [%h, {%f0, %f1}];", *handle, {{1, 1}});
  ASSERT_OK(got);
  const float want[] = {6, 8, 4, 2};
  for (int k = 0; k < 4; ++k) EXPECT_EQ(F((*got)[k]), want[k]) << k;
  got = RunKernel(
      "txq.width.b32 %q0, [%h]; txq.height.b32 %q1, [%h]; txq.num_mipmap_levels.b32 %q2, [%h];"
      "txq.normalized_coords.b32 %q3, [%h];",
      *handle, {{0}});
  ASSERT_OK(got);
  EXPECT_EQ(*got, (std::vector<uint32_t>{2, 2, 1, 0}));
}

TEST(SurfaceTest, LoadsStoresAndBounds) {
  DeviceBuffer<uint32_t> data(4 * 4, 7);
  SurfaceDescriptor s;
  s.image = {.shape = ImageShape::k2D, .channel = ChannelType::kU32, .channels = 1};
  s.image.levels[0] = LevelAt(data.address(), 4, 4, 1, 4);
  const auto handle = RegisterSurface(s);
  ASSERT_OK(handle);
  ASSERT_OK(
      RunKernel("shl.b32 %r3, %r0, 2; add.u32 %r5, %r0, 100; sust.b.2d.b32.trap [%h, {%r3, %r1}], "
                "{%r5};",
                *handle, {Ints(0, 0), Ints(1, 2), Ints(3, 3)}));
  EXPECT_EQ(data[0], 100u);
  EXPECT_EQ(data[9], 101u);
  EXPECT_EQ(data[15], 103u);
  EXPECT_EQ(data[1], 7u);
  auto got = RunKernel(
      "suld.b.2d.b8.trap {%s0}, [%h, {%r0, %r1}]; cvt.u32.u16 %q0, %s0;"
      "suld.b.2d.v2.b32.trap {%q1, %q2}, [%h, {%r2, %r1}];",
      *handle, {Ints(4, 2, 0), Ints(5, 2, 8)});
  ASSERT_OK(got);
  EXPECT_EQ(*got, (std::vector<uint32_t>{101, 7, 101, 0, 0, 7, 7, 0}));
  for (const Point& outside : {Ints(16, 0), Ints(0, 4), Ints(-4, 0), Ints(0, -1)}) {
    EXPECT_THAT(RunKernel("suld.b.2d.b32.trap {%q0}, [%h, {%r0, %r1}];", *handle, {outside}),
                IsCudaError(CUDA_ERROR_ILLEGAL_ADDRESS));
  }
  got = RunKernel(
      "mov.u32 %q0, 5; suld.b.2d.b32.zero {%q0}, [%h, {%r0, %r1}];"
      "suld.b.2d.b32.clamp {%q1}, [%h, {%r0, %r1}]; sust.b.2d.b32.zero [%h, {%r0, %r1}], {%q1};",
      *handle, {Ints(64, 9)});
  ASSERT_OK(got);
  EXPECT_EQ((*got)[0], 0u);
  EXPECT_EQ((*got)[1], 103u);
  EXPECT_THAT(RunKernel("suld.b.2d.b32.trap {%q0}, [%h, {%r0, %r1}];", *handle, {Ints(2, 0)}),
              IsCudaError(CUDA_ERROR_MISALIGNED_ADDRESS));
  ASSERT_OK(RunKernel("sured.b.add.2d.u32.trap [%h, {%r0, %r1}], %r2;", *handle,
                      {Ints(4, 0, 3), Ints(4, 0, 4)}));
  EXPECT_EQ(data[1], 14u);
  got = RunKernel("suq.width.b32 %q0, [%h]; suq.height.b32 %q1, [%h];", *handle, {{0}});
  ASSERT_OK(got);
  EXPECT_EQ((*got)[0], 4u);
  EXPECT_THAT(RunKernel("suld.b.2d.b32.trap {%q0}, [%h, {%r0, %r1}];", *handle + 1, {Ints(0, 0)}),
              IsCudaError(CUDA_ERROR_ILLEGAL_ADDRESS));
}

TEST(SurfaceTest, LayersAndFormattedStores) {
  DeviceBuffer<uint8_t> data(2 * 2 * 3, 9);
  SurfaceDescriptor s;
  s.image = {.shape = ImageShape::k2DLayered, .channel = ChannelType::kU8, .channels = 1};
  s.image.levels[0] = LevelAt(data.address(), 2, 2, 3, 1);
  const auto handle = RegisterSurface(s);
  ASSERT_OK(handle);
  // {layer, x, y, nothing}
  ASSERT_OK(RunKernel("cvt.u16.u32 %s1, %t; sust.b.a2d.b8.trap [%h, {%r2, %r0, %r1, %r1}], {%s1};",
                      *handle, {Ints(0, 1, 0), Ints(1, 0, 2)}));
  EXPECT_EQ(data[2], 0u);
  EXPECT_EQ(data[9], 1u);
  s.image.shape = ImageShape::k2D;
  s.image.channel = ChannelType::kS8;
  s.image.levels[0].depth = 1;
  const auto is_signed = RegisterSurface(s);
  ASSERT_OK(is_signed);
  ASSERT_OK(RunKernel("mov.u32 %r3, -300; sust.p.2d.b32.trap [%h, {%r0, %r1}], {%r3};", *is_signed,
                      {Ints(1, 1)}));
  EXPECT_EQ(data[3], 0x80u);
}

}  // namespace
}  // namespace fargpu::softgpu
