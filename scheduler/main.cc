// fargpu-broker: decides who gets which slice of which card.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>

#include <CLI/CLI.hpp>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "common/log.h"
#include "scheduler/broker/broker_server.h"

namespace {

void LogToSpdlog(fargpu::LogLevel level, const std::string& line) {
  static constexpr spdlog::level::level_enum kLevels[] = {
      spdlog::level::err, spdlog::level::warn, spdlog::level::info, spdlog::level::debug};
  spdlog::default_logger_raw()->log(kLevels[static_cast<int>(level)], line);
}

void SetUpLog(fargpu::LogLevel level) {
  auto logger =
      std::make_shared<spdlog::logger>("broker", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_level(spdlog::level::debug);
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %L %v");
  logger->flush_on(spdlog::level::debug);
  spdlog::set_default_logger(std::move(logger));
  fargpu::SetLogSink(&LogToSpdlog);
  fargpu::SetLogLevel(level);
  fargpu::SendGrpcLogToOurs();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Lends slices of the cards that fargpud daemons bring to it.", "fargpu-broker");
  app.footer("Example:\n  fargpu-broker --listen 127.0.0.1:4830 --state /var/lib/fargpu");
  app.set_version_flag("--version", FARGPU_VERSION);
  fargpu::scheduler::BrokerServerOptions options;
  app.add_option("--listen", options.listen,
                 "HOST:PORT or unix:/path; beyond loopback the --tls options are needed; port 0 "
                 "takes any free one")
      ->capture_default_str();
  app.add_option("--state", options.state_dir, "Directory that keeps leases over restarts")
      ->required();
  std::string address_file;
  app.add_option("--address-file", address_file,
                 "Write the address that clients use here once it is ready");
  app.add_option("--tls-cert", options.tls.certificate, "PEM file: certificate of this broker");
  app.add_option("--tls-key", options.tls.key, "PEM file: key of this broker");
  app.add_option("--tls-ca", options.tls.ca, "PEM file: CA that signed the clients' certificates");
  const std::map<std::string, fargpu::LogLevel> levels = {{"error", fargpu::LogLevel::kError},
                                                          {"warning", fargpu::LogLevel::kWarning},
                                                          {"info", fargpu::LogLevel::kInfo},
                                                          {"debug", fargpu::LogLevel::kDebug}};
  std::string level = "info";
  app.add_option("--log-level", level, "error, warning, info or debug")
      ->capture_default_str()
      ->check(CLI::IsMember(levels));
  CLI11_PARSE(app, argc, argv);
  SetUpLog(levels.at(level));

  // Before any thread exists, so that all of them inherit the mask and only sigwait below sees
  // these.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  absl::StatusOr<std::unique_ptr<fargpu::scheduler::BrokerServer>> server =
      fargpu::scheduler::BrokerServer::Start(std::move(options));
  if (!server.ok()) {
    FARGPU_LOG(kError, server.status().message());
    return EXIT_FAILURE;
  }
  FARGPU_LOG(kInfo, "fargpu-broker ", FARGPU_VERSION, " listens on ", (*server)->address());
  if (!address_file.empty()) {
    const std::string temporary = address_file + ".new";
    FILE* file = std::fopen(temporary.c_str(), "we");
    const bool written =
        file != nullptr && std::fprintf(file, "%s\n", (*server)->address().c_str()) > 0;
    if (file == nullptr || std::fclose(file) != 0 || !written ||
        std::rename(temporary.c_str(), address_file.c_str()) != 0) {
      FARGPU_LOG(kError, "cannot write ", address_file);
      return EXIT_FAILURE;
    }
  }

  int signal = 0;
  sigwait(&signals, &signal);
  FARGPU_LOG(kInfo, "got signal ", signal, ", shutting down");
  server->reset();
  return EXIT_SUCCESS;
}
