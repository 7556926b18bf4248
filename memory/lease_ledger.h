#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/fd.h"
#include "memory/process_id.h"

namespace fargpu::memory {

class LeaseLedger;

// Bytes charged to a lease. Refunds them when destroyed.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept
      : ledger_(std::exchange(other.ledger_, nullptr)),
        device_(other.device_),
        bytes_(other.bytes_) {}
  Reservation& operator=(Reservation&& other) noexcept {
    if (this != &other) {
      Refund();
      ledger_ = std::exchange(other.ledger_, nullptr);
      device_ = other.device_;
      bytes_ = other.bytes_;
    }
    return *this;
  }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  ~Reservation() { Refund(); }

  uint64_t bytes() const { return ledger_ != nullptr ? bytes_ : 0; }
  void Refund();

 private:
  friend class LeaseLedger;
  Reservation(LeaseLedger* ledger, int device, uint64_t bytes)
      : ledger_(ledger), device_(device), bytes_(bytes) {}

  LeaseLedger* ledger_ = nullptr;
  int device_ = 0;
  uint64_t bytes_ = 0;
};

// Who holds how much device memory under one lease: a file that the daemon and all workers of the
// lease map. There is no total anywhere: the sum over the slots of living processes is the truth,
// so a process may be killed at any instruction without the ledger becoming wrong, and a new daemon
// finds it right.
//
// Any thread of any process that has it open may call anything.
class LeaseLedger {
 public:
  static constexpr int kMaxDevices = 64;
  static constexpr int kSlots = 256;  // sessions that one lease can have at a time

  // For the daemon: opens the ledger at `path`, or makes one if there is none that fits (another
  // number of devices, another version, written before the last boot). The limit is per device.
  static absl::StatusOr<std::unique_ptr<LeaseLedger>> Create(const std::string& path,
                                                             int device_count,
                                                             uint64_t limit_bytes);
  // For a worker: maps what the daemon made. kInvalidArgument if `fd` is no ledger.
  static absl::StatusOr<std::unique_ptr<LeaseLedger>> Map(UniqueFd fd);
  ~LeaseLedger();
  LeaseLedger(const LeaseLedger&) = delete;
  LeaseLedger& operator=(const LeaseLedger&) = delete;

  // Takes a slot for this process. kResourceExhausted when the lease has kSlots live sessions.
  absl::Status Join();

  // Charges `bytes` on `device` to this process. kResourceExhausted, naming what was asked for,
  // what is in use and the limit, when the sum over all living processes would go over the limit.
  absl::StatusOr<Reservation> Reserve(int device, uint64_t bytes);

  struct Use {
    ProcessId process;
    std::vector<uint64_t> charged_bytes;  // per device
  };
  // Slots that are taken, dead processes included until they are swept.
  std::vector<Use> Sessions() const;
  uint64_t UsedBytes(int device) const;
  // Frees the slots of processes that are gone.
  absl::Status SweepDead();

  int device_count() const { return device_count_; }
  uint64_t limit_bytes() const;
  void SetLimit(uint64_t limit_bytes);
  int fd() const { return fd_.get(); }

 private:
  friend class Reservation;
  struct Header;
  struct Slot;
  class Lock;

  LeaseLedger(UniqueFd fd, char* memory, size_t bytes, int device_count)
      : fd_(std::move(fd)), memory_(memory), bytes_(bytes), device_count_(device_count) {}

  Header* header() const { return reinterpret_cast<Header*>(memory_); }
  Slot* slot(int index) const;
  void Refund(int device, uint64_t bytes);
  void SweepDeadLocked();

  const UniqueFd fd_;
  char* const memory_;
  const size_t bytes_;
  // Read once and checked: what is mapped can be written by every worker of the lease.
  const int device_count_;
  int own_slot_ = -1;
};

}  // namespace fargpu::memory
