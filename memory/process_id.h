#pragma once

#include <cstdint>

namespace fargpu::memory {

// A process that ran or runs on this machine. A pid alone is used again; with the start time it
// names one process for good.
struct ProcessId {
  uint32_t pid = 0;
  uint64_t start_time = 0;  // clock ticks since boot, as /proc says
  bool operator==(const ProcessId&) const = default;
};

// start_time is 0 if there is no such process, or only its zombie is left.
ProcessId ProcessOf(uint32_t pid);
ProcessId ThisProcess();

// False once the process has given up its memory: it is gone, a zombie, or the pid means another.
bool IsAlive(const ProcessId& process);

}  // namespace fargpu::memory
