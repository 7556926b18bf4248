#pragma once

// Device code of series.cu that other files call and change: needs -rdc=true.
extern __device__ int calls;  // how often Fibonacci was called
extern __constant__ int modulus;
__device__ int Fibonacci(int n);
