// Textures and surfaces: every element of an image by its own thread. Filters, address modes and
// what lies outside are tested beside the engine (softgpu/exec/texture_test.cc).
#include <cstring>

#include "absl/strings/str_cat.h"

#include "softgpu/texture.h"
#include "tests/conformance/ptx/tables.h"

namespace fargpu::conformance {
namespace {

using softgpu::ChannelType;
using softgpu::Image;
using softgpu::ImageShape;

constexpr uint32_t kWidth = 4, kHeight = 4, kDepth = 6;

// Four channels of an element: bits of floats that are whole numbers, or those numbers.
uint32_t Channel(uint32_t element, uint32_t channel, bool is_float) {
  const uint32_t value = 100 + 7 * element + channel;
  return is_float ? Bits(static_cast<float>(value)) : value;
}

// An image in device memory, which stays for the life of the process as the tables do.
Image MakeImage(ImageShape shape, uint32_t height, uint32_t depth, bool is_float) {
  const uint32_t elements = kWidth * height * depth;
  const uint64_t address = softgpu::ReserveWindowRange(elements * 16);
  for (uint32_t k = 0; k < elements * 4; ++k) {
    const uint32_t bits = Channel(k / 4, k % 4, is_float);
    std::memcpy(reinterpret_cast<char*>(address) + 4 * k, &bits, 4);
  }
  Image image;
  image.shape = shape;
  image.channel = is_float ? ChannelType::kF32 : ChannelType::kU32;
  image.channels = 4;
  image.levels[0] = {.address = address,
                     .row_pitch = kWidth * 16,
                     .slice_pitch = uint64_t{kWidth} * height * 16,
                     .width = kWidth,
                     .height = height,
                     .depth = depth};
  return image;
}

// %x1, %x2, %x3 are x, y and z of the thread's element; %x4, %x5, %x6 the same as floats, at the
// element's centre; %y5 is the handle.
KernelRow ImageRow(const std::string& form, const Image& image, const std::string& fetch,
                   bool is_float) {
  softgpu::TextureDescriptor texture;
  texture.image = image;
  texture.normalized_coordinates = image.shape == ImageShape::kCube;
  const uint64_t handle = softgpu::RegisterTexture(texture).value_or(0);
  const uint32_t height = image.levels[0].height;
  const uint32_t elements = kWidth * height * image.levels[0].depth;
  KernelRow row;
  row.forms = {form};
  row.block = {elements, 1, 1};
  row.input = {static_cast<uint32_t>(handle), static_cast<uint32_t>(handle >> 32)};
  row.code = absl::StrCat(
      "mov.u32 %x0, %tid.x; ld.global.u64 %y5, [%in]; mul.wide.u32 %y1, %x0, 16; add.u64 %y2, "
      "%out, %y1;"
      "and.b32 %x1, %x0, 3; shr.u32 %x2, %x0, 2; div.u32 %x3, %x2, ",
      height, "; rem.u32 %x2, %x2, ", height,
      "; cvt.rn.f32.u32 %x4, %x1; add.f32 %x4, %x4, 0f3F000000; cvt.rn.f32.u32 %x5, %x2; "
      "add.f32 %x5, %x5, 0f3F000000; cvt.rn.f32.u32 %x6, %x3; add.f32 %x6, %x6, 0f3F000000;\n",
      fetch, "\nst.global.v4.b32 [%y2], {%x20, %x21, %x22, %x23}; ret;");
  row.expected = [elements, is_float] {
    std::vector<uint32_t> words;
    for (uint32_t k = 0; k < elements * 4; ++k) words.push_back(Channel(k / 4, k % 4, is_float));
    return words;
  };
  return row;
}

}  // namespace

void AddTextureRows(Table* t) {
  const auto add = [&](const std::string& form, ImageShape shape, uint32_t height, uint32_t depth,
                       const std::string& coordinates, const std::string& before = "",
                       const std::string& level = "") {
    const bool is_float = form.find("v4.f32") != std::string::npos;
    t->AddKernel(ImageRow(form, MakeImage(shape, height, depth, is_float),
                          absl::StrCat(before, form, " {%x20, %x21, %x22, %x23}, [%y5, {",
                                       coordinates, "}]", level, ";"),
                          is_float));
  };
  add("tex.1d.v4.f32.f32", ImageShape::k1D, 1, 1, "%x4");
  add("tex.1d.v4.f32.s32", ImageShape::kLinear, 1, 1, "%x1");
  add("tex.1d.v4.u32.s32", ImageShape::kLinear, 1, 1, "%x1");
  add("tex.2d.v4.f32.f32", ImageShape::k2D, kHeight, 1, "%x4, %x5");
  add("tex.2d.v4.u32.f32", ImageShape::k2D, kHeight, 1, "%x4, %x5");
  add("tex.level.2d.v4.f32.f32", ImageShape::k2D, kHeight, 1, "%x4, %x5", "", ", 0f00000000");
  add("tex.3d.v4.f32.f32", ImageShape::k3D, kHeight, kDepth, "%x4, %x5, %x6, %x6");
  add("tex.a2d.v4.f32.f32", ImageShape::k2DLayered, kHeight, kDepth, "%x3, %x4, %x5, %x5");
  // The direction of an element of a face: s and t from -1 to 1 beside the face's axis.
  add("tex.cube.v4.f32.f32", ImageShape::kCube, kHeight, 6, "%x10, %x11, %x12, %x12", R"(
  sub.f32 %x7, %x4, 0f40000000; mul.f32 %x7, %x7, 0f3F000000; sub.f32 %x8, %x5, 0f40000000; mul.f32 %x8, %x8, 0f3F000000;
  neg.f32 %x13, %x7; neg.f32 %x14, %x8; mov.b32 %x15, 0f3F800000; mov.b32 %x16, 0fBF800000;
  mov.b32 %x10, %x15; mov.b32 %x11, %x14; mov.b32 %x12, %x13;
  setp.eq.u32 %p0, %x3, 1; @%p0 mov.b32 %x10, %x16; @%p0 mov.b32 %x12, %x7;
  setp.eq.u32 %p0, %x3, 2; @%p0 mov.b32 %x10, %x7; @%p0 mov.b32 %x11, %x15; @%p0 mov.b32 %x12, %x8;
  setp.eq.u32 %p0, %x3, 3; @%p0 mov.b32 %x10, %x7; @%p0 mov.b32 %x11, %x16; @%p0 mov.b32 %x12, %x14;
  setp.eq.u32 %p0, %x3, 4; @%p0 mov.b32 %x10, %x7; @%p0 mov.b32 %x11, %x14; @%p0 mov.b32 %x12, %x15;
  setp.eq.u32 %p0, %x3, 5; @%p0 mov.b32 %x10, %x13; @%p0 mov.b32 %x11, %x14; @%p0 mov.b32 %x12, %x16;
)");
  // What is stored through a surface is read back as a texture.
  Image image = MakeImage(ImageShape::k2D, kHeight, 1, false);
  softgpu::SurfaceDescriptor surface;
  surface.image = image;
  surface.image.channel = ChannelType::kU8;
  surface.image.levels[0].width = kWidth * 4;  // as elements of 4 bytes
  const uint64_t handle = softgpu::RegisterSurface(surface).value_or(0);
  KernelRow row = ImageRow(
      "sust.b.2d.v4.b8.trap", image,
      absl::StrCat(
          R"(
  mov.u64 %y6, )",
          handle,
          R"(; shl.b32 %x7, %x1, 4; cvt.u16.u32 %h1, %x0; add.u16 %h2, %h1, 50; add.u16 %h3, %h1, 100; add.u16 %h4, %h1, 150;
  sust.b.2d.v4.b8.trap [%y6, {%x7, %x2}], {%h1, %h2, %h3, %h4}; tex.2d.v4.u32.f32 {%x20, %x21, %x22, %x23}, [%y5, {%x4, %x5}];)"),
      false);
  row.expected = [] {
    std::vector<uint32_t> words;
    for (uint32_t k = 0; k < kWidth * kHeight; ++k) {
      words.push_back(k | (k + 50) << 8 | (k + 100) << 16 | (k + 150) << 24);
      for (uint32_t c = 1; c < 4; ++c) words.push_back(Channel(k, c, false));
    }
    return words;
  };
  t->AddKernel(std::move(row));
}

}  // namespace fargpu::conformance
