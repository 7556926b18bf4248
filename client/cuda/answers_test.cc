// What the client answers by itself, and the CUresult of every wrong use that it recognises.
#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>

#include "client/cuda/client_test.h"
#include "client/cuda/proc_table.h"
#include "protocol/driver_abi/export_tables.h"

namespace fargpu::client {
namespace {

using AnswersTest = ClientTest;

TEST_F(AnswersTest, BeforeInit) {
  int value = 0;
  EXPECT_EQ(cuDriverGetVersion(&value), CUDA_SUCCESS);
  EXPECT_EQ(value, 13000);
  EXPECT_EQ(cuDriverGetVersion(nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDeviceGetCount(&value), CUDA_ERROR_NOT_INITIALIZED);
  CUcontext context = nullptr;
  EXPECT_EQ(cuCtxGetCurrent(&context), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(cuStreamBeginCapture_v2(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL),
            CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(cuInit(1), CUDA_ERROR_INVALID_VALUE);
  const char* text = nullptr;
  EXPECT_EQ(cuGetErrorName(CUDA_ERROR_NO_DEVICE, &text), CUDA_SUCCESS);
  EXPECT_STREQ(text, "CUDA_ERROR_NO_DEVICE");
  EXPECT_EQ(cuGetErrorString(static_cast<CUresult>(12345), &text), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(text, nullptr);
}

TEST_F(AnswersTest, InitWithoutAServerGivesNoDevice) {
  SetConnectorForTest([]() -> absl::StatusOr<SessionParts> {
    return absl::NotFoundError("no GPU server is configured");
  });
  EXPECT_EQ(cuInit(0), CUDA_ERROR_NO_DEVICE);
  EXPECT_EQ(cuInit(0), CUDA_ERROR_NO_DEVICE);
  int count = 0;
  EXPECT_EQ(cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
}

TEST_F(AnswersTest, InitFailsIfTheWindowIsTaken) {
  absl::StatusOr<AddressWindow> taken =
      AddressWindow::Reserve(FakeWorker::kWindowBase, FakeWorker::kWindowBytes);
  ASSERT_OK(taken);
  EXPECT_EQ(cuInit(0), CUDA_ERROR_OPERATING_SYSTEM);
}

TEST_F(AnswersTest, WindowIsReservedWithoutAccess) {
  Begin();
  // Nothing else can lie there.
  EXPECT_THAT(AddressWindow::Reserve(FakeWorker::kWindowBase + (1 << 20), 1 << 20),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(AnswersTest, Devices) {
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  int value = 0;
  EXPECT_EQ(cuDeviceGetCount(&value), CUDA_SUCCESS);
  EXPECT_EQ(value, FakeWorker::kDevices);
  EXPECT_EQ(cuDeviceGetCount(nullptr), CUDA_ERROR_INVALID_VALUE);
  CUdevice device = -1;
  EXPECT_EQ(cuDeviceGet(&device, 1), CUDA_SUCCESS);
  EXPECT_EQ(device, 1);
  EXPECT_EQ(cuDeviceGet(&device, 2), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuDeviceGet(&device, -1), CUDA_ERROR_INVALID_DEVICE);
  char name[64];
  EXPECT_EQ(cuDeviceGetName(name, sizeof(name), 1), CUDA_SUCCESS);
  EXPECT_STREQ(name, "Fake Card 1");
  EXPECT_EQ(cuDeviceGetName(name, 5, 1), CUDA_SUCCESS);
  EXPECT_STREQ(name, "Fake");
  EXPECT_EQ(cuDeviceGetName(name, 0, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDeviceGetName(nullptr, 5, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuDeviceGetName(name, 5, 7), CUDA_ERROR_INVALID_DEVICE);
  CUuuid uuid;
  EXPECT_EQ(cuDeviceGetUuid(&uuid, 1), CUDA_SUCCESS);
  EXPECT_EQ(uuid.bytes[3], 19);
  EXPECT_EQ(cuDeviceGetUuid_v2(&uuid, 1), CUDA_SUCCESS);
  EXPECT_EQ(uuid.bytes[3], 119);
  size_t bytes = 0;
  EXPECT_EQ(cuDeviceTotalMem_v2(&bytes, 0), CUDA_SUCCESS);
  EXPECT_EQ(bytes, size_t{1} << 30);
  EXPECT_EQ(cuDeviceGetPCIBusId(name, sizeof(name), 1), CUDA_SUCCESS);
  EXPECT_STREQ(name, "0000:02:00.0");
  EXPECT_EQ(cuDeviceGetByPCIBusId(&device, "0000:02:00.0"), CUDA_SUCCESS);
  EXPECT_EQ(device, 1);
  EXPECT_EQ(cuDeviceGetByPCIBusId(&device, "01:00.0"), CUDA_SUCCESS);
  EXPECT_EQ(device, 0);
  EXPECT_EQ(cuDeviceGetByPCIBusId(&device, "0000:03:00.0"), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuDeviceGetByPCIBusId(&device, "card"), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(RoundTrips(), 1u);
}

TEST_F(AnswersTest, AttributesPromiseOnlyWhatIsKept) {
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  const auto attribute = [](CUdevice_attribute which) {
    int value = -1;
    EXPECT_EQ(cuDeviceGetAttribute(&value, which, 0), CUDA_SUCCESS);
    return value;
  };
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING), 1);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS), 1);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR), 12);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY), 1);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS), 0);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS), 0);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY), 1);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM), 0);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_SPARSE_CUDA_ARRAY_SUPPORTED), 0);
  EXPECT_EQ(attribute(CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED), 0);
  // The runtime asks for numbers that no header knows yet.
  EXPECT_EQ(attribute(static_cast<CUdevice_attribute>(200)), 0);
  int value = 0;
  EXPECT_EQ(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 2),
            CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuDeviceGetAttribute(nullptr, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(AnswersTest, PrimaryContext) {
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  // As the runtime does it: the handle comes from a private table, is made current, then retained.
  const uint8_t id[16] = {0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a,
                          0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9};
  CUuuid uuid;
  std::memcpy(uuid.bytes, id, sizeof(id));
  const void* table = nullptr;
  ASSERT_EQ(cuGetExportTable(&table, &uuid), CUDA_SUCCESS);
  const auto primary = reinterpret_cast<CUresult (*)(CUcontext*, CUdevice)>(
      const_cast<void*>(static_cast<const void* const*>(table)[2]));
  CUcontext early = nullptr;
  ASSERT_EQ(primary(&early, 1), CUDA_SUCCESS);
  EXPECT_EQ(primary(&early, 9), CUDA_ERROR_INVALID_DEVICE);
  ASSERT_EQ(cuCtxSetCurrent(early), CUDA_SUCCESS);
  unsigned flags = 0;
  EXPECT_EQ(cuCtxGetFlags(&flags), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CUdevice device = -1;
  EXPECT_EQ(cuCtxGetDevice(&device), CUDA_SUCCESS);
  EXPECT_EQ(device, 1);
  int active = -1;
  EXPECT_EQ(cuDevicePrimaryCtxGetState(1, &flags, &active), CUDA_SUCCESS);
  EXPECT_EQ(active, 0);
  EXPECT_EQ(cuDevicePrimaryCtxSetFlags_v2(1, CU_CTX_SCHED_BLOCKING_SYNC), CUDA_SUCCESS);

  CUcontext retained = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&retained, 1), CUDA_SUCCESS);
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&retained, 1), CUDA_SUCCESS);
  EXPECT_EQ(retained, early);
  EXPECT_EQ(cuCtxGetFlags(&flags), CUDA_SUCCESS);
  EXPECT_EQ(flags, static_cast<unsigned>(CU_CTX_SCHED_BLOCKING_SYNC));
  EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(1), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(1), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(1), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuCtxDestroy_v2(retained), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(worker->Count("cuDevicePrimaryCtxRetain"), 1u);
}

TEST_F(AnswersTest, ResetAndNewStart) {
  Begin();
  CUcontext context = nullptr;
  ASSERT_EQ(cuCtxGetCurrent(&context), CUDA_SUCCESS);
  const CUdeviceptr device = Allocate(64);
  ASSERT_EQ(cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
  unsigned version = 0;
  EXPECT_EQ(cuCtxGetApiVersion(context, &version), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuMemFree_v2(device), CUDA_ERROR_INVALID_VALUE);
  CUcontext again = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&again, 0), CUDA_SUCCESS);
  EXPECT_EQ(again, context);
  EXPECT_EQ(cuCtxGetApiVersion(context, &version), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(worker->Count("cuDevicePrimaryCtxRetain"), 2u);
}

TEST_F(AnswersTest, ModulesEndWithTheirContext) {
  Begin();
  CUcontext context = nullptr;
  ASSERT_EQ(cuCtxCreate_v2(&context, 0, 0), CUDA_SUCCESS);
  CUmodule module = nullptr;
  ASSERT_EQ(cuModuleLoadData(&module, kPtx), CUDA_SUCCESS);
  CUlibrary library = nullptr;
  ASSERT_EQ(cuLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0),
            CUDA_SUCCESS);
  CUmodule of_library = nullptr;
  ASSERT_EQ(cuLibraryGetModule(&of_library, library), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxDestroy_v2(context), CUDA_SUCCESS);
  EXPECT_EQ(cuModuleUnload(module), CUDA_ERROR_INVALID_HANDLE);
  CUmodule again = nullptr;
  EXPECT_EQ(cuLibraryGetModule(&again, library), CUDA_SUCCESS);
  EXPECT_NE(again, of_library);
  EXPECT_EQ(cuModuleUnload(again), CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(cuLibraryUnload(library), CUDA_SUCCESS);
}

TEST_F(AnswersTest, ContextStack) {
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  CUcontext a = nullptr, b = nullptr, popped = nullptr, current = nullptr;
  EXPECT_EQ(cuCtxPopCurrent_v2(&popped), CUDA_ERROR_INVALID_CONTEXT);
  ASSERT_EQ(cuCtxCreate_v2(&a, 0, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxCreate_v4(&b, nullptr, 0, 1), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxGetCurrent(&current), CUDA_SUCCESS);
  EXPECT_EQ(current, b);
  unsigned long long id_a = 0, id_b = 0;
  EXPECT_EQ(cuCtxGetId(a, &id_a), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxGetId(nullptr, &id_b), CUDA_SUCCESS);
  EXPECT_NE(id_a, id_b);
  EXPECT_EQ(cuCtxPopCurrent_v2(&popped), CUDA_SUCCESS);
  EXPECT_EQ(popped, b);
  EXPECT_EQ(cuCtxPushCurrent_v2(b), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxDestroy_v2(b), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxGetCurrent(&current), CUDA_SUCCESS);
  EXPECT_EQ(current, a);
  EXPECT_EQ(cuCtxDestroy_v2(b), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuCtxPushCurrent_v2(b), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuCtxCreate_v2(&b, 0, 5), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(cuCtxCreate_v2(&b, 0xffff, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxGetCurrent(&current), CUDA_SUCCESS);
  EXPECT_EQ(current, nullptr);
}

TEST_F(AnswersTest, WrongHandles) {
  Begin();
  const auto wild = [](uintptr_t value) { return reinterpret_cast<void*>(value); };
  for (void* handle : {wild(0x10), wild(0x123456789), wild(~uintptr_t{0})}) {
    EXPECT_EQ(cuStreamSynchronize(static_cast<CUstream>(handle)), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cuEventSynchronize(static_cast<CUevent>(handle)), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cuCtxSetCurrent(static_cast<CUcontext>(handle)), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuModuleUnload(static_cast<CUmodule>(handle)), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cuLibraryUnload(static_cast<CUlibrary>(handle)), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cuLaunchKernel(static_cast<CUfunction>(handle), 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr,
                             nullptr),
              CUDA_ERROR_INVALID_HANDLE);
  }
  EXPECT_EQ(cuEventRecord(nullptr, nullptr), CUDA_ERROR_INVALID_HANDLE);
  // A handle of another kind, and one that was destroyed.
  CUstream stream = nullptr;
  ASSERT_EQ(cuStreamCreate(&stream, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuEventQuery(reinterpret_cast<CUevent>(stream)), CUDA_ERROR_INVALID_HANDLE);
  ASSERT_EQ(cuStreamDestroy_v2(stream), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(stream), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cuStreamCreate(&stream, 0x80), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamCreate(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuEventCreate(nullptr, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(AnswersTest, DefaultStreamsOnTheWire) {
  Begin();
  const auto synchronized = [&](auto call, CUstream stream) {
    uint64_t id = 99;
    worker->On<wire::StreamSynchronizeRequest>(
        [&](const wire::StreamSynchronizeRequest& request, auto*, FakeWorker::Call*) {
          id = request.hStream.value;
          return CUDA_SUCCESS;
        });
    EXPECT_EQ(call(stream), CUDA_SUCCESS);
    return id;
  };
  void* per_thread = nullptr;
  ASSERT_EQ(cuGetProcAddress_v2("cuStreamSynchronize", &per_thread, 13000,
                                CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, nullptr),
            CUDA_SUCCESS);
  const auto twin = reinterpret_cast<CUresult (*)(CUstream)>(per_thread);
  EXPECT_EQ(synchronized(&cuStreamSynchronize, nullptr), 0u);
  EXPECT_EQ(synchronized(&cuStreamSynchronize, CU_STREAM_LEGACY), 1u);
  EXPECT_EQ(synchronized(&cuStreamSynchronize, CU_STREAM_PER_THREAD), 2u);
  EXPECT_EQ(synchronized(twin, nullptr), 2u);
  EXPECT_EQ(synchronized(twin, CU_STREAM_LEGACY), 1u);
}

TEST_F(AnswersTest, StreamQuestions) {
  Begin();
  CUstream stream = nullptr;
  ASSERT_EQ(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, -100), CUDA_SUCCESS);
  int priority = 0;
  unsigned flags = 0;
  unsigned long long id = 0, other = 0;
  EXPECT_EQ(cuStreamGetPriority(stream, &priority), CUDA_SUCCESS);
  EXPECT_EQ(priority, -5);
  EXPECT_EQ(cuStreamGetFlags(stream, &flags), CUDA_SUCCESS);
  EXPECT_EQ(flags, static_cast<unsigned>(CU_STREAM_NON_BLOCKING));
  EXPECT_EQ(cuStreamGetId(stream, &id), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamGetId(nullptr, &other), CUDA_SUCCESS);
  EXPECT_NE(id, other);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  EXPECT_EQ(cuStreamIsCapturing(stream, &status), CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
  status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  EXPECT_EQ(cuStreamGetCaptureInfo_v2(stream, &status, nullptr, nullptr, nullptr, nullptr),
            CUDA_SUCCESS);
  EXPECT_EQ(status, CU_STREAM_CAPTURE_STATUS_NONE);
  CUcontext context = nullptr;
  EXPECT_EQ(cuStreamGetCtx(stream, &context), CUDA_SUCCESS);
  EXPECT_NE(context, nullptr);
  EXPECT_EQ(RoundTrips(), 1u);
}

TEST_F(AnswersTest, DeviceMemory) {
  Begin();
  CUdeviceptr device = Allocate(1000);
  EXPECT_EQ(cuMemAlloc_v2(nullptr, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAlloc_v2(&device, 0), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr none = 0;
  EXPECT_EQ(cuMemAlloc_v2(&none, size_t{1} << 40), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(cuMemFree_v2(0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree_v2(device + 8), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree_v2(0x1000), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr base = 0;
  size_t size = 0;
  EXPECT_EQ(cuMemGetAddressRange_v2(&base, &size, device + 999), CUDA_SUCCESS);
  EXPECT_EQ(base, device);
  EXPECT_EQ(size, 1000u);
  EXPECT_EQ(cuMemGetAddressRange_v2(&base, &size, device + 1000), CUDA_ERROR_NOT_FOUND);
  char bytes[16] = {};
  EXPECT_EQ(cuMemcpyHtoD_v2(device + 990, bytes, 16), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyDtoH_v2(bytes, device + 990, 16), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyHtoD_v2(0x1000, bytes, 16), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyHtoD_v2(device, nullptr, 16), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemcpyHtoD_v2(device, nullptr, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemsetD32_v2(device + 1, 0, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemsetD32_v2(device, 0, ~size_t{0}), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFree_v2(device), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree_v2(device), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(AnswersTest, PointerAttributes) {
  Begin();
  const CUdeviceptr device = Allocate(1000);
  void* pinned = nullptr;
  ASSERT_EQ(cuMemHostAlloc(&pinned, 100, CU_MEMHOSTALLOC_PORTABLE), CUDA_SUCCESS);
  const auto host = reinterpret_cast<CUdeviceptr>(pinned);
  unsigned type = 0;
  EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, device + 5),
            CUDA_SUCCESS);
  EXPECT_EQ(type, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
  EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, host), CUDA_SUCCESS);
  EXPECT_EQ(type, static_cast<unsigned>(CU_MEMORYTYPE_HOST));
  int local = 0;
  const auto stack = reinterpret_cast<CUdeviceptr>(&local);
  EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, stack),
            CUDA_ERROR_INVALID_VALUE);
  // The plural gives values for any pointer.
  int ordinal = 0;
  CUcontext context = reinterpret_cast<CUcontext>(1);
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                      CU_POINTER_ATTRIBUTE_CONTEXT};
  void* data[] = {&type, &ordinal, &context};
  EXPECT_EQ(cuPointerGetAttributes(3, attributes, data, stack), CUDA_SUCCESS);
  EXPECT_EQ(type, 0u);
  EXPECT_EQ(ordinal, CU_DEVICE_INVALID);
  EXPECT_EQ(context, nullptr);
  CUdeviceptr start = 0;
  EXPECT_EQ(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, device + 999),
            CUDA_SUCCESS);
  EXPECT_EQ(start, device);
  unsigned flags = 0;
  EXPECT_EQ(cuMemHostGetFlags(&flags, pinned), CUDA_SUCCESS);
  EXPECT_EQ(flags, static_cast<unsigned>(CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
  CUdeviceptr mapped = 1;
  EXPECT_EQ(worker->Count("SharedBack"), 0u);
  EXPECT_EQ(cuMemHostGetDevicePointer_v2(&mapped, pinned, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemHostGetDevicePointer_v2(&mapped, &local, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemHostGetDevicePointer_v2(&mapped, pinned, 0), CUDA_SUCCESS);
  EXPECT_EQ(mapped, host);
  EXPECT_EQ(worker->Count("SharedBack"), 1u);
  EXPECT_EQ(cuMemFreeHost(&local), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemFreeHost(pinned), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFreeHost(pinned), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(AnswersTest, RegisteredHostMemory) {
  Begin();
  std::vector<char> memory(10000);
  EXPECT_EQ(cuMemHostRegister_v2(memory.data(), memory.size(), 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemHostRegister_v2(memory.data() + 100, 100, 0),
            CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  EXPECT_EQ(cuMemHostUnregister(memory.data() + 1), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  EXPECT_EQ(cuMemHostUnregister(memory.data()), CUDA_SUCCESS);
  EXPECT_EQ(cuMemHostUnregister(memory.data()), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

class KernelsTest : public ClientTest {
 protected:
  void Load() {
    Begin();
    ASSERT_EQ(cuLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0),
              CUDA_SUCCESS);
    ASSERT_EQ(cuLibraryGetKernel(&kernel, library, "vector_add"), CUDA_SUCCESS);
    function = reinterpret_cast<CUfunction>(kernel);
  }
  CUlibrary library = nullptr;
  CUkernel kernel = nullptr;
  CUfunction function = nullptr;
};

TEST_F(KernelsTest, QuestionsAboutKernelsAreAnsweredHere) {
  Load();
  const uint64_t before = RoundTrips();
  int value = 0;
  EXPECT_EQ(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, kernel, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(value, 512);
  CUfunction as_function = nullptr;
  EXPECT_EQ(cuKernelGetFunction(&as_function, kernel), CUDA_SUCCESS);
  EXPECT_EQ(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, as_function), CUDA_SUCCESS);
  EXPECT_EQ(value, 32);
  EXPECT_EQ(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX, as_function),
            CUDA_ERROR_INVALID_VALUE);
  size_t offset = 0, size = 0;
  EXPECT_EQ(cuKernelGetParamInfo(kernel, 3, &offset, &size), CUDA_SUCCESS);
  EXPECT_EQ(offset, 24u);
  EXPECT_EQ(size, 4u);
  EXPECT_EQ(cuKernelGetParamInfo(kernel, 4, &offset, &size), CUDA_ERROR_INVALID_VALUE);
  const char* name = nullptr;
  EXPECT_EQ(cuKernelGetName(&name, kernel), CUDA_SUCCESS);
  EXPECT_STREQ(name, "vector_add");
  CUkernel none = nullptr;
  EXPECT_EQ(cuLibraryGetKernel(&none, library, "no_such_kernel"), CUDA_ERROR_NOT_FOUND);
  unsigned count = 0;
  EXPECT_EQ(cuLibraryGetKernelCount(&count, library), CUDA_SUCCESS);
  EXPECT_EQ(count, 2u);
  EXPECT_EQ(cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 65536, kernel, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(
      cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel, 0),
      CUDA_SUCCESS);
  EXPECT_EQ(value, 65536);
  EXPECT_EQ(
      cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1 << 20, kernel, 0),
      CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_NUM_REGS, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(RoundTrips(), before);
}

TEST_F(KernelsTest, LaunchPacksParametersByTheirLayout) {
  std::vector<char> params;
  wire::LaunchKernelRequest seen;
  worker->On<wire::LaunchKernelRequest>(
      [&](const wire::LaunchKernelRequest& request, auto*, FakeWorker::Call*) {
        params.assign(request.params.begin(), request.params.end());
        seen = request;
        return CUDA_SUCCESS;
      });
  Load();
  uint64_t a = 0x1111111111111111, b = 0x2222222222222222, c = 0x3333333333333333;
  int n = 0x44444444;
  void* parameters[] = {&a, &b, &c, &n};
  ASSERT_EQ(
      cuLaunchKernel(function, 2, 3, 4, 32, 2, 1, 100, CU_STREAM_PER_THREAD, parameters, nullptr),
      CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  ASSERT_EQ(params.size(), 28u);
  EXPECT_EQ(
      std::string(params.begin(), params.end()),
      std::string(8, 0x11) + std::string(8, 0x22) + std::string(8, 0x33) + std::string(4, 0x44));
  EXPECT_EQ(seen.gridDimZ, 4u);
  EXPECT_EQ(seen.blockDimX, 32u);
  EXPECT_EQ(seen.sharedMemBytes, 100u);
  EXPECT_EQ(seen.hStream.value, 2u);
  EXPECT_FALSE(seen.cooperative);

  char packed[28];
  std::fill(std::begin(packed), std::end(packed), 0x55);
  size_t size = sizeof(packed);
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   CU_LAUNCH_PARAM_END};
  ASSERT_EQ(cuLaunchCooperativeKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters),
            CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_TRUE(seen.cooperative);
  ASSERT_EQ(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(std::string(params.begin(), params.end()), std::string(28, 0x55));
}

TEST_F(KernelsTest, WrongLaunchesAreRefusedAtOnce) {
  Load();
  uint64_t pointer = 0;
  int n = 0;
  void* parameters[] = {&pointer, &pointer, &pointer, &n};
  const auto launch = [&](unsigned grid, unsigned block, unsigned shared, void** params,
                          void** extra) {
    return cuLaunchKernel(function, grid, 1, 1, block, 1, 1, shared, nullptr, params, extra);
  };
  EXPECT_EQ(launch(1, 1, 0, parameters, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(launch(0, 1, 0, parameters, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(1, 0, 0, parameters, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(1, 513, 0, parameters, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(1, 1025, 0, parameters, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(1, 1, 49153, parameters, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(1, 1, 0, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  size_t size = 27;
  char packed[28] = {};
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   CU_LAUNCH_PARAM_END};
  EXPECT_EQ(launch(1, 1, 0, nullptr, extra), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(launch(1, 1, 0, parameters, extra), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuLaunchKernelEx(nullptr, function, parameters, nullptr), CUDA_ERROR_INVALID_VALUE);
  CUlaunchAttribute attribute = {};
  attribute.id = CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE;
  attribute.value.deviceUpdatableKernelNode.deviceUpdatable = 1;
  CUlaunchConfig config = {};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = config.blockDimY = config.blockDimZ = 1;
  config.attrs = &attribute;
  config.numAttrs = 1;
  EXPECT_EQ(cuLaunchKernelEx(&config, function, parameters, nullptr), CUDA_ERROR_NOT_SUPPORTED);
  attribute.id = static_cast<CUlaunchAttributeID>(999);
  EXPECT_EQ(cuLaunchKernelEx(&config, function, parameters, nullptr), CUDA_ERROR_INVALID_VALUE);
  attribute.id = CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY;
  EXPECT_EQ(cuLaunchKernelEx(&config, function, parameters, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(worker->Count("cuLaunchKernel"), 2u);
}

TEST_F(KernelsTest, FailedLoadsSurfaceAtTheFirstKernel) {
  worker->Fail<wire::LibraryLoadDataRequest>(CUDA_ERROR_NO_BINARY_FOR_GPU);
  Begin();
  ASSERT_EQ(cuLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0),
            CUDA_SUCCESS);
  EXPECT_EQ(cuLibraryGetKernel(&kernel, library, "vector_add"), CUDA_ERROR_NO_BINARY_FOR_GPU);
  EXPECT_EQ(cuLibraryGetKernel(&kernel, library, "vector_add"), CUDA_ERROR_NO_BINARY_FOR_GPU);
  EXPECT_EQ(cuLibraryUnload(library), CUDA_SUCCESS);
}

TEST_F(KernelsTest, LibraryThatNobodyAskedMayBeUnloaded) {
  Begin();
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(cuLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0),
              CUDA_SUCCESS);
    ASSERT_EQ(cuLibraryUnload(library), CUDA_SUCCESS);
  }
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
}

TEST_F(KernelsTest, ModuleLoadBringsTheCompilersWords) {
  worker->On<wire::ModuleLoadDataExRequest>([](const wire::ModuleLoadDataExRequest& request,
                                               wire::ModuleLoadDataExReply* reply,
                                               FakeWorker::Call*) {
    EXPECT_EQ(request.options, std::vector<uint32_t>{CU_JIT_MAX_REGISTERS});
    EXPECT_EQ(request.values, std::vector<uint64_t>{32});
    reply->result = CUDA_ERROR_INVALID_PTX;
    reply->error_log = "line 3: nonsense";
    return CUDA_SUCCESS;
  });
  Begin();
  char log[8] = {};
  CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
                            CU_JIT_MAX_REGISTERS};
  void* values[] = {log, reinterpret_cast<void*>(sizeof(log)), reinterpret_cast<void*>(32)};
  CUmodule module = nullptr;
  EXPECT_EQ(cuModuleLoadDataEx(&module, kPtx, 3, options, values), CUDA_ERROR_INVALID_PTX);
  EXPECT_STREQ(log, "line 3:");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(values[1]), 7u);
  EXPECT_EQ(cuModuleLoadData(&module, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(KernelsTest, BestBlockSizeIsAskedForInOneRoundTrip) {
  worker->On<wire::OccupancyMaxActiveBlocksPerMultiprocessorWithFlagsRequest>(
      [](const wire::OccupancyMaxActiveBlocksPerMultiprocessorWithFlagsRequest& request,
         wire::OccupancyMaxActiveBlocksPerMultiprocessorWithFlagsReply* reply, FakeWorker::Call*) {
        // 768 threads fit: 256 is the largest block that divides them well.
        reply->numBlocks = request.blockSize == 256 ? 3 : 1;
        return CUDA_SUCCESS;
      });
  Load();
  const uint64_t before = RoundTrips();
  int grid = 0, block = 0;
  ASSERT_EQ(cuOccupancyMaxPotentialBlockSize(&grid, &block, function, nullptr, 0, 0), CUDA_SUCCESS);
  EXPECT_EQ(block, 256);
  EXPECT_EQ(grid, 12);
  EXPECT_EQ(RoundTrips(), before + 1);
}

TEST_F(AnswersTest, ImageArrivesWhole) {
  Begin();
  std::string text(kPtx);
  while (text.size() < (2 << 20) + 77) text += "// a comment that makes the image large\n";
  CUmodule module = nullptr;
  ASSERT_EQ(cuModuleLoadData(&module, text.c_str()), CUDA_SUCCESS);
  std::string arrived;
  for (const auto& call : worker->received()) {
    if (call.name == "SessionImagePart") arrived.append(call.bulk.begin(), call.bulk.end());
  }
  EXPECT_EQ(arrived, text);
  unsigned count = 0;
  EXPECT_EQ(cuModuleGetFunctionCount(&count, module), CUDA_SUCCESS);
  EXPECT_EQ(count, 2u);
  EXPECT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
  EXPECT_EQ(cuModuleUnload(module), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(AnswersTest, UnsupportedCallsSaySo) {
  Begin();
  EXPECT_EQ(cuGraphAddExternalSemaphoresSignalNode(nullptr, nullptr, nullptr, 0, nullptr),
            CUDA_ERROR_NOT_SUPPORTED);
}

TEST_F(AnswersTest, VirtualMemory) {
  worker->On<wire::MemAddressReserveRequest>([](const wire::MemAddressReserveRequest&,
                                                wire::MemAddressReserveReply* reply,
                                                FakeWorker::Call*) {
    reply->ptr = FakeWorker::kWindowBase + (256 << 20);
    return CUDA_SUCCESS;
  });
  Begin();
  CUdeviceptr address = 0;
  ASSERT_EQ(cuMemAddressReserve(&address, 4 << 20, 0, 0, 0), CUDA_SUCCESS);
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cuMemCreate(&handle, 2 << 20, &prop, 0), CUDA_SUCCESS);
  EXPECT_NE(handle, 0u);
  EXPECT_EQ(cuMemMap(address, 2 << 20, 0, handle, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree_v2(address), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemUnmap(address, 2 << 20), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAddressFree(address, 1 << 20), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuMemAddressFree(address, 4 << 20), CUDA_SUCCESS);
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  EXPECT_EQ(cuMemCreate(&handle, 2 << 20, &prop, 0), CUDA_ERROR_NOT_SUPPORTED);
}

// Names of graphics interfaces: their headers are others', the runtime does without.
bool IsOfGraphics(const std::string& name) {
  for (const char* part : {"cuGL", "EGL", "Egl", "VDPAU", "GraphicsGL"}) {
    if (name.find(part) != std::string::npos) return true;
  }
  return false;
}

TEST(ProcAddressTest, EverythingTheRuntimeAsksForIsThere) {
  const char* list = std::getenv("FARGPU_PROC_ADDRESS_REQUESTS");
  if (list == nullptr) GTEST_SKIP() << "FARGPU_PROC_ADDRESS_REQUESTS is not set";
  std::ifstream file(list);
  ASSERT_TRUE(file.good()) << list;
  std::string line;
  int asked = 0;
  while (std::getline(file, line)) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    std::string name;
    int version = 0;
    cuuint64_t flags = 0;
    words >> name >> version >> flags;
    void* function = nullptr;
    CUdriverProcAddressQueryResult status;
    const CUresult result = cuGetProcAddress_v2(name.c_str(), &function, version, flags, &status);
    if (IsOfGraphics(name)) continue;
    EXPECT_EQ(result, CUDA_SUCCESS) << line;
    EXPECT_NE(function, nullptr) << line;
    ++asked;
  }
  EXPECT_GT(asked, 300);
}

TEST(ProcAddressTest, VersionsAndTwins) {
  const auto find = [](const char* name, int version, cuuint64_t flags) {
    void* function = nullptr;
    cuGetProcAddress_v2(name, &function, version, flags, nullptr);
    return function;
  };
  EXPECT_EQ(find("cuCtxGetDevice", 12000, 0), reinterpret_cast<void*>(&cuCtxGetDevice));
  EXPECT_EQ(find("cuCtxGetDevice", 13000, 0), reinterpret_cast<void*>(&cuCtxGetDevice_v2));
  EXPECT_EQ(find("cuDeviceGetUuid", 9020, 0), reinterpret_cast<void*>(&cuDeviceGetUuid));
  EXPECT_EQ(find("cuMemAlloc", 13000, 0), reinterpret_cast<void*>(&cuMemAlloc_v2));
  EXPECT_NE(find("cuLaunchKernel", 13000, 2), find("cuLaunchKernel", 13000, 0));
  EXPECT_EQ(find("cuLaunchKernel", 6000, 2), find("cuLaunchKernel", 6000, 0));
  EXPECT_EQ(find("cuNoSuchThing", 13000, 0), nullptr);
  EXPECT_EQ(find("", 0, 0), nullptr);
}

}  // namespace
}  // namespace fargpu::client
