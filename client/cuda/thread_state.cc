#include "client/cuda/thread_state.h"

#include <atomic>

namespace fargpu::client {

ThreadState& CurrentThread() {
  static std::atomic<uint32_t> last_number{0};
  static constinit thread_local ThreadState state;
  if (state.number == 0) state.number = last_number.fetch_add(1, std::memory_order_relaxed) + 1;
  return state;
}

}  // namespace fargpu::client
