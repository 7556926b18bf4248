#include "memory/process_id.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "common/fd.h"

namespace fargpu::memory {

ProcessId ProcessOf(uint32_t pid) {
  ProcessId process{.pid = pid};
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%u/stat", pid);
  UniqueFd fd(open(path, O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return process;
  char text[1024];
  const ssize_t size = read(fd.get(), text, sizeof(text) - 1);
  if (size <= 0) return process;
  text[size] = '\0';
  // The second field is the program's name in parentheses and may hold anything, so fields are
  // counted from the last parenthesis: state is the third, start time the 22nd.
  const char* field = std::strrchr(text, ')');
  if (field == nullptr || field[1] == '\0') return process;
  field += 2;
  if (*field == 'Z' || *field == 'X') return process;
  for (int skipped = 3; skipped < 22; ++skipped) {
    field = std::strchr(field, ' ');
    if (field == nullptr) return process;
    ++field;
  }
  process.start_time = std::strtoull(field, nullptr, 10);
  return process;
}

ProcessId ThisProcess() { return ProcessOf(static_cast<uint32_t>(getpid())); }

bool IsAlive(const ProcessId& process) {
  return process.pid != 0 && process.start_time != 0 && ProcessOf(process.pid) == process;
}

}  // namespace fargpu::memory
