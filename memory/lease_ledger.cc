#include "memory/lease_ledger.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>

#include "absl/strings/str_cat.h"

#include "common/log.h"
#include "common/status_macros.h"

namespace fargpu::memory {
namespace {

constexpr uint64_t kMagic = 0x3152474454504746;  // "FGPTDGR1"
constexpr uint32_t kVersion = 1;
constexpr size_t kSlotsOffset = 4096;
// A holder does nothing but arithmetic and, rarely, look into /proc; longer means that it was
// stopped or that it means harm.
constexpr int kLockSeconds = 5;

struct BootId {
  char text[40] = {};
  bool operator==(const BootId&) const = default;
};

// A mutex that was locked when the machine went down stays locked in the file for ever, so a ledger
// is good for one boot.
BootId ReadBootId() {
  BootId id;
  UniqueFd fd(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  if (fd.valid() && read(fd.get(), id.text, 36) < 0) id = {};
  return id;
}

uint64_t SaturatingAdd(uint64_t a, uint64_t b) { return a + b < a ? UINT64_MAX : a + b; }

}  // namespace

struct LeaseLedger::Header {
  uint64_t magic;
  uint32_t version;
  uint32_t device_count;
  BootId boot_id;
  std::atomic<uint64_t> limit_bytes;
  pthread_mutex_t mutex;
};

// Each number is changed by one store, so there is no moment at which a slot is half written. The
// numbers that count on a slot are valid while `pid` is not 0.
struct LeaseLedger::Slot {
  std::atomic<uint64_t> pid;
  std::atomic<uint64_t> start_time;
  std::atomic<uint64_t> charged[];

  static size_t Bytes(int device_count) { return 16 + 8 * static_cast<size_t>(device_count); }
  ProcessId process() const {
    return {.pid = static_cast<uint32_t>(pid.load()), .start_time = start_time.load()};
  }
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// Holds the ledger's mutex, or says in status() why not.
class LeaseLedger::Lock {
 public:
  explicit Lock(pthread_mutex_t* mutex) : mutex_(mutex) {
    timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += kLockSeconds;
    int result = pthread_mutex_timedlock(mutex_, &deadline);
    if (result == EOWNERDEAD) {
      // The holder died inside. Nothing can be half done (see Slot), so there is nothing to mend.
      result = pthread_mutex_consistent(mutex_);
#if defined(__SANITIZE_THREAD__)
      // ThreadSanitizer does not see that a timed lock was taken from a dead holder.
      __tsan_mutex_pre_lock(mutex_, 0);
      __tsan_mutex_post_lock(mutex_, 0, 1);
#endif
    }
    if (result != 0) {
      mutex_ = nullptr;
      status_ = absl::InternalError(
          absl::StrCat("the lease's ledger cannot be locked: ", strerrordesc_np(result)));
    }
  }
  ~Lock() {
    if (mutex_ != nullptr) pthread_mutex_unlock(mutex_);
  }
  const absl::Status& status() const { return status_; }

 private:
  pthread_mutex_t* mutex_;
  absl::Status status_;
};

void Reservation::Refund() {
  if (ledger_ != nullptr) std::exchange(ledger_, nullptr)->Refund(device_, bytes_);
}

absl::StatusOr<std::unique_ptr<LeaseLedger>> LeaseLedger::Create(const std::string& path,
                                                                 int device_count,
                                                                 uint64_t limit_bytes) {
  static_assert(sizeof(Header) <= kSlotsOffset);
  if (device_count < 1 || device_count > kMaxDevices) {
    return absl::InvalidArgumentError(
        absl::StrCat("a lease of ", device_count, " devices; 1 to ", kMaxDevices, " are possible"));
  }
  if (UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC)); fd.valid()) {
    absl::StatusOr<std::unique_ptr<LeaseLedger>> ledger = Map(std::move(fd));
    if (ledger.ok() && (*ledger)->device_count() == device_count &&
        (*ledger)->header()->boot_id == ReadBootId()) {
      (*ledger)->SetLimit(limit_bytes);
      return ledger;
    }
  }
  // Made under another name, so that a ledger at `path` is always whole.
  const std::string fresh = absl::StrCat(path, ".new");
  UniqueFd fd(open(fresh.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd.valid()) return ErrnoStatus(absl::StrCat("open ", fresh));
  const size_t bytes = kSlotsOffset + kSlots * Slot::Bytes(device_count);
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return ErrnoStatus(absl::StrCat("ftruncate ", fresh));
  }
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return ErrnoStatus(absl::StrCat("mmap ", fresh));
  auto ledger = std::unique_ptr<LeaseLedger>(
      new LeaseLedger(std::move(fd), static_cast<char*>(memory), bytes, device_count));
  Header* header = new (memory) Header;
  header->version = kVersion;
  header->device_count = static_cast<uint32_t>(device_count);
  header->boot_id = ReadBootId();
  header->limit_bytes.store(limit_bytes);
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  const int result = pthread_mutex_init(&header->mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
  if (result != 0) {
    return absl::InternalError(absl::StrCat("pthread_mutex_init: ", strerrordesc_np(result)));
  }
  header->magic = kMagic;
  if (rename(fresh.c_str(), path.c_str()) != 0) {
    return ErrnoStatus(absl::StrCat("rename ", fresh, " to ", path));
  }
  return ledger;
}

absl::StatusOr<std::unique_ptr<LeaseLedger>> LeaseLedger::Map(UniqueFd fd) {
  struct stat file;
  if (fstat(fd.get(), &file) != 0) return ErrnoStatus("fstat of a ledger");
  if (!S_ISREG(file.st_mode) || file.st_size < static_cast<off_t>(kSlotsOffset)) {
    return absl::InvalidArgumentError("the ledger's file is too short");
  }
  const size_t bytes = static_cast<size_t>(file.st_size);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return ErrnoStatus("mmap of a ledger");
  const Header* header = static_cast<const Header*>(memory);
  const uint32_t device_count = header->device_count;
  const bool valid = header->magic == kMagic && header->version == kVersion && device_count >= 1 &&
                     device_count <= kMaxDevices &&
                     bytes == kSlotsOffset + kSlots * Slot::Bytes(static_cast<int>(device_count));
  if (!valid) {
    munmap(memory, bytes);
    return absl::InvalidArgumentError("the file is no ledger of this version");
  }
  return std::unique_ptr<LeaseLedger>(new LeaseLedger(std::move(fd), static_cast<char*>(memory),
                                                      bytes, static_cast<int>(device_count)));
}

LeaseLedger::~LeaseLedger() {
  // The slot is given back only with everything in it: what is still charged is still held.
  if (own_slot_ >= 0) {
    uint64_t held = 0;
    for (int device = 0; device < device_count_; ++device) {
      held |= slot(own_slot_)->charged[device].load();
    }
    if (held == 0) slot(own_slot_)->pid.store(0);
  }
  munmap(memory_, bytes_);
}

LeaseLedger::Slot* LeaseLedger::slot(int index) const {
  return reinterpret_cast<Slot*>(memory_ + kSlotsOffset +
                                 static_cast<size_t>(index) * Slot::Bytes(device_count_));
}

absl::Status LeaseLedger::Join() {
  Lock lock(&header()->mutex);
  RETURN_IF_ERROR(lock.status());
  if (own_slot_ >= 0) return absl::OkStatus();
  const ProcessId self = ThisProcess();
  for (int pass = 0; pass < 2; ++pass) {
    for (int index = 0; index < kSlots; ++index) {
      Slot* candidate = slot(index);
      if (candidate->pid.load() != 0) continue;
      for (int device = 0; device < device_count_; ++device) candidate->charged[device].store(0);
      candidate->start_time.store(self.start_time);
      candidate->pid.store(self.pid);  // last: from here on the slot counts
      own_slot_ = index;
      return absl::OkStatus();
    }
    SweepDeadLocked();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("the lease has ", kSlots, " sessions already, its limit"));
}

absl::StatusOr<Reservation> LeaseLedger::Reserve(int device, uint64_t bytes) {
  if (device < 0 || device >= device_count_) {
    return absl::InvalidArgumentError(
        absl::StrCat("device ", device, " of a lease of ", device_count_));
  }
  Lock lock(&header()->mutex);
  RETURN_IF_ERROR(lock.status());
  if (own_slot_ < 0) return absl::FailedPreconditionError("this process has not joined the ledger");
  const uint64_t limit = limit_bytes();
  uint64_t used = UsedBytes(device);
  if (SaturatingAdd(used, bytes) > limit) {
    SweepDeadLocked();
    used = UsedBytes(device);
  }
  if (SaturatingAdd(used, bytes) > limit) {
    return absl::ResourceExhaustedError(absl::StrCat("device memory: asked for ", bytes,
                                                     " bytes with ", used, " of the lease's ",
                                                     limit, " in use"));
  }
  slot(own_slot_)->charged[device].fetch_add(bytes);
  return Reservation(this, device, bytes);
}

// Needs no lock: whoever reserves at the same time sees the sum before or after.
void LeaseLedger::Refund(int device, uint64_t bytes) {
  slot(own_slot_)->charged[device].fetch_sub(bytes);
}

std::vector<LeaseLedger::Use> LeaseLedger::Sessions() const {
  std::vector<Use> uses;
  for (int index = 0; index < kSlots; ++index) {
    const Slot* candidate = slot(index);
    if (candidate->pid.load() == 0) continue;
    Use use{.process = candidate->process(), .charged_bytes = {}};
    for (int device = 0; device < device_count_; ++device) {
      use.charged_bytes.push_back(candidate->charged[device].load());
    }
    uses.push_back(std::move(use));
  }
  return uses;
}

uint64_t LeaseLedger::UsedBytes(int device) const {
  uint64_t used = 0;
  for (int index = 0; index < kSlots; ++index) {
    const Slot* candidate = slot(index);
    if (candidate->pid.load() != 0) used = SaturatingAdd(used, candidate->charged[device].load());
  }
  return used;
}

absl::Status LeaseLedger::SweepDead() {
  Lock lock(&header()->mutex);
  RETURN_IF_ERROR(lock.status());
  SweepDeadLocked();
  return absl::OkStatus();
}

void LeaseLedger::SweepDeadLocked() {
  for (int index = 0; index < kSlots; ++index) {
    Slot* candidate = slot(index);
    if (candidate->pid.load() != 0 && !IsAlive(candidate->process())) candidate->pid.store(0);
  }
}

uint64_t LeaseLedger::limit_bytes() const { return header()->limit_bytes.load(); }
void LeaseLedger::SetLimit(uint64_t limit_bytes) { header()->limit_bytes.store(limit_bytes); }

}  // namespace fargpu::memory
