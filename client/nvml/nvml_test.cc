#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <cuda.h>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "client/nvml/lease_state.h"

extern "C" {
nvmlReturn_t nvmlInit_v2();
nvmlReturn_t nvmlInitWithFlags(uint32_t flags);
nvmlReturn_t nvmlShutdown();
const char* nvmlErrorString(nvmlReturn_t result);
nvmlReturn_t nvmlSystemGetProcessName(uint32_t pid, char* name, uint32_t length);
nvmlReturn_t nvmlSystemGetCudaDriverVersion(int* version);
nvmlReturn_t nvmlSystemGetDriverVersion(char* version, uint32_t length);
nvmlReturn_t nvmlDeviceGetCount_v2(uint32_t* count);
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(uint32_t index, nvmlDevice_t* device);
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char* id, nvmlDevice_t* device);
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char* uuid, nvmlDevice_t* device);
nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, uint32_t* index);
nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char* name, uint32_t length);
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char* uuid, uint32_t length);
nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t* info);
nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_v1_t* info);
nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t* memory);
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t* memory);
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, uint32_t* count,
                                                     nvmlProcessInfo_v2_t* infos);
nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, uint32_t* count,
                                                      void* infos);
nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int* major, int* minor);
nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, uint32_t* architecture);
nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, uint32_t type, uint32_t* mhz);
nvmlReturn_t nvmlDeviceGetMemoryBusWidth(nvmlDevice_t device, uint32_t* bits);
nvmlReturn_t nvmlDeviceGetTemperature();
nvmlReturn_t nvmlDeviceSetPowerManagementLimit();
}

namespace fargpu::nvml {
namespace {

// The layouts that nvidia-ml-py has.
static_assert(sizeof(nvmlMemory_t) == 24);
static_assert(FargpuNvmlVersion<nvmlMemory_v2_t>(2) == 0x02000028);
static_assert(sizeof(nvmlPciInfo_t) == 68);
static_assert(sizeof(nvmlPciInfo_v2_t) == 52);
static_assert(FargpuNvmlVersion<nvmlPciInfoExt_v1_t>(1) == 0x01000040);
static_assert(sizeof(nvmlProcessInfo_v1_t) == 16);
static_assert(sizeof(nvmlProcessInfo_v2_t) == 24);

absl::StatusOr<LeaseView> g_view = absl::NotFoundError("no lease");
int g_looks = 0;
absl::StatusOr<LeaseView> Look() {
  ++g_looks;
  return g_view;
}

LeaseView TwoCards() {
  LeaseView view;
  view.cores_percent = 30;
  for (int i = 0; i < 2; ++i) {
    DeviceInfo card;
    card.uuid.fill(static_cast<uint8_t>(0xa0 + i));
    card.name = "card " + std::to_string(i);
    card.total_memory_bytes = 1 << 30;
    card.attributes.assign(CU_DEVICE_ATTRIBUTE_MAX, 0);
    card.attributes[CU_DEVICE_ATTRIBUTE_PCI_BUS_ID] = 0x1b + i;
    card.attributes[CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID] = 1;
    card.attributes[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR] = 9;
    card.attributes[CU_DEVICE_ATTRIBUTE_CLOCK_RATE] = 1980000;
    view.devices.push_back(card);
  }
  view.used_bytes = {300, 50};
  view.processes = {{.pid = 11, .program = "python3", .used_bytes = {100, 50}},
                    {.pid = 12, .program = "train", .used_bytes = {200, 0}}};
  return view;
}

class NvmlTest : public testing::Test {
 protected:
  NvmlTest() {
    LeaseState::Get().SetLookerForTest(&Look);
    g_view = TwoCards();
    g_looks = 0;
  }
  ~NvmlTest() override {
    while (nvmlShutdown() == NVML_SUCCESS) {
    }
  }
  static nvmlDevice_t Card(uint32_t index) {
    nvmlDevice_t device = nullptr;
    EXPECT_EQ(nvmlDeviceGetHandleByIndex_v2(index, &device), NVML_SUCCESS);
    return device;
  }
};

TEST_F(NvmlTest, NothingWorksWithoutInit) {
  uint32_t count = 77;
  nvmlDevice_t device = nullptr;
  nvmlMemory_t memory;
  EXPECT_EQ(nvmlDeviceGetCount_v2(&count), NVML_ERROR_UNINITIALIZED);
  EXPECT_EQ(nvmlDeviceGetHandleByIndex_v2(0, &device), NVML_ERROR_UNINITIALIZED);
  EXPECT_EQ(nvmlDeviceGetMemoryInfo(device, &memory), NVML_ERROR_UNINITIALIZED);
  EXPECT_EQ(nvmlDeviceGetTemperature(), NVML_ERROR_UNINITIALIZED);
  EXPECT_EQ(nvmlShutdown(), NVML_ERROR_UNINITIALIZED);
  EXPECT_EQ(count, 77u);
  EXPECT_EQ(g_looks, 0);
  int version = 0;
  EXPECT_EQ(nvmlSystemGetCudaDriverVersion(&version), NVML_SUCCESS);
  EXPECT_EQ(version, 13000);
}

TEST_F(NvmlTest, InitCountsAndNeedsALease) {
  g_view = absl::NotFoundError("no lease");
  EXPECT_EQ(nvmlInit_v2(), NVML_ERROR_DRIVER_NOT_LOADED);
  EXPECT_EQ(nvmlShutdown(), NVML_ERROR_UNINITIALIZED);
  g_view = TwoCards();
  EXPECT_EQ(nvmlInitWithFlags(4), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvmlInit_v2(), NVML_SUCCESS);
  EXPECT_EQ(nvmlInitWithFlags(1), NVML_SUCCESS);
  EXPECT_EQ(nvmlShutdown(), NVML_SUCCESS);
  uint32_t count = 0;
  EXPECT_EQ(nvmlDeviceGetCount_v2(&count), NVML_SUCCESS);
  EXPECT_EQ(count, 2u);
  EXPECT_EQ(nvmlShutdown(), NVML_SUCCESS);
  EXPECT_EQ(nvmlDeviceGetCount_v2(&count), NVML_ERROR_UNINITIALIZED);
}

TEST_F(NvmlTest, CardsAreFoundByIndexUuidAndPlace) {
  ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
  nvmlDevice_t device = nullptr;
  EXPECT_EQ(nvmlDeviceGetHandleByIndex_v2(2, &device), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvmlDeviceGetHandleByUUID("GPU-A1A1a1a1-a1a1-a1a1-a1a1-a1a1a1a1a1a1", &device),
            NVML_SUCCESS);
  EXPECT_EQ(device, Card(1));
  EXPECT_EQ(nvmlDeviceGetHandleByUUID("GPU-a1", &device), NVML_ERROR_NOT_FOUND);
  for (const char* id : {"00000001:1C:00.0", "0001:1c:00.0", "1:1c:0"}) {
    device = nullptr;
    EXPECT_EQ(nvmlDeviceGetHandleByPciBusId_v2(id, &device), NVML_SUCCESS) << id;
    EXPECT_EQ(device, Card(1)) << id;
  }
  EXPECT_EQ(nvmlDeviceGetHandleByPciBusId_v2("1c:00.0", &device), NVML_ERROR_NOT_FOUND);
  EXPECT_EQ(nvmlDeviceGetHandleByPciBusId_v2("card", &device), NVML_ERROR_INVALID_ARGUMENT);
  uint32_t index = 0;
  EXPECT_EQ(nvmlDeviceGetIndex(Card(1), &index), NVML_SUCCESS);
  EXPECT_EQ(index, 1u);
  for (nvmlDevice_t wrong : {nvmlDevice_t{nullptr}, reinterpret_cast<nvmlDevice_t>(&index)}) {
    EXPECT_EQ(nvmlDeviceGetIndex(wrong, &index), NVML_ERROR_INVALID_ARGUMENT);
  }
}

TEST_F(NvmlTest, TextsFitOrAreRefused) {
  ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
  char text[96];
  EXPECT_EQ(nvmlDeviceGetName(Card(1), text, sizeof(text)), NVML_SUCCESS);
  EXPECT_STREQ(text, "card 1");
  EXPECT_EQ(nvmlDeviceGetName(Card(1), text, 7), NVML_SUCCESS);
  EXPECT_EQ(nvmlDeviceGetName(Card(1), text, 6), NVML_ERROR_INSUFFICIENT_SIZE);
  EXPECT_EQ(nvmlDeviceGetName(Card(1), nullptr, 6), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(nvmlDeviceGetUUID(Card(0), text, sizeof(text)), NVML_SUCCESS);
  EXPECT_STREQ(text, "GPU-a0a0a0a0-a0a0-a0a0-a0a0-a0a0a0a0a0a0");
  EXPECT_EQ(nvmlSystemGetDriverVersion(text, sizeof(text)), NVML_SUCCESS);
  EXPECT_STREQ(text, "580.0.0");
  EXPECT_STREQ(nvmlErrorString(NVML_ERROR_NOT_SUPPORTED), "Not Supported");
}

TEST_F(NvmlTest, PlacesHaveNvidiasForms) {
  ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
  nvmlPciInfo_t info;
  ASSERT_EQ(nvmlDeviceGetPciInfo_v3(Card(0), &info), NVML_SUCCESS);
  EXPECT_STREQ(info.busIdLegacy, "0001:1B:00.0");
  EXPECT_STREQ(info.busId, "00000001:1B:00.0");
  EXPECT_EQ(info.bus, 0x1bu);
  nvmlPciInfoExt_v1_t extended{};
  EXPECT_EQ(nvmlDeviceGetPciInfoExt(Card(0), &extended), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
  extended.version = 0x01000040;
  EXPECT_EQ(nvmlDeviceGetPciInfoExt(Card(0), &extended), NVML_SUCCESS);
  EXPECT_STREQ(extended.busId, "00000001:1B:00.0");
}

TEST_F(NvmlTest, MemoryIsTheLeasesAndOfNow) {
  ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
  const nvmlDevice_t card = Card(0);
  nvmlMemory_t memory;
  ASSERT_EQ(nvmlDeviceGetMemoryInfo(card, &memory), NVML_SUCCESS);
  EXPECT_EQ(memory.total, uint64_t{1} << 30);
  EXPECT_EQ(memory.used, 300u);
  EXPECT_EQ(memory.free, (1u << 30) - 300);
  // Made smaller than what it holds.
  g_view->devices[0].total_memory_bytes = 200;
  nvmlMemory_v2_t second{};
  EXPECT_EQ(nvmlDeviceGetMemoryInfo_v2(card, &second), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
  second.version = 0x02000028;
  ASSERT_EQ(nvmlDeviceGetMemoryInfo_v2(card, &second), NVML_SUCCESS);
  EXPECT_EQ(second.total, 200u);
  EXPECT_EQ(second.free, 0u);
  EXPECT_EQ(second.used, 300u);
}

TEST_F(NvmlTest, ALeaseThatIsGoneIsALostCard) {
  ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
  const nvmlDevice_t card = Card(0);
  nvmlMemory_t memory;
  g_view = absl::PermissionDeniedError("released");
  EXPECT_EQ(nvmlDeviceGetMemoryInfo(card, &memory), NVML_ERROR_GPU_IS_LOST);
  g_view = absl::DeadlineExceededError("silence");
  EXPECT_EQ(nvmlDeviceGetMemoryInfo(card, &memory), NVML_ERROR_TIMEOUT);
  // Another lease under the same path: its card must not be taken for this one.
  g_view = TwoCards();
  g_view->devices[0].uuid[0] = 1;
  EXPECT_EQ(nvmlDeviceGetMemoryInfo(card, &memory), NVML_ERROR_GPU_IS_LOST);
}

TEST_F(NvmlTest, ProcessesOfTheLease) {
  ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
  uint32_t count = 0;
  EXPECT_EQ(nvmlDeviceGetComputeRunningProcesses_v3(Card(0), &count, nullptr),
            NVML_ERROR_INSUFFICIENT_SIZE);
  EXPECT_EQ(count, 2u);
  std::vector<nvmlProcessInfo_v2_t> infos(3);
  count = 3;
  ASSERT_EQ(nvmlDeviceGetComputeRunningProcesses_v3(Card(0), &count, infos.data()), NVML_SUCCESS);
  ASSERT_EQ(count, 2u);
  EXPECT_EQ(infos[1].pid, 12u);
  EXPECT_EQ(infos[1].usedGpuMemory, 200u);
  EXPECT_EQ(infos[1].gpuInstanceId, NVML_NO_INSTANCE);
  EXPECT_EQ(infos[2].pid, 0u);
  count = 5;
  EXPECT_EQ(nvmlDeviceGetGraphicsRunningProcesses_v3(Card(0), &count, nullptr), NVML_SUCCESS);
  EXPECT_EQ(count, 0u);
  char name[4];
  EXPECT_EQ(nvmlSystemGetProcessName(12, name, sizeof(name)), NVML_SUCCESS);
  EXPECT_STREQ(name, "tra");
  EXPECT_EQ(nvmlSystemGetProcessName(13, name, sizeof(name)), NVML_ERROR_NOT_FOUND);
}

TEST_F(NvmlTest, WhatNobodyKnowsIsNotSupported) {
  ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
  EXPECT_EQ(nvmlDeviceGetTemperature(), NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(nvmlDeviceSetPowerManagementLimit(), NVML_ERROR_NOT_SUPPORTED);
  uint32_t value = 0;
  EXPECT_EQ(nvmlDeviceGetMemoryBusWidth(Card(0), &value), NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(nvmlDeviceGetMaxClockInfo(Card(0), 3, &value), NVML_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(nvmlDeviceGetMaxClockInfo(Card(0), 1, &value), NVML_SUCCESS);
  EXPECT_EQ(value, 1980u);
  EXPECT_EQ(nvmlDeviceGetArchitecture(Card(0), &value), NVML_SUCCESS);
  EXPECT_EQ(value, uint32_t{NVML_DEVICE_ARCH_HOPPER});
  int major = 0, minor = 7;
  EXPECT_EQ(nvmlDeviceGetCudaComputeCapability(Card(0), &major, &minor), NVML_SUCCESS);
  EXPECT_EQ(major, 9);
  EXPECT_EQ(minor, 0);
}

TEST_F(NvmlTest, WorksInTheChildOfAFork) {
  ASSERT_EQ(nvmlInit_v2(), NVML_SUCCESS);
  const nvmlDevice_t card = Card(0);
  const pid_t child = fork();
  if (child == 0) {
    nvmlMemory_t memory;
    _exit(nvmlDeviceGetMemoryInfo(card, &memory) == NVML_SUCCESS && memory.used == 300 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(LeaseViewTest, ListsMustBeEquallyLong) {
  LeaseView view = TwoCards();
  EXPECT_TRUE(CheckLeaseView(view).ok());
  view.processes[1].used_bytes.pop_back();
  EXPECT_TRUE(absl::IsInvalidArgument(CheckLeaseView(view)));
  view = TwoCards();
  view.used_bytes.push_back(0);
  EXPECT_TRUE(absl::IsInvalidArgument(CheckLeaseView(view)));
}

TEST(LeaseViewTest, RoundTripAndEveryTruncationIsRejected) {
  std::vector<char> bytes;
  wire::EncodeMessage(TwoCards(), &bytes);
  LeaseView read;
  ASSERT_TRUE(wire::DecodeMessage(bytes, &read).ok());
  EXPECT_EQ(read.processes[1].program, "train");
  EXPECT_EQ(read.processes[1].used_bytes, (std::vector<uint64_t>{200, 0}));
  EXPECT_EQ(read.cores_percent, 30u);
  for (size_t size = 0; size < bytes.size(); ++size) {
    LeaseView cut;
    EXPECT_TRUE(
        absl::IsInvalidArgument(wire::DecodeMessage(absl::MakeConstSpan(bytes.data(), size), &cut)))
        << size;
  }
}

TEST(LookAtLeaseTest, WithoutALeaseFile) {
  unsetenv("FARGPU_LEASE");
  EXPECT_TRUE(absl::IsNotFound(LookAtLease().status()));
}

}  // namespace
}  // namespace fargpu::nvml
