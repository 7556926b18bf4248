// Texture and surface references, as PTX from before CUDA 12 has them, through the driver API.
#include <cstring>
#include <cuda.h>
#include <vector>

#include "check.h"

#define CHECK_DRIVER(call)                                                       \
  do {                                                                           \
    const CUresult result_ = (call);                                             \
    if (result_ != CUDA_SUCCESS) {                                               \
      const char* name_ = "unknown";                                             \
      cuGetErrorName(result_, &name_);                                           \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, name_); \
      std::exit(1);                                                              \
    }                                                                            \
  } while (false)

constexpr char kModule[] = R"(
.version 7.0
.target sm_60
.address_size 64
.global .texref image;
.global .texref line;
.global .surfref target;
.global .align 4 .u32 number = 7;
.visible .entry Sample(.param .u64 out, .param .f32 scale) {
  .reg .b32 %r<4>; .reg .f32 %f<12>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [out]; ld.param.f32 %f1, [scale];
  mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y;
  cvt.rn.f32.u32 %f2, %r1; cvt.rn.f32.u32 %f3, %r2;
  add.f32 %f2, %f2, 0f3F000000; add.f32 %f3, %f3, 0f3F000000;
  mul.f32 %f2, %f2, %f1; mul.f32 %f3, %f3, %f1;
  tex.2d.v4.f32.f32 {%f4, %f5, %f6, %f7}, [image, {%f2, %f3}];
  mad.lo.u32 %r3, %r2, 8, %r1; mul.wide.u32 %rd2, %r3, 4; add.u64 %rd1, %rd1, %rd2;
  st.global.f32 [%rd1], %f4; ret;
}
.visible .entry Line(.param .u64 out) {
  .reg .b32 %r<8>; .reg .b64 %rd<4>;
  ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x;
  tex.1d.v4.u32.s32 {%r2, %r3, %r4, %r5}, [line, {%r1}];
  mul.wide.u32 %rd2, %r1, 4; add.u64 %rd1, %rd1, %rd2; st.global.u32 [%rd1], %r2; ret;
}
.visible .entry Write() {
  .reg .b32 %r<8>;
  mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mad.lo.u32 %r3, %r2, 100, %r1;
  shl.b32 %r4, %r1, 2;
  sust.b.2d.b32.trap [target, {%r4, %r2}], {%r3}; ret;
}
)";

constexpr int kWidth = 8, kHeight = 4;

template <typename T>
std::vector<T> FromDevice(CUdeviceptr from, size_t count) {
  std::vector<T> values(count);
  CHECK_DRIVER(cuMemcpyDtoH(values.data(), from, count * sizeof(T)));
  return values;
}

int main() {
  CHECK_DRIVER(cuInit(0));
  CUcontext context;
  CHECK_DRIVER(cuDevicePrimaryCtxRetain(&context, 0));
  CHECK_DRIVER(cuCtxSetCurrent(context));
  CUmodule module;
  CHECK_DRIVER(cuModuleLoadData(&module, kModule));
  CUfunction sample, line_kernel, write;
  CHECK_DRIVER(cuModuleGetFunction(&sample, module, "Sample"));
  CHECK_DRIVER(cuModuleGetFunction(&line_kernel, module, "Line"));
  CHECK_DRIVER(cuModuleGetFunction(&write, module, "Write"));
  CUtexref image, again, line;
  CUsurfref target;
  CHECK_DRIVER(cuModuleGetTexRef(&image, module, "image"));
  CHECK_DRIVER(cuModuleGetTexRef(&again, module, "image"));
  CHECK_DRIVER(cuModuleGetTexRef(&line, module, "line"));
  CHECK_DRIVER(cuModuleGetSurfRef(&target, module, "target"));
  EXPECT(image == again && image != line);
  EXPECT(cuModuleGetTexRef(&again, module, "number") == CUDA_ERROR_NOT_FOUND);
  EXPECT(cuModuleGetTexRef(&again, module, "nothing") == CUDA_ERROR_NOT_FOUND);
  EXPECT(cuTexRefDestroy(image) == CUDA_ERROR_INVALID_VALUE);

  CUdeviceptr out;
  CHECK_DRIVER(cuMemAlloc(&out, kWidth * kHeight * 4));
  CUDA_ARRAY_DESCRIPTOR descriptor = {kWidth, kHeight, CU_AD_FORMAT_FLOAT, 1};
  CUarray array;
  CHECK_DRIVER(cuArrayCreate(&array, &descriptor));
  std::vector<float> pixels(kWidth * kHeight);
  for (size_t k = 0; k < pixels.size(); ++k) pixels[k] = static_cast<float>(k * k);
  CUDA_MEMCPY2D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = pixels.data();
  copy.srcPitch = kWidth * 4;
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = array;
  copy.WidthInBytes = kWidth * 4;
  copy.Height = kHeight;
  CHECK_DRIVER(cuMemcpy2D(&copy));

  const auto run = [&](float scale) {
    CHECK_DRIVER(cuMemsetD32(out, 0xffffffff, kWidth * kHeight));
    void* arguments[] = {&out, &scale};
    CHECK_DRIVER(
        cuLaunchKernel(sample, 1, 1, 1, kWidth, kHeight, 1, 0, nullptr, arguments, nullptr));
    return FromDevice<float>(out, pixels.size());
  };

  // An array, element by element; half as far; between the elements.
  CHECK_DRIVER(cuTexRefSetArray(image, array, CU_TRSA_OVERRIDE_FORMAT));
  ExpectEqual("array", run(1).data(), pixels.data(), pixels.size());
  std::vector<float> half(pixels.size());
  for (int y = 0; y < kHeight; ++y) {
    for (int x = 0; x < kWidth; ++x) half[y * kWidth + x] = pixels[y / 2 * kWidth + x / 2];
  }
  ExpectEqual("half as far", run(0.5f).data(), half.data(), half.size());
  CHECK_DRIVER(cuTexRefSetFilterMode(image, CU_TR_FILTER_MODE_LINEAR));
  CHECK_DRIVER(cuTexRefSetAddressMode(image, 0, CU_TR_ADDRESS_MODE_CLAMP));
  ExpectEqual("filtered at the centres", run(1).data(), pixels.data(), pixels.size());
  EXPECT(run(0.5f) != half);

  // Memory with a pitch.
  CUdeviceptr pitched;
  size_t pitch;
  CHECK_DRIVER(cuMemAllocPitch(&pitched, &pitch, kWidth * 4, kHeight, 4));
  for (float& pixel : pixels) pixel += 0.5f;
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = pitched;
  copy.dstPitch = pitch;
  CHECK_DRIVER(cuMemcpy2D(&copy));
  CHECK_DRIVER(cuTexRefSetFilterMode(image, CU_TR_FILTER_MODE_POINT));
  CHECK_DRIVER(cuTexRefSetAddress2D(image, &descriptor, pitched, pitch));
  ExpectEqual("pitched memory", run(1).data(), pixels.data(), pixels.size());

  // A line of numbers.
  std::vector<uint32_t> numbers(64);
  for (size_t k = 0; k < numbers.size(); ++k) numbers[k] = static_cast<uint32_t>(k * 0x01010101u);
  CUdeviceptr memory;
  CHECK_DRIVER(cuMemAlloc(&memory, numbers.size() * 4));
  CHECK_DRIVER(cuMemcpyHtoD(memory, numbers.data(), numbers.size() * 4));
  CHECK_DRIVER(cuTexRefSetFormat(line, CU_AD_FORMAT_UNSIGNED_INT32, 1));
  CHECK_DRIVER(cuTexRefSetFlags(line, CU_TRSF_READ_AS_INTEGER));
  size_t offset = 99;
  CHECK_DRIVER(cuTexRefSetAddress(&offset, line, memory, numbers.size() * 4));
  EXPECT(offset == 0);
  void* line_arguments[] = {&out};
  CHECK_DRIVER(cuLaunchKernel(line_kernel, 1, 1, 1, kWidth * kHeight, 1, 1, 0, nullptr,
                              line_arguments, nullptr));
  ExpectEqual("line", FromDevice<uint32_t>(out, kWidth * kHeight).data(), numbers.data(),
              kWidth * kHeight);

  // A surface.
  CUDA_ARRAY3D_DESCRIPTOR writable = {};
  writable.Width = kWidth;
  writable.Height = kHeight;
  writable.Format = CU_AD_FORMAT_UNSIGNED_INT32;
  writable.NumChannels = 1;
  writable.Flags = CUDA_ARRAY3D_SURFACE_LDST;
  CUarray written, bound;
  CHECK_DRIVER(cuArray3DCreate(&written, &writable));
  CHECK_DRIVER(cuSurfRefSetArray(target, written, 0));
  CHECK_DRIVER(cuSurfRefGetArray(&bound, target));
  EXPECT(bound == written);
  CHECK_DRIVER(cuLaunchKernel(write, 1, 1, 1, kWidth, kHeight, 1, 0, nullptr, nullptr, nullptr));
  std::vector<uint32_t> result(kWidth * kHeight), expected(kWidth * kHeight);
  for (int y = 0; y < kHeight; ++y) {
    for (int x = 0; x < kWidth; ++x) expected[y * kWidth + x] = y * 100u + x;
  }
  CUDA_MEMCPY2D back = {};
  back.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  back.srcArray = written;
  back.dstMemoryType = CU_MEMORYTYPE_HOST;
  back.dstHost = result.data();
  back.dstPitch = kWidth * 4;
  back.WidthInBytes = kWidth * 4;
  back.Height = kHeight;
  CHECK_DRIVER(cuMemcpy2D(&back));
  ExpectEqual("surface", result.data(), expected.data(), expected.size());
  return 0;
}
