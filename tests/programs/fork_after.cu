// Forks after use of CUDA: the child cannot use it and is told so at once; it ends properly, and
// the parent goes on.
#include <sys/wait.h>
#include <unistd.h>

#include "round_trip.h"

int main() {
  CheckRoundTrip();
  int* kept = nullptr;
  CHECK_CUDA(cudaMalloc(&kept, sizeof(int)));
  const pid_t child = fork();
  EXPECT(child >= 0);
  if (child == 0) {
    alarm(20);
    bool right = false;
    EXPECT(TryRoundTrip(&right) == cudaErrorInitializationError);
    int value = 0;
    EXPECT(cudaMemcpy(&value, kept, sizeof(value), cudaMemcpyDeviceToHost) != cudaSuccess);
    std::exit(0);  // with all exit handlers: they must not reach the parent's session
  }
  int status = -1;
  EXPECT(waitpid(child, &status, 0) == child);
  EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  std::printf("child: cudaErrorInitializationError\n");
  CHECK_CUDA(cudaMemset(kept, 0, sizeof(int)));
  CHECK_CUDA(cudaFree(kept));
  CheckRoundTrip();
  std::printf("parent goes on\n");
  return 0;
}
