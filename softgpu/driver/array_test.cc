#include <cstring>
#include <numeric>

#include "softgpu/driver/driver_test.h"
#include "softgpu/texture.h"

namespace fargpu::softgpu {
namespace {

class ArrayTest : public DriverTest {
 protected:
  static CUarray Create(size_t width, size_t height, size_t depth, unsigned flags = 0,
                        CUarray_format format = CU_AD_FORMAT_FLOAT, unsigned channels = 1) {
    CUDA_ARRAY3D_DESCRIPTOR descriptor = {.Width = width,
                                          .Height = height,
                                          .Depth = depth,
                                          .Format = format,
                                          .NumChannels = channels,
                                          .Flags = flags};
    CUarray array = nullptr;
    EXPECT_SUCCESS(cuArray3DCreate(&array, &descriptor));
    return array;
  }
  static CUresult TryCreate(CUDA_ARRAY3D_DESCRIPTOR descriptor) {
    CUarray array = nullptr;
    return cuArray3DCreate(&array, &descriptor);
  }
  static CUDA_RESOURCE_DESC ResourceOf(CUarray array) {
    CUDA_RESOURCE_DESC resource = {};
    resource.resType = CU_RESOURCE_TYPE_ARRAY;
    resource.res.array.hArray = array;
    return resource;
  }
};

TEST_F(ArrayTest, DescriptorsComeBack) {
  const CUarray array = Create(10, 20, 0, CUDA_ARRAY3D_SURFACE_LDST, CU_AD_FORMAT_HALF, 4);
  CUDA_ARRAY3D_DESCRIPTOR three = {};
  EXPECT_SUCCESS(cuArray3DGetDescriptor(&three, array));
  EXPECT_EQ(three.Width, 10u);
  EXPECT_EQ(three.Height, 20u);
  EXPECT_EQ(three.Depth, 0u);
  EXPECT_EQ(three.Format, CU_AD_FORMAT_HALF);
  EXPECT_EQ(three.Flags, static_cast<unsigned>(CUDA_ARRAY3D_SURFACE_LDST));
  CUDA_ARRAY_DESCRIPTOR two = {};
  EXPECT_SUCCESS(cuArrayGetDescriptor(&two, array));
  EXPECT_EQ(two.NumChannels, 4u);
  EXPECT_SUCCESS(cuArrayDestroy(array));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuArrayDestroy(array));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuArrayGetDescriptor(&two, array));
}

TEST_F(ArrayTest, RefusesWhatIsNoArray) {
  CUDA_ARRAY3D_DESCRIPTOR d = {};
  d.Format = CU_AD_FORMAT_FLOAT;
  d.NumChannels = 1;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, TryCreate(d));  // no width
  d.Width = 16;
  d.Depth = 2;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, TryCreate(d));  // depth without height
  d.Depth = 0;
  d.NumChannels = 3;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, TryCreate(d));
  d.NumChannels = 1;
  d.Format = static_cast<CUarray_format>(0x77);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, TryCreate(d));
  d.Format = CU_AD_FORMAT_BC1_UNORM;
  EXPECT_CU(CUDA_ERROR_NOT_SUPPORTED, TryCreate(d));
  d.Format = CU_AD_FORMAT_FLOAT;
  d.Flags = CUDA_ARRAY3D_CUBEMAP;
  d.Height = 16;
  d.Depth = 5;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, TryCreate(d));
  d.Flags = 0x8000;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, TryCreate(d));
  d.Flags = CUDA_ARRAY3D_SPARSE;
  EXPECT_CU(CUDA_ERROR_NOT_SUPPORTED, TryCreate(d));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuArray3DCreate(nullptr, &d));
  CUarray array = nullptr;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuArray3DCreate(&array, nullptr));
  d = {.Width = 16384,
       .Height = 16384,
       .Depth = 0,
       .Format = CU_AD_FORMAT_FLOAT,
       .NumChannels = 4,
       .Flags = 0};
  EXPECT_CU(CUDA_ERROR_OUT_OF_MEMORY, TryCreate(d));
}

TEST_F(ArrayTest, CopiesInThreeDimensions) {
  const CUarray array = Create(5, 4, 3);
  std::vector<float> source(5 * 4 * 3), result(2 * 2 * 2, -1);
  std::iota(source.begin(), source.end(), 0.0f);
  CUDA_MEMCPY3D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = source.data();
  copy.srcPitch = 20;
  copy.srcHeight = 4;
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  copy.dstArray = array;
  copy.WidthInBytes = 20;
  copy.Height = 4;
  copy.Depth = 3;
  EXPECT_SUCCESS(cuMemcpy3D(&copy));
  CUDA_MEMCPY3D back = {};
  back.srcMemoryType = CU_MEMORYTYPE_ARRAY;
  back.srcArray = array;
  back.srcXInBytes = 12;
  back.srcY = 2;
  back.srcZ = 1;
  back.dstMemoryType = CU_MEMORYTYPE_HOST;
  back.dstHost = result.data();
  back.dstPitch = 8;
  back.dstHeight = 2;
  back.WidthInBytes = 8;
  back.Height = 2;
  back.Depth = 2;
  EXPECT_SUCCESS(cuMemcpy3D(&back));
  EXPECT_EQ(result, (std::vector<float>{33, 34, 38, 39, 53, 54, 58, 59}));
  back.srcXInBytes = 16;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D(&back));
  back.srcXInBytes = 12;
  back.srcZ = 2;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D(&back));
  back.srcZ = 0;
  back.srcArray = reinterpret_cast<CUarray>(0x55);
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuMemcpy3D(&back));
}

TEST_F(ArrayTest, CopiesByOffsetCrossRows) {
  const CUarray array = Create(5, 3, 0, 0, CU_AD_FORMAT_UNSIGNED_INT8);
  const CUarray other = Create(15, 0, 0, 0, CU_AD_FORMAT_UNSIGNED_INT8);
  const std::string text = "abcdefghijklmno";
  EXPECT_SUCCESS(cuMemcpyHtoA(array, 0, text.data(), 15));
  std::string part(7, ' ');
  EXPECT_SUCCESS(cuMemcpyAtoH(part.data(), array, 3, 7));
  EXPECT_EQ(part, "defghij");
  EXPECT_SUCCESS(cuMemcpyAtoA(other, 2, array, 4, 9));
  EXPECT_SUCCESS(cuMemcpyAtoH(part.data(), other, 2, 7));
  EXPECT_EQ(part, "efghijk");
  CUdeviceptr memory = 0;
  ASSERT_SUCCESS(cuMemAlloc(&memory, 16));
  EXPECT_SUCCESS(cuMemcpyAtoD(memory, array, 8, 7));
  EXPECT_SUCCESS(cuMemcpyDtoA(array, 0, memory, 7));
  EXPECT_SUCCESS(cuMemcpyAtoHAsync(part.data(), array, 0, 7, nullptr));
  EXPECT_SUCCESS(cuCtxSynchronize());
  EXPECT_EQ(part, "ijklmno");
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoA(array, 9, text.data(), 7));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuMemcpyHtoA(nullptr, 0, text.data(), 7));
}

TEST_F(ArrayTest, MipmapsHaveLevels) {
  CUDA_ARRAY3D_DESCRIPTOR d = {};
  d.Width = 20;
  d.Height = 6;
  d.Format = CU_AD_FORMAT_UNSIGNED_INT8;
  d.NumChannels = 4;
  CUmipmappedArray mipmap = nullptr;
  ASSERT_SUCCESS(cuMipmappedArrayCreate(&mipmap, &d, 9));  // 20, 10, 5, 2, 1
  CUarray level = nullptr;
  EXPECT_SUCCESS(cuMipmappedArrayGetLevel(&level, mipmap, 3));
  CUDA_ARRAY3D_DESCRIPTOR of_level = {};
  EXPECT_SUCCESS(cuArray3DGetDescriptor(&of_level, level));
  EXPECT_EQ(of_level.Width, 2u);
  EXPECT_EQ(of_level.Height, 1u);
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuArrayDestroy(level));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayGetLevel(&level, mipmap, 5));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayCreate(&mipmap, &d, 0));
  EXPECT_SUCCESS(cuMipmappedArrayDestroy(mipmap));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuMipmappedArrayDestroy(mipmap));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuArrayGetDescriptor(nullptr, nullptr) == CUDA_SUCCESS
                                           ? CUDA_SUCCESS
                                           : CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(ArrayTest, TexturesSayWhatTheyAre) {
  const CUarray array = Create(8, 4, 0, 0, CU_AD_FORMAT_UNSIGNED_INT8, 2);
  const CUDA_RESOURCE_DESC resource = ResourceOf(array);
  CUDA_TEXTURE_DESC texture = {};
  texture.addressMode[0] = CU_TR_ADDRESS_MODE_MIRROR;
  texture.filterMode = CU_TR_FILTER_MODE_LINEAR;
  texture.flags = CU_TRSF_NORMALIZED_COORDINATES;
  texture.borderColor[2] = 0.5f;
  CUtexObject object = 0;
  ASSERT_SUCCESS(cuTexObjectCreate(&object, &resource, &texture, nullptr));
  const TextureDescriptor* seen = FindTexture(object);
  ASSERT_NE(seen, nullptr);
  EXPECT_EQ(seen->image.shape, ImageShape::k2D);
  EXPECT_EQ(seen->image.channel, ChannelType::kU8);
  EXPECT_EQ(seen->image.channels, 2);
  EXPECT_EQ(seen->image.levels[0].width, 8u);
  EXPECT_EQ(seen->image.levels[0].height, 4u);
  EXPECT_EQ(seen->address_mode[0], AddressMode::kMirror);
  EXPECT_TRUE(seen->linear_filter);
  EXPECT_TRUE(seen->normalized_coordinates);
  EXPECT_TRUE(seen->normalized_values);
  EXPECT_EQ(seen->border[2], 0.5f);
  CUDA_TEXTURE_DESC back = {};
  EXPECT_SUCCESS(cuTexObjectGetTextureDesc(&back, object));
  EXPECT_EQ(back.flags, texture.flags);
  CUDA_RESOURCE_DESC resource_back = {};
  EXPECT_SUCCESS(cuTexObjectGetResourceDesc(&resource_back, object));
  EXPECT_EQ(resource_back.res.array.hArray, array);
  CUDA_RESOURCE_VIEW_DESC view = {};
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuTexObjectGetResourceViewDesc(&view, object));
  EXPECT_SUCCESS(cuTexObjectDestroy(object));
  EXPECT_EQ(FindTexture(object), nullptr);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuTexObjectDestroy(object));
  // Integers as integers are not filtered.
  texture.flags = CU_TRSF_READ_AS_INTEGER;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&object, &resource, &texture, nullptr));
  texture.filterMode = CU_TR_FILTER_MODE_POINT;
  texture.addressMode[1] = static_cast<CUaddress_mode>(9);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&object, &resource, &texture, nullptr));
}

TEST_F(ArrayTest, TexturesOfLinearMemory) {
  CUdeviceptr memory = 0;
  ASSERT_SUCCESS(cuMemAlloc(&memory, 4096));
  CUDA_RESOURCE_DESC resource = {};
  resource.resType = CU_RESOURCE_TYPE_LINEAR;
  resource.res.linear.devPtr = memory;
  resource.res.linear.format = CU_AD_FORMAT_FLOAT;
  resource.res.linear.numChannels = 2;
  resource.res.linear.sizeInBytes = 8192;  // as programs do; only 4096 are there
  CUDA_TEXTURE_DESC texture = {};
  CUtexObject object = 0;
  ASSERT_SUCCESS(cuTexObjectCreate(&object, &resource, &texture, nullptr));
  EXPECT_EQ(FindTexture(object)->image.shape, ImageShape::kLinear);
  EXPECT_EQ(FindTexture(object)->image.levels[0].width, 512u);
  resource.res.linear.devPtr = memory + 8;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&object, &resource, &texture, nullptr));
  resource.res.linear.devPtr = 512;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&object, &resource, &texture, nullptr));
  resource = {};
  resource.resType = CU_RESOURCE_TYPE_PITCH2D;
  resource.res.pitch2D = {.devPtr = memory,
                          .format = CU_AD_FORMAT_UNSIGNED_INT16,
                          .numChannels = 1,
                          .width = 30,
                          .height = 16,
                          .pitchInBytes = 256};
  ASSERT_SUCCESS(cuTexObjectCreate(&object, &resource, &texture, nullptr));
  EXPECT_EQ(FindTexture(object)->image.levels[0].row_pitch, 256u);
  resource.res.pitch2D.pitchInBytes = 40;  // not a multiple of 32
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&object, &resource, &texture, nullptr));
  resource.res.pitch2D.pitchInBytes = 512;  // beyond the allocation
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&object, &resource, &texture, nullptr));
}

TEST_F(ArrayTest, ViewsOfLayersAndFormats) {
  const CUarray array = Create(8, 8, 4, CUDA_ARRAY3D_LAYERED, CU_AD_FORMAT_UNSIGNED_INT32);
  const CUDA_RESOURCE_DESC resource = ResourceOf(array);
  CUDA_TEXTURE_DESC texture = {};
  texture.flags = CU_TRSF_READ_AS_INTEGER;
  CUDA_RESOURCE_VIEW_DESC view = {};
  view.format = CU_RES_VIEW_FORMAT_UINT_4X8;
  view.width = 8;
  view.height = 8;
  view.depth = 2;
  view.firstLayer = 1;
  view.lastLayer = 2;
  CUtexObject object = 0;
  ASSERT_SUCCESS(cuTexObjectCreate(&object, &resource, &texture, &view));
  const TextureDescriptor* seen = FindTexture(object);
  EXPECT_EQ(seen->image.channel, ChannelType::kU8);
  EXPECT_EQ(seen->image.channels, 4);
  EXPECT_EQ(seen->image.levels[0].depth, 2u);
  view.format = CU_RES_VIEW_FORMAT_UINT_1X8;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&object, &resource, &texture, &view));
  view.format = CU_RES_VIEW_FORMAT_NONE;
  view.lastLayer = 4;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuTexObjectCreate(&object, &resource, &texture, &view));
}

TEST_F(ArrayTest, SurfacesNeedAnArrayMadeForThem) {
  const CUarray plain = Create(8, 8, 0);
  const CUarray array = Create(8, 8, 0, CUDA_ARRAY3D_SURFACE_LDST);
  CUDA_RESOURCE_DESC resource = ResourceOf(plain);
  CUsurfObject object = 0;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuSurfObjectCreate(&object, &resource));
  resource = ResourceOf(array);
  ASSERT_SUCCESS(cuSurfObjectCreate(&object, &resource));
  ASSERT_NE(FindSurface(object), nullptr);
  EXPECT_EQ(FindSurface(object)->image.levels[0].width, 8u);
  EXPECT_SUCCESS(cuSurfObjectDestroy(object));
  EXPECT_EQ(FindSurface(object), nullptr);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuSurfObjectDestroy(object));
  resource.resType = CU_RESOURCE_TYPE_LINEAR;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuSurfObjectCreate(&object, &resource));
}

TEST_F(ArrayTest, ObjectsGoWithTheirContext) {
  const CUarray array = Create(8, 8, 0);
  const CUDA_RESOURCE_DESC resource = ResourceOf(array);
  CUDA_TEXTURE_DESC texture = {};
  CUtexObject object = 0;
  ASSERT_SUCCESS(cuTexObjectCreate(&object, &resource, &texture, nullptr));
  EXPECT_SUCCESS(cuDevicePrimaryCtxReset(0));
  EXPECT_EQ(FindTexture(object), nullptr);
}

TEST_F(ArrayTest, BatchesOfCopies) {
  CUDA_ARRAY3D_DESCRIPTOR descriptor = {};
  descriptor.Width = 4;
  descriptor.Height = 3;
  descriptor.Depth = 2;
  descriptor.Format = CU_AD_FORMAT_UNSIGNED_INT32;
  descriptor.NumChannels = 1;
  CUarray array = nullptr;
  ASSERT_SUCCESS(cuArray3DCreate(&array, &descriptor));
  CUstream stream = nullptr;
  ASSERT_SUCCESS(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  // Rows of 5 elements, layers of 4 rows; the copy takes 2x2x2 of them to (1, 1, 0) of the array.
  std::vector<uint32_t> from(5 * 4 * 2);
  for (uint32_t k = 0; k < from.size(); ++k) from[k] = k + 1;
  std::vector<uint32_t> to(8);
  CUDA_MEMCPY3D_BATCH_OP operations[2] = {};
  operations[0].src.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  operations[0].src.op.ptr.ptr = reinterpret_cast<CUdeviceptr>(from.data());
  operations[0].src.op.ptr.rowLength = 5;
  operations[0].src.op.ptr.layerHeight = 4;
  operations[0].dst.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
  operations[0].dst.op.array.array = array;
  operations[0].dst.op.array.offset = {1, 1, 0};
  operations[0].extent = {2, 2, 2};
  operations[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
  operations[1].src = operations[0].dst;
  operations[1].dst.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
  operations[1].dst.op.ptr.ptr = reinterpret_cast<CUdeviceptr>(to.data());
  operations[1].extent = {2, 2, 2};
  operations[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  ASSERT_SUCCESS(cuMemcpy3DBatchAsync(2, operations, 0, stream));
  ASSERT_SUCCESS(cuStreamSynchronize(stream));
  EXPECT_EQ(to, (std::vector<uint32_t>{1, 2, 6, 7, 21, 22, 26, 27}));
  operations[1].extent = {4, 2, 2};  // beyond the array
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync(2, operations, 0, stream));
  operations[1].extent = {2, 2, 2};
  operations[0].src.op.ptr.rowLength = 1;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync(2, operations, 0, stream));
  operations[0].src.op.ptr.rowLength = 0;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync(2, operations, 1, stream));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync(2, operations, 0, nullptr));
  EXPECT_SUCCESS(cuArrayDestroy(array));
}

}  // namespace
}  // namespace fargpu::softgpu
