// fargpu-lease: gets a lease for a process that must not carry gRPC itself (DESIGN D12).
//
// libcuda.so.1 starts it when FARGPU_BROKER is set and FARGPU_LEASE is not. It allocates what the
// environment asks for, writes the lease file's text and an empty line to stdout, renews the lease
// while its stdin is open, and releases it at the end of stdin. A refusal is one line on stderr
// and exit status 1.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/fd.h"
#include "common/memory_size.h"
#include "common/status_macros.h"
#include "protocol/proto/lease_client.h"

namespace fargpu {
namespace {

constexpr int kExitRefused = 1;
constexpr int kExitUsage = 2;
constexpr absl::Duration kConnectTimeout = absl::Seconds(5);
// Short, because we renew: a lease whose helper was killed, and that has no session, is free again
// after this.
constexpr absl::Duration kTtl = absl::Seconds(60);

constexpr char kHelp[] =
    "fargpu-lease: gets a lease from a broker, prints it, keeps it while stdin is open.\n"
    "\n"
    "Environment:\n"
    "  FARGPU_BROKER   HOST:PORT or unix:/path of the broker (needed)\n"
    "  FARGPU_MEMORY   memory of each card: 4GiB, 512MiB or a number of MiB (needed)\n"
    "  FARGPU_CORES    compute of each card in per cent (default 100)\n"
    "  FARGPU_COUNT    how many cards (default 1)\n"
    "  FARGPU_NAME     shown in `fargpu leases` (default: the calling program's name)\n"
    "  FARGPU_TENANT, FARGPU_QUEUE   who asks, and where to wait\n"
    "  FARGPU_WAIT     seconds to wait for cards to become free (default 0)\n"
    "  FARGPU_TLS_CERT, FARGPU_TLS_KEY, FARGPU_TLS_CA   PEM files, for a broker beyond loopback\n"
    "\n"
    "Exit status: 0 at the end of stdin, 1 if there is no lease to be had, 2 for a wrong setting.\n"
    "\n"
    "Example:\n"
    "  FARGPU_BROKER=127.0.0.1:4830 FARGPU_MEMORY=4GiB fargpu-lease < fifo\n";

int Fail(const absl::Status& status, int exit_status) {
  std::cerr << "fargpu-lease: " << status.message() << std::endl;
  return exit_status;
}

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// Of the process that started us, for `fargpu leases`.
std::string ParentName() {
  std::ifstream file(absl::StrCat("/proc/", getppid(), "/comm"));
  std::string name;
  std::getline(file, name);
  return name;
}

// `missing` if the variable is not set.
absl::StatusOr<uint32_t> NumberFrom(const char* name, uint32_t missing, uint32_t least,
                                    uint32_t most) {
  const std::string text = Environment(name);
  if (text.empty()) return missing;
  uint32_t number = 0;
  if (!absl::SimpleAtoi(text, &number) || number < least || number > most) {
    return absl::InvalidArgumentError(absl::StrCat(
        name, " is \"", text.substr(0, 40), "\"; expected a number from ", least, " to ", most));
  }
  return number;
}

absl::StatusOr<broker::v1::AllocateRequest> RequestFromEnvironment() {
  broker::v1::AllocateRequest request;
  if (Environment("FARGPU_MEMORY").empty()) {
    return absl::InvalidArgumentError("FARGPU_MEMORY is not set; set it to, e.g., 4GiB");
  }
  const absl::StatusOr<uint64_t> memory_mib = ParseMemoryMib(Environment("FARGPU_MEMORY"));
  if (!memory_mib.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("FARGPU_MEMORY: ", memory_mib.status().message()));
  }
  request.set_memory_mib(*memory_mib);
  ASSIGN_OR_RETURN(const uint32_t cores, NumberFrom("FARGPU_CORES", 100, 1, 100));
  request.set_cores_percent(cores);
  ASSIGN_OR_RETURN(const uint32_t count, NumberFrom("FARGPU_COUNT", 1, 1, 64));
  request.set_count(count);
  ASSIGN_OR_RETURN(const uint32_t wait_seconds, NumberFrom("FARGPU_WAIT", 0, 0, 86400));
  request.set_wait_ms(uint64_t{wait_seconds} * 1000);
  const std::string name = Environment("FARGPU_NAME");
  request.set_name(!name.empty() ? name : LeaseNameFrom(ParentName()));
  request.set_tenant(Environment("FARGPU_TENANT"));
  request.set_queue(Environment("FARGPU_QUEUE"));
  request.set_ttl_ms(absl::ToInt64Milliseconds(kTtl));
  return request;
}

// Reads and drops what is there. False at the end of stdin.
bool StdinIsOpen() {
  char buffer[256];
  const ssize_t count = read(STDIN_FILENO, buffer, sizeof(buffer));
  return count > 0 || (count < 0 && (errno == EINTR || errno == EAGAIN));
}

int Run(const std::string& address, const broker::v1::AllocateRequest& request) {
  // Keys of the terminal are meant for the program; we end when it does, so that the lease is
  // released. SIGTERM is for us. Blocked before gRPC makes threads.
  for (const int signal : {SIGINT, SIGQUIT, SIGHUP, SIGTSTP}) ::signal(signal, SIG_IGN);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const UniqueFd signal_fd(signalfd(-1, &signals, SFD_CLOEXEC));
  const UniqueFd done(eventfd(0, EFD_CLOEXEC));
  if (!signal_fd.valid() || !done.valid()) return Fail(ErrnoStatus("signalfd"), kExitRefused);

  absl::StatusOr<std::unique_ptr<BrokerClient>> client = absl::UnknownError("not connected");
  absl::StatusOr<std::unique_ptr<LeaseHolder>> lease = absl::UnknownError("not allocated");
  std::thread worker([&] {
    client = BrokerClient::Connect(address, TlsFilesFromEnvironment(), kConnectTimeout);
    lease = client.ok() ? LeaseHolder::Allocate(client->get(), request)
                        : absl::StatusOr<std::unique_ptr<LeaseHolder>>(client.status());
    eventfd_write(done.get(), 1);
  });
  pollfd events[] = {
      {done.get(), POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}, {signal_fd.get(), POLLIN, 0}};
  while (events[0].revents == 0) {
    if (poll(events, 3, -1) < 0 || events[0].revents != 0) continue;
    if (events[2].revents == 0 && (events[1].revents == 0 || StdinIsOpen())) continue;
    // Nobody wants the lease any more. The broker notices that the connection ends.
    Fail(absl::CancelledError("its caller ended before there was a lease"), kExitRefused);
    _exit(kExitRefused);
  }
  worker.join();
  if (!lease.ok()) return Fail(lease.status(), kExitRefused);

  const std::string text = FormatLeaseFile((*lease)->file()) + "\n";
  if (absl::Status written = WriteFully(STDOUT_FILENO, text, absl::Now() + absl::Seconds(10));
      !written.ok()) {
    return Fail(written, kExitRefused);  // and ~LeaseHolder releases
  }
  while (true) {
    if (poll(events + 1, 2, -1) < 0) continue;
    if (events[2].revents != 0 || (events[1].revents != 0 && !StdinIsOpen())) break;
  }
  const absl::Status released = (*lease)->Release("its program ended");
  return released.ok() ? 0 : Fail(released, kExitRefused);
}

}  // namespace
}  // namespace fargpu

int main(int argc, char** argv) {
  if (argc > 1) {
    const std::string argument = argv[1];
    if (argument == "--version") {
      std::cout << "fargpu-lease " << FARGPU_VERSION << "\n";
      return 0;
    }
    std::cout << fargpu::kHelp;
    return argument == "--help" || argument == "-h" ? 0 : fargpu::kExitUsage;
  }
  fargpu::SendGrpcLogToOurs();
  // A program that died between our lines must not kill us before the lease is released.
  signal(SIGPIPE, SIG_IGN);
  const char* const address = std::getenv("FARGPU_BROKER");
  if (address == nullptr || *address == '\0') {
    return fargpu::Fail(
        absl::InvalidArgumentError("FARGPU_BROKER is not set; set it to the broker's HOST:PORT"),
        fargpu::kExitUsage);
  }
  const absl::StatusOr<fargpu::broker::v1::AllocateRequest> request =
      fargpu::RequestFromEnvironment();
  if (!request.ok()) return fargpu::Fail(request.status(), fargpu::kExitUsage);
  return fargpu::Run(address, *request);
}
