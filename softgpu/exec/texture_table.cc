// The process's texture and surface objects, by handle.
#include <atomic>
#include <vector>

#include "absl/status/status.h"

#include "common/mutex.h"
#include "softgpu/texture.h"

namespace fargpu::softgpu {
namespace {

// A handle is generation << 21 | surface << 20 | slot, with generations from 1 on.
constexpr uint64_t kMaxSlots = 1 << 20;
constexpr uint64_t kChunk = 256;
constexpr int kGenerationShift = 21;
constexpr uint64_t kSurfaceBit = kMaxSlots;

// Descriptors lie in chunks that are never freed, so that a kernel may look at one without a lock
// whatever else happens to the object.
template <typename Descriptor, uint64_t kKind>
class ObjectTable {
 public:
  static ObjectTable& Get() {
    static ObjectTable* const table = new ObjectTable;
    return *table;
  }

  absl::StatusOr<uint64_t> Add(const Descriptor& descriptor) {
    MutexLock lock(&mutex_);
    uint64_t slot;
    if (!free_.empty()) {
      slot = free_.back();
      free_.pop_back();
    } else if (count_ < kMaxSlots) {
      slot = count_++;
    } else {
      return absl::ResourceExhaustedError("2^20 texture or surface objects exist already");
    }
    std::atomic<Entry*>& chunk = chunks_[slot / kChunk];
    if (chunk.load(std::memory_order_relaxed) == nullptr) {
      chunk.store(new Entry[kChunk], std::memory_order_release);
    }
    Entry& entry = chunk.load(std::memory_order_relaxed)[slot % kChunk];
    entry.descriptor = descriptor;
    const uint64_t handle = (next_generation_++ << kGenerationShift) | kKind | slot;
    entry.handle.store(handle, std::memory_order_release);
    return handle;
  }

  bool Remove(uint64_t handle) {
    MutexLock lock(&mutex_);
    Entry* entry = Find(handle);
    if (entry == nullptr) return false;
    entry->handle.store(0, std::memory_order_relaxed);
    free_.push_back(handle % kMaxSlots);
    return true;
  }

  struct Entry {
    std::atomic<uint64_t> handle{0};
    Descriptor descriptor;
  };
  Entry* Find(uint64_t handle) {
    if (handle == 0 || (handle & kSurfaceBit) != kKind) return nullptr;
    const uint64_t slot = handle % kMaxSlots;
    Entry* chunk = chunks_[slot / kChunk].load(std::memory_order_acquire);
    if (chunk == nullptr) return nullptr;
    Entry* entry = &chunk[slot % kChunk];
    return entry->handle.load(std::memory_order_acquire) == handle ? entry : nullptr;
  }

 private:
  std::atomic<Entry*> chunks_[kMaxSlots / kChunk] = {};
  Mutex mutex_;
  std::vector<uint64_t> free_ ABSL_GUARDED_BY(mutex_);
  uint64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t next_generation_ ABSL_GUARDED_BY(mutex_) = 1;
};

using TextureTable = ObjectTable<TextureDescriptor, 0>;
using SurfaceTable = ObjectTable<SurfaceDescriptor, kSurfaceBit>;

absl::Status CheckImage(const Image& image) {
  if (image.level_count < 1 || image.level_count > kMaxImageLevels ||
      (image.channels != 1 && image.channels != 2 && image.channels != 4)) {
    return absl::InvalidArgumentError("an image has 1 to 16 levels and 1, 2 or 4 channels");
  }
  for (int k = 0; k < image.level_count; ++k) {
    const ImageLevel& level = image.levels[k];
    if (level.width == 0 || level.height == 0 || level.depth == 0) {
      return absl::InvalidArgumentError("an image level is empty");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<uint64_t> RegisterTexture(const TextureDescriptor& texture) {
  if (absl::Status status = CheckImage(texture.image); !status.ok()) return status;
  return TextureTable::Get().Add(texture);
}
absl::StatusOr<uint64_t> RegisterSurface(const SurfaceDescriptor& surface) {
  if (absl::Status status = CheckImage(surface.image); !status.ok()) return status;
  return SurfaceTable::Get().Add(surface);
}
bool UnregisterTexture(uint64_t handle) { return TextureTable::Get().Remove(handle); }
bool UnregisterSurface(uint64_t handle) { return SurfaceTable::Get().Remove(handle); }

const TextureDescriptor* FindTexture(uint64_t handle) {
  const auto* entry = TextureTable::Get().Find(handle);
  return entry == nullptr ? nullptr : &entry->descriptor;
}
const SurfaceDescriptor* FindSurface(uint64_t handle) {
  const auto* entry = SurfaceTable::Get().Find(handle);
  return entry == nullptr ? nullptr : &entry->descriptor;
}

}  // namespace fargpu::softgpu
