#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "common/fd.h"
#include "common/ids.h"
#include "common/mutex.h"
#include "protocol/handshake.h"
#include "server/daemon/lease_table.h"
#include "server/process/message_socket.h"
#include "server/process/process_messages.h"
#include "transport/control/control_channel.h"

namespace fargpu::server {

// How workers are started.
struct WorkerCommand {
  std::string program;  // path of fargpu-worker
  std::string driver;   // path of the driver library
  bool fresh_memory_is_zero = false;
  std::string run_dir;
  std::string log_level;
};

// Describes the devices of a driver by a worker that ends at once, so that the daemon itself never
// loads one. kUnavailable: the worker died; otherwise what the driver said.
absl::StatusOr<std::vector<DeviceInfo>> ProbeDriver(const WorkerCommand& command,
                                                    absl::Time deadline);

// The worker processes of this node: keeps some warm, gives each session one, notices when they
// end, takes over those that a daemon before left behind. Thread-safe.
class WorkerPool {
 public:
  struct Options {
    WorkerCommand command;
    int warm = 2;
    size_t max_workers = 512;
    // A worker that is told to end is killed after so long.
    absl::Duration grace = absl::Seconds(1);
    // One that does not become ready in so long is killed.
    absl::Duration start_limit = absl::Seconds(60);
  };

  // `leases` must outlive the pool. Listens for orphans in the run directory.
  static absl::StatusOr<std::unique_ptr<WorkerPool>> Start(Options options, LeaseTable* leases);
  // Ends all workers if Shutdown() was called before, else leaves sessions running.
  ~WorkerPool();

  // Opens a session of `lease` for the client behind `*channel` and sends it the worker's Welcome.
  // Then the channel is the pool's: it is kept until the session ends, and its end ends the
  // session. On failure the caller may still have it, to say why. kUnavailable when no worker was
  // ready by the deadline; otherwise the worker's refusal.
  absl::Status StartSession(std::shared_ptr<const Lease> lease, const Hello& hello,
                            std::unique_ptr<transport::ControlChannel>* channel,
                            absl::Time deadline);

  // Who has a session on the lease.
  struct SessionOf {
    uint32_t worker_pid = 0;
    uint32_t client_pid = 0;
    std::string program;
  };
  std::vector<SessionOf> Sessions(const LeaseId& lease);

  // Ends all sessions of a lease, also those that have not announced themselves yet.
  void EndLease(const Lease& lease, const std::string& why);

  // Ends everything; returns when all processes are gone, in at most two graces.
  void Shutdown();

  int ready_count();

 private:
  enum class State { kStarting, kReady, kBusy, kEnding };
  struct Worker {
    uint32_t pid = 0;
    UniqueFd pidfd;
    std::unique_ptr<MessageSocket> socket;  // nullptr once it is closed
    State state = State::kStarting;
    bool adopted = false;
    absl::Time since;  // of the state
    LeaseId lease;     // when busy
    uint32_t client_pid = 0;
    std::string program;  // the client's
    // The client's, kept open for as long as the worker lives.
    std::unique_ptr<transport::ControlChannel> channel;
    bool welcomed = false;  // `welcome` has arrived
    Welcome welcome;
    int waiters = 0;  // threads that look at this entry; it stays until they are through
    bool gone = false;
  };

  WorkerPool(Options options, LeaseTable* leases) : options_(std::move(options)), leases_(leases) {}

  void Run();
  absl::Time NextDeadline() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StartMissing() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeMessages(Worker* worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeMessage(Worker* worker, WorkerMessage message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LookAtClient(Worker* worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End(Worker* worker, const std::string& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Reap(Worker* worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void KillOverdue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Adopt() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Wake();

  const Options options_;
  LeaseTable* const leases_;
  UniqueFd orphans_;  // listening socket
  UniqueFd wake_;     // eventfd

  Mutex mutex_;
  CondVar changed_;
  std::list<Worker> workers_ ABSL_GUARDED_BY(mutex_);
  int failures_ ABSL_GUARDED_BY(mutex_) = 0;  // starts in a row that went wrong
  absl::Time next_start_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool shut_down_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace fargpu::server
