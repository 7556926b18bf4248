#include "server/daemon/worker_pool.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/log.h"
#include "common/status_macros.h"
#include "memory/process_id.h"
#include "server/daemon/spawn.h"
#include "transport/control/endpoint.h"

namespace fargpu::server {
namespace {

constexpr absl::Duration kFirstBackOff = absl::Milliseconds(100);
constexpr absl::Duration kLongestBackOff = absl::Seconds(10);
constexpr absl::Duration kLook = absl::Seconds(1);

std::vector<std::string> CommandLine(const WorkerCommand& command) {
  std::vector<std::string> line = {command.program, "--driver",    command.driver,
                                   "--daemon-fd",   "3",           "--run-dir",
                                   command.run_dir, "--log-level", command.log_level};
  if (command.fresh_memory_is_zero) line.push_back("--fresh-memory-is-zero");
  return line;
}

absl::Status DecodeWorkerMessage(const std::string& bytes, WorkerMessage* message) {
  return wire::DecodeMessage(absl::MakeConstSpan(bytes.data(), bytes.size()), message);
}

// "by signal 11", "with status 1"; of a child that has ended, which is then gone for good.
std::string HowItEnded(uint32_t pid, bool* well) {
  int status = 0;
  *well = false;
  if (waitpid(static_cast<pid_t>(pid), &status, WNOHANG) != static_cast<pid_t>(pid)) return "";
  if (WIFSIGNALED(status)) return absl::StrCat("by signal ", WTERMSIG(status));
  *well = WEXITSTATUS(status) == 0;
  return absl::StrCat("with status ", WEXITSTATUS(status));
}

}  // namespace

absl::StatusOr<std::vector<DeviceInfo>> ProbeDriver(const WorkerCommand& command,
                                                    absl::Time deadline) {
  ASSIGN_OR_RETURN(auto ends, MessageSocket::Pair());
  std::vector<std::string> line = CommandLine(command);
  line.push_back("--probe");
  ASSIGN_OR_RETURN(SpawnedProcess process, Spawn(line, ends.second.get()));
  ends.second.reset();
  MessageSocket socket(std::move(ends.first));
  absl::StatusOr<MessageSocket::Received> received = socket.Receive(deadline);
  // The answer is all that is wanted; a driver may take its time to end.
  KillProcess(process.pidfd.get());
  int status = 0;
  waitpid(static_cast<pid_t>(process.pid), &status, 0);
  if (!received.ok()) {
    return absl::UnavailableError(
        absl::StrCat("the worker that probes ", command.driver, " ended without an answer"));
  }
  WorkerMessage message;
  RETURN_IF_ERROR(DecodeWorkerMessage(received->bytes, &message));
  if (message.kind != WorkerMessage::kReady) return absl::FailedPreconditionError(message.text);
  if (message.welcome.devices.empty()) {
    return absl::NotFoundError(absl::StrCat("the driver ", command.driver, " has no device"));
  }
  return std::move(message.welcome.devices);
}

absl::StatusOr<std::unique_ptr<WorkerPool>> WorkerPool::Start(Options options, LeaseTable* leases) {
  auto pool = std::unique_ptr<WorkerPool>(new WorkerPool(std::move(options), leases));
  ASSIGN_OR_RETURN(pool->orphans_, MessageSocket::Listen(absl::StrCat(
                                       pool->options_.command.run_dir, "/daemon-worker.sock")));
  pool->wake_.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!pool->wake_.valid()) return ErrnoStatus("eventfd");
  WorkerPool* self = pool.get();
  pool->thread_ = std::thread([self] { self->Run(); });
  return pool;
}

WorkerPool::~WorkerPool() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
  }
  Wake();
  thread_.join();
}

void WorkerPool::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

void WorkerPool::Run() {
  while (true) {
    std::vector<pollfd> items = {{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                                 {.fd = orphans_.get(), .events = POLLIN, .revents = 0}};
    std::vector<Worker*> polled;  // three items each; entries stay while this thread polls
    absl::Time until;
    {
      MutexLock lock(&mutex_);
      if (stopping_) return;
      StartMissing();
      for (Worker& worker : workers_) {
        if (worker.gone) continue;
        polled.push_back(&worker);
        items.push_back({.fd = worker.pidfd.get(), .events = POLLIN, .revents = 0});
        items.push_back({.fd = worker.socket != nullptr ? worker.socket->fd() : -1,
                         .events = POLLIN,
                         .revents = 0});
        const bool watched = worker.channel != nullptr && worker.state == State::kBusy;
        items.push_back({.fd = watched ? worker.channel->fd() : -1,
                         .events = POLLIN | POLLRDHUP,
                         .revents = 0});
      }
      until = NextDeadline();
    }
    const absl::Duration wait = std::clamp(until - absl::Now(), absl::ZeroDuration(), kLook);
    poll(items.data(), items.size(), static_cast<int>(absl::ToInt64Milliseconds(wait)) + 1);
    uint64_t ignored = 0;
    [[maybe_unused]] const ssize_t count = read(wake_.get(), &ignored, sizeof(ignored));

    MutexLock lock(&mutex_);
    for (size_t i = 0; i < polled.size(); ++i) {
      Worker* worker = polled[i];
      // What it said before it ended counts.
      if (items[2 + 3 * i + 1].revents != 0) TakeMessages(worker);
      if (items[2 + 3 * i + 2].revents != 0) LookAtClient(worker);
      if (items[2 + 3 * i].revents != 0) Reap(worker);
    }
    if (items[1].revents != 0) Adopt();
    KillOverdue();
    workers_.remove_if([](const Worker& worker) { return worker.gone && worker.waiters == 0; });
    changed_.SignalAll();
  }
}

absl::Time WorkerPool::NextDeadline() {
  absl::Time next = next_start_ > absl::Now() ? next_start_ : absl::InfiniteFuture();
  for (const Worker& worker : workers_) {
    if (worker.gone) continue;
    if (worker.state == State::kEnding) next = std::min(next, worker.since + options_.grace);
    if (worker.state == State::kStarting)
      next = std::min(next, worker.since + options_.start_limit);
  }
  return next;
}

void WorkerPool::StartMissing() {
  if (shut_down_ || absl::Now() < next_start_) return;
  int warm = 0;
  for (const Worker& worker : workers_) {
    if (worker.state == State::kStarting || worker.state == State::kReady)
      warm += worker.gone ? 0 : 1;
  }
  for (; warm < options_.warm && workers_.size() < options_.max_workers; ++warm) {
    auto ends = MessageSocket::Pair();
    absl::StatusOr<SpawnedProcess> process = absl::UnknownError("");
    if (!ends.ok()) process = ends.status();
    if (ends.ok()) process = Spawn(CommandLine(options_.command), ends->second.get());
    if (!process.ok()) {
      FARGPU_LOG(kError, "no worker can be started: ", std::string(process.status().message()));
      next_start_ = absl::Now() + kFirstBackOff * (1 << std::min(++failures_, 7));
      return;
    }
    Worker& worker = workers_.emplace_back();
    worker.pid = process->pid;
    worker.pidfd = std::move(process->pidfd);
    worker.socket = std::make_unique<MessageSocket>(std::move(ends->first));
    worker.since = absl::Now();
  }
}

void WorkerPool::TakeMessages(Worker* worker) {
  while (worker->socket != nullptr) {
    absl::StatusOr<MessageSocket::Received> received =
        worker->socket->Receive(absl::InfinitePast());
    if (absl::IsDeadlineExceeded(received.status())) return;
    WorkerMessage message;
    if (!received.ok() || !DecodeWorkerMessage(received->bytes, &message).ok()) {
      // It has ended, and the pidfd says so soon, or it makes no sense: then it is made to end.
      worker->socket.reset();
      if (worker->state != State::kEnding) {
        worker->state = State::kEnding;
        worker->since = absl::Now();
      }
      return;
    }
    TakeMessage(worker, std::move(message));
  }
}

void WorkerPool::TakeMessage(Worker* worker, WorkerMessage message) {
  switch (message.kind) {
    case WorkerMessage::kReady:
      if (worker->state != State::kStarting) return;
      worker->state = State::kReady;
      worker->since = absl::Now();
      failures_ = 0;
      return;
    case WorkerMessage::kFailed:
      FARGPU_LOG(kError, "worker ", worker->pid, " cannot start: ", message.text);
      return;
    case WorkerMessage::kWelcome:
      worker->welcomed = true;
      worker->welcome = std::move(message.welcome);
      return;
    case WorkerMessage::kAnnounce: {
      LeaseId lease;
      lease.bytes = message.lease;
      worker->lease = lease;
      worker->client_pid = message.client_pid;
      worker->program = message.program;
      if (!worker->adopted) return;
      if (leases_->Find(lease) == nullptr) {
        End(worker, "its lease is not held any more");
        return;
      }
      FARGPU_LOG(kInfo, "took over worker ", worker->pid, " with the session of ", message.program,
                 " (pid ", message.client_pid, ") on lease ", ToString(lease));
      return;
    }
  }
}

// A client says nothing on its control socket; all that can come is its end.
void WorkerPool::LookAtClient(Worker* worker) {
  if (worker->channel == nullptr || worker->state != State::kBusy) return;
  const absl::StatusOr<std::string> message = worker->channel->Receive(absl::InfinitePast());
  if (absl::IsDeadlineExceeded(message.status())) {
    pollfd item = {.fd = worker->channel->fd(), .events = POLLRDHUP, .revents = 0};
    if (poll(&item, 1, 0) <= 0) return;
  }
  End(worker, "the client is gone");
}

void WorkerPool::End(Worker* worker, const std::string& why) {
  if (worker->state == State::kEnding || worker->gone) return;
  worker->state = State::kEnding;
  worker->since = absl::Now();
  DaemonMessage end;
  end.kind = DaemonMessage::kEnd;
  end.text = why;
  // If it cannot be told, it is killed when the grace is over.
  if (worker->socket != nullptr) worker->socket->SendMessage(end).IgnoreError();
}

void WorkerPool::Reap(Worker* worker) {
  if (worker->gone) return;
  worker->gone = true;
  bool well = false;
  const std::string how = HowItEnded(worker->pid, &well);
  const std::shared_ptr<const Lease> lease = leases_->Find(worker->lease);
  // Its memory is back at once, not when somebody needs it.
  if (lease != nullptr) lease->ledger->SweepDead().IgnoreError();
  if (worker->state == State::kStarting || worker->state == State::kReady) {
    const absl::Duration wait =
        std::min(kFirstBackOff * (1 << std::min(failures_, 7)), kLongestBackOff);
    ++failures_;
    next_start_ = absl::Now() + wait;
    if (!shut_down_)
      FARGPU_LOG(kWarning, "worker ", worker->pid, " ended ", how, " without a session");
  } else if (!well && !how.empty() && worker->state == State::kBusy) {
    FARGPU_LOG(kWarning, "worker ", worker->pid, " ended ", how, "; its session on lease ",
               ToString(worker->lease), " is lost");
  }
  worker->channel.reset();  // the client learns of it if it has not yet
  worker->socket.reset();
}

void WorkerPool::KillOverdue() {
  const absl::Time now = absl::Now();
  for (Worker& worker : workers_) {
    if (worker.gone) continue;
    if ((worker.state == State::kEnding && now >= worker.since + options_.grace) ||
        (worker.state == State::kStarting && now >= worker.since + options_.start_limit)) {
      if (worker.state == State::kStarting) {
        FARGPU_LOG(kError, "worker ", worker.pid, " is not ready after ",
                   absl::FormatDuration(options_.start_limit), " and is killed");
      }
      KillProcess(worker.pidfd.get());
      worker.since = now;
    }
  }
}

// A worker that a daemon before us left. The socket lies in our private directory, and the kernel
// says who is at the other end.
void WorkerPool::Adopt() {
  while (true) {
    UniqueFd socket(accept4(orphans_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket.valid()) return;
    ucred peer = {};
    socklen_t size = sizeof(peer);
    if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 ||
        peer.uid != geteuid()) {
      continue;
    }
    absl::StatusOr<UniqueFd> pidfd = OpenPidfd(static_cast<uint32_t>(peer.pid));
    if (!pidfd.ok()) continue;
    Worker& worker = workers_.emplace_back();
    worker.pid = static_cast<uint32_t>(peer.pid);
    worker.pidfd = std::move(*pidfd);
    worker.socket = std::make_unique<MessageSocket>(std::move(socket));
    worker.state = State::kBusy;
    worker.since = absl::Now();
    worker.adopted = true;
  }
}

absl::Status WorkerPool::StartSession(std::shared_ptr<const Lease> lease, const Hello& hello,
                                      std::unique_ptr<transport::ControlChannel>* channel,
                                      absl::Time deadline) {
  DaemonMessage start;
  start.kind = DaemonMessage::kStart;
  start.lease = lease->id.bytes;
  start.session = RandomId<SessionId>().bytes;
  start.hello = hello;
  start.devices = leases_->DevicesOf(*lease);
  ASSIGN_OR_RETURN(start.net_device, transport::InterfaceOf((*channel)->fd()));
  start.may_share_memory = start.net_device == "lo";

  MutexLock lock(&mutex_);
  Worker* worker = nullptr;
  while (worker == nullptr) {
    if (shut_down_ || stopping_) return absl::UnavailableError("the daemon is shutting down");
    for (Worker& candidate : workers_) {
      if (candidate.state == State::kReady && !candidate.gone) {
        worker = &candidate;
        break;
      }
    }
    if (worker != nullptr) break;
    if (absl::Now() >= deadline) {
      return absl::UnavailableError(
          absl::StrCat("no worker became ready in time; ", workers_.size(), " workers run"));
    }
    changed_.WaitFor(&mutex_, std::chrono::milliseconds(50));
  }
  worker->state = State::kBusy;
  worker->since = absl::Now();
  worker->lease = lease->id;
  worker->client_pid = hello.pid;
  worker->program = hello.program;
  const int descriptors[] = {lease->ledger->fd(), (*channel)->fd()};
  absl::Status sent = worker->socket != nullptr
                          ? worker->socket->SendMessage(start, descriptors)
                          : absl::UnavailableError("the worker has just ended");
  ++worker->waiters;
  // The next warm worker starts while this one opens its session.
  Wake();
  while (sent.ok() && !worker->welcomed && !worker->gone && absl::Now() < deadline) {
    changed_.WaitFor(&mutex_, std::chrono::milliseconds(50));
  }
  --worker->waiters;
  if (worker->gone || !worker->welcomed) {
    End(worker, "it did not open its session");
    return sent.ok() ? absl::UnavailableError("the worker did not open the session") : sent;
  }
  if (worker->welcome.refusal != 0) {
    // It ends by itself.
    worker->state = State::kEnding;
    worker->since = absl::Now();
    return RefusalOf(worker->welcome);
  }
  // From here on its end is the session's. The welcome goes out before anything else can write to
  // the socket.
  std::vector<char> bytes;
  wire::EncodeMessage(worker->welcome, &bytes);
  const absl::Status told =
      (*channel)->Send(absl::string_view(bytes.data(), bytes.size()), deadline);
  worker->channel = std::move(*channel);
  if (!told.ok()) End(worker, "the client left while its session was opened");
  Wake();
  return told;
}

std::vector<WorkerPool::SessionOf> WorkerPool::Sessions(const LeaseId& lease) {
  MutexLock lock(&mutex_);
  std::vector<SessionOf> sessions;
  for (const Worker& worker : workers_) {
    if (worker.state != State::kBusy || worker.gone || !(worker.lease == lease)) continue;
    sessions.push_back(
        {.worker_pid = worker.pid, .client_pid = worker.client_pid, .program = worker.program});
  }
  return sessions;
}

void WorkerPool::EndLease(const Lease& lease, const std::string& why) {
  MutexLock lock(&mutex_);
  std::vector<uint32_t> known;
  for (Worker& worker : workers_) {
    known.push_back(worker.pid);
    if (worker.state == State::kBusy && worker.lease == lease.id) End(&worker, why);
  }
  // The ledger also names workers of a daemon before us that have not found us yet. It can be
  // written by workers, so nobody is killed for being named there.
  for (const memory::LeaseLedger::Use& use : lease.ledger->Sessions()) {
    if (std::find(known.begin(), known.end(), use.process.pid) != known.end()) continue;
    absl::StatusOr<UniqueFd> pidfd = OpenPidfd(use.process.pid);
    if (pidfd.ok() && memory::IsAlive(use.process) &&
        RunsProgram(use.process.pid, options_.command.program)) {
      KillProcess(pidfd->get());
    }
  }
  Wake();
}

void WorkerPool::Shutdown() {
  MutexLock lock(&mutex_);
  shut_down_ = true;
  for (Worker& worker : workers_) End(&worker, "the daemon is shutting down");
  Wake();
  const absl::Time deadline = absl::Now() + 2 * options_.grace;
  const auto all_gone = [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    return std::all_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.gone; });
  };
  while (!all_gone() && absl::Now() < deadline) {
    changed_.WaitFor(&mutex_, std::chrono::milliseconds(50));
  }
}

int WorkerPool::ready_count() {
  MutexLock lock(&mutex_);
  int count = 0;
  for (const Worker& worker : workers_) {
    if (worker.state == State::kReady && !worker.gone) ++count;
  }
  return count;
}

}  // namespace fargpu::server
