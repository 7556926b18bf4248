#pragma once

#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

#include "common/fd.h"
#include "common/mutex.h"

namespace fargpu::server {

// Drivers write what kernels print to the stdout of their process. In a worker that is a pipe,
// whose other end is here, so that the text can go to the client. Text that nobody takes is kept up
// to a limit and then dropped; the driver never blocks for long.
class StdoutCapture {
 public:
  static constexpr size_t kMaxBytes = 64 << 20;

  // Puts a pipe in the place of descriptor 1. Once per process, before the driver is loaded.
  static absl::StatusOr<std::unique_ptr<StdoutCapture>> Start();
  ~StdoutCapture();

  // All that was printed until now. Any thread.
  std::string Take();

 private:
  explicit StdoutCapture(UniqueFd pipe) : pipe_(std::move(pipe)) {}
  void ReadAvailable() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Run();

  const UniqueFd pipe_;
  UniqueFd stop_;
  Mutex mutex_;
  std::string text_ ABSL_GUARDED_BY(mutex_);
  std::thread reader_;
};

}  // namespace fargpu::server
