// Forks before any use of CUDA: children and parent all work, each with a context of its own.
#include <sys/wait.h>
#include <unistd.h>

#include "round_trip.h"

int main() {
  pid_t children[2];
  for (pid_t& child : children) {
    child = fork();
    EXPECT(child >= 0);
    if (child == 0) {
      alarm(60);
      CheckRoundTrip();
      return 0;
    }
  }
  CheckRoundTrip();
  for (const pid_t child : children) {
    int status = -1;
    EXPECT(waitpid(child, &status, 0) == child);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    std::printf("child works\n");
  }
  CheckRoundTrip();
  std::printf("parent works\n");
  return 0;
}
