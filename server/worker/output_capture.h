#pragma once

#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

#include "common/fd.h"
#include "common/mutex.h"
#include "server/worker/session.h"

namespace fargpu::server {

// Drivers write what kernels print to the stdout and stderr of their process. In a worker these are
// pipes, whose other ends are here, so that the text can go to the client. Text that nobody takes
// is kept up to a limit and then dropped; the driver never blocks for long.
class OutputCapture {
 public:
  static constexpr size_t kMaxBytes = 64 << 20;  // of each

  // Puts a pipe in the place of descriptor 1. Once per process, before the driver is loaded.
  static absl::StatusOr<std::unique_ptr<OutputCapture>> Start();
  ~OutputCapture();

  // From now on what is written to the C library's `stderr` is kept too; before, a driver tells the
  // daemon's log why it does not start. Descriptor 2 stays what it is: the log, and the last words
  // of a C library or compiler that gives up. When the log has been set up, and a session begins.
  absl::Status CaptureErrors();

  // All that was printed until now. Any thread.
  PrintedText Take();

 private:
  OutputCapture() = default;
  void Read(int fd, std::string* text) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run();

  UniqueFd out_, error_, error_writer_, stop_;
  Mutex mutex_;
  PrintedText text_ ABSL_GUARDED_BY(mutex_);
  std::thread reader_;
};

}  // namespace fargpu::server
