#include "cli/home.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/status_macros.h"

namespace fargpu::cli {
namespace {

constexpr size_t kMaxSmallFile = 64 << 10;

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace

absl::StatusOr<Home> Home::Locate() {
  std::string path = Environment("FARGPU_HOME");
  if (path.empty()) {
    std::string state = Environment("XDG_STATE_HOME");
    if (state.empty()) {
      const std::string home = Environment("HOME");
      if (home.empty()) {
        return absl::FailedPreconditionError(
            "there is no home directory (HOME is not set); set FARGPU_HOME");
      }
      state = home + "/.local/state";
    }
    path = state + "/fargpu";
  }
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  if (error) return absl::FailedPreconditionError(absl::StrCat(path, ": ", error.message()));
  return Home(absolute.lexically_normal().string());
}

absl::Status Home::Make() const {
  std::error_code error;
  const std::filesystem::path path(path_);
  std::filesystem::create_directories(path.parent_path(), error);
  if (!error && mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST) {
    error = std::error_code(errno, std::generic_category());
  }
  if (!error && !std::filesystem::is_directory(path)) {
    error = std::make_error_code(std::errc::not_a_directory);
  }
  if (!error) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot make ", path_, ": ", error.message(),
                                             "; set FARGPU_HOME to another folder"));
}

absl::StatusOr<UniqueFd> Home::Lock() const {
  const std::string path = File("lock");
  UniqueFd lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.valid()) return ErrnoStatus(absl::StrCat("open ", path));
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return ErrnoStatus(absl::StrCat("flock ", path));
    if (absl::Now() >= deadline) {
      return absl::UnavailableError(
          absl::StrCat("another `fargpu up` or `fargpu down` has been at work in ", path_,
                       " for 60 s; end it first"));
    }
    absl::SleepFor(absl::Milliseconds(50));
  }
  return lock;
}

absl::StatusOr<std::string> Home::BrokerAddress() const {
  ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(File("broker.address")));
  const absl::string_view address = absl::StripAsciiWhitespace(text);
  if (address.empty())
    return absl::NotFoundError(absl::StrCat(File("broker.address"), " is empty"));
  return std::string(address);
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path) {
  UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return ErrnoStatus(absl::StrCat("open ", path));
  std::string text(kMaxSmallFile, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t count = read(file.get(), text.data() + size, text.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus(absl::StrCat("read ", path));
    if (count == 0) break;
    size += static_cast<size_t>(count);
  }
  text.resize(size);
  return text;
}

absl::Status WriteFileAtomically(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".new";
  UniqueFd file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file.valid()) return ErrnoStatus(absl::StrCat("open ", temporary));
  RETURN_IF_ERROR(WriteFully(file.get(), text, absl::Now() + absl::Seconds(10)));
  file.reset();
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    return ErrnoStatus(absl::StrCat("rename ", temporary));
  }
  return absl::OkStatus();
}

}  // namespace fargpu::cli
