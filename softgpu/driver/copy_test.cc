#include <cstring>
#include <numeric>

#include "softgpu/driver/driver_test.h"

namespace fargpu::softgpu {
namespace {

class CopyTest : public DriverTest {
 protected:
  static constexpr size_t kBytes = 100000;

  void SetUp() override {
    DriverTest::SetUp();
    ASSERT_SUCCESS(cuMemAlloc(&device_, kBytes));
    ASSERT_SUCCESS(cuMemAlloc(&other_, kBytes));
    for (size_t i = 0; i < kBytes; ++i) source_[i] = static_cast<char>(i * 7 + i / 256);
  }

  CUdeviceptr device_ = 0;
  CUdeviceptr other_ = 0;
  std::vector<char> source_ = std::vector<char>(kBytes);
  std::vector<char> result_ = std::vector<char>(kBytes);
};

TEST_F(CopyTest, ThereAcrossAndBack) {
  EXPECT_SUCCESS(cuMemcpyHtoD(device_, source_.data(), kBytes));
  EXPECT_SUCCESS(cuMemcpyDtoD(other_, device_, kBytes));
  EXPECT_SUCCESS(cuMemcpyDtoH(result_.data(), other_, kBytes));
  EXPECT_EQ(result_, source_);
}

TEST_F(CopyTest, UnifiedAddressesSayTheDirection) {
  const auto address = [](std::vector<char>& v) { return reinterpret_cast<CUdeviceptr>(v.data()); };
  EXPECT_SUCCESS(cuMemcpy(device_, address(source_), kBytes));
  EXPECT_SUCCESS(cuMemcpyAsync(other_, device_, kBytes, nullptr));
  EXPECT_SUCCESS(cuMemcpyAsync(address(result_), other_, kBytes, nullptr));
  EXPECT_EQ(result_, source_);  // unpinned: it has arrived when the call returns
  std::fill(result_.begin(), result_.end(), 0);
  EXPECT_SUCCESS(cuMemcpy(address(result_), address(source_), kBytes));
  EXPECT_EQ(result_, source_);
}

TEST_F(CopyTest, PeerCopies) {
  CUcontext peer = nullptr;
  ASSERT_SUCCESS(cuDevicePrimaryCtxRetain(&peer, 1));
  ASSERT_SUCCESS(cuCtxPushCurrent(peer));
  CUdeviceptr far = 0;
  ASSERT_SUCCESS(cuMemAlloc(&far, kBytes));
  ASSERT_SUCCESS(cuCtxPopCurrent(nullptr));
  EXPECT_SUCCESS(cuMemcpyHtoD(device_, source_.data(), kBytes));
  EXPECT_SUCCESS(cuMemcpyPeer(far, peer, device_, context_, kBytes));
  EXPECT_SUCCESS(cuMemcpyPeerAsync(other_, context_, far, peer, kBytes, nullptr));
  EXPECT_SUCCESS(cuMemcpyDtoH(result_.data(), other_, kBytes));
  EXPECT_EQ(result_, source_);
  EXPECT_CU(CUDA_ERROR_INVALID_CONTEXT, cuMemcpyPeer(far, nullptr, device_, context_, kBytes));
}

TEST_F(CopyTest, ChecksAddresses) {
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(device_, source_.data(), kBytes + 1));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(device_ + 1, source_.data(), kBytes));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(0, source_.data(), 1));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(device_, nullptr, 1));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(nullptr, device_, 1));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(result_.data(), 0x1234, 1));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoD(device_, other_, ~size_t{0}));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuMemcpyDtoHAsync(result_.data(), device_ + kBytes, 1, nullptr));
  EXPECT_SUCCESS(cuMemcpyHtoD(device_, source_.data(), 0));
  ASSERT_SUCCESS(cuMemFree(other_));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(result_.data(), other_, 1));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE,
            cuMemcpyHtoDAsync(device_, source_.data(), 1, reinterpret_cast<CUstream>(0x999)));
}

TEST_F(CopyTest, UnpinnedSourcesMayChangeOnReturn) {
  CUstream stream = nullptr;
  ASSERT_SUCCESS(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  Gate gate;
  const CUfunction wait = Load("copy_wait", [&](const LaunchConfig&) {
    gate.Pass();
    return absl::OkStatus();
  });
  ASSERT_SUCCESS(Launch(wait, stream));
  const std::vector<char> before = source_;
  EXPECT_SUCCESS(cuMemcpyHtoDAsync(device_, source_.data(), kBytes, stream));
  std::fill(source_.begin(), source_.end(), 0);
  EXPECT_CU(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  gate.Open();
  EXPECT_SUCCESS(cuMemcpyDtoHAsync(result_.data(), device_, kBytes, stream));
  EXPECT_EQ(result_, before);
}

TEST_F(CopyTest, PinnedCopiesDoNotWait) {
  CUstream stream = nullptr;
  ASSERT_SUCCESS(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  void* pinned = nullptr;
  ASSERT_SUCCESS(cuMemAllocHost(&pinned, kBytes));
  std::memset(pinned, 0, kBytes);
  Gate gate;
  const CUfunction wait = Load("pinned_wait", [&](const LaunchConfig&) {
    gate.Pass();
    return absl::OkStatus();
  });
  EXPECT_SUCCESS(cuMemsetD8(device_, 5, kBytes));
  EXPECT_SUCCESS(cuCtxSynchronize());
  ASSERT_SUCCESS(Launch(wait, stream));
  EXPECT_SUCCESS(cuMemcpyDtoHAsync(pinned, device_, kBytes, stream));
  EXPECT_EQ(static_cast<char*>(pinned)[0], 0);
  gate.Open();
  EXPECT_SUCCESS(cuStreamSynchronize(stream));
  EXPECT_EQ(static_cast<char*>(pinned)[kBytes - 1], 5);
}

TEST_F(CopyTest, Fills) {
  EXPECT_SUCCESS(cuMemsetD8(device_, 0x11, kBytes));
  EXPECT_SUCCESS(cuMemsetD16(device_ + 2, 0x2233, 2));
  EXPECT_SUCCESS(cuMemsetD32(device_ + 8, 0x44556677, 2));
  EXPECT_SUCCESS(cuMemcpyDtoH(result_.data(), device_, kBytes));
  const unsigned char expected[17] = {0x11, 0x11, 0x33, 0x22, 0x33, 0x22, 0x11, 0x11, 0x77,
                                      0x66, 0x55, 0x44, 0x77, 0x66, 0x55, 0x44, 0x11};
  EXPECT_EQ(std::memcmp(result_.data(), expected, sizeof(expected)), 0);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemsetD16(device_ + 1, 0, 1));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemsetD32(device_ + 2, 0, 1));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemsetD32(device_, 0, kBytes));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemsetD32(device_, 0, ~size_t{0} / 2));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(0, 0, 1));
  EXPECT_SUCCESS(cuMemsetD8(device_, 0, 0));
}

TEST_F(CopyTest, FillsAndCopiesOfRows) {
  EXPECT_SUCCESS(cuMemsetD8(device_, 0, kBytes));
  EXPECT_SUCCESS(cuMemsetD2D8(device_ + 16, 64, 9, 8, 3));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemsetD2D32(device_, 6, 9, 8, 3));
  CUDA_MEMCPY2D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = device_;
  copy.srcPitch = 64;
  copy.srcXInBytes = 16;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = result_.data();
  copy.dstPitch = 10;
  copy.dstXInBytes = 1;
  copy.dstY = 1;
  copy.WidthInBytes = 8;
  copy.Height = 3;
  EXPECT_SUCCESS(cuMemcpy2D(&copy));
  std::vector<char> expected(50, 0);
  for (int row = 1; row <= 3; ++row) {
    for (int x = 1; x <= 8; ++x) expected[row * 10 + x] = 9;
  }
  EXPECT_EQ(std::vector<char>(result_.begin(), result_.begin() + 50), expected);
  copy.dstPitch = 4;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&copy));
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuMemcpy2D(&copy));
  copy.dstMemoryType = static_cast<CUmemorytype>(77);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&copy));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(nullptr));
}

TEST_F(CopyTest, CopiesOfBoxes) {
  EXPECT_SUCCESS(cuMemcpyHtoD(device_, source_.data(), kBytes));
  CUDA_MEMCPY3D copy = {};
  copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = device_;
  copy.srcPitch = 20;
  copy.srcHeight = 10;
  copy.srcXInBytes = 1;
  copy.srcY = 2;
  copy.srcZ = 3;
  copy.dstMemoryType = CU_MEMORYTYPE_HOST;
  copy.dstHost = result_.data();
  copy.dstPitch = 5;
  copy.dstHeight = 4;
  copy.WidthInBytes = 5;
  copy.Height = 4;
  copy.Depth = 2;
  EXPECT_SUCCESS(cuMemcpy3D(&copy));
  for (int z = 0; z < 2; ++z) {
    for (int y = 0; y < 4; ++y) {
      for (int x = 0; x < 5; ++x) {
        EXPECT_EQ(result_[z * 20 + y * 5 + x], source_[(z + 3) * 200 + (y + 2) * 20 + x + 1]);
      }
    }
  }
}

TEST_F(CopyTest, Batches) {
  CUstream stream = nullptr;
  ASSERT_SUCCESS(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUdeviceptr memory = 0;
  ASSERT_SUCCESS(cuMemAlloc(&memory, 64));
  const char source[] = "abcdefgh";
  char result[5] = {};
  CUdeviceptr to[3] = {memory, memory + 4, reinterpret_cast<CUdeviceptr>(result)};
  CUdeviceptr from[3] = {reinterpret_cast<CUdeviceptr>(source),
                         reinterpret_cast<CUdeviceptr>(source + 4), memory + 2};
  size_t sizes[3] = {4, 4, 4};
  CUmemcpyAttributes attributes[2] = {};
  attributes[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
  attributes[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  size_t first[2] = {0, 2};
  ASSERT_SUCCESS(cuMemcpyBatchAsync(to, from, sizes, 3, attributes, first, 2, stream));
  EXPECT_SUCCESS(cuStreamSynchronize(stream));
  EXPECT_STREQ(result, "cdef");
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuMemcpyBatchAsync(to, from, sizes, 3, attributes, first, 2, nullptr));
  first[1] = 3;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuMemcpyBatchAsync(to, from, sizes, 3, attributes, first, 2, stream));
  first[1] = 2;
  attributes[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuMemcpyBatchAsync(to, from, sizes, 3, attributes, first, 2, stream));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuMemcpyBatchAsync(to, from, sizes, 0, attributes, first, 1, stream));
}

}  // namespace
}  // namespace fargpu::softgpu
