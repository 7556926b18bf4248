#include "protocol/driver_abi/local/driver_log.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/cuda_error.h"
#include "common/mutex.h"
#include "local_calls.h"
#include "protocol/driver_abi/local/edge.h"

namespace fargpu::driver_abi {
namespace {

// cuda.h: the driver's buffer has 25600 bytes. The oldest messages make room.
constexpr size_t kMostBytes = 25600;
constexpr char kTruncated[] = "(older messages are lost)\n";

struct Callback {
  CUlogsCallback function = nullptr;
  void* data = nullptr;
};

struct Log {
  Mutex mutex;
  // Lines with their newlines. The iterator of a message is its number since the first.
  std::deque<std::string> lines ABSL_GUARDED_BY(mutex);
  size_t bytes ABSL_GUARDED_BY(mutex) = 0;
  CUlogIterator first ABSL_GUARDED_BY(mutex) = 0;  // number of lines.front()
  uint64_t last_callback ABSL_GUARDED_BY(mutex) = 0;
  std::map<uint64_t, Callback> callbacks ABSL_GUARDED_BY(mutex);

  CUlogIterator end() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return first + static_cast<CUlogIterator>(lines.size());
  }
};

// Never destroyed: calls come in until the process has ended.
Log& TheLog() {
  static auto* const log = new Log;
  return *log;
}

thread_local bool in_callback = false;

// The lines from *iterator on, oldest first; `lost`: some before them are gone.
std::vector<std::string> LinesSince(Log& log, const CUlogIterator* iterator, bool* lost)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(log.mutex) {
  const CUlogIterator from = iterator == nullptr ? 0 : *iterator;
  *lost = from < log.first;
  std::vector<std::string> lines;
  for (CUlogIterator number = std::max(from, log.first); number < log.end(); ++number) {
    lines.push_back(log.lines[number - log.first]);
  }
  return lines;
}

}  // namespace

void AddToDriverLog(const char* call, CUresult result, absl::string_view message) noexcept {
  try {
    const char* const name = CuResultName(result);
    std::string line = absl::StrCat(
        "[", absl::FormatTime("%H:%M:%E3S", absl::Now(), absl::LocalTimeZone()), "][",
        syscall(SYS_gettid), "][CUDA][E] ", call, ": ", name == nullptr ? "unknown error" : name,
        message.empty() ? "" : ": ", message, "\n");
    std::vector<Callback> callbacks;
    Log& log = TheLog();
    {
      MutexLock lock(&log.mutex);
      log.bytes += line.size();
      log.lines.push_back(line);
      while (log.bytes > kMostBytes && log.lines.size() > 1) {
        log.bytes -= log.lines.front().size();
        log.lines.pop_front();
        ++log.first;
      }
      for (const auto& [id, callback] : log.callbacks) callbacks.push_back(callback);
    }
    if (in_callback) return;
    in_callback = true;
    line.pop_back();
    for (const Callback& callback : callbacks) {
      callback.function(callback.data, CU_LOG_LEVEL_ERROR, line.data(), line.size());
    }
    in_callback = false;
  } catch (...) {
    in_callback = false;  // out of memory: the call's own error counts
  }
}

namespace local {

CUresult cuLogsRegisterCallback(CUlogsCallback callbackFunc, void* userData,
                                CUlogsCallbackHandle* callback_out) {
  return AtLocalEdge([&] {
    if (callbackFunc == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Log& log = TheLog();
    MutexLock lock(&log.mutex);
    const uint64_t id = ++log.last_callback;
    log.callbacks[id] = {callbackFunc, userData};
    if (callback_out != nullptr) *callback_out = reinterpret_cast<CUlogsCallbackHandle>(id);
    return CUDA_SUCCESS;
  });
}

CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle callback) {
  return AtLocalEdge([&] {
    Log& log = TheLog();
    MutexLock lock(&log.mutex);
    return log.callbacks.erase(reinterpret_cast<uint64_t>(callback)) != 0
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
  });
}

CUresult cuLogsCurrent(CUlogIterator* iterator_out, unsigned flags) {
  return AtLocalEdge([&] {
    if (iterator_out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    Log& log = TheLog();
    MutexLock lock(&log.mutex);
    *iterator_out = log.end();
    return CUDA_SUCCESS;
  });
}

CUresult cuLogsDumpToFile(CUlogIterator* iterator, const char* pathToFile, unsigned flags) {
  return AtLocalEdge([&] {
    if (pathToFile == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    std::vector<std::string> lines;
    bool lost = false;
    CUlogIterator end = 0;
    {
      Log& log = TheLog();
      MutexLock lock(&log.mutex);
      lines = LinesSince(log, iterator, &lost);
      end = log.end();
    }
    FILE* const file = std::fopen(pathToFile, "we");
    if (file == nullptr) return CUDA_ERROR_INVALID_VALUE;
    bool written = !lost || std::fputs(kTruncated, file) >= 0;
    for (const std::string& line : lines) {
      written = written && std::fwrite(line.data(), 1, line.size(), file) == line.size();
    }
    if (std::fclose(file) != 0 || !written) return CUDA_ERROR_INVALID_VALUE;
    if (iterator != nullptr) *iterator = end;
    return CUDA_SUCCESS;
  });
}

CUresult cuLogsDumpToMemory(CUlogIterator* iterator, char* buffer, size_t* size, unsigned flags) {
  return AtLocalEdge([&] {
    if (buffer == nullptr || size == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    Log& log = TheLog();
    MutexLock lock(&log.mutex);
    bool lost = false;
    const std::vector<std::string> lines = LinesSince(log, iterator, &lost);
    const size_t room = *size;
    *size = 0;
    if (room == 0) return CUDA_ERROR_INVALID_VALUE;
    buffer[0] = '\0';
    // The newest messages that fit; the notice goes before them if some do not.
    size_t bytes = 0;
    size_t begin = lines.size();
    while (begin > 0 && bytes + lines[begin - 1].size() < room) bytes += lines[--begin].size();
    if (begin > 0 || lost) {
      const size_t notice = sizeof kTruncated - 1;
      while (begin < lines.size() && bytes + notice >= room) bytes -= lines[begin++].size();
      if (begin == lines.size() && !lines.empty()) return CUDA_ERROR_INVALID_VALUE;
      if (notice < room && (begin > 0 || lost)) {
        std::memcpy(buffer, kTruncated, notice);
        *size = notice;
      }
    }
    for (size_t k = begin; k < lines.size(); ++k) {
      std::memcpy(buffer + *size, lines[k].data(), lines[k].size());
      *size += lines[k].size();
    }
    buffer[*size] = '\0';
    if (iterator != nullptr) *iterator = log.end();
    return CUDA_SUCCESS;
  });
}

}  // namespace local
}  // namespace fargpu::driver_abi
