// A thread that is not the main one uses CUDA and ends the process, while the main thread waits.
#include <thread>

#include "round_trip.h"

int main() {
  CheckRoundTrip();
  std::thread worker([] {
    CheckRoundTrip();
    int* memory = nullptr;
    CHECK_CUDA(cudaMalloc(&memory, 1 << 20));
    Double<<<1, 32>>>(memory);
    CHECK_CUDA(cudaGetLastError());
    std::printf("exits from a thread\n");
    std::exit(0);
  });
  worker.join();
  return 1;  // not reached
}
