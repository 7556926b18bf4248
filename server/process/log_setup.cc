#include "server/process/log_setup.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "common/log.h"

namespace fargpu::server {
namespace {

void WriteToSpdlog(LogLevel level, const std::string& line) {
  switch (level) {
    case LogLevel::kError:
      spdlog::error("{}", line);
      break;
    case LogLevel::kWarning:
      spdlog::warn("{}", line);
      break;
    case LogLevel::kInfo:
      spdlog::info("{}", line);
      break;
    case LogLevel::kDebug:
      spdlog::debug("{}", line);
      break;
  }
}

}  // namespace

absl::Status SetUpLog(const std::string& who, absl::string_view level) {
  if (level == "error") {
    SetLogLevel(LogLevel::kError);
  } else if (level == "warning") {
    SetLogLevel(LogLevel::kWarning);
  } else if (level == "info") {
    SetLogLevel(LogLevel::kInfo);
  } else if (level == "debug") {
    SetLogLevel(LogLevel::kDebug);
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("log level '", level, "'; error, warning, info and debug are possible"));
  }
  auto logger =
      std::make_shared<spdlog::logger>(who, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %l %n[%P] %v");
  // What is shown is decided in common/log.
  logger->set_level(spdlog::level::trace);
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(logger);
  SetLogSink(&WriteToSpdlog);
  return absl::OkStatus();
}

}  // namespace fargpu::server
