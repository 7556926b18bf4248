#pragma once

#include "check.h"

// For programs about processes: the least that proves a process can use the device.
__global__ void Double(int* values) { values[threadIdx.x] *= 2; }

inline cudaError_t TryRoundTrip(bool* right) {
  int values[32];
  for (int i = 0; i < 32; ++i) values[i] = i;
  int* device_values = nullptr;
  cudaError_t error = cudaMalloc(&device_values, sizeof(values));
  if (error != cudaSuccess) return error;
  error = cudaMemcpy(device_values, values, sizeof(values), cudaMemcpyHostToDevice);
  if (error != cudaSuccess) return error;
  Double<<<1, 32>>>(device_values);
  error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  error = cudaMemcpy(values, device_values, sizeof(values), cudaMemcpyDeviceToHost);
  if (error != cudaSuccess) return error;
  *right = true;
  for (int i = 0; i < 32; ++i) *right = *right && values[i] == 2 * i;
  return cudaFree(device_values);
}

inline void CheckRoundTrip() {
  bool right = false;
  CHECK_CUDA(TryRoundTrip(&right));
  EXPECT(right);
}
