// Calls that cannot be resolved before run time: function pointers that differ within a warp,
// virtual functions and recursion.
#include "check.h"

using Operation = int (*)(int, int);

__device__ int Plus(int a, int b) { return a + b; }
__device__ int Times(int a, int b) { return a * b; }
__device__ int Minus(int a, int b) { return a - b; }
__device__ Operation operations[3] = {Plus, Times, Minus};

struct Shape {
  __device__ virtual int Area() const = 0;
};
struct Square : Shape {
  __device__ explicit Square(int s) : side(s) {}
  __device__ int Area() const override { return side * side; }
  int side;
};
struct Rectangle : Shape {
  __device__ Rectangle(int w, int h) : width(w), height(h) {}
  __device__ int Area() const override { return width * height; }
  int width, height;
};

__device__ __noinline__ int Ackermann(int m, int n) {
  if (m == 0) return n + 1;
  if (n == 0) return Ackermann(m - 1, 1);
  return Ackermann(m - 1, Ackermann(m, n - 1));
}

__global__ void Call(int* results) {
  const int i = static_cast<int>(threadIdx.x);
  const Square square(i);
  const Rectangle rectangle(i, 3);
  const Shape* shape = i % 2 == 0 ? static_cast<const Shape*>(&square) : &rectangle;
  results[3 * i] = operations[i % 3](i, 7);
  results[3 * i + 1] = shape->Area();
  results[3 * i + 2] = Ackermann(i % 3, i % 4);
}

int HostAckermann(int m, int n) {
  if (m == 0) return n + 1;
  return HostAckermann(m - 1, n == 0 ? 1 : HostAckermann(m, n - 1));
}

int main() {
  constexpr int kThreads = 64;
  int results[3 * kThreads], expected[3 * kThreads];
  for (int i = 0; i < kThreads; ++i) {
    expected[3 * i] = i % 3 == 0 ? i + 7 : i % 3 == 1 ? i * 7 : i - 7;
    expected[3 * i + 1] = i % 2 == 0 ? i * i : i * 3;
    expected[3 * i + 2] = HostAckermann(i % 3, i % 4);
  }
  int* device_results = nullptr;
  CHECK_CUDA(cudaMalloc(&device_results, sizeof(results)));
  Call<<<1, kThreads>>>(device_results);
  CHECK_CUDA(cudaGetLastError());
  CHECK_CUDA(cudaMemcpy(results, device_results, sizeof(results), cudaMemcpyDeviceToHost));
  CHECK_CUDA(cudaFree(device_results));
  ExpectEqual("function_pointers", results, expected, 3 * kThreads);
  return 0;
}
