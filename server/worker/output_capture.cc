#include "server/worker/output_capture.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <utility>

#include "common/log.h"
#include "common/status_macros.h"

namespace fargpu::server {
namespace {

constexpr int kPipeBytes = 1 << 20;  // what a kernel's printf buffer holds by default

absl::Status OpenPipe(UniqueFd* read_end, UniqueFd* write_end) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus("pipe2");
  read_end->reset(ends[0]);
  write_end->reset(ends[1]);
  fcntl(ends[1], F_SETPIPE_SZ, kPipeBytes);  // smaller will do too
  // Only this end: the driver's end blocks, as a terminal's would.
  if (fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0) return ErrnoStatus("fcntl of a pipe");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<OutputCapture>> OutputCapture::Start() {
  auto capture = std::unique_ptr<OutputCapture>(new OutputCapture());
  UniqueFd out_writer;
  RETURN_IF_ERROR(OpenPipe(&capture->out_, &out_writer));
  RETURN_IF_ERROR(OpenPipe(&capture->error_, &capture->error_writer_));
  if (dup2(out_writer.get(), STDOUT_FILENO) < 0) return ErrnoStatus("dup2 of a pipe to stdout");
  capture->stop_.reset(eventfd(0, EFD_CLOEXEC));
  if (!capture->stop_.valid()) return ErrnoStatus("eventfd");
  OutputCapture* self = capture.get();
  capture->reader_ = std::thread([self] { self->Run(); });
  return capture;
}

OutputCapture::~OutputCapture() {
  const uint64_t one = 1;
  if (write(stop_.get(), &one, sizeof(one)) < 0) FARGPU_LOG(kError, "an eventfd cannot be written");
  reader_.join();
}

absl::Status OutputCapture::CaptureErrors() {
  std::FILE* const file = fdopen(error_writer_.get(), "w");
  if (file == nullptr) return ErrnoStatus("fdopen of a pipe");
  error_writer_.release();
  std::setvbuf(file, nullptr, _IONBF, 0);
  stderr = file;
  return absl::OkStatus();
}

PrintedText OutputCapture::Take() {
  std::fflush(stdout);
  MutexLock lock(&mutex_);
  Read(out_.get(), &text_.out);
  Read(error_.get(), &text_.error);
  return std::exchange(text_, PrintedText());
}

void OutputCapture::Read(int fd, std::string* text) {
  char buffer[65536];
  while (true) {
    const ssize_t size = read(fd, buffer, sizeof(buffer));
    if (size <= 0) return;
    if (text->size() + static_cast<size_t>(size) <= kMaxBytes) {
      text->append(buffer, static_cast<size_t>(size));
    }
  }
}

void OutputCapture::Run() {
  while (true) {
    pollfd items[3] = {{.fd = out_.get(), .events = POLLIN, .revents = 0},
                       {.fd = error_.get(), .events = POLLIN, .revents = 0},
                       {.fd = stop_.get(), .events = POLLIN, .revents = 0}};
    if (poll(items, 3, -1) < 0) continue;
    if (items[2].revents != 0) return;
    MutexLock lock(&mutex_);
    Read(out_.get(), &text_.out);
    Read(error_.get(), &text_.error);
  }
}

}  // namespace fargpu::server
