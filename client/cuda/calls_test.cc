// How calls travel: order, round trips, errors that come late, copies, deliveries, death.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "client/cuda/client_test.h"

namespace fargpu::client {
namespace {

using testing::ElementsAre;

using CallsTest = ClientTest;

std::vector<char> Pattern(size_t bytes, int seed) {
  std::vector<char> pattern(bytes);
  uint32_t state = static_cast<uint32_t>(seed) * 2654435761u + 1;
  for (char& byte : pattern) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<char>(state >> 24);
  }
  return pattern;
}

// What the runtime and a vector add do between them, from the first call to the end.
TEST_F(CallsTest, VectorAddWaitsForSixRoundTrips) {
  ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
  int count = 0;
  ASSERT_EQ(cuDeviceGetCount(&count), CUDA_SUCCESS);
  for (CUdevice device = 0; device < count; ++device) {
    for (int attribute = 1; attribute < CU_DEVICE_ATTRIBUTE_MAX; ++attribute) {
      int value = 0;
      ASSERT_EQ(cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(attribute), device),
                CUDA_SUCCESS);
    }
  }
  CUcontext context = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  CUdeviceptr a = Allocate(4096), b = Allocate(4096), c = Allocate(4096);
  const std::vector<char> input = Pattern(4096, 1);
  ASSERT_EQ(cuMemcpyHtoD_v2(a, input.data(), input.size()), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyHtoD_v2(b, input.data(), input.size()), CUDA_SUCCESS);
  CUlibrary library = nullptr;
  ASSERT_EQ(cuLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0),
            CUDA_SUCCESS);
  CUkernel kernel = nullptr;
  ASSERT_EQ(cuLibraryGetKernel(&kernel, library, "vector_add"), CUDA_SUCCESS);
  int n = 1024;
  void* parameters[] = {&a, &b, &c, &n};
  ASSERT_EQ(cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), 4, 1, 1, 256, 1, 1, 0, nullptr,
                           parameters, nullptr),
            CUDA_SUCCESS);
  std::vector<char> output(4096);
  ASSERT_EQ(cuMemcpyDtoH_v2(output.data(), a, output.size()), CUDA_SUCCESS);
  EXPECT_EQ(output, input);
  for (CUdeviceptr pointer : {a, b, c}) ASSERT_EQ(cuMemFree_v2(pointer), CUDA_SUCCESS);
  ASSERT_EQ(cuLibraryUnload(library), CUDA_SUCCESS);
  ASSERT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
  // Handshake, three allocations, the library's metadata, the copy back.
  EXPECT_EQ(RoundTrips(), 6u);
}

TEST_F(CallsTest, CallsArriveInOrderAndNumbered) {
  Begin();
  CUstream stream = nullptr;
  CUevent event = nullptr;
  ASSERT_EQ(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  ASSERT_EQ(cuEventCreate(&event, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuEventRecord(event, stream), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamSynchronize(stream), CUDA_SUCCESS);
  EXPECT_THAT(worker->names(),
              ElementsAre("cuDevicePrimaryCtxRetain", "cuStreamCreate", "cuEventCreate",
                          "cuEventRecord", "cuStreamSynchronize"));
  const auto calls = worker->received();
  for (size_t i = 1; i < calls.size(); ++i) {
    EXPECT_EQ(calls[i].number, calls[i - 1].number + 1);
    EXPECT_NE(calls[i].header.context.value, 0u);
    EXPECT_NE(calls[i].header.thread, 0u);
  }
  EXPECT_EQ(RoundTrips(), 2u);
}

TEST_F(CallsTest, ManyCallsShareFrames) {
  Begin();
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(cuMemsetD8Async(FakeWorker::kWindowBase, 0, 16, nullptr), CUDA_SUCCESS);
  }
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(worker->Count("cuMemsetD8Async"), 1000u);
  EXPECT_LT(worker->frames(), 300u);
}

TEST_F(CallsTest, AsynchronousCallsLeaveByThemselves) {
  Begin();
  ASSERT_EQ(cuMemsetD8Async(FakeWorker::kWindowBase, 0, 16, nullptr), CUDA_SUCCESS);
  for (int i = 0; i < 5000 && worker->Count("cuMemsetD8Async") == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(worker->Count("cuMemsetD8Async"), 1u);
}

TEST_F(CallsTest, ThreadsHaveNumbersOfTheirOwn) {
  Begin();
  CUcontext context = nullptr;
  ASSERT_EQ(cuCtxGetCurrent(&context), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  std::thread([&] {
    CUcontext current = context;
    EXPECT_EQ(cuCtxGetCurrent(&current), CUDA_SUCCESS);
    EXPECT_EQ(current, nullptr);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  }).join();
  const auto calls = worker->received();
  ASSERT_GE(calls.size(), 3u);
  EXPECT_NE(calls[calls.size() - 1].header.thread, calls[calls.size() - 2].header.thread);
}

TEST_F(CallsTest, ErrorOfAnAsynchronousCallComesWithTheNextReply) {
  worker->Fail<wire::LaunchKernelRequest>(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  Begin();
  CUmodule module = nullptr;
  ASSERT_EQ(cuModuleLoadData(&module, kPtx), CUDA_SUCCESS);
  CUfunction function = nullptr;
  ASSERT_EQ(cuModuleGetFunction(&function, module, "nothing"), CUDA_SUCCESS);
  ASSERT_EQ(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
}

TEST_F(CallsTest, BrokenContextRefusesEverythingUntilItIsReset) {
  worker->Fail<wire::MemsetD8AsyncRequest>(CUDA_ERROR_ILLEGAL_ADDRESS);
  Begin();
  ASSERT_EQ(cuMemsetD8Async(FakeWorker::kWindowBase, 0, 16, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
  CUdeviceptr device = 0;
  EXPECT_EQ(cuMemAlloc_v2(&device, 16), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_ERROR_ILLEGAL_ADDRESS);
  ASSERT_EQ(cuDevicePrimaryCtxReset_v2(0), CUDA_SUCCESS);
  CUcontext context = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemAlloc_v2(&device, 16), CUDA_SUCCESS);
}

TEST_F(CallsTest, OwnErrorOfACallComesBeforeALateOne) {
  worker->Fail<wire::MemsetD8AsyncRequest>(CUDA_ERROR_ILLEGAL_ADDRESS);
  worker->Fail<wire::StreamSynchronizeRequest>(CUDA_ERROR_NOT_READY);
  Begin();
  ASSERT_EQ(cuMemsetD8Async(FakeWorker::kWindowBase, 0, 16, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_ERROR_NOT_READY);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(CallsTest, CopiesOfAllSizesAreByteExact) {
  Begin();
  constexpr size_t kMiB = 1 << 20;
  for (size_t bytes : {size_t{1}, size_t{4096}, size_t{64 << 10}, size_t{(64 << 10) + 1}, kMiB,
                       kMiB + 1, 5 * kMiB - 3}) {
    const CUdeviceptr device = Allocate(bytes);
    const std::vector<char> input = Pattern(bytes, static_cast<int>(bytes));
    std::vector<char> output(bytes);
    const uint64_t before = RoundTrips();
    ASSERT_EQ(cuMemcpyHtoD_v2(device, input.data(), bytes), CUDA_SUCCESS);
    EXPECT_EQ(RoundTrips(), before);
    ASSERT_EQ(cuMemcpyDtoH_v2(output.data(), device, bytes), CUDA_SUCCESS);
    EXPECT_EQ(RoundTrips(), before + 1);
    EXPECT_EQ(output, input) << bytes;
    EXPECT_EQ(cuMemFree_v2(device), CUDA_SUCCESS);
  }
  for (const auto& call : worker->received()) EXPECT_LE(call.bulk.size(), kMiB);
}

TEST_F(CallsTest, SmallSourcesMayChangeAtOnce) {
  Begin();
  const CUdeviceptr device = Allocate(4096);
  std::vector<char> source = Pattern(4096, 7);
  const std::vector<char> before = source;
  ASSERT_EQ(cuMemcpyHtoDAsync_v2(device, source.data(), source.size(), nullptr), CUDA_SUCCESS);
  std::fill(source.begin(), source.end(), 0);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(std::vector<char>(worker->memory(device), worker->memory(device) + 4096), before);
}

TEST_F(CallsTest, UnifiedCopiesFindTheirWay) {
  Begin();
  const CUdeviceptr a = Allocate(64), b = Allocate(64);
  const std::vector<char> input = Pattern(64, 3);
  std::vector<char> output(64), copy(64);
  const auto host = [](std::vector<char>& bytes) {
    return reinterpret_cast<CUdeviceptr>(bytes.data());
  };
  std::vector<char> source = input;
  ASSERT_EQ(cuMemcpy(a, host(source), 64), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpy(b, a, 64), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpy(host(output), a, 64), CUDA_SUCCESS);
  EXPECT_EQ(output, input);
  ASSERT_EQ(cuMemcpyAsync(host(copy), host(output), 64, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(copy, input);
  EXPECT_EQ(worker->Count("cuMemcpyDtoD_v2"), 1u);
}

TEST_F(CallsTest, PinnedDestinationIsFilledBeforeTheProgramCanKnow) {
  Begin();
  constexpr size_t kBytes = (3 << 20) + 5;
  const CUdeviceptr device = Allocate(kBytes);
  const std::vector<char> input = Pattern(kBytes, 9);
  ASSERT_EQ(cuMemcpyHtoD_v2(device, input.data(), kBytes), CUDA_SUCCESS);
  void* pinned = nullptr;
  ASSERT_EQ(cuMemAllocHost_v2(&pinned, kBytes), CUDA_SUCCESS);
  const uint64_t before = RoundTrips();
  ASSERT_EQ(cuMemcpyDtoHAsync_v2(pinned, device, kBytes, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(RoundTrips(), before);
  ASSERT_EQ(cuStreamSynchronize(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(std::memcmp(pinned, input.data(), kBytes), 0);
  EXPECT_FALSE(SessionOrNull()->calls().deliveries().Overlaps(pinned, kBytes));
  EXPECT_EQ(cuMemFreeHost(pinned), CUDA_SUCCESS);
}

TEST_F(CallsTest, CopyIntoPageableMemoryIsCompleteWhenItReturns) {
  Begin();
  const CUdeviceptr device = Allocate(64);
  const std::vector<char> input = Pattern(64, 11);
  ASSERT_EQ(cuMemcpyHtoD_v2(device, input.data(), 64), CUDA_SUCCESS);
  std::vector<char> output(64);
  ASSERT_EQ(cuMemcpyDtoHAsync_v2(output.data(), device, 64, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(output, input);
}

TEST_F(CallsTest, PinnedBufferThatIsStillToBeFilledIsReadWhenTheStreamComesToIt) {
  Begin();
  const CUdeviceptr a = Allocate(64), b = Allocate(64);
  const std::vector<char> input = Pattern(64, 12);
  ASSERT_EQ(cuMemcpyHtoD_v2(a, input.data(), 64), CUDA_SUCCESS);
  void* pinned = nullptr;
  ASSERT_EQ(cuMemAllocHost_v2(&pinned, 64), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoHAsync_v2(pinned, a, 64, nullptr), CUDA_SUCCESS);
  std::atomic<uint64_t> token{0};
  worker->On<wire::CopyBoxPullRequest>(
      [&](const wire::CopyBoxPullRequest& request, auto*, FakeWorker::Call*) {
        EXPECT_EQ(request.to.address, b);
        token = request.token;
        return CUDA_SUCCESS;
      });
  const uint64_t trips = RoundTrips();
  ASSERT_EQ(cuMemcpyHtoDAsync_v2(b, pinned, 64, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(RoundTrips(), trips);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  worker->SendHostFunction(
      {.run = 5, .token = token.load(), .kind = static_cast<uint32_t>(wire::HostRunKind::kPull)});
  for (int i = 0; i < 10000 && worker->pulled().size() < 64; ++i) usleep(1000);
  EXPECT_EQ(worker->pulled(), std::string(input.begin(), input.end()));
  // Freed while copies out of it and into it are under way.
  ASSERT_EQ(cuMemcpyDtoHAsync_v2(pinned, a, 64, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyHtoDAsync_v2(b, pinned, 64, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyDtoHAsync_v2(pinned, a, 64, nullptr), CUDA_SUCCESS);
  ASSERT_EQ(cuMemFreeHost(pinned), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
}

TEST_F(CallsTest, WhatKernelsPrintGoesToStdoutAndStderr) {
  Begin();
  const std::string text = "printed by a kernel\n";
  const std::string error = "a kernel's assertion\n";
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  worker->On<wire::CtxSynchronizeRequest>(
      [&](const wire::CtxSynchronizeRequest&, wire::CtxSynchronizeReply*, FakeWorker::Call*) {
        worker->Deliver(0, 0, text);
        worker->Deliver(0, 1, error);
        return CUDA_SUCCESS;
      });
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(testing::internal::GetCapturedStdout(), text);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), error);
}

TEST_F(CallsTest, DeathOfTheWorkerEndsWaitsAndSticks) {
  Begin();
  const CUdeviceptr device = Allocate(64);
  worker->StopAnswering();
  std::thread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    worker->Die();
  });
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_DEVICE_UNAVAILABLE);
  killer.join();
  std::vector<char> output(64);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(cuMemcpyDtoH_v2(output.data(), device, 64), CUDA_ERROR_DEVICE_UNAVAILABLE);
    EXPECT_EQ(cuMemcpyHtoD_v2(device, output.data(), 64), CUDA_ERROR_DEVICE_UNAVAILABLE);
    EXPECT_EQ(cuMemcpyDtoHAsync_v2(output.data(), device, 64, nullptr),
              CUDA_ERROR_DEVICE_UNAVAILABLE);
    EXPECT_EQ(cuMemFree_v2(device), CUDA_ERROR_DEVICE_UNAVAILABLE);
    EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_ERROR_DEVICE_UNAVAILABLE);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

// The worker is not trusted: whatever it sends, the session ends and the program gets an error.
class NonsenseTest : public ClientTest {
 protected:
  void ExpectDistrust() {
    EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_DEVICE_UNAVAILABLE);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_DEVICE_UNAVAILABLE);
  }
  template <typename Send>
  void DuringSynchronize(Send send) {
    Begin();
    worker->On<wire::CtxSynchronizeRequest>(
        [send](const wire::CtxSynchronizeRequest&, wire::CtxSynchronizeReply*, FakeWorker::Call*) {
          send();
          return CUDA_SUCCESS;
        });
    ExpectDistrust();
  }
};

TEST_F(NonsenseTest, DeliveryThatNobodyExpects) {
  DuringSynchronize([this] { worker->Deliver(77, 0, "x"); });
}

TEST_F(NonsenseTest, ReplyToACallThatWasNotMade) {
  wire::ReplyHeader header{.size = 24, .op = 1, .call = 12345};
  const std::string body(reinterpret_cast<const char*>(&header), sizeof(header));
  DuringSynchronize([this, body] { worker->SendReplies(1, body); });
}

TEST_F(NonsenseTest, ReplyThatIsCutOff) {
  DuringSynchronize([this] { worker->SendReplies(1, "short"); });
}

TEST_F(NonsenseTest, BytesBeyondADestination) {
  Begin();
  void* pinned = nullptr;
  ASSERT_EQ(cuMemAllocHost_v2(&pinned, 64), CUDA_SUCCESS);
  const CUdeviceptr device = Allocate(64);
  worker->On<wire::MemcpyDtoHAsyncV2Request>(
      [&](const wire::MemcpyDtoHAsyncV2Request& request, auto*, FakeWorker::Call*) {
        worker->Deliver(request.delivery, 60, "12345");
        return CUDA_SUCCESS;
      });
  ASSERT_EQ(cuMemcpyDtoHAsync_v2(pinned, device, 64, nullptr), CUDA_SUCCESS);
  ExpectDistrust();
}

TEST_F(NonsenseTest, TooFewBytesOfACopy) {
  Begin();
  const CUdeviceptr device = Allocate(64);
  worker->On<wire::MemcpyDtoHV2Request>(
      [](const wire::MemcpyDtoHV2Request&, auto*, FakeWorker::Call* call) {
        call->reply_bulk.resize(63);
        return CUDA_SUCCESS;
      });
  char output[64];
  EXPECT_EQ(cuMemcpyDtoH_v2(output, device, 64), CUDA_ERROR_DEVICE_UNAVAILABLE);
}

TEST_F(NonsenseTest, AllocationOutsideTheWindow) {
  worker->On<wire::MemAllocV2Request>(
      [](const wire::MemAllocV2Request&, wire::MemAllocV2Reply* reply, FakeWorker::Call*) {
        reply->dptr = 4096;
        return CUDA_SUCCESS;
      });
  Begin();
  CUdeviceptr device = 0;
  EXPECT_EQ(cuMemAlloc_v2(&device, 64), CUDA_ERROR_DEVICE_UNAVAILABLE);
}

TEST_F(NonsenseTest, ParameterBeyondTheLimit) {
  worker->functions[0].param_offsets[3] = 0xffffffff;
  Begin();
  CUlibrary library = nullptr;
  ASSERT_EQ(cuLibraryLoadData(&library, kPtx, nullptr, nullptr, 0, nullptr, nullptr, 0),
            CUDA_SUCCESS);
  CUkernel kernel = nullptr;
  EXPECT_EQ(cuLibraryGetKernel(&kernel, library, "vector_add"), CUDA_ERROR_DEVICE_UNAVAILABLE);
}

TEST_F(CallsTest, ChildOfAForkHasNoSessionAndTheParentGoesOn) {
  Begin();
  const CUdeviceptr device = Allocate(64);
  const pid_t child = fork();
  if (child == 0) {
    int failures = 0;
    const auto expect = [&](CUresult result) { failures += result != CUDA_ERROR_NOT_INITIALIZED; };
    int value = 0;
    char bytes[64] = {};
    CUdeviceptr address = 0;
    expect(cuInit(0));
    expect(cuDeviceGetCount(&value));
    expect(cuMemAlloc_v2(&address, 64));
    expect(cuMemcpyDtoH_v2(bytes, device, 64));
    expect(cuCtxSynchronize());
    expect(cuMemFree_v2(device));
    expect(cuStreamBeginCapture_v2(nullptr, CU_STREAM_CAPTURE_MODE_GLOBAL));
    _exit(failures);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  EXPECT_EQ(cuMemFree_v2(device), CUDA_SUCCESS);
}

TEST_F(CallsTest, ForkBeforeInitLeavesTheChildFree) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer lets no child of a fork start threads";
#endif
  const pid_t child = fork();
  if (child == 0) {
    // The worker's threads stayed in the parent, so the child makes one of its own.
    FakeWorker own;
    worker_of_test = &own;
    const bool works = cuInit(0) == CUDA_SUCCESS;
    CUcontext context = nullptr;
    const bool retains = works && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS &&
                         cuCtxSetCurrent(context) == CUDA_SUCCESS &&
                         cuCtxSynchronize() == CUDA_SUCCESS;
    _exit(retains ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST_F(CallsTest, ThreadsMayCallAtOnce) {
  Begin();
  CUcontext context = nullptr;
  ASSERT_EQ(cuCtxGetCurrent(&context), CUDA_SUCCESS);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      ASSERT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
      for (int i = 0; i < 50; ++i) {
        CUdeviceptr device = 0;
        ASSERT_EQ(cuMemAlloc_v2(&device, 1000), CUDA_SUCCESS);
        const std::vector<char> input = Pattern(1000, 100 * t + i);
        std::vector<char> output(1000);
        ASSERT_EQ(cuMemcpyHtoD_v2(device, input.data(), 1000), CUDA_SUCCESS);
        CUstream stream = nullptr;
        ASSERT_EQ(cuStreamCreate(&stream, 0), CUDA_SUCCESS);
        ASSERT_EQ(cuMemcpyDtoHAsync_v2(output.data(), device, 1000, stream), CUDA_SUCCESS);
        ASSERT_EQ(output, input);
        ASSERT_EQ(cuStreamDestroy_v2(stream), CUDA_SUCCESS);
        ASSERT_EQ(cuMemFree_v2(device), CUDA_SUCCESS);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(CallsTest, GoodbyeSendsWhatHasGathered) {
  Begin();
  ASSERT_EQ(cuMemsetD8Async(FakeWorker::kWindowBase, 0, 16, nullptr), CUDA_SUCCESS);
  SessionOrNull()->SayGoodbye();
  for (int i = 0; i < 5000 && !worker->said_goodbye(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(worker->said_goodbye());
  EXPECT_EQ(worker->Count("cuMemsetD8Async"), 1u);
  EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_DEINITIALIZED);
  EXPECT_EQ(cuMemsetD8Async(FakeWorker::kWindowBase, 0, 16, nullptr), CUDA_ERROR_DEINITIALIZED);
}

TEST_F(CallsTest, ThreadThatWaitsAtTheEndOfTheProcessIsLetGo) {
  Begin();
  CUcontext context = nullptr;
  ASSERT_EQ(cuCtxGetCurrent(&context), CUDA_SUCCESS);
  worker->StopAnswering();
  std::thread waiting([&] {
    EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_DEINITIALIZED);
  });
  while (worker->Count("cuCtxSynchronize") == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  SessionOrNull()->SayGoodbye();
  waiting.join();
}

}  // namespace
}  // namespace fargpu::client
