#include "series.h"

__device__ int calls = 0;
__constant__ int modulus = 1000007;

// Same name as in main.cu: each file has its own.
static __device__ int Next(int a, int b) { return (a + b) % modulus; }

__device__ __noinline__ int Fibonacci(int n) {
  atomicAdd(&calls, 1);
  int a = 0;
  int b = 1;
  for (int i = 0; i < n; ++i) {
    const int next = Next(a, b);
    a = b;
    b = next;
  }
  return a;
}
