#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace fargpu::memory {

// Calls use(offset, bytes) for each run of bytes in which `now` differs from `before`, in order.
// Offsets and sizes are multiples of 4, except for the end of a size that is none. A page with very
// many runs gives one that holds them all.
template <typename Use>
void ForEachChangedRun(const char* now, const char* before, size_t bytes, Use use) {
  constexpr size_t kPage = 4096;
  constexpr size_t kWord = 4;
  constexpr int kMaxRunsOfAPage = 128;
  struct Run {
    size_t begin = 0;
    size_t end = 0;
  };
  for (size_t page = 0; page < bytes; page += kPage) {
    const size_t page_end = std::min(page + kPage, bytes);
    if (std::memcmp(now + page, before + page, page_end - page) == 0) continue;
    Run runs[kMaxRunsOfAPage];
    int count = 0;
    for (size_t at = page; at < page_end; at += kWord) {
      const size_t size = std::min(kWord, page_end - at);
      if (std::memcmp(now + at, before + at, size) == 0) continue;
      const bool joins = count > 0 && (runs[count - 1].end == at || count == kMaxRunsOfAPage);
      if (!joins) runs[count++].begin = at;
      runs[count - 1].end = at + size;
    }
    for (int i = 0; i < count; ++i) use(runs[i].begin, runs[i].end - runs[i].begin);
  }
}

}  // namespace fargpu::memory
