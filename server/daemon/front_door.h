#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "common/fd.h"
#include "common/mutex.h"
#include "protocol/lease_view.h"
#include "server/daemon/lease_table.h"
#include "server/daemon/worker_pool.h"
#include "transport/control/endpoint.h"

namespace fargpu::server {

// Where clients knock: listens, has each one prove the secret of a lease before anything else of it
// is read, and gives it a worker. A stranger costs one thread for a few seconds and one log line.
class FrontDoor {
 public:
  struct Options {
    std::vector<std::string> listen;  // endpoints as transport/control takes them
    // Who have not proved anything yet, or wait for a worker. Over this the stranger that has been
    // silent for longest makes room; over twice as many, nobody more is let in.
    size_t max_guests = 256;
    absl::Duration handshake_limit = absl::Seconds(5);
    absl::Duration session_limit = absl::Seconds(15);
  };

  // Both must outlive the door.
  static absl::StatusOr<std::unique_ptr<FrontDoor>> Open(Options options, LeaseTable* leases,
                                                         WorkerPool* workers);
  // Lets nobody in any more, and waits for those who are at the door.
  ~FrontDoor();

  // Where it listens, with real port numbers.
  std::vector<std::string> endpoints() const;

 private:
  FrontDoor(Options options, LeaseTable* leases, WorkerPool* workers)
      : options_(std::move(options)), leases_(leases), workers_(workers) {}
  void Run();
  void Receive(UniqueFd socket);
  // A second descriptor of a guest's socket, by which it can be put out.
  using Stranger = std::shared_ptr<const UniqueFd>;
  absl::Status Serve(UniqueFd socket, Stranger stranger);
  LeaseView ViewOf(const Lease& lease) const;
  // One log line, unless strangers come by the hundred: then one now and then that counts them.
  void ReportTurnedAway(const std::string& name, absl::string_view why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Options options_;
  LeaseTable* const leases_;
  WorkerPool* const workers_;
  std::vector<std::unique_ptr<transport::Listener>> listeners_;
  std::atomic<bool> closing_{false};
  UniqueFd wake_;
  Mutex mutex_;
  CondVar left_;
  size_t guests_ ABSL_GUARDED_BY(mutex_) = 0;
  // Guests who have proved nothing yet, in the order in which they came.
  std::list<Stranger> strangers_ ABSL_GUARDED_BY(mutex_);
  absl::Time reports_since_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  size_t reports_ ABSL_GUARDED_BY(mutex_) = 0;  // since then
  size_t unreported_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

}  // namespace fargpu::server
