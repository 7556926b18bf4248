// Two processes share memory of the card (CUDA IPC): each sees what the other's kernels wrote.
//
//   ipc_memory              both processes, by fork
//   ipc_memory offer FILE   makes memory, writes its handle to FILE, waits for FILE to go
//   ipc_memory take FILE    opens the handle in FILE; prints "opened" or the error
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "check.h"

constexpr size_t kLarge = (8 << 20) / sizeof(unsigned);
constexpr size_t kSmall = 1000;

__global__ void Fill(unsigned* values, size_t count, unsigned seed) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    values[i] = static_cast<unsigned>(i) * 2654435761u + seed;
  }
}
__global__ void Double(unsigned* values, size_t count) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
    values[i] *= 2;
  }
}

struct Handles {
  cudaIpcMemHandle_t large, small;
};

void ExpectValues(const char* what, const unsigned* device, size_t count, unsigned factor,
                  unsigned seed) {
  std::vector<unsigned> actual(count), expected(count);
  CHECK_CUDA(cudaMemcpy(actual.data(), device, count * sizeof(unsigned), cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < count; ++i) {
    expected[i] = (static_cast<unsigned>(i) * 2654435761u + seed) * factor;
  }
  ExpectEqual(what, actual.data(), expected.data(), count);
}

void* Open(const cudaIpcMemHandle_t& handle) {
  void* memory = nullptr;
  CHECK_CUDA(cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess));
  return memory;
}

int Child(int from_parent, int to_parent) {
  Handles handles;
  EXPECT(read(from_parent, &handles, sizeof(handles)) == static_cast<ssize_t>(sizeof(handles)));
  auto* large = static_cast<unsigned*>(Open(handles.large));
  auto* small = static_cast<unsigned*>(Open(handles.small));
  ExpectValues("child: large", large, kLarge, 1, 1);
  ExpectValues("child: small", small, kSmall, 1, 2);
  Double<<<64, 256>>>(large, kLarge);
  Double<<<1, 256>>>(small, kSmall);
  CHECK_CUDA(cudaDeviceSynchronize());
  CHECK_CUDA(cudaIpcCloseMemHandle(small));
  CHECK_CUDA(cudaIpcCloseMemHandle(large));
  EXPECT_CUDA_ERROR(cudaIpcCloseMemHandle(large), cudaErrorInvalidValue);
  std::memset(&handles, 0x5a, sizeof(handles));
  void* none = nullptr;
  EXPECT_CUDA_ERROR(cudaIpcOpenMemHandle(&none, handles.large, cudaIpcMemLazyEnablePeerAccess),
                    cudaErrorInvalidValue);
  const char ready = 1;
  EXPECT(write(to_parent, &ready, 1) == 1);
  return 0;
}

int Both() {
  int down[2], up[2];
  EXPECT(pipe(down) == 0 && pipe(up) == 0);
  const pid_t child = fork();
  EXPECT(child >= 0);
  if (child == 0) {
    close(down[1]);
    const int status = Child(down[0], up[1]);
    std::fflush(stdout);
    _exit(status);
  }
  close(up[1]);
  unsigned *large = nullptr, *small = nullptr, *other = nullptr;
  CHECK_CUDA(cudaMalloc(&other, 100));
  CHECK_CUDA(cudaMalloc(&small, kSmall * sizeof(unsigned)));
  CHECK_CUDA(cudaMalloc(&large, kLarge * sizeof(unsigned)));
  Fill<<<64, 256>>>(large, kLarge, 1);
  Fill<<<1, 256>>>(small, kSmall, 2);
  Handles handles;
  CHECK_CUDA(cudaIpcGetMemHandle(&handles.large, large));
  CHECK_CUDA(cudaIpcGetMemHandle(&handles.small, small));
  // Its own address still is the memory.
  ExpectValues("parent: large", large, kLarge, 1, 1);
  EXPECT(write(down[1], &handles, sizeof(handles)) == static_cast<ssize_t>(sizeof(handles)));
  char ready = 0;
  EXPECT(read(up[0], &ready, 1) == 1);
  int status = 0;
  EXPECT(waitpid(child, &status, 0) == child && status == 0);
  ExpectValues("parent: large doubled", large, kLarge, 2, 1);
  ExpectValues("parent: small doubled", small, kSmall, 2, 2);
  CHECK_CUDA(cudaFree(large));
  CHECK_CUDA(cudaFree(small));
  CHECK_CUDA(cudaFree(other));
  std::printf("two processes shared memory\n");
  return 0;
}

int Offer(const char* path) {
  unsigned* memory = nullptr;
  CHECK_CUDA(cudaMalloc(&memory, kLarge * sizeof(unsigned)));
  Fill<<<64, 256>>>(memory, kLarge, 3);
  cudaIpcMemHandle_t handle;
  CHECK_CUDA(cudaIpcGetMemHandle(&handle, memory));
  const std::string fresh = std::string(path) + ".new";
  std::FILE* file = std::fopen(fresh.c_str(), "wb");
  EXPECT(file != nullptr && std::fwrite(&handle, sizeof(handle), 1, file) == 1);
  EXPECT(std::fclose(file) == 0 && std::rename(fresh.c_str(), path) == 0);
  std::printf("ready\n");
  std::fflush(stdout);
  for (int i = 0; i < 600 && access(path, F_OK) == 0; ++i) usleep(100000);
  ExpectValues("offered memory", memory, kLarge, 1, 3);
  std::printf("done\n");
  return 0;
}

int Take(const char* path) {
  cudaIpcMemHandle_t handle;
  std::FILE* file = std::fopen(path, "rb");
  EXPECT(file != nullptr && std::fread(&handle, sizeof(handle), 1, file) == 1);
  std::fclose(file);
  void* memory = nullptr;
  const cudaError_t error = cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess);
  if (error == cudaSuccess) {
    ExpectValues("taken memory", static_cast<unsigned*>(memory), kLarge, 1, 3);
  }
  std::printf("%s\n", error == cudaSuccess ? "opened" : cudaGetErrorName(error));
  return 0;
}

int main(int argc, char** argv) {
  if (argc == 3 && std::strcmp(argv[1], "offer") == 0) return Offer(argv[2]);
  if (argc == 3 && std::strcmp(argv[1], "take") == 0) return Take(argv[2]);
  EXPECT(argc == 1);
  return Both();
}
