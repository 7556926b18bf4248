#include "client/cuda/lazy_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"

namespace fargpu::client {
namespace {

constexpr size_t kSendBytes = 1 << 20;

}  // namespace

absl::StatusOr<std::shared_ptr<LazyPages>> LazyPages::Create(uintptr_t view, size_t bytes) {
  UniqueFd fd(memfd_create("fargpu-managed", MFD_CLOEXEC));
  if (!fd.valid() || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return CudaError(CUDA_ERROR_OUT_OF_MEMORY, ErrnoStatus("memfd of managed memory").message());
  }
  void* own = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (own == MAP_FAILED) {
    return CudaError(CUDA_ERROR_OUT_OF_MEMORY, ErrnoStatus("mmap of managed memory").message());
  }
  void* wanted = reinterpret_cast<void*>(view);
  if (mmap(wanted, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd.get(),
           0) == MAP_FAILED) {
    munmap(own, bytes);
    return CudaError(CUDA_ERROR_OUT_OF_MEMORY, ErrnoStatus("mmap of managed memory").message());
  }
  // A child of the program has no card, and must not write into its parent's memory.
  for (void* mapping : {own, wanted}) {
    madvise(mapping, bytes, MADV_DONTFORK);
    madvise(mapping, bytes, MADV_DONTDUMP);
  }
  return std::shared_ptr<LazyPages>(
      new LazyPages(view, bytes, static_cast<char*>(own), std::move(fd)));
}

LazyPages::LazyPages(uintptr_t view, size_t bytes, char* own, UniqueFd fd)
    : view_(view), pages_(bytes / kPage), own_(own), fd_(std::move(fd)) {}

// What is at the view is its owner's business.
LazyPages::~LazyPages() { munmap(own_, pages_ * kPage); }

bool LazyPages::Protect(Run run, int protection) {
  return mprotect(reinterpret_cast<void*>(view_ + run.first * kPage),
                  (run.second - run.first) * kPage, protection) == 0;
}

absl::Status LazyPages::SendRun(Run run, Send send) {
  for (size_t at = run.first * kPage; at < run.second * kPage; at += kSendBytes) {
    RETURN_IF_ERROR(send(at, At(at, std::min(kSendBytes, run.second * kPage - at))));
  }
  return absl::OkStatus();
}

// Pages of the file that are there are those that the program has touched.
absl::Status LazyPages::FlushTouched(Send send) {
  const UniqueFd fd = std::move(fd_);
  states_.assign(pages_, State::kClean);
  accessible_ = {{0, pages_}};
  if (!Protect({0, pages_}, PROT_READ)) {
    return CudaError(CUDA_ERROR_OUT_OF_MEMORY, ErrnoStatus("mprotect").message());
  }
  const auto end = static_cast<off_t>(pages_ * kPage);
  off_t at = lseek(fd.get(), 0, SEEK_DATA);
  while (at >= 0 && at < end) {
    off_t hole = lseek(fd.get(), at, SEEK_HOLE);
    if (hole < 0) hole = end;
    const size_t first = static_cast<size_t>(at) / kPage;
    RETURN_IF_ERROR(SendRun({first, (static_cast<size_t>(hole) + kPage - 1) / kPage}, send));
    at = lseek(fd.get(), hole, SEEK_DATA);
  }
  return absl::OkStatus();
}

absl::Status LazyPages::Flush(Send send) {
  if (fd_.valid()) return FlushTouched(send);
  if (dirty_.empty()) return absl::OkStatus();
  std::vector<Run> dirty = std::move(dirty_);
  dirty_.clear();
  std::sort(dirty.begin(), dirty.end());
  // Protected first: what is written from here on is seen as written.
  bool collapse = false;
  for (const Run& run : dirty) collapse = collapse || !Protect(run, PROT_READ);
  if (collapse) Protect({0, pages_}, PROT_NONE);
  for (const Run& run : dirty) {
    std::fill(states_.begin() + static_cast<ptrdiff_t>(run.first),
              states_.begin() + static_cast<ptrdiff_t>(run.second), State::kClean);
    RETURN_IF_ERROR(SendRun(run, send));
  }
  if (collapse) Collapse();
  return absl::OkStatus();
}

bool LazyPages::Invalidate() {
  if (fd_.valid()) return true;
  ++epoch_;
  std::vector<Run> kept;
  for (const Run& run : accessible_) {
    size_t page = run.first;
    while (page < run.second) {
      const State state = states_[page];
      size_t end = page + 1;
      while (end < run.second && states_[end] == state) ++end;
      if (state == State::kDirty) {
        kept.push_back({page, end});
      } else if (state == State::kClean) {
        if (!Protect({page, end}, PROT_NONE)) return false;
        std::fill(states_.begin() + static_cast<ptrdiff_t>(page),
                  states_.begin() + static_cast<ptrdiff_t>(end), State::kAbsent);
      }
      page = end;
    }
  }
  accessible_ = std::move(kept);
  return true;
}

void LazyPages::Collapse() {
  if (fd_.valid()) return;
  ++epoch_;
  Protect({0, pages_}, PROT_NONE);
  std::fill(states_.begin(), states_.end(), State::kAbsent);
  accessible_.clear();
  dirty_.clear();
}

size_t LazyPages::Window(size_t page, State state) {
  Upwards& upwards = state == State::kAbsent ? fetches_ : writes_;
  upwards.window = page == upwards.next_page ? std::min(upwards.window * 2, kMaxRunPages) : 1;
  return upwards.window;
}

LazyPages::Wanted LazyPages::Touch(size_t offset, PageFaults::Access access) {
  if (fd_.valid()) return {};  // accessible; somebody else has faulted meanwhile
  const size_t page = offset / kPage;
  const State state = states_[page];
  if (state == State::kDirty) return {};
  if (state == State::kClean && access == PageFaults::Access::kRead) return {};
  size_t end = page + 1;
  const size_t most = std::min(pages_, page + Window(page, state));
  while (end < most && states_[end] == state) ++end;
  (state == State::kAbsent ? fetches_ : writes_).next_page = end;
  if (state == State::kAbsent) {
    return {.offset = page * kPage, .bytes = (end - page) * kPage};
  }
  if (!Protect({page, end}, PROT_READ | PROT_WRITE)) return {.failed = true};
  std::fill(states_.begin() + static_cast<ptrdiff_t>(page),
            states_.begin() + static_cast<ptrdiff_t>(end), State::kDirty);
  dirty_.push_back({page, end});
  return {};
}

size_t LazyPages::NextAbsent(size_t* offset, size_t end) const {
  if (fd_.valid()) return 0;
  const size_t end_page = (end + kPage - 1) / kPage;
  size_t page = *offset / kPage;
  while (page < end_page && states_[page] != State::kAbsent) ++page;
  size_t last = page;
  while (last < std::min(end_page, page + kMaxRunPages) && states_[last] == State::kAbsent) ++last;
  *offset = page * kPage;
  return (last - page) * kPage;
}

bool LazyPages::Install(size_t offset, size_t bytes) {
  const Run run = {offset / kPage, (offset + bytes) / kPage};
  if (!Protect(run, PROT_READ)) return false;
  std::fill(states_.begin() + static_cast<ptrdiff_t>(run.first),
            states_.begin() + static_cast<ptrdiff_t>(run.second), State::kClean);
  accessible_.push_back(run);
  return true;
}

}  // namespace fargpu::client
