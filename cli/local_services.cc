#include "cli/local_services.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "cli/verb.h"

#include "common/install_paths.h"
#include "common/memory_size.h"
#include "common/status_macros.h"

namespace fargpu::cli {
namespace {

constexpr int kDefaultPort = 4830;
constexpr char kAnyPort[] = "127.0.0.1:0";
constexpr absl::Duration kPoll = absl::Milliseconds(20);
// The daemon ends its sessions' workers first.
constexpr absl::Duration kDaemonGrace = absl::Seconds(10);
constexpr absl::Duration kBrokerGrace = absl::Seconds(5);

bool CanListen(int port) {
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // As gRPC does: a port in TIME_WAIT is free, one with a listener is not.
  const int one = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
         listen(fd.get(), 1) == 0;
}

// The port of "HOST:PORT"; 0 if there is none.
int PortOf(absl::string_view address) {
  int port = 0;
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port)) {
    return 0;
  }
  return port > 0 && port < 65536 ? port : 0;
}

// The address of last time, so that whoever still has it finds the new broker; else the default;
// if that is taken, any free one.
std::string ChooseListenAddress(const Home& home) {
  const absl::StatusOr<std::string> last = home.BrokerAddress();
  int port = last.ok() ? PortOf(*last) : 0;
  if (port == 0) port = kDefaultPort;
  return CanListen(port) ? absl::StrCat("127.0.0.1:", port) : kAnyPort;
}

// This machine's name in the characters that a node's name may have.
std::string MachineName() {
  char name[64] = {};
  if (gethostname(name, sizeof(name) - 1) != 0) return "local";
  std::string result;
  for (const char c : absl::string_view(name)) {
    const bool good = std::isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-';
    result += good ? c : '-';
  }
  return result.empty() ? "local" : result;
}

// The end of a log, for the message about a program that did not come up.
std::string LastLines(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadSmallFile(path);
  if (!text.ok()) return "";
  std::vector<std::string> lines = absl::StrSplit(*text, '\n', absl::SkipEmpty());
  constexpr size_t kShown = 5;
  if (lines.size() > kShown) lines.erase(lines.begin(), lines.end() - kShown);
  std::string result;
  for (const std::string& line : lines) absl::StrAppend(&result, "\n  ", line);
  return result;
}

// A program that `up` looks after.
struct Service {
  std::string name;  // for messages
  std::string pid_path;
  std::string log_path;
  ProcessId process;
  bool started_now = false;

  // A dead child of ours is a zombie; IsAlive does not count it.
  bool alive() const { return IsAlive(process); }
};

absl::Status EndedEarly(const Service& service) {
  return absl::UnavailableError(absl::StrCat(service.name, " ended while starting; its log ",
                                             service.log_path,
                                             " ends with:", LastLines(service.log_path)));
}

// Finds the running service or starts it.
absl::Status Ensure(const Home& home, std::vector<std::string> arguments, Service* service) {
  if (const absl::StatusOr<ProcessId> running = ReadPidFile(service->pid_path);
      running.ok() && IsAlive(*running)) {
    service->process = *running;
    return absl::OkStatus();
  }
  // The log of this run only; the one before is kept beside it.
  std::error_code ignored;
  std::filesystem::rename(service->log_path, service->log_path + ".old", ignored);
  ASSIGN_OR_RETURN(service->process,
                   StartInBackground({.arguments = std::move(arguments),
                                      .environment = {{kMarkerVariable, home.path()}},
                                      .working_directory = home.path(),
                                      .log_path = service->log_path}));
  service->started_now = true;
  return WritePidFile(service->pid_path, service->process);
}

absl::StatusOr<std::unique_ptr<BrokerClient>> WaitForBroker(const Home& home, const Service& broker,
                                                            absl::Time deadline) {
  while (absl::Now() < deadline) {
    if (const absl::StatusOr<std::string> address = home.BrokerAddress(); address.ok()) {
      absl::StatusOr<std::unique_ptr<BrokerClient>> client =
          BrokerClient::Connect(*address, TlsFiles(), absl::Seconds(2));
      if (client.ok()) return client;
    }
    if (!broker.alive()) return EndedEarly(broker);
    absl::SleepFor(kPoll);
  }
  return absl::DeadlineExceededError(absl::StrCat("the broker did not answer in time; its log ",
                                                  broker.log_path,
                                                  " ends with:", LastLines(broker.log_path)));
}

// Until the node of the daemon is alive and has cards.
absl::Status WaitForNode(BrokerClient* client, const std::string& node_name, const Service& daemon,
                         absl::Time deadline, std::string* summary) {
  while (absl::Now() < deadline) {
    grpc::ClientContext context;
    SetCallDeadline(&context);
    broker::v1::ListNodesResponse response;
    RETURN_IF_ERROR(FromGrpcStatus(client->stub().ListNodes(&context, {}, &response)));
    for (const broker::v1::Node& node : response.nodes()) {
      if (node.name() != node_name || node.state() != broker::v1::NODE_STATE_ALIVE ||
          node.cards().empty()) {
        continue;
      }
      *summary = absl::StrCat("broker at ", client->address(), ", node ", node_name, " with ",
                              node.cards_size(), node.cards_size() == 1 ? " card (" : " cards (",
                              node.cards(0).model(), ", ",
                              FormatMemory(node.cards(0).memory_bytes()), ")");
      return absl::OkStatus();
    }
    if (!daemon.alive()) return EndedEarly(daemon);
    absl::SleepFor(kPoll);
  }
  return absl::DeadlineExceededError(
      absl::StrCat("the daemon did not register a card in time; its log ", daemon.log_path,
                   " ends with:", LastLines(daemon.log_path)));
}

// A daemon that runs already keeps its name. If it belongs to another broker than the one at
// `address` (ours came back on another port, because its own was taken meanwhile), it is replaced:
// its workers outlive it, and the next daemon takes their sessions over.
absl::Status AdoptRunningDaemon(const Home& home, const Service& daemon, const std::string& address,
                                std::string* node_name) {
  const absl::StatusOr<ProcessId> running = ReadPidFile(daemon.pid_path);
  if (!running.ok() || !IsAlive(*running)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(home.File("daemon.settings")));
  const std::vector<std::string> words =
      absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  if (words.size() != 2) {
    return absl::FailedPreconditionError(
        absl::StrCat(home.File("daemon.settings"), " is damaged; run `fargpu down` first"));
  }
  *node_name = words[0];
  if (words[1] == address) return absl::OkStatus();
  if (kill(running->pid, SIGKILL) != 0 && errno != ESRCH) {
    return ErrnoStatus(absl::StrCat("replace fargpud (process ", running->pid, ")"));
  }
  for (const absl::Time deadline = absl::Now() + kDaemonGrace; IsAlive(*running);) {
    if (absl::Now() > deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("fargpud (process ", running->pid, ") does not end"));
    }
    absl::SleepFor(kPoll);
  }
  return absl::OkStatus();
}

// Starts a broker unless one runs, and connects to it.
absl::StatusOr<std::unique_ptr<BrokerClient>> StartBroker(const Home& home, Service* broker,
                                                          absl::Time deadline) {
  ASSIGN_OR_RETURN(const std::string program, ProgramPath("fargpu-broker"));
  std::string listen = ChooseListenAddress(home);
  while (true) {
    // A broker that we start writes its address anew.
    const absl::StatusOr<ProcessId> running = ReadPidFile(broker->pid_path);
    if (!running.ok() || !IsAlive(*running)) unlink(home.File("broker.address").c_str());
    RETURN_IF_ERROR(Ensure(home,
                           {program, "--listen", listen, "--state", home.File("broker"),
                            "--address-file", home.File("broker.address")},
                           broker));
    absl::StatusOr<std::unique_ptr<BrokerClient>> client = WaitForBroker(home, *broker, deadline);
    if (client.ok() || broker->alive()) return client;
    // Somebody else may have taken the port since we found it free: then any port will do.
    if (listen == kAnyPort || CanListen(PortOf(listen))) return client;
    listen = kAnyPort;
  }
}

absl::Status StartBoth(const Home& home, const UpOptions& options, Service* broker, Service* daemon,
                       std::string* summary) {
  const absl::Time deadline = absl::Now() + options.timeout;
  ASSIGN_OR_RETURN(const std::string daemon_program, ProgramPath("fargpud"));

  const std::string run_directory = home.File("run");
  if (run_directory.size() + sizeof("/fargpud.sock") > 108) {
    return absl::InvalidArgumentError(
        absl::StrCat(run_directory,
                     "/fargpud.sock is too long for a unix socket (107 bytes); set FARGPU_HOME "
                     "to a shorter path"));
  }
  if (mkdir(run_directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrnoStatus(absl::StrCat("mkdir ", run_directory));
  }

  ASSIGN_OR_RETURN(std::unique_ptr<BrokerClient> client, StartBroker(home, broker, deadline));

  std::string node_name = options.node_name.empty() ? MachineName() : options.node_name;
  RETURN_IF_ERROR(AdoptRunningDaemon(home, *daemon, client->address(), &node_name));
  std::vector<std::string> arguments = {
      daemon_program, "--broker", client->address(), "--node",   node_name,     "--run-dir",
      run_directory,  "--listen", "tcp:127.0.0.1:0", "--driver", options.driver};
  arguments.insert(arguments.end(), options.daemon_options.begin(), options.daemon_options.end());
  RETURN_IF_ERROR(WriteFileAtomically(home.File("daemon.settings"),
                                      absl::StrCat(node_name, " ", client->address(), "\n")));
  RETURN_IF_ERROR(Ensure(home, std::move(arguments), daemon));
  return WaitForNode(client.get(), node_name, *daemon, deadline, summary);
}

Service BrokerOf(const Home& home) {
  return Service{.name = "fargpu-broker",
                 .pid_path = home.File("broker.pid"),
                 .log_path = home.File("broker.log"),
                 .process = {}};
}
Service DaemonOf(const Home& home) {
  return Service{.name = "fargpud",
                 .pid_path = home.File("daemon.pid"),
                 .log_path = home.File("daemon.log"),
                 .process = {}};
}

}  // namespace

absl::Status StartServices(const Home& home, const UpOptions& options, std::string* summary) {
  Service broker = BrokerOf(home);
  Service daemon = DaemonOf(home);
  absl::Status status = StartBoth(home, options, &broker, &daemon, summary);
  if (status.ok()) {
    *summary =
        absl::StrCat(broker.started_now || daemon.started_now ? "up: " : "already up: ", *summary);
    return status;
  }
  for (const auto& [service, grace] :
       {std::pair(&daemon, kDaemonGrace), std::pair(&broker, kBrokerGrace)}) {
    if (!service->started_now) continue;
    if (StopProcess(service->process, grace).ok()) unlink(service->pid_path.c_str());
  }
  return status;
}

absl::Status StopServices(const Home& home, int* stopped) {
  *stopped = 0;
  absl::Status result;
  // The daemon first, so that it can tell the broker what ends.
  for (const auto& [service, grace] :
       {std::pair(DaemonOf(home), kDaemonGrace), std::pair(BrokerOf(home), kBrokerGrace)}) {
    const absl::StatusOr<ProcessId> process = ReadPidFile(service.pid_path);
    if (process.ok() && IsAlive(*process)) {
      if (absl::Status status = StopProcess(*process, grace); !status.ok()) {
        result.Update(status);
        continue;
      }
      ++*stopped;
    }
    unlink(service.pid_path.c_str());
  }
  // What is left: workers of a daemon that died before them, or services without a pid file.
  for (const ProcessId& process : FindProcessesByEnvironment(kMarkerVariable, home.path())) {
    result.Update(StopProcess(process, absl::Seconds(2)));
    ++*stopped;
  }
  return result;
}

}  // namespace fargpu::cli
