// Streams that write values to memory and wait for values there.

#include <chrono>
#include <thread>

#include "softgpu/driver/edge.h"
#include "softgpu/driver/node_params.h"
#include "softgpu/driver/stream_value.h"

namespace fargpu::softgpu {
namespace {

// A wait first looks often, then every so often: whoever writes the value is usually about to.
constexpr int kEagerLooks = 1000;
constexpr std::chrono::microseconds kLookInterval{50};

template <typename T>
bool IsThere(T value, T wanted, unsigned flags) {
  switch (flags & 3) {
    case CU_STREAM_WAIT_VALUE_GEQ:
      return static_cast<std::make_signed_t<T>>(value - wanted) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
      return value == wanted;
    case CU_STREAM_WAIT_VALUE_AND:
      return (value & wanted) != 0;
    default:
      return static_cast<T>(~(value | wanted)) != 0;
  }
}

template <typename T>
void WaitFor(const Context& context, uint64_t address, T wanted, unsigned flags) {
  const T* const place = reinterpret_cast<const T*>(address);
  for (int look = 0; !IsThere<T>(__atomic_load_n(place, __ATOMIC_ACQUIRE), wanted, flags); ++look) {
    if (context.skips_work() || WorkersStopped()) return;
    if (look < kEagerLooks) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kLookInterval);
    }
  }
}

template <typename T>
void Write(uint64_t address, T value) {
  __atomic_store_n(reinterpret_cast<T*>(address), value, __ATOMIC_RELEASE);
}

CUresult Perform(const char* call, NullStream null, CUstream handle, unsigned count,
                 CUstreamBatchMemOpParams* operations, unsigned flags) {
  return WithStream(
      call, null, handle,
      [&](Driver& driver, Context& context, Stream& stream) -> absl::Status {
        CUDA_BATCH_MEM_OP_NODE_PARAMS params = {};
        params.ctx = context.handle;
        params.count = count;
        params.paramArray = operations;
        params.flags = flags;
        ASSIGN_OR_RETURN(NodeWork work, ReadValueParams(driver, &params));
        if (stream.is_capturing()) return CaptureWork(driver, stream, std::move(work));
        return context
            .Enqueue(
                stream,
                [&context, node = std::get<ValueNode>(std::move(work))] {
                  return RunValueOperations(context, node.operations);
                },
                RunOn::kWorker)
            .status();
      },
      OnCapture::kRecord);
}

CUstreamBatchMemOpParams WaitOperation(CUstreamBatchMemOpType type, CUdeviceptr address,
                                       cuuint64_t value, unsigned flags) {
  CUstreamBatchMemOpParams operation = {};
  operation.waitValue.operation = type;
  operation.waitValue.address = address;
  operation.waitValue.value64 = value;
  operation.waitValue.flags = flags;
  return operation;
}

CUstreamBatchMemOpParams WriteOperation(CUstreamBatchMemOpType type, CUdeviceptr address,
                                        cuuint64_t value, unsigned flags) {
  CUstreamBatchMemOpParams operation = {};
  operation.writeValue.operation = type;
  operation.writeValue.address = address;
  operation.writeValue.value64 = value;
  operation.writeValue.flags = flags;
  return operation;
}

}  // namespace

absl::Status RunValueOperations(const Context& context,
                                absl::Span<const CUstreamBatchMemOpParams> operations) {
  for (const CUstreamBatchMemOpParams& operation : operations) {
    switch (operation.operation) {
      case CU_STREAM_MEM_OP_WAIT_VALUE_32:
        WaitFor<uint32_t>(context, operation.waitValue.address, operation.waitValue.value,
                          operation.waitValue.flags);
        break;
      case CU_STREAM_MEM_OP_WAIT_VALUE_64:
        WaitFor<uint64_t>(context, operation.waitValue.address, operation.waitValue.value64,
                          operation.waitValue.flags);
        break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_32:
        Write<uint32_t>(operation.writeValue.address, operation.writeValue.value);
        break;
      case CU_STREAM_MEM_OP_WRITE_VALUE_64:
        Write<uint64_t>(operation.writeValue.address, operation.writeValue.value64);
        break;
      default: {
        // As a fence, which ThreadSanitizer does not understand.
        std::atomic<int> barrier{0};
        barrier.exchange(1, std::memory_order_seq_cst);
      }
    }
  }
  return absl::OkStatus();
}

CUresult Do_cuStreamWaitValue32_v2(const char* call, NullStream null, CUstream stream,
                                   CUdeviceptr address, cuuint32_t value, unsigned flags) {
  CUstreamBatchMemOpParams operation =
      WaitOperation(CU_STREAM_MEM_OP_WAIT_VALUE_32, address, value, flags);
  return Perform(call, null, stream, 1, &operation, 0);
}
CUresult Do_cuStreamWaitValue64_v2(const char* call, NullStream null, CUstream stream,
                                   CUdeviceptr address, cuuint64_t value, unsigned flags) {
  CUstreamBatchMemOpParams operation =
      WaitOperation(CU_STREAM_MEM_OP_WAIT_VALUE_64, address, value, flags);
  return Perform(call, null, stream, 1, &operation, 0);
}
CUresult Do_cuStreamWriteValue32_v2(const char* call, NullStream null, CUstream stream,
                                    CUdeviceptr address, cuuint32_t value, unsigned flags) {
  CUstreamBatchMemOpParams operation =
      WriteOperation(CU_STREAM_MEM_OP_WRITE_VALUE_32, address, value, flags);
  return Perform(call, null, stream, 1, &operation, 0);
}
CUresult Do_cuStreamWriteValue64_v2(const char* call, NullStream null, CUstream stream,
                                    CUdeviceptr address, cuuint64_t value, unsigned flags) {
  CUstreamBatchMemOpParams operation =
      WriteOperation(CU_STREAM_MEM_OP_WRITE_VALUE_64, address, value, flags);
  return Perform(call, null, stream, 1, &operation, 0);
}
CUresult Do_cuStreamBatchMemOp_v2(const char* call, NullStream null, CUstream stream,
                                  unsigned count, CUstreamBatchMemOpParams* operations,
                                  unsigned flags) {
  return Perform(call, null, stream, count, operations, flags);
}

}  // namespace fargpu::softgpu

CU_API_TWINS(cuStreamWaitValue32_v2, _ptsz,
             (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags), stream,
             address, value, flags);
CU_API_TWINS(cuStreamWaitValue64_v2, _ptsz,
             (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags), stream,
             address, value, flags);
CU_API_TWINS(cuStreamWriteValue32_v2, _ptsz,
             (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags), stream,
             address, value, flags);
CU_API_TWINS(cuStreamWriteValue64_v2, _ptsz,
             (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags), stream,
             address, value, flags);
CU_API_TWINS(cuStreamBatchMemOp_v2, _ptsz,
             (CUstream stream, unsigned count, CUstreamBatchMemOpParams* operations,
              unsigned flags),
             stream, count, operations, flags);
