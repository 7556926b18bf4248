#include "server/daemon/lease_table.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/fd.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "server/worker/device_list.h"

namespace fargpu::server {
namespace {

constexpr char kLeaseSuffix[] = ".lease";
constexpr char kLedgerSuffix[] = ".ledger";
constexpr size_t kMaxFileBytes = 64 << 10;

// One `key value` a line; `device` once per device.
std::string Format(const Lease& lease) {
  std::string text = absl::StrCat(
      "lease ", ToString(lease.id), "\nsecret ", BytesToHex(lease.secret.bytes), "\nmemory_bytes ",
      lease.memory_bytes, "\ncores_percent ", lease.cores_percent, "\nttl_ms ", lease.ttl_ms, "\n");
  for (const std::string& uuid : lease.device_uuids) absl::StrAppend(&text, "device ", uuid, "\n");
  return text;
}

absl::StatusOr<Lease> Parse(const std::string& text) {
  Lease lease;
  std::istringstream lines(text);
  std::string key, value;
  bool has_id = false, has_secret = false;
  while (lines >> key >> value) {
    if (key == "lease") {
      ASSIGN_OR_RETURN(lease.id, ParseId<LeaseId>(value));
      has_id = true;
    } else if (key == "secret") {
      RETURN_IF_ERROR(HexToBytes(value, absl::MakeSpan(lease.secret.bytes)));
      has_secret = true;
    } else if (key == "memory_bytes") {
      lease.memory_bytes = std::strtoull(value.c_str(), nullptr, 10);
    } else if (key == "cores_percent") {
      lease.cores_percent = static_cast<uint32_t>(std::strtoul(value.c_str(), nullptr, 10));
    } else if (key == "ttl_ms") {
      lease.ttl_ms = std::strtoull(value.c_str(), nullptr, 10);
    } else if (key == "device") {
      lease.device_uuids.push_back(value);
    }
  }
  if (!has_id || !has_secret) return absl::InvalidArgumentError("it lacks an id or a secret");
  return lease;
}

// Written under another name first: a lease's file is whole or not there.
absl::Status WriteFile(const std::string& path, const std::string& text) {
  const std::string fresh = absl::StrCat(path, ".new");
  UniqueFd fd(open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd.valid()) return ErrnoStatus(absl::StrCat("open ", fresh));
  RETURN_IF_ERROR(WriteFully(fd.get(), text, absl::Now() + absl::Seconds(5)));
  if (fsync(fd.get()) != 0) return ErrnoStatus(absl::StrCat("fsync ", fresh));
  if (rename(fresh.c_str(), path.c_str()) != 0) return ErrnoStatus(absl::StrCat("rename ", fresh));
  return absl::OkStatus();
}

absl::Status MakeDirectory(const std::string& path) {
  if (mkdir(path.c_str(), 0700) == 0 || errno == EEXIST) return absl::OkStatus();
  return ErrnoStatus(absl::StrCat("mkdir ", path));
}

const DeviceInfo* FindDevice(const std::vector<DeviceInfo>& devices, const std::string& uuid) {
  const auto found = std::find_if(devices.begin(), devices.end(), [&](const DeviceInfo& device) {
    return UuidText(device) == uuid;
  });
  return found == devices.end() ? nullptr : &*found;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LeaseTable>> LeaseTable::Open(const std::string& directory,
                                                             std::vector<DeviceInfo> devices) {
  RETURN_IF_ERROR(MakeDirectory(directory));
  auto table = std::unique_ptr<LeaseTable>(new LeaseTable(directory, std::move(devices)));
  RETURN_IF_ERROR(table->Load());
  return table;
}

std::string LeaseTable::PathOf(const LeaseId& id, const char* suffix) const {
  return absl::StrCat(directory_, "/", ToString(id), suffix);
}

absl::Status LeaseTable::Load() {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory_, error)) {
    if (entry.path().extension() != kLeaseSuffix) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    std::string text(kMaxFileBytes, '\0');
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<size_t>(file.gcount()));
    absl::StatusOr<Lease> lease = Parse(text);
    absl::Status taken = lease.ok() ? Reserve(*std::move(lease)) : lease.status();
    if (!taken.ok()) {
      FARGPU_LOG(kWarning, "the lease in ", entry.path().string(),
                 " is not taken up: ", std::string(taken.message()));
    }
  }
  if (error) return absl::InternalError(absl::StrCat("read ", directory_, ": ", error.message()));
  return absl::OkStatus();
}

absl::Status LeaseTable::Check(const Lease& lease) const {
  if (lease.device_uuids.empty() ||
      lease.device_uuids.size() > static_cast<size_t>(memory::LeaseLedger::kMaxDevices)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a lease of ", lease.device_uuids.size(), " devices; 1 to ",
                     memory::LeaseLedger::kMaxDevices, " are possible"));
  }
  if (lease.memory_bytes == 0 || lease.cores_percent < 1 || lease.cores_percent > 100) {
    return absl::InvalidArgumentError(absl::StrCat("a lease of ", lease.memory_bytes, " bytes and ",
                                                   lease.cores_percent, " per cent"));
  }
  for (const std::string& uuid : lease.device_uuids) {
    const DeviceInfo* device = FindDevice(devices_, uuid);
    if (device == nullptr)
      return absl::NotFoundError(absl::StrCat("this node has no device ", uuid));
    if (std::count(lease.device_uuids.begin(), lease.device_uuids.end(), uuid) > 1) {
      return absl::InvalidArgumentError(absl::StrCat("device ", uuid, " is named twice"));
    }
    uint64_t lent = 0;
    for (const auto& [id, other] : leases_) {
      for (const std::string& other_uuid : other->device_uuids) {
        if (other_uuid == uuid) lent += other->memory_bytes;
      }
    }
    const uint64_t total = device->total_memory_bytes;
    if (lent > total || lease.memory_bytes > total - lent) {
      return absl::ResourceExhaustedError(absl::StrCat("device ", uuid, ": ", lease.memory_bytes,
                                                       " bytes are asked for, ", lent, " of ",
                                                       total, " are lent"));
    }
  }
  return absl::OkStatus();
}

absl::Status LeaseTable::Reserve(Lease lease) {
  MutexLock lock(&mutex_);
  if (leases_.count(lease.id) != 0) return absl::OkStatus();
  RETURN_IF_ERROR(Check(lease));
  RETURN_IF_ERROR(MakeDirectory(directory_));  // somebody may have cleaned up too well
  ASSIGN_OR_RETURN(
      lease.ledger,
      memory::LeaseLedger::Create(PathOf(lease.id, kLedgerSuffix),
                                  static_cast<int>(lease.device_uuids.size()), lease.memory_bytes));
  RETURN_IF_ERROR(WriteFile(PathOf(lease.id, kLeaseSuffix), Format(lease)));
  const LeaseId id = lease.id;
  leases_[id] = std::make_shared<const Lease>(std::move(lease));
  return absl::OkStatus();
}

bool LeaseTable::Release(const LeaseId& id) {
  MutexLock lock(&mutex_);
  if (leases_.erase(id) == 0) return false;
  unlink(PathOf(id, kLeaseSuffix).c_str());
  unlink(PathOf(id, kLedgerSuffix).c_str());
  return true;
}

std::shared_ptr<const Lease> LeaseTable::Find(const LeaseId& id) const {
  MutexLock lock(&mutex_);
  const auto found = leases_.find(id);
  return found == leases_.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<const Lease>> LeaseTable::All() const {
  MutexLock lock(&mutex_);
  std::vector<std::shared_ptr<const Lease>> all;
  for (const auto& [id, lease] : leases_) all.push_back(lease);
  return all;
}

std::vector<DeviceInfo> LeaseTable::DevicesOf(const Lease& lease) const {
  std::vector<DeviceInfo> result;
  for (const std::string& uuid : lease.device_uuids) {
    if (const DeviceInfo* device = FindDevice(devices_, uuid)) result.push_back(*device);
  }
  return result;
}

}  // namespace fargpu::server
