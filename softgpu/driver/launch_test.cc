#include <cstring>

#include "common/cuda_error.h"
#include "softgpu/driver/driver_test.h"

namespace fargpu::softgpu {
namespace {

class LaunchTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    info_ = FakeKernelInfo("records", {8, 1, 4});
    info_.static_shared_bytes = 1024;
    function_ = Load(info_, [this](const LaunchConfig& config) {
      params_.assign(config.params.begin(), config.params.end());
      seen_ = config;
      ++launches_;
      return absl::OkStatus();
    });
  }

  CUresult LaunchShape(unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                       unsigned shared = 0) {
    return cuLaunchKernel(function_, gx, gy, gz, bx, by, bz, shared, nullptr, values_, nullptr);
  }

  KernelInfo info_;
  CUfunction function_ = nullptr;
  uint64_t first_ = 0x1122334455667788;
  char second_ = 'x';
  uint32_t third_ = 99;
  void* values_[3] = {&first_, &second_, &third_};
  std::vector<char> params_;
  LaunchConfig seen_;
  std::atomic<int> launches_{0};
};

TEST_F(LaunchTest, PassesShapeAndParameters) {
  ASSERT_SUCCESS(LaunchShape(2, 3, 4, 5, 6, 7, 100));
  first_ = 0;  // the launch has its own copy
  ASSERT_SUCCESS(cuCtxSynchronize());
  EXPECT_EQ(seen_.grid.x, 2u);
  EXPECT_EQ(seen_.grid.z, 4u);
  EXPECT_EQ(seen_.block.x, 5u);
  EXPECT_EQ(seen_.block.y, 6u);
  EXPECT_EQ(seen_.block.z, 7u);
  EXPECT_EQ(seen_.dynamic_shared_bytes, 100u);
  EXPECT_FALSE(seen_.cooperative);
  ASSERT_EQ(params_.size(), 16u);
  uint64_t first = 0;
  std::memcpy(&first, params_.data(), 8);
  EXPECT_EQ(first, 0x1122334455667788u);
  EXPECT_EQ(params_[8], 'x');
  uint32_t third = 0;
  std::memcpy(&third, params_.data() + 12, 4);
  EXPECT_EQ(third, 99u);
}

TEST_F(LaunchTest, TheHeapIsAsLargeAsTheLimitSays) {
  ASSERT_SUCCESS(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 123 << 10));
  ASSERT_SUCCESS(LaunchShape(1, 1, 1, 1, 1, 1));
  ASSERT_SUCCESS(cuCtxSynchronize());
  EXPECT_EQ(seen_.heap_bytes, 123u << 10);
}

TEST_F(LaunchTest, ParametersInOneBuffer) {
  char buffer[16] = {};
  std::memcpy(buffer + 12, &third_, 4);
  size_t size = sizeof(buffer);
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   CU_LAUNCH_PARAM_END};
  ASSERT_SUCCESS(cuLaunchKernel(function_, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra));
  ASSERT_SUCCESS(cuCtxSynchronize());
  EXPECT_EQ(params_, std::vector<char>(buffer, buffer + 16));
  size = 15;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuLaunchKernel(function_, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuLaunchKernel(function_, 1, 1, 1, 1, 1, 1, 0, nullptr, values_, extra));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuLaunchKernel(function_, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
}

TEST_F(LaunchTest, RefusesShapesBeyondTheLimits) {
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, LaunchShape(0, 1, 1, 1, 1, 1));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, LaunchShape(1, 1, 1, 0, 1, 1));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, LaunchShape(1, 65536, 1, 1, 1, 1));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, LaunchShape(0x80000000u, 1, 1, 1, 1, 1));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, LaunchShape(1, 1, 1, 1025, 1, 1));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, LaunchShape(1, 1, 1, 1, 1, 65));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, LaunchShape(1, 1, 1, 64, 32, 1));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, LaunchShape(1, 1, 1, 1, 1, 1, (47 << 10) + 1));
  EXPECT_SUCCESS(LaunchShape(1, 1, 1, 1024, 1, 1, 47 << 10));
  EXPECT_SUCCESS(LaunchShape(0x7fffffff, 65535, 65535, 1, 1, 1));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE,
            cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, values_, nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE,
            cuLaunchKernel(function_, 1, 1, 1, 1, 1, 1, 0, reinterpret_cast<CUstream>(0x777),
                           values_, nullptr));
  EXPECT_SUCCESS(cuCtxSynchronize());
  EXPECT_EQ(launches_, 2);
}

TEST_F(LaunchTest, LaunchBoundsLimitBlocks) {
  KernelInfo bounded = FakeKernelInfo("bounded", {});
  bounded.max_threads_per_block = 128;
  const CUfunction function = Load(bounded, [](const LaunchConfig&) { return absl::OkStatus(); });
  EXPECT_SUCCESS(cuLaunchKernel(function, 1, 1, 1, 128, 1, 1, 0, nullptr, nullptr, nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuLaunchKernel(function, 1, 1, 1, 129, 1, 1, 0, nullptr, nullptr, nullptr));
}

TEST_F(LaunchTest, MoreSharedMemoryOnRequest) {
  const auto attribute = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  int value = 0;
  EXPECT_SUCCESS(cuFuncGetAttribute(&value, attribute, function_));
  EXPECT_EQ(value, 47 << 10);
  EXPECT_SUCCESS(cuFuncSetAttribute(function_, attribute, 100 << 10));
  EXPECT_SUCCESS(cuFuncGetAttribute(&value, attribute, function_));
  EXPECT_EQ(value, 100 << 10);
  EXPECT_SUCCESS(LaunchShape(1, 1, 1, 1, 1, 1, 100 << 10));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, LaunchShape(1, 1, 1, 1, 1, 1, (100 << 10) + 1));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuFuncSetAttribute(function_, attribute, 227 << 10));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuFuncSetAttribute(function_, attribute, -1));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuFuncSetAttribute(function_, CU_FUNC_ATTRIBUTE_NUM_REGS, 1));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuFuncGetAttribute(&value, static_cast<CUfunction_attribute>(99), function_));
}

TEST_F(LaunchTest, FunctionAttributes) {
  const auto get = [&](CUfunction_attribute attribute) {
    int value = -1;
    EXPECT_SUCCESS(cuFuncGetAttribute(&value, attribute, function_));
    return value;
  };
  EXPECT_EQ(get(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK), 1024);
  EXPECT_EQ(get(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES), 1024);
  EXPECT_EQ(get(CU_FUNC_ATTRIBUTE_NUM_REGS), 32);
  EXPECT_EQ(get(CU_FUNC_ATTRIBUTE_PTX_VERSION), 90);
  EXPECT_EQ(get(CU_FUNC_ATTRIBUTE_BINARY_VERSION), 75);
  size_t offset = 0, size = 0;
  EXPECT_SUCCESS(cuFuncGetParamInfo(function_, 2, &offset, &size));
  EXPECT_EQ(offset, 12u);
  EXPECT_EQ(size, 4u);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuFuncGetParamInfo(function_, 3, &offset, &size));
}

TEST_F(LaunchTest, ExtendedLaunches) {
  CUlaunchAttribute attributes[2] = {};
  attributes[0].id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
  attributes[0].value.cooperative = 1;
  attributes[1].id = CU_LAUNCH_ATTRIBUTE_PRIORITY;
  CUlaunchConfig config = {};
  config.gridDimX = 4;
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = 32;
  config.blockDimY = config.blockDimZ = 1;
  config.attrs = attributes;
  config.numAttrs = 2;
  ASSERT_SUCCESS(cuLaunchKernelEx(&config, function_, values_, nullptr));
  ASSERT_SUCCESS(cuCtxSynchronize());
  EXPECT_TRUE(seen_.cooperative);
  EXPECT_EQ(seen_.grid.x, 4u);
  attributes[1].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attributes[1].value.clusterDim = {2, 1, 1};
  ASSERT_SUCCESS(cuLaunchKernelEx(&config, function_, values_, nullptr));
  ASSERT_SUCCESS(cuCtxSynchronize());
  EXPECT_EQ(seen_.cluster.x, 2u);
  EXPECT_TRUE(seen_.explicit_cluster);
  attributes[1].id = static_cast<CUlaunchAttributeID>(77);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuLaunchKernelEx(&config, function_, values_, nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuLaunchKernelEx(nullptr, function_, values_, nullptr));
  config.attrs = nullptr;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuLaunchKernelEx(&config, function_, values_, nullptr));
}

class ClusterLaunchTest : public LaunchTest {
 protected:
  // Launches 16 blocks in clusters of that shape.
  CUresult LaunchClusters(CUfunction function, unsigned x, unsigned y = 1, unsigned z = 1) {
    Prepare(x, y, z);
    return cuLaunchKernelEx(&config_, function, values_, nullptr);
  }
  void Prepare(unsigned x, unsigned y, unsigned z) {
    attribute_.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    attribute_.value.clusterDim = {x, y, z};
    config_ = {};
    config_.gridDimX = 16;
    config_.gridDimY = config_.gridDimZ = 1;
    config_.blockDimX = 1024;
    config_.blockDimY = config_.blockDimZ = 1;
    config_.attrs = &attribute_;
    config_.numAttrs = 1;
  }
  CUlaunchAttribute attribute_ = {};
  CUlaunchConfig config_ = {};
};

TEST_F(ClusterLaunchTest, SizesAreChecked) {
  EXPECT_SUCCESS(LaunchClusters(function_, 8));
  EXPECT_CU(CUDA_ERROR_INVALID_CLUSTER_SIZE, LaunchClusters(function_, 16));
  EXPECT_CU(CUDA_ERROR_INVALID_CLUSTER_SIZE, LaunchClusters(function_, 3));  // of 16 blocks
  EXPECT_CU(CUDA_ERROR_INVALID_CLUSTER_SIZE, LaunchClusters(function_, 2, 2));
  EXPECT_CU(CUDA_ERROR_INVALID_CLUSTER_SIZE, LaunchClusters(function_, 2, 0));
  ASSERT_SUCCESS(
      cuFuncSetAttribute(function_, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1));
  EXPECT_SUCCESS(LaunchClusters(function_, 16));
  EXPECT_CU(CUDA_ERROR_INVALID_CLUSTER_SIZE, LaunchClusters(function_, 32));
}

TEST_F(ClusterLaunchTest, WhatTheKernelRequires) {
  KernelInfo info = FakeKernelInfo("clustered", {8, 1, 4});
  info.cluster = {2, 1, 1};
  info.needs_cluster = true;
  info.max_cluster_blocks = 4;
  const auto body = [this](const LaunchConfig& config) {
    seen_ = config;
    return absl::OkStatus();
  };
  const CUfunction function = Load(info, body);
  EXPECT_CU(CUDA_ERROR_INVALID_CLUSTER_SIZE, LaunchClusters(function, 4));
  EXPECT_SUCCESS(LaunchClusters(function, 2));
  EXPECT_SUCCESS(cuLaunchKernel(function, 4, 1, 1, 1, 1, 1, 0, nullptr, values_, nullptr));
  ASSERT_SUCCESS(cuCtxSynchronize());
  EXPECT_EQ(seen_.cluster.x, 2u);
  EXPECT_CU(CUDA_ERROR_INVALID_CLUSTER_SIZE,
            cuLaunchKernel(function, 3, 1, 1, 1, 1, 1, 0, nullptr, values_, nullptr));
  int value = 0;
  EXPECT_SUCCESS(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, function));
  EXPECT_EQ(value, 2);
  EXPECT_CU(CUDA_ERROR_NOT_PERMITTED,
            cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, 4));
  info = FakeKernelInfo("any_cluster", {8, 1, 4});
  info.needs_cluster = true;
  info.max_cluster_blocks = 4;
  const CUfunction any = Load(info, body);
  EXPECT_SUCCESS(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET, any));
  EXPECT_EQ(value, 1);
  EXPECT_CU(CUDA_ERROR_INVALID_CLUSTER_SIZE,
            cuLaunchKernel(any, 4, 1, 1, 1, 1, 1, 0, nullptr, values_, nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_CLUSTER_SIZE, LaunchClusters(any, 8));
  EXPECT_SUCCESS(LaunchClusters(any, 4));
  // Set by the program, for every launch.
  EXPECT_SUCCESS(cuFuncSetAttribute(any, CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH, 4));
  EXPECT_SUCCESS(cuLaunchKernel(any, 8, 1, 1, 1, 1, 1, 0, nullptr, values_, nullptr));
  ASSERT_SUCCESS(cuCtxSynchronize());
  EXPECT_EQ(seen_.cluster.x, 4u);
  // A grid that counts clusters.
  info = FakeKernelInfo("counts_clusters", {8, 1, 4});
  info.cluster = {2, 2, 1};
  info.blocks_are_clusters = true;
  EXPECT_SUCCESS(cuLaunchKernel(Load(info, body), 3, 1, 1, 1, 1, 1, 0, nullptr, values_, nullptr));
  ASSERT_SUCCESS(cuCtxSynchronize());
  EXPECT_EQ(seen_.grid.x, 6u);
  EXPECT_EQ(seen_.grid.y, 2u);
}

TEST_F(ClusterLaunchTest, Occupancy) {
  int clusters = -1;
  Prepare(4, 1, 1);
  // Four multiprocessors of two such blocks each.
  EXPECT_SUCCESS(cuOccupancyMaxActiveClusters(&clusters, function_, &config_));
  EXPECT_EQ(clusters, 2);
  Prepare(16, 1, 1);
  EXPECT_CU(CUDA_ERROR_INVALID_CLUSTER_SIZE,
            cuOccupancyMaxActiveClusters(&clusters, function_, &config_));
  EXPECT_SUCCESS(cuOccupancyMaxPotentialClusterSize(&clusters, function_, &config_));
  EXPECT_EQ(clusters, 8);
  config_.sharedMemBytes = 200 << 10;
  EXPECT_SUCCESS(cuOccupancyMaxPotentialClusterSize(&clusters, function_, &config_));
  EXPECT_EQ(clusters, 4);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuOccupancyMaxActiveClusters(nullptr, function_, &config_));
}

TEST_F(LaunchTest, CooperativeGridsMustFit) {
  // 1024 threads: two blocks on each of four multiprocessors.
  EXPECT_SUCCESS(cuLaunchCooperativeKernel(function_, 8, 1, 1, 1024, 1, 1, 0, nullptr, values_));
  EXPECT_CU(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
            cuLaunchCooperativeKernel(function_, 9, 1, 1, 1024, 1, 1, 0, nullptr, values_));
}

TEST_F(LaunchTest, KernelsStayInTheirContext) {
  CUcontext own = nullptr;
  ASSERT_SUCCESS(cuCtxCreate(&own, nullptr, 0, 0));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, LaunchShape(1, 1, 1, 1, 1, 1));
  EXPECT_SUCCESS(cuCtxDestroy(own));
  EXPECT_SUCCESS(LaunchShape(1, 1, 1, 1, 1, 1));
}

TEST_F(LaunchTest, Occupancy) {
  int blocks = -1;
  EXPECT_SUCCESS(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function_, 256, 0));
  EXPECT_EQ(blocks, 8);  // 2048 threads
  EXPECT_SUCCESS(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function_, 32, 0));
  EXPECT_EQ(blocks, 32);  // the limit of blocks
  EXPECT_SUCCESS(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function_, 256, 46 << 10));
  EXPECT_EQ(blocks, 4);  // 48 KiB each of 228 KiB
  EXPECT_SUCCESS(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function_, 2000, 0));
  EXPECT_EQ(blocks, 0);
  KernelInfo hungry = FakeKernelInfo("hungry", {});
  hungry.registers = 200;
  hungry.max_threads_per_block = 512;  // so that it gets 128 registers at most
  const CUfunction function = Load(hungry, [](const LaunchConfig&) { return absl::OkStatus(); });
  EXPECT_SUCCESS(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, 256, 0));
  EXPECT_EQ(blocks, 2);  // 65536 registers
  int registers = 0;
  EXPECT_SUCCESS(cuFuncGetAttribute(&registers, CU_FUNC_ATTRIBUTE_NUM_REGS, function));
  EXPECT_EQ(registers, 128);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function_, 0, 0));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuOccupancyMaxActiveBlocksPerMultiprocessor(nullptr, function_, 1, 0));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE,
            cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, nullptr, 1, 0));
  int grid = 0, block = 0;
  EXPECT_SUCCESS(cuOccupancyMaxPotentialBlockSize(&grid, &block, function_, nullptr, 0, 0));
  EXPECT_EQ(block, 1024);
  EXPECT_EQ(grid, 8);
  EXPECT_SUCCESS(cuOccupancyMaxPotentialBlockSize(&grid, &block, function_, nullptr, 0, 100));
  EXPECT_EQ(block, 64);  // 32 blocks of 64 are more threads than 21 of 96
  size_t bytes = 0;
  EXPECT_SUCCESS(cuOccupancyAvailableDynamicSMemPerBlock(&bytes, function_, 8, 256));
  EXPECT_GT(bytes, 20u << 10);
  EXPECT_LE(bytes, 28u << 10);
}

// Worked out by hand from the published limits of capability 9.0: 64 warps, 32 blocks, 65536
// registers in four quarters and units of 256 per warp, 228 KiB of shared memory in units of 128
// bytes and 1 KiB more per block.
TEST_F(LaunchTest, OccupancyTable) {
  struct Row {
    unsigned registers;
    int threads;
    unsigned shared;
    int blocks;
  };
  constexpr Row kRows[] = {
      {16, 1024, 0, 2},        {32, 1024, 0, 2},       {33, 1024, 0, 1},    {64, 1024, 0, 1},
      {32, 256, 0, 8},         {40, 256, 0, 6},        {40, 96, 0, 16},     {128, 256, 0, 2},
      {255, 32, 0, 8},         {168, 128, 0, 3},       {32, 32, 0, 32},     {32, 64, 0, 32},
      {32, 48, 0, 32},         {32, 512, 0, 4},        {24, 192, 0, 10},    {32, 128, 48 << 10, 4},
      {32, 128, 49153, 4},     {32, 128, 56 << 10, 4}, {32, 128, 58240, 3}, {32, 128, 227 << 10, 1},
      {32, 128, 112 << 10, 2},
  };
  for (const Row& row : kRows) {
    KernelInfo info = FakeKernelInfo("occupancy", {});
    info.registers = row.registers;
    info.max_threads_per_block = static_cast<uint32_t>(std::max(row.threads, 1));
    const CUfunction function = Load(info, [](const LaunchConfig&) { return absl::OkStatus(); });
    int blocks = -1;
    EXPECT_SUCCESS(
        cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, row.threads, row.shared));
    EXPECT_EQ(blocks, row.blocks) << row.registers << " registers, " << row.threads << " threads, "
                                  << row.shared << " bytes";
  }
}

TEST_F(LaunchTest, PrintfComesOutWhereTheProgramSynchronises) {
  const CUfunction prints = Load("prints", [](const LaunchConfig& config) {
    config.printf_sink("hello from the card\n");
    return absl::OkStatus();
  });
  ::testing::internal::CaptureStdout();
  ASSERT_SUCCESS(Launch(prints));
  ASSERT_SUCCESS(cuStreamSynchronize(nullptr));
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "hello from the card\n");
}

TEST_F(LaunchTest, ErrorsOfOursReachTheProgram) {
  const CUfunction lacks = Load("lacks", [](const LaunchConfig&) {
    return CudaError(CUDA_ERROR_NOT_SUPPORTED, "line 3: wgmma");
  });
  ASSERT_SUCCESS(Launch(lacks));
  EXPECT_CU(CUDA_ERROR_NOT_SUPPORTED, cuStreamSynchronize(nullptr));
}

}  // namespace
}  // namespace fargpu::softgpu
