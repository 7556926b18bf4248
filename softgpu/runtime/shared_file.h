#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

#include "common/fd.h"

// Files in memory that processes of one user share: how memory and events cross between them.
namespace fargpu::softgpu {

// Names a file of another process, in the 64 bytes of cuda.h's handles. The number keeps a
// descriptor that was closed and used anew from being taken for the old one.
struct SharedFileName {
  uint32_t magic = 0x46475348;
  int32_t pid = 0;
  int32_t fd = 0;
  int32_t device = 0;
  uint64_t number = 0;
  uint64_t offset = 0;  // of what is meant
  uint64_t size = 0;    // of what is meant
  uint64_t file_size = 0;
};
static_assert(sizeof(SharedFileName) <= 64);

struct SharedFile {
  UniqueFd fd;
  uint64_t number = 0;
};

// A new file of `size` zeroed bytes, for memory of that device.
absl::StatusOr<SharedFile> CreateSharedFile(uint64_t size, int device);
// The file that a name means. kNotFound if it is no more, or belongs to a process that we cannot
// look into.
absl::StatusOr<UniqueFd> OpenSharedFile(const SharedFileName& name);
// The device that a descriptor of such a file (perhaps made by another process) belongs to;
// kInvalidArgument if it is none.
absl::StatusOr<int> DeviceOfSharedFile(int fd);

}  // namespace fargpu::softgpu
