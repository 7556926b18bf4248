#include "client/cuda/image_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/cuda_error.h"
#include "common/fd.h"

namespace fargpu::client {
namespace {

constexpr off_t kMaxImageFileBytes = off_t{2} << 30;

}  // namespace

absl::StatusOr<std::string> ReadImageFile(const char* fname) {
  UniqueFd fd(open(fname, O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    return CudaError(CUDA_ERROR_FILE_NOT_FOUND, absl::StrCat(fname, " cannot be opened"));
  }
  struct stat info;
  if (fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_size > kMaxImageFileBytes) {
    return CudaError(CUDA_ERROR_INVALID_IMAGE, absl::StrCat(fname, " is no file of an image"));
  }
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  if (!ReadFully(fd.get(), absl::MakeSpan(bytes), absl::InfiniteFuture()).ok()) {
    return CudaError(CUDA_ERROR_INVALID_IMAGE, absl::StrCat(fname, " cannot be read"));
  }
  return bytes;
}

}  // namespace fargpu::client
