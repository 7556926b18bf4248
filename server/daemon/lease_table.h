#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/ids.h"
#include "common/mutex.h"
#include "memory/lease_ledger.h"
#include "protocol/handshake.h"

namespace fargpu::server {

// A lease as the broker gave it to this node. Does not change; its ledger does.
struct Lease {
  LeaseId id;
  LeaseSecret secret;
  std::vector<std::string> device_uuids;  // in the program's order
  uint64_t memory_bytes = 0;              // of each device
  uint32_t cores_percent = 100;           // of each device
  uint64_t ttl_ms = 0;
  // Shared with whoever looks at the lease while it is released.
  std::shared_ptr<memory::LeaseLedger> ledger;
};

// The leases that this node holds, each also a file in the run directory, so that a daemon that
// starts knows at once what its predecessor held. Thread-safe.
class LeaseTable {
 public:
  // `directory` is made if it is not there; what is in it is taken up. Files that make no sense, or
  // name devices that are gone, are logged and left out.
  static absl::StatusOr<std::unique_ptr<LeaseTable>> Open(const std::string& directory,
                                                          std::vector<DeviceInfo> devices);

  // Holds a lease; `lease.ledger` is made here. A lease that is held already stays as it is.
  // kNotFound: no such device; kResourceExhausted: it has not so much left; kInvalidArgument.
  absl::Status Reserve(Lease lease);
  // False if it was not held.
  bool Release(const LeaseId& id);

  std::shared_ptr<const Lease> Find(const LeaseId& id) const;  // nullptr if it is not held
  std::vector<std::shared_ptr<const Lease>> All() const;       // shared as above

  const std::vector<DeviceInfo>& devices() const { return devices_; }
  // In the lease's order.
  std::vector<DeviceInfo> DevicesOf(const Lease& lease) const;

 private:
  LeaseTable(std::string directory, std::vector<DeviceInfo> devices)
      : directory_(std::move(directory)), devices_(std::move(devices)) {}
  absl::Status Check(const Lease& lease) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Load();
  std::string PathOf(const LeaseId& id, const char* suffix) const;

  const std::string directory_;
  const std::vector<DeviceInfo> devices_;
  mutable Mutex mutex_;
  std::map<LeaseId, std::shared_ptr<const Lease>> leases_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fargpu::server
