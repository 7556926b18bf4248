#include "transport/ucx/ucx_library.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "common/log.h"
#include "common/mutex.h"

namespace fargpu::transport {
namespace {

// Read by UCX's constructors, so they must be there while it is loaded and may go afterwards.
constexpr std::pair<const char*, const char*> kEnvironment[] = {
    {"UCX_HANDLE_ERRORS", "none"},  // no handlers for SIGSEGV and the like: the program has its own
    {"UCX_ERROR_SIGNALS", ""},
    {"UCX_DEBUG_SIGNO", "0"},  // nor one for SIGHUP, which must end a program as it always did
    {"UCX_MEM_EVENTS", "n"},   // no patching of mmap, munmap...
    {"UCX_MEM_MMAP_HOOK_MODE", "none"},
    {"UCX_VFS_ENABLE", "n"},  // no extra thread before a worker exists
    {"UCX_WARN_UNUSED_ENV_VARS", "n"},
    {"UCX_LOG_LEVEL", "fatal"},  // prints nothing: errors come back as codes
};

// Sets variables and puts back what was there.
class ScopedEnvironment {
 public:
  ScopedEnvironment() {
    for (const auto& [name, value] : kEnvironment) {
      const char* before = std::getenv(name);
      saved_.push_back(before == nullptr ? std::nullopt : std::optional<std::string>(before));
      setenv(name, value, /*overwrite=*/1);
    }
  }
  ~ScopedEnvironment() {
    for (size_t i = 0; i < saved_.size(); ++i) {
      if (saved_[i].has_value()) {
        setenv(kEnvironment[i].first, saved_[i]->c_str(), /*overwrite=*/1);
      } else {
        unsetenv(kEnvironment[i].first);
      }
    }
  }

 private:
  std::vector<std::optional<std::string>> saved_;
};

absl::StatusOr<const UcxLibrary*> Load() {
  const char* chosen = std::getenv("FARGPU_UCX_LIBRARY");
  const char* name = chosen != nullptr && chosen[0] != '\0' ? chosen : "libucp.so.0";
  DescriptorSweep sweep;
  void* handle = nullptr;
  {
    ScopedEnvironment environment;
    handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  }
  if (handle == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("cannot load UCX: ", dlerror()));
  }
  std::vector<DescriptorSweep::Entry> opened;
  sweep.TakeInto(&opened);

  auto library = std::make_unique<UcxLibrary>();
  const char* missing = nullptr;
  const auto find = [&](auto* function, const char* symbol) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(handle, symbol));
    if (*function == nullptr) missing = symbol;
  };
  find(&library->get_version, "ucp_get_version");
  find(&library->config_read, "ucp_config_read");
  find(&library->config_modify, "ucp_config_modify");
  find(&library->config_release, "ucp_config_release");
  find(&library->init_version, "ucp_init_version");
  find(&library->cleanup, "ucp_cleanup");
  find(&library->worker_create, "ucp_worker_create");
  find(&library->worker_destroy, "ucp_worker_destroy");
  find(&library->worker_query, "ucp_worker_query");
  find(&library->worker_release_address, "ucp_worker_release_address");
  find(&library->worker_get_efd, "ucp_worker_get_efd");
  find(&library->worker_arm, "ucp_worker_arm");
  find(&library->worker_progress, "ucp_worker_progress");
  find(&library->worker_set_am_recv_handler, "ucp_worker_set_am_recv_handler");
  find(&library->ep_create, "ucp_ep_create");
  find(&library->ep_close_nbx, "ucp_ep_close_nbx");
  find(&library->ep_flush_nbx, "ucp_ep_flush_nbx");
  find(&library->ep_print_info, "ucp_ep_print_info");
  find(&library->am_send_nbx, "ucp_am_send_nbx");
  find(&library->am_recv_data_nbx, "ucp_am_recv_data_nbx");
  find(&library->am_data_release, "ucp_am_data_release");
  find(&library->request_check_status, "ucp_request_check_status");
  find(&library->request_free, "ucp_request_free");
  // In libucs, which libucp needs: dlsym on the handle searches that too.
  find(&library->status_string, "ucs_status_string");
  if (missing != nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(name, " has no function ", missing));
  }
  unsigned major = 0, minor = 0, release = 0;
  library->get_version(&major, &minor, &release);
  if (major != 1 || minor < 13) {
    return absl::FailedPreconditionError(absl::StrCat("UCX ", major, ".", minor, ".", release,
                                                      " is not supported; 1.13 or later 1.x is"));
  }
  FARGPU_LOG(kDebug, "UCX ", major, ".", minor, ".", release, " loaded from ", name);
  return library.release();  // for the life of the process
}

std::vector<int> OpenDescriptors() {
  std::vector<int> result;
  DIR* folder = opendir("/proc/self/fd");
  if (folder == nullptr) return result;
  while (const dirent* entry = readdir(folder)) {
    if (entry->d_name[0] == '.') continue;
    const int fd = std::atoi(entry->d_name);
    if (fd != dirfd(folder)) result.push_back(fd);
  }
  closedir(folder);
  std::sort(result.begin(), result.end());
  return result;
}

bool CouldBeOfUcx(int fd) {
  char target[256];
  const ssize_t size =
      readlink(absl::StrCat("/proc/self/fd/", fd).c_str(), target, sizeof(target) - 1);
  if (size <= 0) return false;
  const absl::string_view name(target, static_cast<size_t>(size));
  return absl::StartsWith(name, "socket:") || absl::StartsWith(name, "anon_inode:[event") ||
         absl::StartsWith(name, "anon_inode:[timerfd") || absl::StartsWith(name, "pipe:");
}

// -1 for what is no internet socket.
int LocalPort(int fd) {
  sockaddr_storage local = {};
  socklen_t size = sizeof(local);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) != 0) return -1;
  if (local.ss_family == AF_INET) return reinterpret_cast<sockaddr_in*>(&local)->sin_port;
  if (local.ss_family == AF_INET6) return reinterpret_cast<sockaddr_in6*>(&local)->sin6_port;
  return -1;
}

}  // namespace

absl::StatusOr<const UcxLibrary*> LoadUcx() {
  static Mutex* const mutex = new Mutex;
  static absl::StatusOr<const UcxLibrary*>* answer = nullptr;
  MutexLock lock(mutex);
  if (answer == nullptr) answer = new absl::StatusOr<const UcxLibrary*>(Load());
  return *answer;
}

DescriptorSweep::DescriptorSweep() : before_(OpenDescriptors()) {}

template <typename Predicate>
void DescriptorSweep::TakeIf(Predicate predicate, std::vector<Entry>* entries) const {
  for (const int fd : OpenDescriptors()) {
    if (std::binary_search(before_.begin(), before_.end(), fd)) continue;
    const int flags = fcntl(fd, F_GETFD);
    struct stat info;
    if (flags < 0 || (flags & FD_CLOEXEC) != 0 || !predicate(fd)) continue;
    if (fstat(fd, &info) != 0) continue;
    fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
    entries->push_back({.fd = fd, .device = info.st_dev, .inode = info.st_ino});
  }
}

void DescriptorSweep::TakeInto(std::vector<Entry>* entries) const { TakeIf(CouldBeOfUcx, entries); }

void DescriptorSweep::TakeAcceptedInto(std::vector<Entry>* entries) const {
  std::vector<int> ports;
  for (const Entry& entry : *entries) {
    int listens = 0;
    socklen_t size = sizeof(listens);
    if (getsockopt(entry.fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0) continue;
    if (listens != 0) ports.push_back(LocalPort(entry.fd));
  }
  TakeIf(
      [&](int fd) {
        const int port = LocalPort(fd);
        return port > 0 && std::find(ports.begin(), ports.end(), port) != ports.end();
      },
      entries);
}

bool DescriptorSweep::Entry::IsStillOpen() const {
  struct stat info;
  return fstat(fd, &info) == 0 && info.st_dev == device && info.st_ino == inode;
}

}  // namespace fargpu::transport
