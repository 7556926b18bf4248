#include "server/worker/worker.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/cuda_error.h"
#include "common/ids.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "server/driver/driver_memory.h"
#include "server/driver/loaded_driver.h"
#include "server/process/message_socket.h"
#include "server/process/process_messages.h"
#include "server/worker/device_list.h"
#include "server/worker/output_capture.h"
#include "server/worker/session.h"
#include "transport/ucx/place_info.h"
#include "transport/ucx/ucx_endpoint.h"

namespace fargpu::server {
namespace {

// The window is generous, because addresses cost nothing and fragmentation does.
constexpr uint64_t kSmallestWindow = uint64_t{64} << 30;
constexpr uint64_t kLargestWindow = uint64_t{2} << 40;
constexpr uint64_t kWindowFactor = 16;
// A worker polls that long for the next call of a client that is active.
constexpr absl::Duration kActiveSpin = absl::Milliseconds(1);
constexpr absl::Duration kReconnectEvery = absl::Milliseconds(200);

absl::Status DecodeDaemonMessage(const std::string& bytes, DaemonMessage* message) {
  return wire::DecodeMessage(absl::MakeConstSpan(bytes.data(), bytes.size()), message);
}

uint64_t WindowBytes(uint64_t limit_bytes, size_t devices) {
  const uint64_t all = limit_bytes > kLargestWindow ? kLargestWindow : limit_bytes * devices;
  if (all >= kLargestWindow / kWindowFactor) return kLargestWindow;
  return std::max(all * kWindowFactor, kSmallestWindow);
}

// All that a session needs, in the order in which it must go.
struct Serving {
  std::unique_ptr<memory::LeaseLedger> ledger;
  std::unique_ptr<DriverMemory> driver_memory;
  std::unique_ptr<memory::DeviceAllocator> allocator;
  OpenAdmission admission;
  std::unique_ptr<SessionResources> resources;
  std::unique_ptr<Session> session;
};

// Opens the session and fills the client's Welcome.
absl::Status StartServing(const WorkerOptions& options, const DaemonMessage& start,
                          UniqueFd ledger_fd, Driver* driver, OutputCapture* capture,
                          Serving* serving, Welcome* welcome) {
  ASSIGN_OR_RETURN(welcome->version,
                   NegotiateVersion(start.hello.version_min, start.hello.version_max));
  welcome->features = start.hello.features & kFeatureDeliveries;
  welcome->session = start.session;

  ASSIGN_OR_RETURN(serving->ledger, memory::LeaseLedger::Map(std::move(ledger_fd)));
  RETURN_IF_ERROR(serving->ledger->Join());
  ASSIGN_OR_RETURN(std::vector<CUdevice> devices, FindDevices(*driver, start.devices));
  if (static_cast<int>(devices.size()) != serving->ledger->device_count()) {
    return absl::InternalError(absl::StrCat("the lease has ", devices.size(),
                                            " devices, its ledger ",
                                            serving->ledger->device_count()));
  }
  const uint64_t limit = serving->ledger->limit_bytes();
  serving->driver_memory = std::make_unique<DriverMemory>(driver, devices);
  serving->allocator = std::make_unique<memory::DeviceAllocator>(
      serving->driver_memory.get(), serving->ledger.get(),
      memory::DeviceAllocator::Options{.window_bytes = WindowBytes(limit, devices.size()),
                                       .fresh_memory_is_zero = options.fresh_memory_is_zero});
  welcome->window_base = serving->allocator->window_base();
  welcome->window_bytes = serving->allocator->window_bytes();
  RETURN_IF_CUDA_ERROR(driver->cuDriverGetVersion(&welcome->driver_version));
  welcome->devices = start.devices;
  // The program takes the lease for the card.
  for (DeviceInfo& device : welcome->devices) device.total_memory_bytes = limit;

  transport::UcxOptions ucx_options;
  ucx_options.net_device = start.net_device;
  const transport::PlaceInfo here = transport::PlaceInfo::Local();
  welcome->transport = kTransportTcp;
  if (start.may_share_memory && (start.hello.transports & kTransportSharedMemory) != 0) {
    ASSIGN_OR_RETURN(const transport::PlaceInfo there,
                     transport::DecodePlaceInfo(start.hello.place));
    const absl::Status possible = transport::SharedMemoryIsPossible(here, there);
    if (possible.ok()) {
      ucx_options.reach = transport::Reach::kMachine;
      welcome->transport = kTransportSharedMemory;
    } else {
      FARGPU_LOG(kDebug, "no shared memory with the client: ", std::string(possible.message()));
    }
  }
  ASSIGN_OR_RETURN(std::unique_ptr<transport::UcxEndpoint> endpoint,
                   transport::UcxEndpoint::Create(ucx_options));
  welcome->place = transport::EncodePlaceInfo(here);
  welcome->address = endpoint->local_address();
  ASSIGN_OR_RETURN(std::unique_ptr<transport::Connection> connection,
                   endpoint->Connect(start.hello.address, SessionId{start.session}));

  serving->resources = std::make_unique<SessionResources>(
      driver, devices, serving->ledger.get(), serving->allocator.get(), &serving->admission);
  serving->resources->memory_exchange.Start(serving->allocator.get(), start.lease, start.session);
  RETURN_IF_ERROR(capture->CaptureErrors());
  Session::Options session_options;
  session_options.link.active_spin = kActiveSpin;
  serving->session =
      std::make_unique<Session>(serving->resources.get(), std::move(connection), session_options,
                                [capture] { return capture->Take(); });
  return absl::OkStatus();
}

// Ends the session when the daemon says so or the client's control socket closes. A daemon that
// dies ends nothing: the session goes on and is announced to the next one.
void Watch(const WorkerOptions& options, const DaemonMessage& start, UniqueFd control,
           std::unique_ptr<MessageSocket> daemon, Session* session) {
  while (true) {
    pollfd items[2] = {
        {.fd = control.get(), .events = POLLRDHUP, .revents = 0},
        {.fd = daemon != nullptr ? daemon->fd() : -1, .events = POLLIN, .revents = 0}};
    const int wait_ms =
        daemon != nullptr ? 60000 : static_cast<int>(absl::ToInt64Milliseconds(kReconnectEvery));
    poll(items, 2, wait_ms);
    if ((items[0].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0) {
      FARGPU_LOG(kDebug, "the client closed its control socket");
      session->End();
      return;
    }
    if (daemon == nullptr) {
      absl::StatusOr<UniqueFd> socket =
          MessageSocket::Connect(absl::StrCat(options.run_dir, "/daemon-worker.sock"));
      if (!socket.ok()) continue;
      daemon = std::make_unique<MessageSocket>(std::move(*socket));
      WorkerMessage announce;
      announce.kind = WorkerMessage::kAnnounce;
      announce.lease = start.lease;
      announce.session = start.session;
      announce.client_pid = start.hello.pid;
      announce.program = start.hello.program;
      if (!daemon->SendMessage(announce).ok()) daemon.reset();
      continue;
    }
    if (items[1].revents == 0) continue;
    const absl::StatusOr<MessageSocket::Received> received = daemon->Receive(absl::InfinitePast());
    if (absl::IsDeadlineExceeded(received.status())) continue;
    DaemonMessage message;
    if (!received.ok() || !DecodeDaemonMessage(received->bytes, &message).ok()) {
      FARGPU_LOG(kInfo, "the daemon is gone; the session goes on and waits for a new one");
      daemon.reset();
      continue;
    }
    if (message.kind == DaemonMessage::kEnd) {
      FARGPU_LOG(kDebug, "the daemon ends the session: ", message.text);
      session->End();
      return;
    }
  }
}

// Waits for the daemon's word to start; kUnavailable when there is no daemon any more, kCancelled
// when the worker is not needed.
absl::Status WaitForStart(MessageSocket* daemon, DaemonMessage* start, UniqueFd* ledger,
                          UniqueFd* control) {
  while (true) {
    absl::StatusOr<MessageSocket::Received> received =
        daemon->Receive(absl::Now() + absl::Hours(1));
    if (absl::IsDeadlineExceeded(received.status())) continue;
    RETURN_IF_ERROR(received.status());
    RETURN_IF_ERROR(DecodeDaemonMessage(received->bytes, start));
    if (start->kind == DaemonMessage::kEnd) return absl::CancelledError(start->text);
    if (start->kind != DaemonMessage::kStart || received->descriptors.size() != 2) {
      return absl::InvalidArgumentError("the daemon sent a message that makes no sense");
    }
    *ledger = std::move(received->descriptors[0]);
    *control = std::move(received->descriptors[1]);
    return absl::OkStatus();
  }
}

absl::StatusOr<std::unique_ptr<LoadedDriver>> StartDriver(const std::string& path) {
  ASSIGN_OR_RETURN(std::unique_ptr<LoadedDriver> driver, LoadedDriver::Load(path));
  if (const CUresult result = driver->cuInit(0); result != CUDA_SUCCESS) {
    return CudaError(result, absl::StrCat("cuInit of ", path));
  }
  return driver;
}

}  // namespace

int RunWorker(const WorkerOptions& options) {
  auto daemon = std::make_unique<MessageSocket>(UniqueFd(options.daemon_fd));
  WorkerMessage message;
  auto give_up = [&](const absl::Status& why) {
    message.kind = WorkerMessage::kFailed;
    message.text = std::string(why.message().substr(0, 1000));
    // The daemon writes the log line.
    return daemon->SendMessage(message).ok() ? 1 : 2;
  };

  absl::StatusOr<std::unique_ptr<OutputCapture>> capture = OutputCapture::Start();
  if (!capture.ok()) return give_up(capture.status());
  absl::StatusOr<std::unique_ptr<LoadedDriver>> driver = StartDriver(options.driver);
  if (!driver.ok()) return give_up(driver.status());
  message.kind = WorkerMessage::kReady;
  if (options.probe) {
    absl::StatusOr<std::vector<DeviceInfo>> devices = DescribeDevices(**driver);
    if (!devices.ok()) return give_up(devices.status());
    message.welcome.devices = std::move(*devices);
    return daemon->SendMessage(message).ok() ? 0 : 2;
  }
  if (!daemon->SendMessage(message).ok()) return 2;

  DaemonMessage start;
  UniqueFd ledger, control;
  if (absl::Status status = WaitForStart(daemon.get(), &start, &ledger, &control); !status.ok()) {
    // Also when the daemon died: nobody else can give this worker a session.
    const bool expected = absl::IsUnavailable(status) || absl::IsCancelled(status);
    if (!expected) FARGPU_LOG(kError, "no session: ", std::string(status.message()));
    return expected ? 0 : 1;
  }
  Serving serving;
  WorkerMessage answer;
  answer.kind = WorkerMessage::kWelcome;
  const absl::Status started = StartServing(options, start, std::move(ledger), driver->get(),
                                            capture->get(), &serving, &answer.welcome);
  if (!started.ok()) answer.welcome = RefusingWelcome(started);
  if (!daemon->SendMessage(answer).ok() || !started.ok()) return 1;
  FARGPU_LOG(kInfo, "session of ", start.hello.program, " (pid ", start.hello.pid, ") on lease ",
             BytesToHex(start.lease), " over ", serving.session->Describe());

  std::thread watcher(
      [&] { Watch(options, start, std::move(control), std::move(daemon), serving.session.get()); });
  watcher.detach();  // ends with the process
  const absl::Status end = serving.session->Wait();
  if (absl::IsInvalidArgument(end)) {
    FARGPU_LOG(kWarning, "session of ", start.hello.program, " (pid ", start.hello.pid,
               ") ends, its client broke the protocol: ", std::string(end.message()));
  } else {
    FARGPU_LOG(kInfo, "session of ", start.hello.program, " (pid ", start.hello.pid,
               ") ends: ", std::string(end.message()));
  }
  // Nothing is torn down: a thread may hang in the driver, and the kernel gives back all that the
  // process holds.
  std::fflush(stderr);
  _exit(0);
}

}  // namespace fargpu::server
