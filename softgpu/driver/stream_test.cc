#include <thread>

#include "common/cuda_error.h"
#include "softgpu/driver/driver_test.h"

extern "C" {
CUresult cuStreamSynchronize_ptsz(CUstream stream);
CUresult cuStreamQuery_ptsz(CUstream stream);
CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                             unsigned block_x, unsigned block_y, unsigned block_z,
                             unsigned shared_bytes, CUstream stream, void** params, void** extra);
}

namespace fargpu::softgpu {
namespace {

class StreamTest : public DriverTest {
 protected:
  CUstream Create(unsigned flags) {
    CUstream stream = nullptr;
    EXPECT_SUCCESS(cuStreamCreate(&stream, flags));
    return stream;
  }
  // A kernel that waits for `gate`.
  CUfunction Blocker(const char* name, Gate& gate) {
    return Load(name, [&gate](const LaunchConfig&) {
      EXPECT_TRUE(gate.Pass());
      return absl::OkStatus();
    });
  }
};

TEST_F(StreamTest, TellsWhatItIs) {
  CUstream stream = nullptr;
  ASSERT_SUCCESS(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, -3));
  int priority = 0;
  EXPECT_SUCCESS(cuStreamGetPriority(stream, &priority));
  EXPECT_EQ(priority, -3);
  unsigned flags = 0;
  EXPECT_SUCCESS(cuStreamGetFlags(stream, &flags));
  EXPECT_EQ(flags, static_cast<unsigned>(CU_STREAM_NON_BLOCKING));
  unsigned long long id = 0, legacy_id = 0;
  EXPECT_SUCCESS(cuStreamGetId(stream, &id));
  EXPECT_SUCCESS(cuStreamGetId(nullptr, &legacy_id));
  EXPECT_NE(id, legacy_id);
  CUcontext context = nullptr;
  EXPECT_SUCCESS(cuStreamGetCtx(stream, &context));
  EXPECT_EQ(context, context_);
  CUdevice device = -1;
  EXPECT_SUCCESS(cuStreamGetDevice(stream, &device));
  EXPECT_EQ(device, 0);
  EXPECT_SUCCESS(cuStreamDestroy(stream));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy(stream));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize(stream));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy(nullptr));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuStreamCreate(nullptr, 0));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuStreamCreate(&stream, 2));
  ASSERT_SUCCESS(cuStreamCreateWithPriority(&stream, 0, -100));
  EXPECT_SUCCESS(cuStreamGetPriority(stream, &priority));
  EXPECT_EQ(priority, -5);
}

TEST_F(StreamTest, RunsAsynchronously) {
  const CUstream stream = Create(CU_STREAM_NON_BLOCKING);
  Gate gate;
  EXPECT_SUCCESS(Launch(Blocker("async", gate), stream));
  EXPECT_CU(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  EXPECT_SUCCESS(cuStreamQuery(nullptr));  // a non-blocking stream holds nobody up
  gate.Open();
  EXPECT_SUCCESS(cuStreamSynchronize(stream));
  EXPECT_SUCCESS(cuStreamQuery(stream));
}

TEST_F(StreamTest, StreamsRunSideBySide) {
  Gate first_runs, second_runs;
  const CUfunction first = Load("side1", [&](const LaunchConfig&) {
    first_runs.Open();
    return second_runs.Pass() ? absl::OkStatus() : absl::InternalError("alone");
  });
  const CUfunction second = Load("side2", [&](const LaunchConfig&) {
    second_runs.Open();
    return first_runs.Pass() ? absl::OkStatus() : absl::InternalError("alone");
  });
  EXPECT_SUCCESS(Launch(first, Create(0)));
  EXPECT_SUCCESS(Launch(second, Create(0)));
  EXPECT_SUCCESS(cuCtxSynchronize());
}

TEST_F(StreamTest, LegacyStreamWaitsForBlockingStreamsAndTheyForIt) {
  const CUstream blocking = Create(CU_STREAM_DEFAULT);
  Gate gate;
  std::atomic<int> order{0};
  int legacy_at = 0, after_at = 0;
  const CUfunction on_legacy = Load("on_legacy", [&](const LaunchConfig&) {
    legacy_at = ++order;
    return absl::OkStatus();
  });
  const CUfunction after = Load("after_legacy", [&](const LaunchConfig&) {
    after_at = ++order;
    return absl::OkStatus();
  });
  EXPECT_SUCCESS(Launch(Blocker("blocks_legacy", gate), blocking));
  EXPECT_SUCCESS(Launch(on_legacy, nullptr));
  EXPECT_SUCCESS(Launch(after, Create(CU_STREAM_DEFAULT)));
  EXPECT_CU(CUDA_ERROR_NOT_READY, cuStreamQuery(nullptr));
  EXPECT_CU(CUDA_ERROR_NOT_READY, cuStreamQuery(CU_STREAM_LEGACY));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(order, 0);
  gate.Open();
  EXPECT_SUCCESS(cuCtxSynchronize());
  EXPECT_EQ(legacy_at, 1);
  EXPECT_EQ(after_at, 2);
}

TEST_F(StreamTest, NonBlockingStreamsIgnoreTheLegacyStream) {
  Gate gate;
  EXPECT_SUCCESS(Launch(Blocker("legacy_busy", gate), nullptr));
  std::atomic<bool> ran{false};
  const CUfunction free = Load("free", [&](const LaunchConfig&) {
    ran = true;
    return absl::OkStatus();
  });
  const CUstream stream = Create(CU_STREAM_NON_BLOCKING);
  EXPECT_SUCCESS(Launch(free, stream));
  EXPECT_SUCCESS(cuStreamSynchronize(stream));
  EXPECT_TRUE(ran);
  EXPECT_CU(CUDA_ERROR_NOT_READY, cuStreamQuery(nullptr));
  gate.Open();
  EXPECT_SUCCESS(cuStreamSynchronize(nullptr));
}

TEST_F(StreamTest, EachThreadHasADefaultStream) {
  Gate gate;
  const CUfunction blocker = Blocker("per_thread", gate);
  EXPECT_SUCCESS(cuLaunchKernel_ptsz(blocker, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
  EXPECT_CU(CUDA_ERROR_NOT_READY, cuStreamQuery_ptsz(nullptr));
  EXPECT_CU(CUDA_ERROR_NOT_READY, cuStreamQuery(CU_STREAM_PER_THREAD));
  std::thread other([&] {
    EXPECT_SUCCESS(cuCtxSetCurrent(context_));
    EXPECT_SUCCESS(cuStreamQuery_ptsz(nullptr));
    EXPECT_SUCCESS(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    EXPECT_CU(CUDA_ERROR_NOT_READY, cuStreamQuery(nullptr));  // legacy waits for all of them
  });
  other.join();
  gate.Open();
  EXPECT_SUCCESS(cuStreamSynchronize_ptsz(nullptr));
}

TEST_F(StreamTest, WorkOfAnEndedThreadGoesOn) {
  Gate gate;
  std::atomic<bool> ran{false};
  const CUfunction blocker = Blocker("thread_ends", gate);
  const CUfunction last = Load("last_of_thread", [&](const LaunchConfig&) {
    ran = true;
    return absl::OkStatus();
  });
  std::thread other([&] {
    EXPECT_SUCCESS(cuCtxSetCurrent(context_));
    EXPECT_SUCCESS(Launch(blocker, CU_STREAM_PER_THREAD));
    EXPECT_SUCCESS(Launch(last, CU_STREAM_PER_THREAD));
  });
  other.join();
  EXPECT_CU(CUDA_ERROR_NOT_READY, cuStreamQuery(nullptr));
  gate.Open();
  EXPECT_SUCCESS(cuCtxSynchronize());
  EXPECT_TRUE(ran);
}

TEST_F(StreamTest, WorkOfADestroyedStreamEnds) {
  Gate gate;
  const CUstream stream = Create(CU_STREAM_DEFAULT);
  std::atomic<bool> ran{false};
  const CUfunction last = Load("last", [&](const LaunchConfig&) {
    ran = true;
    return absl::OkStatus();
  });
  EXPECT_SUCCESS(Launch(Blocker("destroyed", gate), stream));
  EXPECT_SUCCESS(Launch(last, stream));
  EXPECT_SUCCESS(cuStreamDestroy(stream));
  EXPECT_CU(CUDA_ERROR_NOT_READY, cuStreamQuery(nullptr));
  gate.Open();
  EXPECT_SUCCESS(cuCtxSynchronize());
  EXPECT_TRUE(ran);
}

TEST_F(StreamTest, EventsOrderStreams) {
  Gate gate;
  const CUstream first = Create(CU_STREAM_NON_BLOCKING);
  const CUstream second = Create(CU_STREAM_NON_BLOCKING);
  CUevent event = nullptr;
  ASSERT_SUCCESS(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  EXPECT_SUCCESS(cuEventQuery(event));  // never recorded
  std::atomic<bool> opened{false};
  bool seen = false;
  const CUfunction check = Load("check_order", [&](const LaunchConfig&) {
    seen = opened;
    return absl::OkStatus();
  });
  EXPECT_SUCCESS(Launch(Blocker("event_blocker", gate), first));
  EXPECT_SUCCESS(cuEventRecord(event, first));
  EXPECT_CU(CUDA_ERROR_NOT_READY, cuEventQuery(event));
  EXPECT_SUCCESS(cuStreamWaitEvent(second, event, 0));
  EXPECT_SUCCESS(Launch(check, second));
  opened = true;
  gate.Open();
  EXPECT_SUCCESS(cuStreamSynchronize(second));
  EXPECT_TRUE(seen);
  EXPECT_SUCCESS(cuEventSynchronize(event));
  EXPECT_SUCCESS(cuEventQuery(event));
  EXPECT_SUCCESS(cuEventDestroy(event));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuEventDestroy(event));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuEventQuery(event));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(event, first));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuStreamWaitEvent(first, event, 0));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuEventCreate(&event, 0x100));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuEventCreate(nullptr, 0));
}

TEST_F(StreamTest, EventsMeasureTime) {
  CUevent start = nullptr, end = nullptr, untimed = nullptr;
  ASSERT_SUCCESS(cuEventCreate(&start, 0));
  ASSERT_SUCCESS(cuEventCreate(&end, CU_EVENT_BLOCKING_SYNC));
  ASSERT_SUCCESS(cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
  float milliseconds = -1;
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&milliseconds, start, end));
  const CUfunction sleeps = Load("sleeps", [](const LaunchConfig&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    return absl::OkStatus();
  });
  EXPECT_SUCCESS(cuEventRecord(start, nullptr));
  EXPECT_SUCCESS(Launch(sleeps));
  EXPECT_SUCCESS(cuEventRecord(end, nullptr));
  EXPECT_SUCCESS(cuEventRecord(untimed, nullptr));
  EXPECT_CU(CUDA_ERROR_NOT_READY, cuEventElapsedTime(&milliseconds, start, end));
  EXPECT_SUCCESS(cuEventSynchronize(end));
  EXPECT_SUCCESS(cuEventElapsedTime(&milliseconds, start, end));
  EXPECT_GE(milliseconds, 29.0f);
  EXPECT_LT(milliseconds, 5000.0f);
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&milliseconds, start, untimed));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuEventElapsedTime(nullptr, start, end));
}

TEST_F(StreamTest, EventsStayInTheirContext) {
  CUevent event = nullptr;
  ASSERT_SUCCESS(cuEventCreate(&event, 0));
  CUcontext own = nullptr;
  ASSERT_SUCCESS(cuCtxCreate(&own, nullptr, 0, 0));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(event, nullptr));
  EXPECT_SUCCESS(cuStreamWaitEvent(nullptr, event, 0));
  EXPECT_SUCCESS(cuCtxDestroy(own));
}

TEST_F(StreamTest, HostFunctionsRunInOrderOnAnotherThread) {
  struct State {
    std::thread::id thread;
    CUresult inside = CUDA_SUCCESS;
    std::atomic<int> order{0};
    int host_at = 0;
  } state;
  const CUfunction kernel = Load("before_host", [&](const LaunchConfig&) {
    ++state.order;
    return absl::OkStatus();
  });
  EXPECT_SUCCESS(Launch(kernel));
  EXPECT_SUCCESS(cuLaunchHostFunc(
      nullptr,
      [](void* data) {
        State& s = *static_cast<State*>(data);
        s.thread = std::this_thread::get_id();
        s.host_at = ++s.order;
        s.inside = cuCtxSynchronize();
      },
      &state));
  EXPECT_SUCCESS(cuStreamSynchronize(nullptr));
  EXPECT_NE(state.thread, std::this_thread::get_id());
  EXPECT_EQ(state.host_at, 2);
  EXPECT_CU(CUDA_ERROR_NOT_PERMITTED, state.inside);
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuLaunchHostFunc(nullptr, nullptr, nullptr));
}

TEST_F(StreamTest, CallbacksLearnOfErrors) {
  const CUfunction fails = Load("fails_before_callback", [](const LaunchConfig&) {
    return CudaError(CUDA_ERROR_LAUNCH_FAILED, "trap");
  });
  const CUstream stream = Create(0);
  Gate gate;
  EXPECT_SUCCESS(Launch(Blocker("callback_gate", gate), stream));
  EXPECT_SUCCESS(Launch(fails, stream));
  std::atomic<int> told{-1};
  EXPECT_SUCCESS(cuStreamAddCallback(
      stream,
      [](CUstream, CUresult status, void* data) { *static_cast<std::atomic<int>*>(data) = status; },
      &told, 0));
  gate.Open();
  EXPECT_CU(CUDA_ERROR_LAUNCH_FAILED, cuStreamSynchronize(stream));
  EXPECT_EQ(told, CUDA_ERROR_LAUNCH_FAILED);
}

TEST_F(StreamTest, ValuesInMemory) {
  CUdeviceptr memory = 0;
  ASSERT_SUCCESS(cuMemAlloc(&memory, 64));
  ASSERT_SUCCESS(cuMemsetD8(memory, 0, 64));
  const CUstream waits = Create(CU_STREAM_NON_BLOCKING);
  const CUstream writes = Create(CU_STREAM_NON_BLOCKING);
  EXPECT_SUCCESS(cuStreamWaitValue32(waits, memory, 3, CU_STREAM_WAIT_VALUE_GEQ));
  EXPECT_SUCCESS(cuStreamWriteValue64(waits, memory + 8, 0x1122334455667788, 0));
  EXPECT_CU(CUDA_ERROR_NOT_READY, cuStreamQuery(waits));
  EXPECT_SUCCESS(cuStreamWriteValue32(writes, memory, 2, 0));
  EXPECT_SUCCESS(cuStreamSynchronize(writes));
  EXPECT_CU(CUDA_ERROR_NOT_READY, cuStreamQuery(waits));
  CUstreamBatchMemOpParams operations[2] = {};
  operations[0].operation = CU_STREAM_MEM_OP_BARRIER;
  operations[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
  operations[1].writeValue.address = memory;
  operations[1].writeValue.value = 4;
  EXPECT_SUCCESS(cuStreamBatchMemOp(writes, 2, operations, 0));
  EXPECT_SUCCESS(cuStreamSynchronize(waits));
  uint64_t result = 0;
  EXPECT_SUCCESS(cuMemcpyDtoH(&result, memory + 8, 8));
  EXPECT_EQ(result, 0x1122334455667788u);
  EXPECT_SUCCESS(cuStreamWaitValue64(waits, memory + 8, 0x8, CU_STREAM_WAIT_VALUE_AND));
  EXPECT_SUCCESS(cuStreamWaitValue32(waits, memory, 4, CU_STREAM_WAIT_VALUE_EQ));
  EXPECT_SUCCESS(cuStreamWaitValue32(waits, memory, 1, CU_STREAM_WAIT_VALUE_NOR));
  EXPECT_SUCCESS(cuStreamSynchronize(waits));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuStreamWaitValue32(waits, memory + 1, 1, 0));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuStreamWaitValue32(waits, memory, 1, 0x100));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue32(waits, 16, 1, 0));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp(waits, 257, operations, 0));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE,
            cuStreamWriteValue32(reinterpret_cast<CUstream>(0x777), memory, 1, 0));
}

TEST_F(StreamTest, ManyThreadsOnManyStreams) {
  std::atomic<int> count{0};
  const CUfunction kernel = Load("counts", [&](const LaunchConfig&) {
    ++count;
    return absl::OkStatus();
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      EXPECT_SUCCESS(cuCtxSetCurrent(context_));
      CUdeviceptr memory = 0;
      EXPECT_SUCCESS(cuMemAlloc(&memory, 1000));
      CUstream stream = nullptr;
      EXPECT_SUCCESS(cuStreamCreate(&stream, t % 2));
      CUevent event = nullptr;
      EXPECT_SUCCESS(cuEventCreate(&event, 0));
      for (int i = 0; i < 100; ++i) {
        EXPECT_SUCCESS(Launch(kernel, i % 5 == 0 ? nullptr : stream));
        EXPECT_SUCCESS(cuEventRecord(event, stream));
        EXPECT_SUCCESS(cuStreamWaitEvent(i % 3 == 0 ? nullptr : stream, event, 0));
        EXPECT_SUCCESS(cuMemsetD8Async(memory, 1, 1000, stream));
        if (i % 10 == 0) {
          EXPECT_SUCCESS(cuStreamSynchronize(stream));
        }
      }
      EXPECT_SUCCESS(cuMemFree(memory));
      EXPECT_SUCCESS(cuStreamDestroy(stream));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_SUCCESS(cuCtxSynchronize());
  EXPECT_EQ(count, 400);
}

TEST_F(StreamTest, AttributesAreKept) {
  const CUstream stream = Create(0);
  CUstreamAttrValue value = {};
  EXPECT_SUCCESS(cuStreamGetAttribute(stream, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value));
  EXPECT_EQ(value.syncPolicy, CU_SYNC_POLICY_AUTO);
  value = {};
  value.accessPolicyWindow.num_bytes = 1 << 20;
  value.accessPolicyWindow.hitRatio = 0.5f;
  EXPECT_SUCCESS(cuStreamSetAttribute(stream, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value));
  const CUstream other = Create(0);
  EXPECT_SUCCESS(cuStreamCopyAttributes(other, stream));
  value = {};
  EXPECT_SUCCESS(cuStreamGetAttribute(other, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value));
  EXPECT_EQ(value.accessPolicyWindow.num_bytes, size_t{1} << 20);
  value.accessPolicyWindow.hitRatio = 2;
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuStreamSetAttribute(stream, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value));
  EXPECT_CU(CUDA_ERROR_INVALID_VALUE,
            cuStreamGetAttribute(stream, static_cast<CUstreamAttrID>(77), &value));
  EXPECT_CU(CUDA_ERROR_INVALID_HANDLE, cuStreamCopyAttributes(stream, (CUstream)0x777));
}

}  // namespace
}  // namespace fargpu::softgpu
