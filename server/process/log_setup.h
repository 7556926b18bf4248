#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace fargpu::server {

// Sends our log lines through spdlog to stderr, one line each, marked with `who`. `level` is
// "error", "warning", "info" or "debug"; kInvalidArgument otherwise.
absl::Status SetUpLog(const std::string& who, absl::string_view level);

}  // namespace fargpu::server
