#include "protocol/driver_abi/context_storage.h"

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "common/mutex.h"

namespace fargpu::driver_abi {
namespace {

// One entry; `context` is null in an empty slot. The fields are atomic because readers race with
// writers and find out afterwards (Storage::Get).
struct Slot {
  std::atomic<CUcontext> context{nullptr};
  std::atomic<void*> key{nullptr};
  std::atomic<void*> value{nullptr};
  std::atomic<ContextStorageDestructor> destructor{nullptr};
};

struct Entry {
  CUcontext context;
  void* key;
  void* value;
  ContextStorageDestructor destructor;
};

// Slots with linear probing, at most half full.
struct Table {
  Table(size_t slot_count, Table* smaller_table)
      : mask(slot_count - 1), slots(new Slot[slot_count]), smaller(smaller_table) {}
  const size_t mask;
  Slot* const slots;
  // The table before this one. Readers may still look at it, so it is never freed. Sizes double:
  // what is kept is less than what is in use.
  Table* const smaller;
};

size_t Hash(CUcontext context, const void* key) {
  const uint64_t mixed = (reinterpret_cast<uintptr_t>(context) * 0x9E3779B97F4A7C15u) ^
                         (reinterpret_cast<uintptr_t>(key) * 0xC2B2AE3D27D4EB4Fu);
  return static_cast<size_t>(mixed >> 32);
}

// A hash table under a sequence lock: writers make `sequence_` odd, change slots, make it even
// again; a reader that saw it odd or changed tries again. Reads are on the path of every runtime
// call, writes happen a few times per context.
class Storage {
 public:
  CUresult Get(void** value, CUcontext context, void* key) {
    // A writer holds the lock for well under a microsecond unless it is descheduled; then the
    // reader waits for it in the mutex instead of spinning.
    for (int attempt = 0; attempt < 64; ++attempt) {
      const uint64_t before = sequence_.load(std::memory_order_acquire);
      if (before % 2 != 0) continue;
      void* found = nullptr;
      const bool hit =
          Find(*table_.load(std::memory_order_acquire), context, key, &found) != nullptr;
      // Slot fields are read with acquire, so this load cannot move before them.
      if (sequence_.load(std::memory_order_relaxed) != before) continue;
      if (!hit) return CUDA_ERROR_INVALID_HANDLE;
      *value = found;
      return CUDA_SUCCESS;
    }
    MutexLock lock(&mutex_);
    void* found = nullptr;
    if (Find(*table_.load(std::memory_order_relaxed), context, key, &found) == nullptr) {
      return CUDA_ERROR_INVALID_HANDLE;
    }
    *value = found;
    return CUDA_SUCCESS;
  }

  void Put(const Entry& entry) {
    MutexLock lock(&mutex_);
    Table* table = table_.load(std::memory_order_relaxed);
    void* old_value = nullptr;
    if (Slot* slot = Find(*table, entry.context, entry.key, &old_value); slot != nullptr) {
      BeginChange();
      Fill(slot, entry);
      EndChange();
      return;
    }
    if ((used_ + 1) * 2 > table->mask + 1) {
      Table* larger = new Table((table->mask + 1) * 2, table);
      for (const Entry& old : Entries(*table)) Insert(larger, old);
      BeginChange();
      table_.store(larger, std::memory_order_release);
      EndChange();
      table = larger;
    }
    BeginChange();
    Insert(table, entry);
    EndChange();
    ++used_;
  }

  bool Delete(CUcontext context, void* key) {
    MutexLock lock(&mutex_);
    Table* table = table_.load(std::memory_order_relaxed);
    void* value = nullptr;
    if (Find(*table, context, key, &value) == nullptr) return false;
    std::vector<Entry> kept;
    for (const Entry& entry : Entries(*table)) {
      if (entry.context != context || entry.key != key) kept.push_back(entry);
    }
    Replace(table, kept);
    return true;
  }

  std::vector<Entry> Take(CUcontext context) {
    MutexLock lock(&mutex_);
    Table* table = table_.load(std::memory_order_relaxed);
    std::vector<Entry> taken;
    std::vector<Entry> kept;
    for (const Entry& entry : Entries(*table)) {
      (entry.context == context ? taken : kept).push_back(entry);
    }
    if (!taken.empty()) Replace(table, kept);
    return taken;
  }

  // fork() copies the mutex and the sequence as they are. The child must find both at rest: the
  // runtime deletes its entries at the child's exit, too.
  void BeforeFork() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex_.Lock(); }
  void AfterFork() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex_.Unlock(); }

 private:
  static Slot* Find(const Table& table, CUcontext context, void* key, void** value) {
    // The table is at most half full, but a reader that races with a writer may see it otherwise.
    size_t index = Hash(context, key) & table.mask;
    for (size_t probes = 0; probes <= table.mask; ++probes) {
      Slot& slot = table.slots[index];
      const CUcontext found = slot.context.load(std::memory_order_acquire);
      if (found == nullptr) return nullptr;
      if (found == context && slot.key.load(std::memory_order_acquire) == key) {
        *value = slot.value.load(std::memory_order_acquire);
        return &slot;
      }
      index = (index + 1) & table.mask;
    }
    return nullptr;
  }

  static void Fill(Slot* slot, const Entry& entry) {
    slot->key.store(entry.key, std::memory_order_release);
    slot->value.store(entry.value, std::memory_order_release);
    slot->destructor.store(entry.destructor, std::memory_order_release);
    slot->context.store(entry.context, std::memory_order_release);
  }

  static void Insert(Table* table, const Entry& entry) {
    size_t index = Hash(entry.context, entry.key) & table->mask;
    while (table->slots[index].context.load(std::memory_order_relaxed) != nullptr) {
      index = (index + 1) & table->mask;
    }
    Fill(&table->slots[index], entry);
  }

  static std::vector<Entry> Entries(const Table& table) {
    std::vector<Entry> entries;
    for (size_t index = 0; index <= table.mask; ++index) {
      const Slot& slot = table.slots[index];
      const CUcontext context = slot.context.load(std::memory_order_relaxed);
      if (context == nullptr) continue;
      entries.push_back({context, slot.key.load(std::memory_order_relaxed),
                         slot.value.load(std::memory_order_relaxed),
                         slot.destructor.load(std::memory_order_relaxed)});
    }
    return entries;
  }

  void Replace(Table* table, const std::vector<Entry>& entries)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    BeginChange();
    for (size_t index = 0; index <= table->mask; ++index) {
      table->slots[index].context.store(nullptr, std::memory_order_release);
    }
    for (const Entry& entry : entries) Insert(table, entry);
    EndChange();
    used_ = entries.size();
  }

  // Slot fields are stored with release, so none of those stores can move before BeginChange.
  void BeginChange() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    sequence_.store(sequence_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  void EndChange() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    sequence_.store(sequence_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }

  std::atomic<uint64_t> sequence_{0};
  std::atomic<Table*> table_{new Table(64, nullptr)};
  Mutex mutex_;
  size_t used_ ABSL_GUARDED_BY(mutex_) = 0;
};

Storage& TheStorage() {
  // Leaked on purpose: the runtime's exit handler comes after our static destructors.
  static Storage* const storage = [] {
    static Storage* made = new Storage;
    pthread_atfork([] { made->BeforeFork(); }, [] { made->AfterFork(); },
                   [] { made->AfterFork(); });
    return made;
  }();
  return *storage;
}

}  // namespace

CUresult PutContextStorage(CUcontext context, void* key, void* value,
                           ContextStorageDestructor destructor) {
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  TheStorage().Put({context, key, value, destructor});
  return CUDA_SUCCESS;
}

CUresult GetContextStorage(void** value, CUcontext context, void* key) {
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return TheStorage().Get(value, context, key);
}

CUresult DeleteContextStorage(CUcontext context, void* key) {
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return TheStorage().Delete(context, key) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

void DestroyContextStorage(CUcontext context) {
  if (context == nullptr) return;
  for (const Entry& entry : TheStorage().Take(context)) {
    if (entry.destructor != nullptr) entry.destructor(entry.context, entry.key, entry.value);
  }
}

}  // namespace fargpu::driver_abi
