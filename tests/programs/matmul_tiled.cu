// Matrix product in tiles of shared memory, with barriers, on shapes that do not fill their tiles.
#include <vector>

#include "check.h"

constexpr int kTile = 16;

__global__ void Multiply(const float* a, const float* b, float* c, int rows, int inner,
                         int columns) {
  __shared__ float tile_a[kTile][kTile];
  __shared__ float tile_b[kTile][kTile];
  const int row = blockIdx.y * kTile + threadIdx.y;
  const int column = blockIdx.x * kTile + threadIdx.x;
  float sum = 0.0f;
  for (int start = 0; start < inner; start += kTile) {
    const int k_a = start + threadIdx.x;
    const int k_b = start + threadIdx.y;
    tile_a[threadIdx.y][threadIdx.x] = row < rows && k_a < inner ? a[row * inner + k_a] : 0.0f;
    tile_b[threadIdx.y][threadIdx.x] =
        k_b < inner && column < columns ? b[k_b * columns + column] : 0.0f;
    __syncthreads();
    for (int k = 0; k < kTile; ++k) sum += tile_a[threadIdx.y][k] * tile_b[k][threadIdx.x];
    __syncthreads();
  }
  if (row < rows && column < columns) c[row * columns + column] = sum;
}

void Run(int rows, int inner, int columns) {
  // Small whole numbers: sums are exact, whatever their order and whether they are fused.
  std::vector<float> a(rows * inner), b(inner * columns), c(rows * columns),
      expected(rows * columns);
  for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>((i * 7 + 3) % 17) - 8.0f;
  for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<float>((i * 5 + 1) % 13) - 6.0f;
  for (int row = 0; row < rows; ++row) {
    for (int k = 0; k < inner; ++k) {
      for (int column = 0; column < columns; ++column) {
        expected[row * columns + column] += a[row * inner + k] * b[k * columns + column];
      }
    }
  }

  float *device_a = nullptr, *device_b = nullptr, *device_c = nullptr;
  CHECK_CUDA(cudaMalloc(&device_a, a.size() * sizeof(float)));
  CHECK_CUDA(cudaMalloc(&device_b, b.size() * sizeof(float)));
  CHECK_CUDA(cudaMalloc(&device_c, c.size() * sizeof(float)));
  CHECK_CUDA(cudaMemcpy(device_a, a.data(), a.size() * sizeof(float), cudaMemcpyHostToDevice));
  CHECK_CUDA(cudaMemcpy(device_b, b.data(), b.size() * sizeof(float), cudaMemcpyHostToDevice));
  const dim3 grid((columns + kTile - 1) / kTile, (rows + kTile - 1) / kTile);
  Multiply<<<grid, dim3(kTile, kTile)>>>(device_a, device_b, device_c, rows, inner, columns);
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaDeviceSynchronize());
  CHECK_CUDA(cudaMemcpy(c.data(), device_c, c.size() * sizeof(float), cudaMemcpyDeviceToHost));
  CHECK_CUDA(cudaFree(device_a));
  CHECK_CUDA(cudaFree(device_b));
  CHECK_CUDA(cudaFree(device_c));

  char name[64];
  std::snprintf(name, sizeof(name), "matmul_tiled %dx%dx%d", rows, inner, columns);
  ExpectEqual(name, c.data(), expected.data(), c.size());
}

int main() {
  Run(16, 16, 16);
  Run(128, 128, 128);
  Run(200, 75, 130);
  return 0;
}
