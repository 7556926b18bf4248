#include <algorithm>
#include <array>
#include <bit>
#include <mutex>

#include "transport/connection.h"

namespace fargpu::transport {
namespace {

// Below this, the allocator's own caches do as well.
constexpr size_t kSmallestPooled = 32 << 10;
// Powers of two from kSmallestPooled up to the first that holds kMaxMessageBytes.
constexpr size_t kClasses = 9;
static_assert(kSmallestPooled << (kClasses - 1) >= kMaxMessageBytes);
// At most so much is kept of each class; more is given back to the allocator.
constexpr size_t kKeptBytesPerClass = 16 << 20;
constexpr size_t kMostKept = kKeptBytesPerClass / kSmallestPooled;

class Pool {
 public:
  // nullptr: the class is empty, or another thread is in here. Never waits, so that a child whose
  // parent forked at the wrong moment does not hang.
  char* Take(size_t size_class) {
    std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock() || count_[size_class] == 0) return nullptr;
    return kept_[size_class][--count_[size_class]];
  }
  bool Give(size_t size_class, char* memory) {
    std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
    if (!lock.owns_lock()) return false;
    if (count_[size_class] >= kKeptBytesPerClass / (kSmallestPooled << size_class)) return false;
    kept_[size_class][count_[size_class]++] = memory;
    return true;
  }

 private:
  std::mutex mutex_;
  std::array<size_t, kClasses> count_ = {};
  std::array<std::array<char*, kMostKept>, kClasses> kept_ = {};
};

// Trivially reachable for ever: messages may outlive static destruction.
Pool& ThePool() {
  static Pool* const pool = new Pool;
  return *pool;
}

size_t ClassOf(size_t size) {
  const size_t rounded = std::bit_ceil(std::max(size, kSmallestPooled));
  return static_cast<size_t>(std::countr_zero(rounded) - std::countr_zero(kSmallestPooled));
}

}  // namespace

void ReturnToPool::operator()(char* memory) const {
  if (capacity >= kSmallestPooled && ThePool().Give(ClassOf(capacity), memory)) return;
  delete[] memory;
}

Message NewMessage(size_t size) {
  size_t capacity = size;
  char* memory = nullptr;
  if (size >= kSmallestPooled && size <= kMaxMessageBytes) {
    capacity = kSmallestPooled << ClassOf(size);
    memory = ThePool().Take(ClassOf(size));
  }
  // Sizes over the limit are never pooled: only tests ask for them.
  if (size > kMaxMessageBytes) capacity = 0;
  if (memory == nullptr) memory = new char[std::max(capacity, size)];
  return Message{.storage = {memory, ReturnToPool{.capacity = capacity}}, .size = size};
}

}  // namespace fargpu::transport
