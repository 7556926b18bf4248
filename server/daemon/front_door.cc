#include "server/daemon/front_door.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/log.h"
#include "common/status_macros.h"
#include "protocol/handshake.h"
#include "transport/control/control_channel.h"

namespace fargpu::server {
namespace {

constexpr absl::Duration kReportWindow = absl::Seconds(1);
constexpr size_t kReportsPerWindow = 50;

}  // namespace

absl::StatusOr<std::unique_ptr<FrontDoor>> FrontDoor::Open(Options options, LeaseTable* leases,
                                                           WorkerPool* workers) {
  auto door = std::unique_ptr<FrontDoor>(new FrontDoor(std::move(options), leases, workers));
  for (const std::string& endpoint : door->options_.listen) {
    ASSIGN_OR_RETURN(std::unique_ptr<transport::Listener> listener,
                     transport::Listener::Listen(endpoint));
    door->listeners_.push_back(std::move(listener));
  }
  door->wake_.reset(eventfd(0, EFD_CLOEXEC));
  if (!door->wake_.valid()) return ErrnoStatus("eventfd");
  FrontDoor* self = door.get();
  door->thread_ = std::thread([self] { self->Run(); });
  return door;
}

FrontDoor::~FrontDoor() {
  closing_.store(true);
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
  thread_.join();
  MutexLock lock(&mutex_);
  // Every guest has a deadline.
  while (guests_ > 0) left_.WaitFor(&mutex_, std::chrono::seconds(1));
}

std::vector<std::string> FrontDoor::endpoints() const {
  std::vector<std::string> result;
  for (const auto& listener : listeners_) result.push_back(listener->endpoint());
  return result;
}

void FrontDoor::Run() {
  std::vector<pollfd> items = {{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  for (const auto& listener : listeners_) {
    items.push_back({.fd = listener->fd(), .events = POLLIN, .revents = 0});
  }
  while (!closing_.load()) {
    if (poll(items.data(), items.size(), -1) < 0) continue;
    for (size_t i = 0; i < listeners_.size() && !closing_.load(); ++i) {
      if (items[i + 1].revents == 0) continue;
      absl::StatusOr<UniqueFd> socket = listeners_[i]->Accept(absl::Now());
      if (socket.ok()) {
        Receive(*std::move(socket));
      } else if (!absl::IsDeadlineExceeded(socket.status())) {
        FARGPU_LOG(kWarning, "accept on ", listeners_[i]->endpoint(), ": ",
                   std::string(socket.status().message()));
        // Out of descriptors, most likely: the socket stays readable, so do not spin.
        absl::SleepFor(absl::Milliseconds(100));
      }
    }
  }
}

void FrontDoor::Receive(UniqueFd socket) {
  const auto stranger = std::make_shared<const UniqueFd>(fcntl(socket.get(), F_DUPFD_CLOEXEC, 0));
  {
    MutexLock lock(&mutex_);
    if (guests_ >= 2 * options_.max_guests) {
      ReportTurnedAway(transport::PeerName(socket.get()),
                       absl::StrCat(guests_, " others are at the door, the limit"));
      return;
    }
    if (guests_ >= options_.max_guests && !strangers_.empty()) {
      // Its thread sees the end of the stream and leaves.
      shutdown(strangers_.front()->get(), SHUT_RDWR);
      strangers_.pop_front();
    }
    strangers_.push_back(stranger);
    ++guests_;
  }
  std::thread([this, stranger, guest = std::make_shared<UniqueFd>(std::move(socket))] {
    const std::string name = transport::PeerName(guest->get());
    const absl::Status status = Serve(std::move(*guest), stranger);
    MutexLock lock(&mutex_);
    if (!status.ok()) ReportTurnedAway(name, status.message());
    --guests_;
    left_.SignalAll();
  }).detach();  // the destructor waits for guests_
}

void FrontDoor::ReportTurnedAway(const std::string& name, absl::string_view why) {
  const absl::Time now = absl::Now();
  if (now - reports_since_ >= kReportWindow) {
    if (unreported_ > 0) FARGPU_LOG(kWarning, "turned away ", unreported_, " more like the last");
    reports_since_ = now;
    reports_ = unreported_ = 0;
  }
  if (reports_ == kReportsPerWindow) {
    ++unreported_;
    return;
  }
  ++reports_;
  FARGPU_LOG(kWarning, "turned away ", name, ": ", why);
}

LeaseView FrontDoor::ViewOf(const Lease& lease) const {
  LeaseView view;
  view.cores_percent = lease.cores_percent;
  view.devices = leases_->DevicesOf(lease);
  for (DeviceInfo& device : view.devices) {
    device.total_memory_bytes = lease.ledger->limit_bytes();
  }
  view.used_bytes.resize(view.devices.size());
  // One reading of the ledger, so that the parts add up to the whole.
  const std::vector<memory::LeaseLedger::Use> uses = lease.ledger->Sessions();
  for (const memory::LeaseLedger::Use& use : uses) {
    // A worker that died a moment ago stands there until it is swept.
    if (!memory::IsAlive(use.process)) continue;
    for (size_t i = 0; i < view.devices.size(); ++i) view.used_bytes[i] += use.charged_bytes[i];
  }
  for (WorkerPool::SessionOf& session : workers_->Sessions(lease.id)) {
    LeaseProcess process;
    process.pid = session.client_pid;
    process.program = std::move(session.program);
    process.used_bytes.resize(view.devices.size());
    for (const memory::LeaseLedger::Use& use : uses) {
      if (use.process.pid == session.worker_pid) process.used_bytes = use.charged_bytes;
    }
    process.used_bytes.resize(view.devices.size());
    view.processes.push_back(std::move(process));
  }
  return view;
}

absl::Status FrontDoor::Serve(UniqueFd socket, Stranger stranger) {
  const absl::Time deadline = absl::Now() + options_.handshake_limit;
  absl::StatusOr<std::unique_ptr<transport::ControlChannel>> accepted = transport::AcceptChannel(
      std::move(socket),
      [this](const LeaseId& id) -> absl::StatusOr<LeaseSecret> {
        const std::shared_ptr<const Lease> lease = leases_->Find(id);
        if (lease == nullptr) {
          return absl::NotFoundError(absl::StrCat("no lease ", ToString(id), " on this node"));
        }
        return lease->secret;
      },
      deadline);
  {
    MutexLock lock(&mutex_);
    strangers_.remove(stranger);
  }
  RETURN_IF_ERROR(accepted.status());
  std::unique_ptr<transport::ControlChannel> channel = *std::move(accepted);
  const std::shared_ptr<const Lease> lease = leases_->Find(channel->lease());
  if (lease == nullptr) return absl::NotFoundError("its lease was released just now");
  ASSIGN_OR_RETURN(const std::string bytes, channel->Receive(deadline));
  Hello hello;
  RETURN_IF_ERROR(wire::DecodeMessage(absl::MakeConstSpan(bytes.data(), bytes.size()), &hello));

  if ((hello.features & kFeatureLook) != 0) {
    std::vector<char> view;
    wire::EncodeMessage(ViewOf(*lease), &view);
    return channel->Send(absl::string_view(view.data(), view.size()), deadline);
  }

  const absl::Time session_deadline = absl::Now() + options_.session_limit;
  const absl::Status started = workers_->StartSession(lease, hello, &channel, session_deadline);
  if (!started.ok() && channel != nullptr) {
    std::vector<char> refusal;
    wire::EncodeMessage(RefusingWelcome(started), &refusal);
    channel->Send(absl::string_view(refusal.data(), refusal.size()), session_deadline)
        .IgnoreError();
  }
  return started;
}

}  // namespace fargpu::server
