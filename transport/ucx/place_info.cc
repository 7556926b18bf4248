#include "transport/ucx/place_info.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/types/span.h"

#include "common/fd.h"
#include "common/ids.h"

namespace fargpu::transport {
namespace {

constexpr uint32_t kVersion = 1;

uint64_t Inode(const char* path) {
  struct stat info;
  return stat(path, &info) == 0 ? info.st_ino : 0;
}

template <typename T>
void Put(std::string* out, const T& value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}
template <typename T>
void Get(const char** at, T* value) {
  std::memcpy(value, *at, sizeof(*value));
  *at += sizeof(*value);
}

}  // namespace

PlaceInfo PlaceInfo::Local() {
  PlaceInfo place;
  UniqueFd file(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  char text[36];  // 8-4-4-4-12 hex digits
  if (!file.valid() || read(file.get(), text, sizeof(text)) != sizeof(text)) return place;
  const std::string hex = absl::StrReplaceAll(absl::string_view(text, sizeof(text)), {{"-", ""}});
  if (!HexToBytes(hex, absl::MakeSpan(place.boot_id)).ok()) return PlaceInfo();
  place.uid = geteuid();
  place.ipc_namespace = Inode("/proc/self/ns/ipc");
  place.pid_namespace = Inode("/proc/self/ns/pid");
  return place;
}

std::string EncodePlaceInfo(const PlaceInfo& place) {
  std::string out;
  Put(&out, kVersion);
  Put(&out, place.uid);
  Put(&out, place.boot_id);
  Put(&out, place.ipc_namespace);
  Put(&out, place.pid_namespace);
  return out;
}

absl::StatusOr<PlaceInfo> DecodePlaceInfo(absl::string_view bytes) {
  if (bytes.size() != kPlaceInfoBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a place is ", kPlaceInfoBytes, " bytes long, not ", bytes.size()));
  }
  const char* at = bytes.data();
  uint32_t version = 0;
  Get(&at, &version);
  if (version != kVersion) {
    return absl::InvalidArgumentError(absl::StrCat("unknown version ", version, " of a place"));
  }
  PlaceInfo place;
  Get(&at, &place.uid);
  Get(&at, &place.boot_id);
  Get(&at, &place.ipc_namespace);
  Get(&at, &place.pid_namespace);
  return place;
}

absl::Status SharedMemoryIsPossible(const PlaceInfo& a, const PlaceInfo& b) {
  if (a.boot_id != b.boot_id || a.boot_id == PlaceInfo().boot_id) {
    return absl::FailedPreconditionError("they run on different machines");
  }
  if (a.uid != b.uid) {
    return absl::FailedPreconditionError(
        absl::StrCat("they run as different users, ", a.uid, " and ", b.uid));
  }
  if (a.ipc_namespace != b.ipc_namespace || a.ipc_namespace == 0) {
    return absl::FailedPreconditionError("they are in different IPC namespaces");
  }
  if (a.pid_namespace != b.pid_namespace || a.pid_namespace == 0) {
    return absl::FailedPreconditionError("they are in different PID namespaces");
  }
  return absl::OkStatus();
}

}  // namespace fargpu::transport
