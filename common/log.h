#pragma once

#include <atomic>
#include <string>

#include "absl/strings/str_cat.h"

namespace fargpu {

enum class LogLevel { kError = 0, kWarning = 1, kInfo = 2, kDebug = 3 };

// Where log lines go. The default writes "fargpu: <level>: <line>" to stderr; servers install
// spdlog in main(). The sink may be called from any thread and must not block for long.
using LogSink = void (*)(LogLevel level, const std::string& line);
void SetLogSink(LogSink sink);

// The most verbose level that is written. It comes from FARGPU_LOG (error, warning, info, debug;
// default: the library prints nothing, so `kNone`), or from SetLogLevel.
void SetLogLevel(LogLevel level);
bool LogEnabled(LogLevel level);
void WriteLog(LogLevel level, const std::string& line);

}  // namespace fargpu

// FARGPU_LOG(kInfo, "lease ", id, " ends"): arguments are evaluated only if the level is on.
#define FARGPU_LOG(level, ...)                                                  \
  do {                                                                          \
    if (::fargpu::LogEnabled(::fargpu::LogLevel::level)) {                      \
      ::fargpu::WriteLog(::fargpu::LogLevel::level, absl::StrCat(__VA_ARGS__)); \
    }                                                                           \
  } while (false)
