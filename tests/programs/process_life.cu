// What processes and threads do at odd moments while they have a session. Usage: process_life CASE.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <cuda.h>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

extern char** environ;

__global__ void Add(int* value, int by) { *value += by; }

__global__ void Spin(volatile int* stop) {
  while (*stop == 0) {
  }
}

const char* self = nullptr;

void UseDevice() {
  int* value = nullptr;
  CHECK_CUDA(cudaMalloc(&value, sizeof(int)));
  CHECK_CUDA(cudaMemset(value, 0, sizeof(int)));
  Add<<<1, 1>>>(value, 3);
  int copy = 0;
  CHECK_CUDA(cudaMemcpy(&copy, value, sizeof(int), cudaMemcpyDeviceToHost));
  EXPECT(copy == 3);
  CHECK_CUDA(cudaFree(value));
}

void ExpectExit(pid_t child, int expected) {
  int status = -1;
  EXPECT(waitpid(child, &status, 0) == child);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != expected) {
    std::fprintf(stderr, "the child ended with status 0x%x\n", static_cast<unsigned>(status));
    std::exit(1);
  }
}

// A child that uses no CUDA, one that tries, both with managed memory of the parent's.
void Fork() {
  int* small = nullptr;
  int* large = nullptr;
  int* pinned = nullptr;
  CHECK_CUDA(cudaMallocManaged(&small, 4096));
  CHECK_CUDA(cudaMallocManaged(&large, 8 << 20));
  CHECK_CUDA(cudaMallocHost(&pinned, 4096));
  *small = *large = *pinned = 1;
  Add<<<1, 1>>>(small, 1);
  Add<<<1, 1>>>(large, 1);
  CHECK_CUDA(cudaDeviceSynchronize());
  pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(7);
  }
  ExpectExit(child, 7);
  child = fork();
  if (child == 0) {
    alarm(20);
    // The same answers as ever, at once.
    EXPECT(cudaDeviceSynchronize() == cudaErrorInitializationError);
    EXPECT(cudaFree(small) != cudaSuccess);
    std::exit(8);
  }
  ExpectExit(child, 8);
  Add<<<1, 1>>>(small, 1);
  Add<<<1, 1>>>(large, 1);
  CHECK_CUDA(cudaDeviceSynchronize());
  EXPECT(*small == 3 && *large == 3 && *pinned == 1);
  UseDevice();
  std::printf("fork: the parent goes on\n");
}

// Many forks while other threads use the device. The children use no CUDA: the runtime may have
// been forked inside of a lock of its own.
void ForkWhileBusy() {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&stop] {
      int* managed = nullptr;
      CHECK_CUDA(cudaMallocManaged(&managed, 4 << 20));
      for (int round = 0; !stop; ++round) {
        *managed = round;
        Add<<<1, 1>>>(managed, 1);
        CHECK_CUDA(cudaDeviceSynchronize());
        EXPECT(*managed == round + 1);
      }
    });
  }
  for (int i = 0; i < 30; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      std::vector<int> own(100000, 1);
      _exit(own.back() - 1);
    }
    ExpectExit(child, 0);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  std::printf("fork while other threads use the device\n");
}

void Spawn() {
  UseDevice();
  char* arguments[] = {const_cast<char*>(self), const_cast<char*>("use"), nullptr};
  pid_t child = -1;
  EXPECT(posix_spawn(&child, self, nullptr, nullptr, arguments, environ) == 0);
  ExpectExit(child, 0);
  child = vfork();
  if (child == 0) {
    execv(self, arguments);
    _exit(127);
  }
  ExpectExit(child, 0);
  child = vfork();
  if (child == 0) _exit(9);
  ExpectExit(child, 9);
  UseDevice();
  std::fflush(stdout);
  EXPECT(std::system("exit 5") >> 8 == 5);
  std::printf("posix_spawn, vfork, system\n");
}

// Threads end while they have work, a context, and calls that wait.
void ThreadsEnd() {
  for (int i = 0; i < 20; ++i) {
    std::thread([] {
      int* value = nullptr;
      CHECK_CUDA(cudaMallocManaged(&value, 4096));
      Add<<<1, 1>>>(value, 1);
    }).detach();
  }
  // Cancelled in the middle of whatever they are doing: it happens where they do not wait for us.
  for (int i = 0; i < 20; ++i) {
    pthread_t thread;
    EXPECT(pthread_create(
               &thread, nullptr,
               [](void*) -> void* {
                 for (;;) {
                   (void)cudaDeviceSynchronize();
                   pthread_testcancel();
                 }
               },
               nullptr) == 0);
    usleep(2000);
    EXPECT(pthread_cancel(thread) == 0);
    void* result = nullptr;
    EXPECT(pthread_join(thread, &result) == 0);
    EXPECT(result == PTHREAD_CANCELED);
  }
  std::thread([] {
    UseDevice();
    pthread_exit(nullptr);
  }).join();
  UseDevice();
  std::printf("threads end and are cancelled\n");
}

void ExitFromHostFunction() {
  UseDevice();
  std::printf("exit from a host function\n");
  CHECK_CUDA(cudaLaunchHostFunc(
      nullptr, [](void*) { std::exit(6); }, nullptr));
  // It may be told of the end, or not get that far.
  (void)cudaDeviceSynchronize();
  pause();
}

void ExitFromCallback() {
  UseDevice();
  std::printf("exit from a callback\n");
  CHECK_CUDA(cudaStreamAddCallback(
      nullptr, [](cudaStream_t, cudaError_t, void*) { std::exit(6); }, nullptr, 0));
  (void)cudaDeviceSynchronize();
  pause();
}

void QuickExitFromHostFunction() {
  UseDevice();
  std::printf("_exit from a host function\n");
  std::fflush(stdout);
  CHECK_CUDA(cudaLaunchHostFunc(
      nullptr, [](void*) { _exit(6); }, nullptr));
  (void)cudaDeviceSynchronize();
  pause();
}

// The driver, without the runtime.
struct DriverCalls {
  template <typename Function>
  static Function* Find(const char* name) {
    static void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void* const found = library == nullptr ? nullptr : dlsym(library, name);
    EXPECT(found != nullptr);
    return reinterpret_cast<Function*>(found);
  }
  CUresult (*current)(CUcontext) = Find<CUresult(CUcontext)>("cuCtxSetCurrent");
  CUresult (*load)(CUmodule*,
                   const void*) = Find<CUresult(CUmodule*, const void*)>("cuModuleLoadData");
  CUresult (*function)(CUfunction*, CUmodule, const char*) =
      Find<CUresult(CUfunction*, CUmodule, const char*)>("cuModuleGetFunction");
  CUresult (*get_context)(CUcontext*) = Find<CUresult(CUcontext*)>("cuCtxGetCurrent");
  CUresult (*synchronize)() = Find<CUresult()>("cuCtxSynchronize");
  CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                     unsigned, CUstream, void**, void**) =
      Find<CUresult(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                    unsigned, CUstream, void**, void**)>("cuLaunchKernel");
};

// The process ends while four threads launch kernels and wait for them.
void ExitWhileLaunching() {
  UseDevice();
  const DriverCalls driver;
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction nothing = nullptr;
  EXPECT(driver.get_context(&context) == CUDA_SUCCESS);
  EXPECT(driver.load(&module,
                     ".version 8.0\n.target sm_90\n.address_size 64\n"
                     ".visible .entry Nothing() { ret; }\n") == CUDA_SUCCESS);
  EXPECT(driver.function(&nothing, module, "Nothing") == CUDA_SUCCESS);
  std::atomic<int> begun{0};
  for (int i = 0; i < 4; ++i) {
    std::thread([&] {
      EXPECT(driver.current(context) == CUDA_SUCCESS);
      for (int round = 0;; ++round) {
        const CUresult result =
            driver.launch(nothing, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr);
        // Too late is what they may be told, nothing else.
        if (result == CUDA_ERROR_DEINITIALIZED) pause();
        if (result != CUDA_SUCCESS) std::fprintf(stderr, "a launch gives %d\n", result);
        if (round % 8 == 7) (void)driver.synchronize();
        if (round == 20) ++begun;
      }
    }).detach();
  }
  while (begun < 4) usleep(1000);
  std::printf("exit while four threads launch\n");
  std::exit(5);
}

// The same by the runtime, which frees its own tables at exit while its launches still use them: it
// may crash there, on any driver.
void ExitWhileRuntimeLaunches() {
  std::atomic<int> begun{0};
  for (int i = 0; i < 4; ++i) {
    std::thread([&] {
      int* value = nullptr;
      CHECK_CUDA(cudaMalloc(&value, sizeof(int)));
      for (int round = 0;; ++round) {
        Add<<<1, 1>>>(value, 1);
        if (round == 20) ++begun;
      }
    }).detach();
  }
  while (begun < 4) usleep(1000);
  std::printf("exit while four threads launch by the runtime\n");
  std::fflush(stdout);
  std::exit(5);
}

// The first thread ends, the others go on, and the last one ends the process.
void MainThreadEnds() {
  UseDevice();
  static std::atomic<int> left{3};
  for (int i = 0; i < 3; ++i) {
    std::thread([] {
      for (int k = 0; k < 20; ++k) UseDevice();
      if (--left > 0) return;
      std::printf("the first thread has ended\n");
      std::exit(7);
    }).detach();
  }
  pthread_exit(nullptr);
}

// Programs are started while other threads use the device; each child has a session of its own.
void SpawnWhileBusy() {
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&stop] {
      while (!stop) UseDevice();
    });
  }
  char* arguments[] = {const_cast<char*>(self), const_cast<char*>("use"), nullptr};
  for (int i = 0; i < 4; ++i) {
    pid_t child = -1;
    if (i % 2 == 0) {
      EXPECT(posix_spawn(&child, self, nullptr, nullptr, arguments, environ) == 0);
    } else {
      child = vfork();
      if (child == 0) {
        execv(self, arguments);
        _exit(127);
      }
    }
    ExpectExit(child, 0);
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  std::printf("programs are started while threads use the device\n");
}

void UseAtExit() {
  UseDevice();
  std::atexit([] {
    UseDevice();
    std::printf("the device is used in atexit\n");
  });
}

void ExitInAtexit() {
  UseDevice();
  std::atexit([] {
    std::printf("exit in atexit\n");
    std::fflush(stdout);
    (void)cudaDeviceSynchronize();
    std::exit(4);
  });
}

// Interrupted in a wait that would not end by itself; how, is the argument's.
void Interrupt(const char* how) {
  int* stop = nullptr;
  CHECK_CUDA(cudaMalloc(&stop, sizeof(int)));
  CHECK_CUDA(cudaMemset(stop, 0, sizeof(int)));
  struct sigaction action;
  std::memset(&action, 0, sizeof(action));
  if (std::strcmp(how, "exit") == 0) {
    action.sa_handler = [](int) { std::exit(3); };
  } else if (std::strcmp(how, "_exit") == 0) {
    action.sa_handler = [](int) { _exit(3); };
  } else {
    action.sa_handler = SIG_DFL;
  }
  EXPECT(sigaction(SIGINT, &action, nullptr) == 0);
  std::printf("interrupted\n");
  std::fflush(stdout);
  Spin<<<1, 1>>>(stop);
  CHECK_CUDA(cudaStreamQuery(nullptr) == cudaErrorNotReady ? cudaSuccess : cudaErrorUnknown);
  const pid_t parent = getpid();
  std::thread([parent] {
    usleep(300000);
    kill(parent, SIGINT);
  }).detach();
  // The thread may not take the signal instead.
  (void)cudaDeviceSynchronize();
}

// The driver library by hand, as programs do that also run where there is none.
void Dlopen() {
  for (int i = 0; i < 3; ++i) {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    EXPECT(library != nullptr);
    const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(library, "cuInit"));
    const auto get_count = reinterpret_cast<int (*)(int*)>(dlsym(library, "cuDeviceGetCount"));
    EXPECT(init != nullptr && get_count != nullptr);
    EXPECT(init(0) == 0);
    int count = 0;
    EXPECT(get_count(&count) == 0 && count == 1);
    if (i == 1) UseDevice();
    EXPECT(dlclose(library) == 0);
  }
  UseDevice();
  std::printf("dlopen and dlclose\n");
}

int main(int argc, char** argv) {
  self = argv[0];
  const std::string which = argc > 1 ? argv[1] : "";
  alarm(60);
  if (which == "fork")
    Fork();
  else if (which == "fork_while_busy")
    ForkWhileBusy();
  else if (which == "spawn")
    Spawn();
  else if (which == "threads")
    ThreadsEnd();
  else if (which == "exit_from_host_function")
    ExitFromHostFunction();
  else if (which == "_exit_from_host_function")
    QuickExitFromHostFunction();
  else if (which == "exit_from_callback")
    ExitFromCallback();
  else if (which == "exit_while_launching")
    ExitWhileLaunching();
  else if (which == "exit_while_runtime_launches")
    ExitWhileRuntimeLaunches();
  else if (which == "main_thread_ends")
    MainThreadEnds();
  else if (which == "spawn_while_busy")
    SpawnWhileBusy();
  else if (which == "dlopen")
    Dlopen();
  else if (which == "use_at_exit")
    UseAtExit();
  else if (which == "exit_in_atexit")
    ExitInAtexit();
  else if (which == "interrupt")
    Interrupt("");
  else if (which == "interrupt_exit")
    Interrupt("exit");
  else if (which == "interrupt__exit")
    Interrupt("_exit");
  else if (which == "use")
    UseDevice();
  else
    return 2;
  return 0;
}
