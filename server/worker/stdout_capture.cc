#include "server/worker/stdout_capture.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <utility>

#include "common/log.h"

namespace fargpu::server {
namespace {

constexpr int kPipeBytes = 1 << 20;  // what a kernel's printf buffer holds by default

}  // namespace

absl::StatusOr<std::unique_ptr<StdoutCapture>> StdoutCapture::Start() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus("pipe2");
  UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  fcntl(ends[1], F_SETPIPE_SZ, kPipeBytes);  // smaller will do too
  // Only this end: the driver's end blocks, as a terminal's would.
  if (fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0) return ErrnoStatus("fcntl of a pipe");
  if (dup2(ends[1], STDOUT_FILENO) < 0) return ErrnoStatus("dup2 of a pipe to stdout");
  auto capture = std::unique_ptr<StdoutCapture>(new StdoutCapture(std::move(read_end)));
  capture->stop_.reset(eventfd(0, EFD_CLOEXEC));
  if (!capture->stop_.valid()) return ErrnoStatus("eventfd");
  StdoutCapture* self = capture.get();
  capture->reader_ = std::thread([self] { self->Run(); });
  return capture;
}

StdoutCapture::~StdoutCapture() {
  const uint64_t one = 1;
  if (write(stop_.get(), &one, sizeof(one)) < 0) FARGPU_LOG(kError, "an eventfd cannot be written");
  reader_.join();
}

std::string StdoutCapture::Take() {
  std::fflush(stdout);
  MutexLock lock(&mutex_);
  ReadAvailable();
  return std::exchange(text_, std::string());
}

void StdoutCapture::ReadAvailable() {
  char buffer[65536];
  while (true) {
    const ssize_t size = read(pipe_.get(), buffer, sizeof(buffer));
    if (size <= 0) return;
    if (text_.size() + static_cast<size_t>(size) <= kMaxBytes) {
      text_.append(buffer, static_cast<size_t>(size));
    }
  }
}

void StdoutCapture::Run() {
  while (true) {
    pollfd items[2] = {{.fd = pipe_.get(), .events = POLLIN, .revents = 0},
                       {.fd = stop_.get(), .events = POLLIN, .revents = 0}};
    if (poll(items, 2, -1) < 0) continue;
    if (items[1].revents != 0) return;
    MutexLock lock(&mutex_);
    ReadAvailable();
  }
}

}  // namespace fargpu::server
