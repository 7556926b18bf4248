#include "scheduler/broker/broker.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

#include "common/log.h"
#include "common/status_macros.h"

namespace fargpu::scheduler {

namespace pb = broker::v1;

namespace {

PlacementRequest ToPlacementRequest(const AllocateSpec& spec) {
  return PlacementRequest{
      .memory_bytes = spec.memory_bytes, .cores_percent = spec.cores_percent, .count = spec.count};
}

pb::AllocateResponse ToResponse(pb::Lease lease, const LeaseSecret& secret) {
  pb::AllocateResponse response;
  *response.mutable_lease() = std::move(lease);
  response.set_secret(secret.bytes.data(), secret.bytes.size());
  return response;
}

}  // namespace

std::vector<std::string> DeviceUuids(const pb::Lease& lease) {
  std::vector<std::string> uuids;
  for (const pb::LeasedDevice& device : lease.devices()) uuids.push_back(device.uuid());
  return uuids;
}

std::string NodeOf(const pb::Lease& lease) {
  return lease.devices_size() > 0 ? lease.devices(0).node() : "";
}

void SetDevices(const PoolNode& node, const std::vector<std::string>& uuids, pb::Lease* lease) {
  lease->clear_devices();
  for (const std::string& uuid : uuids) {
    pb::LeasedDevice& device = *lease->add_devices();
    device.set_uuid(uuid);
    device.set_node(node.hello.node_name());
    const auto card = node.cards.find(uuid);
    if (card == node.cards.end()) continue;
    device.set_model(card->second.device.name());
    device.set_card_memory_bytes(card->second.device.memory_bytes());
  }
  *lease->mutable_endpoints() = node.hello.endpoints();
}

Broker::Broker(Store* store, const PlacementPolicy* policy, const Clock* clock,
               BrokerOptions options)
    : store_(store),
      policy_(policy),
      clock_(clock),
      options_(options),
      start_time_ms_(clock->WallMillis()),
      events_(options.kept_events) {}

absl::Status Broker::Start() {
  MutexLock lock(&mutex_);
  ASSIGN_OR_RETURN(StoreContents contents, store_->Load());
  const absl::Duration now = clock_->Steady();
  for (NodeRecord& record : contents.nodes) {
    PoolNode& node = pool_.Put(std::move(record.hello));
    node.last_heard_ms = record.last_heard_ms;
    node.expected_until = now + options_.reconnect_grace;
    node.last_heard = now - absl::Milliseconds(clock_->WallMillis() - record.last_heard_ms);
  }
  for (LeaseRecord& record : contents.leases) {
    // Sessions are what a connected node says, not what a store remembers.
    record.lease.set_session_count(0);
    record.lease.set_charged_bytes(0);
    Insert(std::move(record));
  }
  events_.Load(std::move(contents.store_id), std::move(contents.events));
  FARGPU_LOG(kInfo, "store holds ", leases_.size(), " leases and ", pool_.nodes().size(), " nodes");
  return absl::OkStatus();
}

void Broker::Shutdown() {
  Deferred deferred;
  MutexLock lock(&mutex_);
  shutting_down_ = true;
  const absl::Status why = absl::UnavailableError("the broker is shutting down");
  // A node that still answers an open Reserve drops it when it registers again: it is in no store.
  while (!pending_.empty()) Answer(pending_.begin(), why, &deferred);
  for (auto& [name, node] : pool_.nodes()) {
    if (node.connected()) node.channel->Close(why);
    node.registration = 0;
    node.channel.reset();
  }
  registrations_.clear();
  events_.Close();
}

uint64_t Broker::NewTicket() {
  MutexLock lock(&mutex_);
  return next_ticket_++;
}

void Broker::Allocate(const pb::AllocateRequest& request, uint64_t ticket, AllocateDone done) {
  absl::StatusOr<AllocateSpec> spec = CheckAllocate(request, options_.default_ttl);
  if (!spec.ok()) {
    done(spec.status());
    return;
  }
  Deferred deferred;
  const auto reply = [&](absl::StatusOr<pb::AllocateResponse> answer) {
    deferred.Add([done, answer = std::move(answer)] { done(answer); });
  };
  MutexLock lock(&mutex_);
  if (shutting_down_) return reply(absl::UnavailableError("the broker is shutting down"));
  const absl::Duration now = clock_->Steady();
  const std::string fingerprint = Fingerprint(*spec);

  if (!spec->request_id.empty()) {
    const absl::Status reused = absl::AlreadyExistsError(absl::StrCat(
        "request_id ", spec->request_id, " was used for a different request; choose a new one"));
    const auto granted = by_request_.find({spec->tenant, spec->request_id});
    if (granted != by_request_.end()) {
      const LeaseEntry& entry = leases_.at(granted->second);
      if (entry.record.fingerprint != fingerprint) return reply(reused);
      if (entry.record.lease.state() == pb::LEASE_STATE_ENDED) {
        return reply(absl::FailedPreconditionError(
            absl::StrCat("lease ", entry.record.lease.id(), " of request_id ", spec->request_id,
                         " has ended: ", entry.record.lease.end_reason())));
      }
      return reply(ToResponse(ToProto(entry), entry.record.secret));
    }
    for (auto& [number, pending] : pending_) {
      if (pending.spec.tenant != spec->tenant || pending.spec.request_id != spec->request_id) {
        continue;
      }
      if (pending.fingerprint != fingerprint) return reply(reused);
      pending.waiters.push_back({ticket, std::move(done)});
      pending.give_up = std::max(pending.give_up, now + spec->wait);
      return;
    }
  }

  if (absl::Status possible = pool_.CheckPossible(ToPlacementRequest(*spec)); !possible.ok()) {
    return reply(std::move(possible));
  }
  if (pending_.size() >= options_.max_waiting) {
    return reply(absl::ResourceExhaustedError(absl::StrCat(
        "the broker has ", pending_.size(), " requests waiting, its limit; try again later")));
  }
  Pending pending;
  pending.give_up = now + spec->wait;
  pending.spec = *std::move(spec);
  pending.fingerprint = fingerprint;
  pending.waiters.push_back({ticket, std::move(done)});
  const auto it = pending_.emplace(next_pending_++, std::move(pending)).first;
  TryPlace(it, &deferred);
}

void Broker::CancelAllocate(uint64_t ticket) {
  Deferred deferred;
  MutexLock lock(&mutex_);
  for (auto it = pending_.begin(); it != pending_.end(); ++it) {
    std::vector<Waiter>& waiters = it->second.waiters;
    const auto waiter = std::find_if(waiters.begin(), waiters.end(),
                                     [&](const Waiter& w) { return w.ticket == ticket; });
    if (waiter == waiters.end()) continue;
    deferred.Add(
        [done = std::move(waiter->done)] { done(absl::CancelledError("the caller gave up")); });
    waiters.erase(waiter);
    if (waiters.empty()) {
      Unplace(it->second);
      pending_.erase(it);
      RetryWaiting(&deferred);
    }
    return;
  }
}

// Looks for cards and asks their node; or leaves the request waiting; or refuses it.
void Broker::TryPlace(PendingMap::iterator it, Deferred* deferred) {
  Pending& pending = it->second;
  const absl::Duration now = clock_->Steady();
  absl::Status failure = pool_.CheckAnyConnected(now);
  if (failure.ok()) {
    absl::StatusOr<Placement> placement =
        policy_->Place(ToPlacementRequest(pending.spec), pool_.CardStates(pending.refused));
    if (placement.ok()) return AskNode(pending, *std::move(placement));
    failure = placement.status();
    // If nodes refused what our books call free, that is what the caller should hear about.
    if (!pending.last_refusal.ok()) failure = pending.last_refusal;
  }
  // Also a request that does not want to wait is not refused for a restart of ours or of a daemon.
  if (now < std::max(pending.give_up, pool_.ExpectedUntil())) {
    pending.refused.clear();
    pending.last_refusal = absl::OkStatus();
    pending.next_try = now + options_.retry_waiting;
    return;
  }
  Answer(it, failure, deferred);
}

void Broker::AskNode(Pending& pending, Placement placement) {
  PoolNode& node = *pool_.Find(placement.node);
  // New ones for every try, so that a late word about a try that was given up hits nothing else.
  pending.id = RandomId<LeaseId>();
  FillRandom(absl::MakeSpan(pending.secret.bytes));
  pending.registration = node.registration;
  pending.reserve_id = absl::StrCat(next_reserve_++);
  pending.reserve_deadline = clock_->Steady() + options_.reserve_timeout;
  pool_.Hold(placement.node, placement.uuids, pending.spec.memory_bytes,
             pending.spec.cores_percent);

  node::v1::BrokerMessage message;
  node::v1::Reserve& reserve = *message.mutable_reserve();
  reserve.set_request_id(pending.reserve_id);
  reserve.set_lease_id(ToString(pending.id));
  reserve.set_secret(pending.secret.bytes.data(), pending.secret.bytes.size());
  for (const std::string& uuid : placement.uuids) reserve.add_device_uuids(uuid);
  reserve.set_memory_bytes(pending.spec.memory_bytes);
  reserve.set_cores_percent(pending.spec.cores_percent);
  reserve.set_ttl_ms(absl::ToInt64Milliseconds(pending.spec.ttl));
  pending.placement = std::move(placement);
  node.channel->Send(std::move(message));
}

// Gives the held cards back and tells the node to forget the lease, which it may or may not hold.
void Broker::Unplace(Pending& pending) {
  if (!pending.placement.has_value()) return;
  pool_.Unhold(pending.placement->node, pending.placement->uuids, pending.spec.memory_bytes,
               pending.spec.cores_percent);
  if (PoolNode* node = FindRegistration(pending.registration); node != nullptr) {
    node::v1::BrokerMessage message;
    message.mutable_release_lease()->set_lease_id(ToString(pending.id));
    message.mutable_release_lease()->set_reason("the broker gave up this reservation");
    node->channel->Send(std::move(message));
  }
  pending.placement.reset();
}

void Broker::HandleReserveResult(const std::string& node, const node::v1::ReserveResult& result,
                                 Deferred* deferred) {
  const auto it = std::find_if(pending_.begin(), pending_.end(), [&](const auto& entry) {
    return entry.second.placement.has_value() && entry.second.reserve_id == result.request_id() &&
           entry.second.placement->node == node;
  });
  // Too late: ReleaseLease is on its way already.
  if (it == pending_.end()) return;
  if (result.code() == 0) return Grant(it, deferred);
  const bool resources = result.code() == static_cast<int>(absl::StatusCode::kResourceExhausted);
  absl::string_view message = result.message();
  Refused(it,
          absl::Status(
              resources ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kUnavailable,
              absl::StrCat("node ", node, " refused: ", message.substr(0, 256))),
          deferred);
}

void Broker::Refused(PendingMap::iterator it, absl::Status why, Deferred* deferred) {
  Pending& pending = it->second;
  FARGPU_LOG(kWarning, "lease ", ToString(pending.id), ": ", why.message(), "; trying other cards");
  for (const std::string& uuid : pending.placement->uuids) {
    pending.refused.insert({pending.placement->node, uuid});
  }
  pending.last_refusal = std::move(why);
  Unplace(pending);
  TryPlace(it, deferred);
}

void Broker::Grant(PendingMap::iterator it, Deferred* deferred) {
  Pending& pending = it->second;
  const AllocateSpec& spec = pending.spec;
  LeaseRecord record;
  record.id = pending.id;
  record.secret = pending.secret;
  record.request_id = spec.request_id;
  record.fingerprint = pending.fingerprint;
  pb::Lease& lease = record.lease;
  lease.set_id(ToString(pending.id));
  lease.set_tenant(spec.tenant);
  lease.set_queue(spec.queue);
  lease.set_name(spec.name);
  lease.set_state(pb::LEASE_STATE_ACTIVE);
  lease.set_memory_bytes(spec.memory_bytes);
  lease.set_cores_percent(spec.cores_percent);
  lease.set_create_time_ms(clock_->WallMillis());
  lease.set_ttl_ms(absl::ToInt64Milliseconds(spec.ttl));
  const std::string node = pending.placement->node;
  SetDevices(*pool_.Find(node), pending.placement->uuids, &lease);

  StoreChange change;
  change.put_leases = {record};
  change.append_events = {LeaseEvent(record, absl::StrCat("granted on node ", node))};
  if (absl::Status written = Commit(std::move(change)); !written.ok()) {
    Unplace(pending);
    Answer(it, written, deferred);
    return;
  }
  FARGPU_LOG(kInfo, "lease ", lease.id(), " granted to ", spec.tenant, ": ", spec.count, " x ",
             spec.memory_bytes >> 20, " MiB, ", spec.cores_percent, "% on node ", node);
  // The cards stay held, from now on by the lease instead of the request.
  pending.placement.reset();
  pool_.Unhold(node, DeviceUuids(lease), spec.memory_bytes, spec.cores_percent);
  const LeaseEntry& entry = Insert(std::move(record));
  Answer(it, ToResponse(ToProto(entry), entry.record.secret), deferred);
}

void Broker::Answer(PendingMap::iterator it, const absl::StatusOr<pb::AllocateResponse>& answer,
                    Deferred* deferred) {
  for (Waiter& waiter : it->second.waiters) {
    deferred->Add([done = std::move(waiter.done), answer] { done(answer); });
  }
  pending_.erase(it);
}

// Something became free. Each request that waits gets its turn, oldest first.
void Broker::RetryWaiting(Deferred* deferred) {
  for (auto it = pending_.begin(); it != pending_.end();) {
    const auto current = it++;  // TryPlace may erase it
    if (!current->second.placement.has_value()) TryPlace(current, deferred);
  }
}

void Broker::TickPending(absl::Duration now, Deferred* deferred) {
  for (auto it = pending_.begin(); it != pending_.end();) {
    const auto current = it++;
    Pending& pending = current->second;
    if (pending.placement.has_value()) {
      if (now < pending.reserve_deadline) continue;
      Refused(current,
              absl::UnavailableError(
                  absl::StrCat("node ", pending.placement->node, " did not answer within ",
                               absl::ToInt64Milliseconds(options_.reserve_timeout), " ms")),
              deferred);
    } else if (now >= pending.next_try || now >= pending.give_up) {
      TryPlace(current, deferred);
    }
  }
}

void Broker::Tick() {
  Deferred deferred;
  MutexLock lock(&mutex_);
  if (shutting_down_) return;
  const absl::Duration now = clock_->Steady();
  TickNodes(now, &deferred);
  TickPending(now, &deferred);
  if (now >= next_lease_tick_) {
    next_lease_tick_ = now + absl::Seconds(1);
    TickLeases(now, &deferred);
  }
}

absl::Status Broker::Commit(StoreChange change) {
  uint64_t sequence = events_.next_sequence();
  for (EventRecord& record : change.append_events) record.sequence = sequence++;
  // Now and then, so that the store keeps about what the log keeps.
  if (sequence % 1024 < change.append_events.size()) {
    change.delete_events_before = events_.first_sequence();
  }
  RETURN_IF_ERROR(store_->Commit(change));
  events_.Publish(std::move(change.append_events));
  return absl::OkStatus();
}

EventRecord Broker::LeaseEvent(const LeaseRecord& record, std::string message) const {
  EventRecord event;
  event.event.set_kind(record.lease.state() == pb::LEASE_STATE_ENDED ? pb::EVENT_KIND_LEASE_ENDED
                                                                     : pb::EVENT_KIND_LEASE_ACTIVE);
  event.event.set_time_ms(clock_->WallMillis());
  *event.event.mutable_lease() = record.lease;
  event.event.set_message(std::move(message));
  return event;
}

EventRecord Broker::NodeEvent(const std::string& node, pb::EventKind kind,
                              std::string message) const {
  EventRecord event;
  event.event.set_kind(kind);
  event.event.set_time_ms(clock_->WallMillis());
  event.event.set_node(node);
  event.event.set_message(std::move(message));
  return event;
}

pb::BrokerInfo Broker::Info() const {
  pb::BrokerInfo info;
  info.set_fargpu_version(FARGPU_VERSION);
  info.set_start_time_ms(start_time_ms_);
  return info;
}

}  // namespace fargpu::scheduler
