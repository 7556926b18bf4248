#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "client/cuda/page_faults.h"
#include "common/fd.h"

namespace fargpu::client {

// Pages of a large range of managed memory. The program sees them at `view`; we see the same bytes
// at another address, whatever the program may do with them at the moment. A page is
//   absent  the card may have changed it: no access, fetched when it is touched
//   clean   the same on both sides: read-only
//   dirty   the program may have changed it: sent before the card works next
// Before the card has worked for the first time all are accessible, and which the program has
// touched is asked of the kernel. Not thread-safe.
class LazyPages {
 public:
  static constexpr size_t kPage = 4096;
  // A fetch, or what one write makes writable, grows up to this while the program goes upwards.
  static constexpr size_t kMaxRunPages = 256;

  // Maps `bytes`, a multiple of the page size, over what is at `view`. CUDA_ERROR_OUT_OF_MEMORY.
  static absl::StatusOr<std::shared_ptr<LazyPages>> Create(uintptr_t view, size_t bytes);
  ~LazyPages();

  // Dirty pages become clean, after send(offset, bytes) for each run of them.
  using Send = absl::FunctionRef<absl::Status(size_t offset, absl::Span<const char> bytes)>;
  absl::Status Flush(Send send);
  // Clean pages become absent. False: too many pieces; Flush() and Collapse() instead.
  bool Invalidate();
  // What is not dirty becomes absent, by one system call; flush first.
  void Collapse();

  // The program has touched `offset`. Either this has made it accessible (bytes 0), or these pages
  // must be fetched to where they belong, and Install()ed unless `epoch()` has changed meanwhile.
  struct Wanted {
    size_t offset = 0;
    size_t bytes = 0;
    bool failed = false;  // too many pieces: Flush(), Collapse() and again
  };
  Wanted Touch(size_t offset, PageFaults::Access access);
  absl::Span<char> At(size_t offset, size_t bytes) { return {own_ + offset, bytes}; }
  // Moves `*offset` up to the next absent page before `end` and returns the bytes from there that
  // are absent too, at most kMaxRunPages; 0 if there is none.
  size_t NextAbsent(size_t* offset, size_t end) const;
  // False: too many pieces, see Wanted.
  bool Install(size_t offset, size_t bytes);
  uint64_t epoch() const { return epoch_; }

 private:
  enum class State : uint8_t { kAbsent, kClean, kDirty };
  using Run = std::pair<size_t, size_t>;  // pages [first, second)

  LazyPages(uintptr_t view, size_t bytes, char* own, UniqueFd fd);
  bool Protect(Run run, int protection);
  absl::Status SendRun(Run run, Send send);
  absl::Status FlushTouched(Send send);
  size_t Window(size_t page, State state);

  const uintptr_t view_;
  const size_t pages_;
  char* const own_;
  UniqueFd fd_;  // until the card has worked for the first time
  std::vector<State> states_;
  std::vector<Run> accessible_;
  std::vector<Run> dirty_;
  // Where the program would go on upwards: of fetches, and of what becomes writable.
  struct Upwards {
    size_t next_page = 0;
    size_t window = 1;
  };
  Upwards fetches_, writes_;
  uint64_t epoch_ = 0;
};

}  // namespace fargpu::client
