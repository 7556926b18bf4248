#include "common/log.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace fargpu {
namespace {

constexpr int kNone = -1;
constexpr int kUnset = -2;
constexpr const char* kNames[] = {"error", "warning", "info", "debug"};

void WriteToStderr(LogLevel level, const std::string& line) {
  const std::string text =
      absl::StrCat("fargpu: ", kNames[static_cast<int>(level)], ": ", line, "\n");
  // One write, so that lines of several processes do not mix. A closed stderr is not our problem.
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
}

std::atomic<int> current_level{kUnset};
std::atomic<LogSink> current_sink{&WriteToStderr};

int LevelFromEnvironment() {
  const char* value = std::getenv("FARGPU_LOG");
  if (value == nullptr) return kNone;
  for (int level = 0; level < 4; ++level) {
    if (std::strcmp(value, kNames[level]) == 0) return level;
  }
  return kNone;
}

}  // namespace

void SetLogSink(LogSink sink) { current_sink.store(sink != nullptr ? sink : &WriteToStderr); }

void SetLogLevel(LogLevel level) { current_level.store(static_cast<int>(level)); }

bool LogEnabled(LogLevel level) {
  int limit = current_level.load(std::memory_order_relaxed);
  if (limit == kUnset) {
    limit = LevelFromEnvironment();
    current_level.store(limit);
  }
  return static_cast<int>(level) <= limit;
}

void WriteLog(LogLevel level, const std::string& line) { current_sink.load()(level, line); }

}  // namespace fargpu
