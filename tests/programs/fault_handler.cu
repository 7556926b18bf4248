// A program with a SIGSEGV handler of its own uses managed memory: faults of its own reach the
// handler, those of managed memory do not, in whatever order the handlers were installed.
#include <setjmp.h>
#include <signal.h>

#include <cstring>

#include "check.h"

constexpr size_t kBytes = 8 << 20;

__global__ void Add(int* value) { *value += 1; }

sigjmp_buf after_fault;
volatile sig_atomic_t faults = 0;
volatile sig_atomic_t second = 0;
struct sigaction before_second;

void OnFault(int) {
  faults = faults + 1;
  siglongjmp(after_fault, 1);
}

// Tells whom it has replaced, as a crash reporter does.
void OnFaultToo(int number, siginfo_t* info, void* context) {
  second = second + 1;
  if ((before_second.sa_flags & SA_SIGINFO) != 0) {
    before_second.sa_sigaction(number, info, context);
  } else {
    before_second.sa_handler(number);
  }
}

void Fault() {
  if (sigsetjmp(after_fault, 1) == 0) {
    *static_cast<volatile int*>(nullptr) = 1;
    EXPECT(false);
  }
}

void UseManagedMemory(int* value) {
  const int before = *value;
  Add<<<1, 1>>>(value);
  CHECK_CUDA(cudaDeviceSynchronize());
  EXPECT(*value == before + 1);
  value[kBytes / sizeof(int) - 1] = before;
  Add<<<1, 1>>>(value + kBytes / sizeof(int) - 1);
  CHECK_CUDA(cudaDeviceSynchronize());
  EXPECT(value[kBytes / sizeof(int) - 1] == before + 1);
}

int main() {
  struct sigaction action;
  std::memset(&action, 0, sizeof(action));
  action.sa_handler = &OnFault;
  EXPECT(sigaction(SIGSEGV, &action, nullptr) == 0);
  Fault();
  EXPECT(faults == 1);
  int* value = nullptr;
  CHECK_CUDA(cudaMallocManaged(&value, kBytes));
  *value = 0;
  for (int i = 0; i < 10; ++i) UseManagedMemory(value);
  EXPECT(faults == 1);
  Fault();
  EXPECT(faults == 2);
  UseManagedMemory(value);

  action.sa_sigaction = &OnFaultToo;
  action.sa_flags = SA_SIGINFO;
  EXPECT(sigaction(SIGSEGV, &action, &before_second) == 0);
  CHECK_CUDA(cudaDeviceSynchronize());
  for (int i = 0; i < 10; ++i) UseManagedMemory(value);
  EXPECT(second == 0 && faults == 2);
  Fault();
  EXPECT(second == 1 && faults == 3);
  UseManagedMemory(value);
  EXPECT(second == 1 && faults == 3);
  CHECK_CUDA(cudaFree(value));
  std::printf("faults of the program: %d\n", static_cast<int>(faults));
  return 0;
}
