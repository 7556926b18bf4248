// Several streams with events and asynchronous copies from pinned memory: each stream works on a
// piece of its own, then one stream waits for all others by events and adds the pieces up.
#include "check.h"

constexpr int kStreams = 4;
constexpr int kPiece = 20000;

__global__ void Transform(int* values, int count, int factor) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    values[i] = values[i] * factor + 1;
  }
}

__global__ void AddPieces(const int* values, int* sums, int count, int pieces) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  int sum = 0;
  for (int piece = 0; piece < pieces; ++piece) sum += values[piece * count + i];
  sums[i] = sum;
}

int main() {
  constexpr size_t kPieceBytes = kPiece * sizeof(int);
  int *values = nullptr, *sums = nullptr;
  CHECK_CUDA(cudaMallocHost(&values, kStreams * kPieceBytes));
  CHECK_CUDA(cudaHostAlloc(&sums, kPieceBytes, cudaHostAllocDefault));
  int *device_values = nullptr, *device_sums = nullptr;
  CHECK_CUDA(cudaMalloc(&device_values, kStreams * kPieceBytes));
  CHECK_CUDA(cudaMalloc(&device_sums, kPieceBytes));

  cudaStream_t streams[kStreams];
  cudaEvent_t ready[kStreams];
  cudaEvent_t start, stop;
  for (int s = 0; s < kStreams; ++s) {
    CHECK_CUDA(cudaStreamCreateWithFlags(&streams[s], cudaStreamNonBlocking));
    CHECK_CUDA(cudaEventCreateWithFlags(&ready[s], cudaEventDisableTiming));
  }
  CHECK_CUDA(cudaEventCreate(&start));
  CHECK_CUDA(cudaEventCreate(&stop));
  CHECK_CUDA(cudaEventRecord(start, streams[0]));

  // The second round reuses pinned memory that the first round's copies may still be reading, so it
  // waits for their events on the host.
  static int expected[kPiece];
  static int expected_pieces[kStreams * kPiece];
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < kPiece; ++i) expected[i] = 0;
    for (int s = 0; s < kStreams; ++s) {
      if (round > 0) CHECK_CUDA(cudaEventSynchronize(ready[s]));
      int* piece = values + s * kPiece;
      for (int i = 0; i < kPiece; ++i) {
        piece[i] = i * (s + 1) + round;
        expected_pieces[s * kPiece + i] = piece[i] * (s + 2) + 1;
        expected[i] += expected_pieces[s * kPiece + i];
      }
      int* device_piece = device_values + s * kPiece;
      CHECK_CUDA(
          cudaMemcpyAsync(device_piece, piece, kPieceBytes, cudaMemcpyHostToDevice, streams[s]));
      Transform<<<8, 128, 0, streams[s]>>>(device_piece, kPiece, s + 2);
      CHECK_CUDA(cudaGetLastError());
      CHECK_CUDA(
          cudaMemcpyAsync(piece, device_piece, kPieceBytes, cudaMemcpyDeviceToHost, streams[s]));
      CHECK_CUDA(cudaEventRecord(ready[s], streams[s]));
    }
    for (int s = 1; s < kStreams; ++s) CHECK_CUDA(cudaStreamWaitEvent(streams[0], ready[s], 0));
    AddPieces<<<(kPiece + 127) / 128, 128, 0, streams[0]>>>(device_values, device_sums, kPiece,
                                                            kStreams);
    CHECK_CUDA(cudaGetLastError());
    CHECK_CUDA(cudaMemcpyAsync(sums, device_sums, kPieceBytes, cudaMemcpyDeviceToHost, streams[0]));
    CHECK_CUDA(cudaStreamSynchronize(streams[0]));
    ExpectEqual("pieces", values, expected_pieces, kStreams * kPiece);
    ExpectEqual("sums", sums, expected, kPiece);
  }

  CHECK_CUDA(cudaEventRecord(stop, streams[0]));
  CHECK_CUDA(cudaEventSynchronize(stop));
  CHECK_CUDA(cudaEventQuery(stop));
  float milliseconds = -1.0f;
  CHECK_CUDA(cudaEventElapsedTime(&milliseconds, start, stop));
  EXPECT(milliseconds >= 0.0f);
  for (int s = 0; s < kStreams; ++s) {
    CHECK_CUDA(cudaStreamQuery(streams[s]));
    CHECK_CUDA(cudaEventDestroy(ready[s]));
    CHECK_CUDA(cudaStreamDestroy(streams[s]));
  }
  CHECK_CUDA(cudaEventDestroy(start));
  CHECK_CUDA(cudaEventDestroy(stop));
  CHECK_CUDA(cudaFree(device_values));
  CHECK_CUDA(cudaFree(device_sums));
  CHECK_CUDA(cudaFreeHost(values));
  CHECK_CUDA(cudaFreeHost(sums));
  return 0;
}
