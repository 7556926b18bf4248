#include "softgpu/runtime/shared_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <cstdio>

#include "absl/strings/str_cat.h"

#include "common/status_macros.h"

namespace fargpu::softgpu {
namespace {

std::string LinkOf(const std::string& path) {
  char target[256];
  const ssize_t length = readlink(path.c_str(), target, sizeof(target));
  return length <= 0 ? "" : std::string(target, static_cast<size_t>(length));
}

std::string FileName(int device, uint64_t number) {
  return absl::StrCat("fargpu-softgpu-", device, "-", absl::Hex(number, absl::kZeroPad16));
}

}  // namespace

absl::StatusOr<SharedFile> CreateSharedFile(uint64_t size, int device) {
  SharedFile file;
  if (getrandom(&file.number, sizeof(file.number), 0) != sizeof(file.number)) {
    return ErrnoStatus("getrandom");
  }
  file.fd = UniqueFd(memfd_create(FileName(device, file.number).c_str(), MFD_CLOEXEC));
  if (!file.fd.valid() || ftruncate(file.fd.get(), static_cast<off_t>(size)) != 0) {
    return ErrnoStatus(absl::StrCat("a file in memory of ", size, " bytes"));
  }
  return file;
}

absl::StatusOr<UniqueFd> OpenSharedFile(const SharedFileName& name) {
  const std::string path = absl::StrCat("/proc/", name.pid, "/fd/", name.fd);
  const std::string wanted =
      absl::StrCat("/memfd:", FileName(name.device, name.number), " (deleted)");
  if (name.magic != SharedFileName{}.magic || LinkOf(path) != wanted) {
    return absl::NotFoundError(absl::StrCat("process ", name.pid, " shares no such memory"));
  }
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!fd.valid()) return absl::NotFoundError(ErrnoStatus(path).message());
  return fd;
}

absl::StatusOr<int> DeviceOfSharedFile(int fd) {
  int device = -1;
  unsigned long long number = 0;
  const std::string link = LinkOf(absl::StrCat("/proc/self/fd/", fd));
  if (std::sscanf(link.c_str(), "/memfd:fargpu-softgpu-%d-%llx", &device, &number) != 2) {
    return absl::InvalidArgumentError(absl::StrCat("descriptor ", fd, " is not shared memory"));
  }
  return device;
}

}  // namespace fargpu::softgpu
