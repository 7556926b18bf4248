// Arrays, textures and surfaces: arrays are filled and read back in pieces, kernels read textures
// of arrays, of plain memory and of mipmap levels, and write surfaces. What is read is exact:
// points, or a linear filter halfway between texels.
#include <cstring>
#include <vector>

#include "check.h"

namespace {

constexpr int kWidth = 37;
constexpr int kHeight = 21;
constexpr int kDepth = 5;

__global__ void Read2D(cudaTextureObject_t texture, float* out, int width, int height,
                       float offset) {
  const int x = blockIdx.x * blockDim.x + threadIdx.x;
  const int y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < width && y < height) out[y * width + x] = tex2D<float>(texture, x + offset, y + offset);
}

__global__ void Read3D(cudaTextureObject_t texture, int* out) {
  const int x = threadIdx.x, y = blockIdx.x, z = blockIdx.y;
  out[(z * kHeight + y) * kWidth + x] = tex3D<int>(texture, x, y, z);
}

__global__ void ReadLayered(cudaTextureObject_t texture, int* out) {
  const int x = threadIdx.x, y = blockIdx.x, z = blockIdx.y;
  out[(z * kHeight + y) * kWidth + x] = tex2DLayered<int>(texture, x, y, z);
}

__global__ void ReadLinear(cudaTextureObject_t texture, float4* out, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = tex1Dfetch<float4>(texture, i);
}

__global__ void ReadLevel(cudaTextureObject_t texture, float* out, int width, float level) {
  const int x = threadIdx.x, y = threadIdx.y;
  out[y * width + x] = tex2DLod<float>(texture, (x + 0.5f) / width, (y + 0.5f) / width, level);
}

__global__ void WriteSurface(cudaSurfaceObject_t surface) {
  const int x = threadIdx.x, y = blockIdx.x;
  int value = 0;
  surf2Dread(&value, surface, x * static_cast<int>(sizeof(int)), y);
  surf2Dwrite(value * 3 + 1, surface, x * static_cast<int>(sizeof(int)), y);
}

template <typename T>
T* DeviceMemory(size_t count) {
  T* memory = nullptr;
  CHECK_CUDA(cudaMalloc(&memory, count * sizeof(T)));
  return memory;
}

template <typename T>
std::vector<T> FromDevice(const T* memory, size_t count) {
  std::vector<T> result(count);
  CHECK_CUDA(cudaMemcpy(result.data(), memory, count * sizeof(T), cudaMemcpyDeviceToHost));
  return result;
}

cudaTextureObject_t TextureOf(const cudaResourceDesc& resource, cudaTextureFilterMode filter,
                              cudaTextureAddressMode address) {
  cudaTextureDesc description = {};
  description.filterMode = filter;
  for (auto& mode : description.addressMode) mode = address;
  cudaTextureObject_t texture = 0;
  CHECK_CUDA(cudaCreateTextureObject(&texture, &resource, &description, nullptr));
  return texture;
}

cudaResourceDesc ResourceOf(cudaArray_t array) {
  cudaResourceDesc resource = {};
  resource.resType = cudaResourceTypeArray;
  resource.res.array.array = array;
  return resource;
}

void Arrays2D() {
  std::vector<float> values(kWidth * kHeight);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 64) * 2;
  const cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
  cudaArray_t array = nullptr;
  CHECK_CUDA(cudaMallocArray(&array, &format, kWidth, kHeight));
  CHECK_CUDA(cudaMemcpy2DToArray(array, 0, 0, values.data(), kWidth * sizeof(float),
                                 kWidth * sizeof(float), kHeight, cudaMemcpyHostToDevice));

  cudaChannelFormatDesc told = {};
  cudaExtent extent = {};
  unsigned flags = 0;
  CHECK_CUDA(cudaArrayGetInfo(&told, &extent, &flags, array));
  EXPECT(told.x == 32 && told.f == cudaChannelFormatKindFloat);
  EXPECT(extent.width == kWidth && extent.height == kHeight && extent.depth == 0);

  // A part of it, into rows that are wider.
  constexpr size_t kPartWidth = 11, kPartHeight = 7, kPitch = 13;
  std::vector<float> part(kPitch * kPartHeight, -1), expected_part = part;
  CHECK_CUDA(cudaMemcpy2DFromArray(part.data(), kPitch * sizeof(float), array, 3 * sizeof(float), 2,
                                   kPartWidth * sizeof(float), kPartHeight,
                                   cudaMemcpyDeviceToHost));
  for (size_t y = 0; y < kPartHeight; ++y) {
    for (size_t x = 0; x < kPartWidth; ++x) {
      expected_part[y * kPitch + x] = values[(y + 2) * kWidth + x + 3];
    }
  }
  ExpectEqual("part of an array", part.data(), expected_part.data(), part.size());

  float* out = DeviceMemory<float>(values.size());
  const dim3 block(16, 4), grid((kWidth + 15) / 16, (kHeight + 3) / 4);
  const cudaTextureObject_t points =
      TextureOf(ResourceOf(array), cudaFilterModePoint, cudaAddressModeClamp);
  Read2D<<<grid, block>>>(points, out, kWidth, kHeight, 0.0f);
  ExpectEqual("points", FromDevice(out, values.size()).data(), values.data(), values.size());

  // Between four texels: their mean, which is exact for these values.
  const cudaTextureObject_t linear =
      TextureOf(ResourceOf(array), cudaFilterModeLinear, cudaAddressModeClamp);
  Read2D<<<grid, block>>>(linear, out, kWidth, kHeight, 1.0f);
  std::vector<float> means(values.size());
  for (int y = 0; y < kHeight; ++y) {
    for (int x = 0; x < kWidth; ++x) {
      const int right = x + 1 < kWidth ? x + 1 : x, below = y + 1 < kHeight ? y + 1 : y;
      means[y * kWidth + x] = (values[y * kWidth + x] + values[y * kWidth + right] +
                               values[below * kWidth + x] + values[below * kWidth + right]) /
                              4;
    }
  }
  ExpectEqual("linear filter", FromDevice(out, values.size()).data(), means.data(), means.size());

  cudaResourceDesc resource = {};
  CHECK_CUDA(cudaGetTextureObjectResourceDesc(&resource, points));
  EXPECT(resource.resType == cudaResourceTypeArray && resource.res.array.array == array);
  CHECK_CUDA(cudaDestroyTextureObject(points));
  EXPECT_CUDA_ERROR(cudaDestroyTextureObject(points), cudaErrorInvalidValue);
  CHECK_CUDA(cudaDestroyTextureObject(linear));
  CHECK_CUDA(cudaFreeArray(array));
  CHECK_CUDA(cudaFree(out));
}

// A 3D array, or one of layers, is filled by a copy of 3 dimensions and read as a texture.
template <typename Kernel>
void Arrays3D(const char* name, unsigned flags, Kernel read) {
  std::vector<int> values(kWidth * kHeight * kDepth);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int>(i * 7);
  const cudaChannelFormatDesc format = cudaCreateChannelDesc<int>();
  const cudaExtent extent = make_cudaExtent(kWidth, kHeight, kDepth);
  cudaArray_t array = nullptr;
  CHECK_CUDA(cudaMalloc3DArray(&array, &format, extent, flags));
  cudaMemcpy3DParms copy = {};
  copy.srcPtr = make_cudaPitchedPtr(values.data(), kWidth * sizeof(int), kWidth, kHeight);
  copy.dstArray = array;
  copy.extent = extent;
  copy.kind = cudaMemcpyHostToDevice;
  CHECK_CUDA(cudaMemcpy3D(&copy));
  const cudaTextureObject_t texture =
      TextureOf(ResourceOf(array), cudaFilterModePoint, cudaAddressModeClamp);
  int* out = DeviceMemory<int>(values.size());
  read<<<dim3(kHeight, kDepth), kWidth>>>(texture, out);
  ExpectEqual(name, FromDevice(out, values.size()).data(), values.data(), values.size());
  CHECK_CUDA(cudaDestroyTextureObject(texture));
  CHECK_CUDA(cudaFreeArray(array));
  CHECK_CUDA(cudaFree(out));
}

void LinearMemory() {
  constexpr int kCount = 1000;
  std::vector<float4> values(kCount);
  for (int i = 0; i < kCount; ++i) values[i] = make_float4(i, -i, i * 0.5f, 1);
  float4* memory = DeviceMemory<float4>(kCount);
  CHECK_CUDA(cudaMemcpy(memory, values.data(), kCount * sizeof(float4), cudaMemcpyHostToDevice));
  cudaResourceDesc resource = {};
  resource.resType = cudaResourceTypeLinear;
  resource.res.linear.devPtr = memory;
  resource.res.linear.desc = cudaCreateChannelDesc<float4>();
  resource.res.linear.sizeInBytes = kCount * sizeof(float4);
  const cudaTextureObject_t texture =
      TextureOf(resource, cudaFilterModePoint, cudaAddressModeClamp);
  float4* out = DeviceMemory<float4>(kCount);
  ReadLinear<<<(kCount + 127) / 128, 128>>>(texture, out, kCount);
  const std::vector<float4> read = FromDevice(out, kCount);
  ExpectEqual("linear memory", &read[0].x, &values[0].x, kCount * 4);
  CHECK_CUDA(cudaDestroyTextureObject(texture));

  // Programs name more bytes than there are, and leave undefined what does not apply to such
  // memory.
  resource.res.linear.sizeInBytes = 3 * kCount * sizeof(float4);
  cudaTextureDesc careless;
  std::memset(&careless, 0x7e, sizeof(careless));
  careless.readMode = cudaReadModeElementType;
  careless.normalizedCoords = careless.sRGB = careless.seamlessCubemap = 0;
  careless.disableTrilinearOptimization = 0;
  cudaTextureObject_t larger = 0;
  CHECK_CUDA(cudaCreateTextureObject(&larger, &resource, &careless, nullptr));
  CHECK_CUDA(cudaMemset(out, 0, kCount * sizeof(float4)));
  ReadLinear<<<(kCount + 127) / 128, 128>>>(larger, out, kCount);
  const std::vector<float4> again = FromDevice(out, kCount);
  ExpectEqual("more than there is", &again[0].x, &values[0].x, kCount * 4);
  CHECK_CUDA(cudaDestroyTextureObject(larger));
  CHECK_CUDA(cudaFree(out));
  CHECK_CUDA(cudaFree(memory));
}

void Mipmaps() {
  const cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
  cudaMipmappedArray_t array = nullptr;
  CHECK_CUDA(cudaMallocMipmappedArray(&array, &format, make_cudaExtent(16, 16, 0), 3));
  for (unsigned level = 0; level < 3; ++level) {
    cudaArray_t part = nullptr;
    CHECK_CUDA(cudaGetMipmappedArrayLevel(&part, array, level));
    const size_t size = 16u >> level;
    std::vector<float> values(size * size);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i + 1000 * level);
    CHECK_CUDA(cudaMemcpy2DToArray(part, 0, 0, values.data(), size * sizeof(float),
                                   size * sizeof(float), size, cudaMemcpyHostToDevice));
  }
  cudaResourceDesc resource = {};
  resource.resType = cudaResourceTypeMipmappedArray;
  resource.res.mipmap.mipmap = array;
  cudaTextureDesc description = {};
  description.filterMode = cudaFilterModePoint;
  description.mipmapFilterMode = cudaFilterModePoint;
  description.maxMipmapLevelClamp = 2;
  description.normalizedCoords = 1;
  for (auto& mode : description.addressMode) mode = cudaAddressModeClamp;
  cudaTextureObject_t texture = 0;
  CHECK_CUDA(cudaCreateTextureObject(&texture, &resource, &description, nullptr));
  float* out = DeviceMemory<float>(16);
  ReadLevel<<<1, dim3(4, 4)>>>(texture, out, 4, 2.0f);
  std::vector<float> expected(16);
  for (size_t i = 0; i < 16; ++i) expected[i] = static_cast<float>(i + 2000);
  ExpectEqual("mipmap level", FromDevice(out, 16).data(), expected.data(), expected.size());
  CHECK_CUDA(cudaDestroyTextureObject(texture));
  CHECK_CUDA(cudaFreeMipmappedArray(array));
  CHECK_CUDA(cudaFree(out));
}

void Surfaces() {
  std::vector<int> values(kWidth * kHeight), expected(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<int>(i);
    expected[i] = values[i] * 3 + 1;
  }
  const cudaChannelFormatDesc format = cudaCreateChannelDesc<int>();
  cudaArray_t array = nullptr;
  CHECK_CUDA(cudaMallocArray(&array, &format, kWidth, kHeight, cudaArraySurfaceLoadStore));
  constexpr size_t kRow = kWidth * sizeof(int);
  CHECK_CUDA(
      cudaMemcpy2DToArray(array, 0, 0, values.data(), kRow, kRow, kHeight, cudaMemcpyHostToDevice));
  const cudaResourceDesc resource = ResourceOf(array);
  cudaSurfaceObject_t surface = 0;
  CHECK_CUDA(cudaCreateSurfaceObject(&surface, &resource));
  WriteSurface<<<kHeight, kWidth>>>(surface);
  std::vector<int> result(values.size());
  CHECK_CUDA(cudaMemcpy2DFromArray(result.data(), kRow, array, 0, 0, kRow, kHeight,
                                   cudaMemcpyDeviceToHost));
  ExpectEqual("surface", result.data(), expected.data(), expected.size());

  // From one array to another, on the card.
  cudaArray_t copy = nullptr;
  CHECK_CUDA(cudaMallocArray(&copy, &format, kWidth, kHeight));
  CHECK_CUDA(
      cudaMemcpy2DArrayToArray(copy, 0, 0, array, 0, 0, kRow, kHeight, cudaMemcpyDeviceToDevice));
  CHECK_CUDA(
      cudaMemcpyFromArray(result.data(), copy, 0, 0, kRow * kHeight, cudaMemcpyDeviceToHost));
  ExpectEqual("copied array", result.data(), expected.data(), expected.size());
  CHECK_CUDA(cudaDestroySurfaceObject(surface));
  CHECK_CUDA(cudaFreeArray(array));
  EXPECT_CUDA_ERROR(cudaFreeArray(array), cudaErrorInvalidResourceHandle);
  CHECK_CUDA(cudaFreeArray(copy));
}

}  // namespace

int main() {
  Arrays2D();
  Arrays3D("3D texture", 0, Read3D);
  Arrays3D("layers", cudaArrayLayered, ReadLayered);
  LinearMemory();
  Mipmaps();
  Surfaces();
  return 0;
}
