#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "common/ids.h"
#include "common/mutex.h"
#include "protocol/proto/broker.pb.h"
#include "protocol/proto/node.pb.h"
#include "scheduler/broker/clock.h"
#include "scheduler/broker/event_log.h"
#include "scheduler/broker/pool.h"
#include "scheduler/broker/request_checks.h"
#include "scheduler/policies/placement_policy.h"
#include "scheduler/store/store.h"

namespace fargpu::scheduler {

struct BrokerOptions {
  absl::Duration default_ttl = absl::Minutes(10);
  absl::Duration silent_after = absl::Seconds(5);  // without a heartbeat
  // What a daemon takes to come back after a restart of it or of the broker. It waits up to 5 s
  // between tries.
  absl::Duration reconnect_grace = absl::Seconds(6);
  absl::Duration reserve_timeout = absl::Seconds(3);  // for a node's answer to Reserve
  absl::Duration retry_waiting = absl::Seconds(1);    // between tries of a request that waits
  absl::Duration keep_ended = absl::Hours(24);
  size_t max_waiting = 10'000;  // requests that are not answered yet
  size_t kept_events = 10'000;
};

// The broker without its network: every decision about nodes and leases. All methods may be called
// by any thread; none waits for a node. What was granted or ended is in the store before anybody
// learns of it.
//
// One lock guards all state. Replies run after it is released.
class Broker {
 public:
  using AllocateDone = std::function<void(absl::StatusOr<broker::v1::AllocateResponse>)>;

  // All three must outlive the broker.
  Broker(Store* store, const PlacementPolicy* policy, const Clock* clock, BrokerOptions options);

  // Takes up what the store holds. Call it once, first.
  absl::Status Start();
  // Answers what waits with kUnavailable and closes all node channels. Leases stay.
  void Shutdown();

  // `done` runs exactly once, perhaps before Allocate returns. `ticket` comes from NewTicket().
  uint64_t NewTicket();
  void Allocate(const broker::v1::AllocateRequest& request, uint64_t ticket, AllocateDone done);
  // The caller has gone away: answers it with kCancelled if it was not answered yet.
  void CancelAllocate(uint64_t ticket);

  absl::StatusOr<broker::v1::Lease> Get(const broker::v1::GetRequest& request) const;
  absl::StatusOr<broker::v1::ListResponse> List(const broker::v1::ListRequest& request) const;
  absl::Status Release(const broker::v1::ReleaseRequest& request);
  absl::StatusOr<broker::v1::Lease> Renew(const broker::v1::RenewRequest& request);
  broker::v1::ListNodesResponse ListNodes() const;
  broker::v1::BrokerInfo Info() const;

  // A daemon's stream: returns the registration that the other two calls name. FullState has been
  // sent on `channel` when it returns OK.
  absl::StatusOr<uint64_t> RegisterNode(const node::v1::Hello& hello,
                                        std::shared_ptr<NodeChannel> channel);
  // An error ends the stream: kInvalidArgument, or kAborted for a registration that was replaced.
  absl::Status HandleNodeMessage(uint64_t registration, const node::v1::NodeMessage& message);
  void NodeStreamEnded(uint64_t registration);

  // Does what is due; call it several times a second.
  void Tick();

  EventLog& events() { return events_; }

 private:
  // Work for after the lock is released. Declare it before the lock.
  class Deferred {
   public:
    ~Deferred() {
      for (auto& action : actions_) action();
    }
    void Add(std::function<void()> action) { actions_.push_back(std::move(action)); }

   private:
    std::vector<std::function<void()>> actions_;
  };

  struct LeaseEntry {
    LeaseRecord record;
    absl::Duration expires;  // steady clock; does not count while the node is not connected
  };
  using RequestKey = std::pair<std::string, std::string>;  // tenant, request_id

  struct Waiter {
    uint64_t ticket;
    AllocateDone done;
  };
  // A request that has no answer yet.
  struct Pending {
    AllocateSpec spec;
    std::string fingerprint;
    LeaseId id;
    LeaseSecret secret;
    std::vector<Waiter> waiters;  // several, if the caller repeated the request
    absl::Duration give_up;
    // While a node is asked: the cards, already held in the pool.
    std::optional<Placement> placement;
    uint64_t registration = 0;
    std::string reserve_id;
    absl::Duration reserve_deadline;
    // While it waits for cards to become free.
    absl::Duration next_try;
    std::set<CardKey> refused;  // by their nodes, in this round
    absl::Status last_refusal;
  };
  using PendingMap = std::map<uint64_t, Pending>;  // in order of arrival

  // broker.cc: requests on their way to a lease.
  void TryPlace(PendingMap::iterator pending, Deferred* deferred)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AskNode(Pending& pending, Placement placement) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void HandleReserveResult(const std::string& node, const node::v1::ReserveResult& result,
                           Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Refused(PendingMap::iterator pending, absl::Status why, Deferred* deferred)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Grant(PendingMap::iterator pending, Deferred* deferred)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Answer(PendingMap::iterator pending,
              const absl::StatusOr<broker::v1::AllocateResponse>& answer, Deferred* deferred)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Unplace(Pending& pending) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RetryWaiting(Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TickPending(absl::Duration now, Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // broker_leases.cc: leases.
  // Replaces the entry, if there is one; books or gives back its cards.
  LeaseEntry& Insert(LeaseRecord record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void HoldLease(const LeaseRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void UnholdLease(const LeaseRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status EndLease(LeaseEntry& entry, EndCause cause, const std::string& reason,
                        Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  broker::v1::Lease ToProto(const LeaseEntry& entry) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<const LeaseEntry*> FindLease(const std::string& text) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TickLeases(absl::Duration now, Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // broker_nodes.cc: nodes and what they report.
  struct SessionSum {
    uint32_t count = 0;
    uint64_t charged_bytes = 0;
  };
  using SessionSums = std::map<LeaseId, SessionSum>;
  static SessionSums Sum(const google::protobuf::RepeatedPtrField<node::v1::Session>& sessions);
  void ApplySessions(const std::string& node, const SessionSums& sessions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The record that a lease with sessions on `node` gets; none if it stays as it is.
  std::optional<LeaseRecord> TakeUp(const PoolNode& node, const node::v1::HeldLease& held) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The record that a lease of `node` gets when the node comes back; none if it stays as it is.
  std::optional<LeaseRecord> Refresh(const PoolNode& node, const LeaseRecord& record) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendFullState(const PoolNode& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Disconnect(PoolNode& node, const std::string& why, Deferred* deferred)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  PoolNode* FindRegistration(uint64_t registration) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TickNodes(absl::Duration now, Deferred* deferred) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Commits, and publishes the events on success. Numbers them.
  absl::Status Commit(StoreChange change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  EventRecord LeaseEvent(const LeaseRecord& record, std::string message) const;
  EventRecord NodeEvent(const std::string& node, broker::v1::EventKind kind,
                        std::string message) const;

  Store* const store_;
  const PlacementPolicy* const policy_;
  const Clock* const clock_;
  const BrokerOptions options_;
  const int64_t start_time_ms_;
  EventLog events_;

  // Taken before the event log's and the channels' locks.
  mutable Mutex mutex_;
  bool shutting_down_ ABSL_GUARDED_BY(mutex_) = false;
  Pool pool_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, std::string> registrations_ ABSL_GUARDED_BY(mutex_);  // to node names
  std::map<LeaseId, LeaseEntry> leases_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::set<LeaseId>> active_by_node_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<int64_t, LeaseId>> by_creation_ ABSL_GUARDED_BY(mutex_);
  std::map<RequestKey, LeaseId> by_request_ ABSL_GUARDED_BY(mutex_);
  PendingMap pending_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_pending_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t next_reserve_ ABSL_GUARDED_BY(mutex_) = 1;
  uint64_t next_registration_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::Duration next_lease_tick_ ABSL_GUARDED_BY(mutex_);
};

// The lease's cards, in its order.
std::vector<std::string> DeviceUuids(const broker::v1::Lease& lease);
// Name of the node that has them.
std::string NodeOf(const broker::v1::Lease& lease);
// Describes `uuids` of `node` in the lease, and where its sessions connect.
void SetDevices(const PoolNode& node, const std::vector<std::string>& uuids,
                broker::v1::Lease* lease);

}  // namespace fargpu::scheduler
