// Leaves main with everything still there and work in flight, and with a static object whose
// destructor calls CUDA, as many programs have.
#include "round_trip.h"

struct Owner {
  ~Owner() {
    // Comes after the runtime's own end in some builds; any error is fine, a crash is not.
    cudaFree(memory);
  }
  int* memory = nullptr;
};

Owner owner;

int main() {
  CheckRoundTrip();
  CHECK_CUDA(cudaMalloc(&owner.memory, 1 << 20));
  cudaStream_t stream;
  cudaEvent_t event;
  int* pinned = nullptr;
  CHECK_CUDA(cudaStreamCreate(&stream));
  CHECK_CUDA(cudaEventCreate(&event));
  CHECK_CUDA(cudaMallocHost(&pinned, 4096));
  for (int i = 0; i < 100; ++i) {
    Double<<<1, 32, 0, stream>>>(owner.memory);
    CHECK_CUDA(cudaGetLastError());
  }
  CHECK_CUDA(cudaMemcpyAsync(pinned, owner.memory, 4096, cudaMemcpyDeviceToHost, stream));
  CHECK_CUDA(cudaEventRecord(event, stream));
  std::printf("leaves without cleaning up\n");
  return 0;
}
