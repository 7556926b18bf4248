// Functions of the program that streams call: who runs them, when, and how that ends.
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "client/cuda/client_test.h"

namespace fargpu::client {
namespace {

using testing::ElementsAre;

bool WaitFor(const std::function<bool()>& condition) {
  for (int i = 0; i < 10000 && !condition(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return condition();
}

struct Seen {
  std::atomic<int> calls{0};
  CUstream stream = nullptr;
  CUresult status = CUDA_ERROR_UNKNOWN;
  CUresult inside = CUDA_SUCCESS;
  std::thread::id thread;
};

void Count(void* data) {
  auto* const seen = static_cast<Seen*>(data);
  seen->inside = cuCtxSynchronize();
  seen->thread = std::this_thread::get_id();
  ++seen->calls;
}

void Tell(CUstream stream, CUresult status, void* data) {
  auto* const seen = static_cast<Seen*>(data);
  seen->stream = stream;
  seen->status = status;
  ++seen->calls;
}

class HostFunctionsTest : public ClientTest {
 protected:
  // The stream comes to each function at once.
  void ComeToThem(CUresult result = CUDA_SUCCESS) {
    const auto run = [this, result](uint64_t token) {
      worker->SendHostFunction(
          {.run = ++runs_, .token = token, .result = static_cast<int32_t>(result)});
      return CUDA_SUCCESS;
    };
    worker->On<wire::LaunchHostFuncRequest>(
        [run](const wire::LaunchHostFuncRequest& request, auto*, FakeWorker::Call*) {
          return run(request.token);
        });
    worker->On<wire::StreamAddCallbackRequest>(
        [run](const wire::StreamAddCallbackRequest& request, auto*, FakeWorker::Call*) {
          return run(request.token);
        });
  }
  std::atomic<uint64_t> runs_{100};
};

TEST_F(HostFunctionsTest, RunsOnAThreadOfItsOwnAndAnswers) {
  Begin();
  ComeToThem();
  Seen seen;
  const uint64_t before = RoundTrips();
  ASSERT_EQ(cuLaunchHostFunc(nullptr, Count, &seen), CUDA_SUCCESS);
  EXPECT_EQ(RoundTrips(), before);
  ASSERT_TRUE(WaitFor([&] { return worker->ended_runs().size() == 1; }));
  EXPECT_THAT(worker->ended_runs(), ElementsAre(101));
  EXPECT_EQ(seen.calls, 1);
  EXPECT_EQ(seen.inside, CUDA_ERROR_NOT_PERMITTED);
  EXPECT_NE(seen.thread, std::this_thread::get_id());
}

TEST_F(HostFunctionsTest, CallbacksAreToldTheStreamAndTheOutcome) {
  Begin();
  ComeToThem(CUDA_ERROR_ILLEGAL_ADDRESS);
  CUstream stream = nullptr;
  ASSERT_EQ(cuStreamCreate(&stream, 0), CUDA_SUCCESS);
  Seen callback, function;
  ASSERT_EQ(cuLaunchHostFunc(stream, Count, &function), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamAddCallback(stream, Tell, &callback, 0), CUDA_SUCCESS);
  ASSERT_TRUE(WaitFor([&] { return worker->ended_runs().size() == 2; }));
  EXPECT_EQ(callback.stream, stream);
  EXPECT_EQ(callback.status, CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(function.calls, 0) << "a host function is not called after an error";
}

TEST_F(HostFunctionsTest, WrongArguments) {
  Begin();
  EXPECT_EQ(cuLaunchHostFunc(nullptr, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamAddCallback(nullptr, nullptr, nullptr, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamAddCallback(nullptr, Tell, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
  int no_stream = 0;
  EXPECT_EQ(cuLaunchHostFunc(reinterpret_cast<CUstream>(&no_stream), Count, nullptr),
            CUDA_ERROR_INVALID_HANDLE);
  EXPECT_FALSE(SessionOrNull()->calls().host_functions().any_pending());
}

TEST_F(HostFunctionsTest, ACopyWaitsForAFunctionThatMayFillItsSource) {
  Begin();
  const CUdeviceptr device = Allocate(64);
  char source[64] = "";
  Seen seen;
  // The stream comes to the function when somebody waits for the stream.
  std::atomic<uint64_t> token{0};
  worker->On<wire::LaunchHostFuncRequest>(
      [&](const wire::LaunchHostFuncRequest& request, auto*, FakeWorker::Call*) {
        token = request.token;
        return CUDA_SUCCESS;
      });
  worker->On<wire::StreamSynchronizeRequest>(
      [&](const wire::StreamSynchronizeRequest&, auto*, FakeWorker::Call*) {
        worker->SendHostFunction({.run = 1, .token = token.load()});
        return CUDA_SUCCESS;
      });
  ASSERT_EQ(cuLaunchHostFunc(nullptr, Count, &seen), CUDA_SUCCESS);
  ASSERT_EQ(cuMemcpyHtoDAsync_v2(device, source, sizeof(source), nullptr), CUDA_SUCCESS);
  EXPECT_EQ(worker->Count("cuStreamSynchronize"), 1u);
  ASSERT_TRUE(WaitFor([&] { return worker->ended_runs().size() == 1; }));
  ASSERT_TRUE(WaitFor([&] { return !SessionOrNull()->calls().host_functions().any_pending(); }));
  ASSERT_EQ(cuMemcpyHtoDAsync_v2(device, source, sizeof(source), nullptr), CUDA_SUCCESS);
  EXPECT_EQ(worker->Count("cuStreamSynchronize"), 1u);
}

TEST_F(HostFunctionsTest, CallbacksHearOfTheEndOfTheSession) {
  Begin();
  Seen callback, function;
  ASSERT_EQ(cuLaunchHostFunc(nullptr, Count, &function), CUDA_SUCCESS);
  ASSERT_EQ(cuStreamAddCallback(nullptr, Tell, &callback, 0), CUDA_SUCCESS);
  ASSERT_EQ(cuCtxSynchronize(), CUDA_SUCCESS);
  worker->Die();
  ASSERT_TRUE(WaitFor([&] { return callback.calls == 1; }));
  EXPECT_EQ(callback.status, CUDA_ERROR_DEVICE_UNAVAILABLE);
  EXPECT_EQ(function.calls, 0);
}

TEST_F(HostFunctionsTest, AFunctionThatNobodyQueuedEndsTheSession) {
  Begin();
  worker->SendHostFunction({.run = 1, .token = 5});
  EXPECT_TRUE(WaitFor([] { return cuCtxSynchronize() == CUDA_ERROR_DEVICE_UNAVAILABLE; }));
}

}  // namespace
}  // namespace fargpu::client
