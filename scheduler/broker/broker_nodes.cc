// Nodes: registration, reconciliation with what they run, heartbeats, silence.
#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

#include "common/log.h"
#include "common/status_macros.h"
#include "scheduler/broker/broker.h"

namespace fargpu::scheduler {

namespace pb = broker::v1;

Broker::SessionSums Broker::Sum(
    const google::protobuf::RepeatedPtrField<node::v1::Session>& sessions) {
  SessionSums sums;
  for (const node::v1::Session& session : sessions) {
    const absl::StatusOr<LeaseId> id = ParseId<LeaseId>(session.lease_id());
    if (!id.ok()) continue;  // checked before
    SessionSum& sum = sums[*id];
    sum.count += 1;
    sum.charged_bytes += session.charged_bytes();
  }
  return sums;
}

PoolNode* Broker::FindRegistration(uint64_t registration) {
  const auto it = registrations_.find(registration);
  return it != registrations_.end() ? pool_.Find(it->second) : nullptr;
}

std::optional<LeaseRecord> Broker::TakeUp(const PoolNode& node,
                                          const node::v1::HeldLease& held) const {
  const LeaseId id = ParseId<LeaseId>(held.lease_id()).value();  // checked before
  const std::string& name = node.hello.node_name();
  const std::vector<std::string> uuids(held.device_uuids().begin(), held.device_uuids().end());
  const auto known = leases_.find(id);
  if (known == leases_.end()) {
    // Our store is younger than the lease: it was lost or put back from a copy.
    LeaseRecord record;
    record.id = id;
    std::memcpy(record.secret.bytes.data(), held.secret().data(), record.secret.bytes.size());
    record.lease.set_id(ToString(id));
    record.lease.set_tenant("default");
    record.lease.set_queue("default");
    record.lease.set_state(pb::LEASE_STATE_ACTIVE);
    record.lease.set_memory_bytes(held.memory_bytes());
    record.lease.set_cores_percent(held.cores_percent());
    record.lease.set_create_time_ms(clock_->WallMillis());
    record.lease.set_ttl_ms(held.ttl_ms() != 0 ? held.ttl_ms()
                                               : absl::ToInt64Milliseconds(options_.default_ttl));
    SetDevices(node, uuids, &record.lease);
    return record;
  }
  const LeaseRecord& present = known->second.record;
  if (present.lease.state() == pb::LEASE_STATE_ENDED) {
    if (present.end_cause == EndCause::kOwner) return std::nullopt;
    LeaseRecord record = present;
    record.end_cause = EndCause::kNone;
    record.lease.set_state(pb::LEASE_STATE_ACTIVE);
    record.lease.clear_end_reason();
    record.lease.set_end_time_ms(0);
    SetDevices(node, uuids, &record.lease);
    return record;
  }
  if (NodeOf(present.lease) == name) return std::nullopt;
  const auto other = pool_.nodes().find(NodeOf(present.lease));
  if (other != pool_.nodes().end() && other->second.connected()) {
    FARGPU_LOG(kWarning, "node ", name, " says that it runs lease ", held.lease_id(),
               ", which is on node ", NodeOf(present.lease), "; it stays there");
    return std::nullopt;
  }
  // The machine came back under another name.
  LeaseRecord record = present;
  SetDevices(node, uuids, &record.lease);
  return record;
}

std::optional<LeaseRecord> Broker::Refresh(const PoolNode& node, const LeaseRecord& present) const {
  const std::vector<std::string> uuids = DeviceUuids(present.lease);
  LeaseRecord record = present;
  for (const std::string& uuid : uuids) {
    if (node.cards.count(uuid) != 0) continue;
    record.end_cause = EndCause::kNode;
    record.lease.set_state(pb::LEASE_STATE_ENDED);
    record.lease.set_end_reason(
        absl::StrCat("node ", node.hello.node_name(), " no longer has card ", uuid));
    record.lease.set_end_time_ms(clock_->WallMillis());
    record.lease.set_session_count(0);
    record.lease.set_charged_bytes(0);
    return record;
  }
  SetDevices(node, uuids, &record.lease);
  if (record.lease.SerializeAsString() == present.lease.SerializeAsString()) return std::nullopt;
  return record;
}

absl::StatusOr<uint64_t> Broker::RegisterNode(const node::v1::Hello& hello,
                                              std::shared_ptr<NodeChannel> channel) {
  RETURN_IF_ERROR(CheckHello(hello));
  const std::string& name = hello.node_name();
  Deferred deferred;
  MutexLock lock(&mutex_);
  if (shutting_down_) return absl::UnavailableError("the broker is shutting down");
  if (PoolNode* old = pool_.Find(name); old != nullptr && old->connected()) {
    old->channel->Close(
        absl::AbortedError(absl::StrCat("another daemon registered as node ", name)));
    Disconnect(*old, "its daemon registered anew", &deferred);
  }

  // First on paper: if the store does not take it, nothing has happened.
  Pool scratch;
  const PoolNode& described = scratch.Put(hello);
  std::map<LeaseId, LeaseRecord> changed;
  StoreChange change;
  SessionSums sessions;
  for (const node::v1::HeldLease& held : hello.leases()) {
    if (held.sessions_size() == 0) continue;
    const LeaseId id = ParseId<LeaseId>(held.lease_id()).value();  // checked before
    SessionSum& sum = sessions[id];
    for (const node::v1::Session& session : held.sessions()) {
      sum.count += 1;
      sum.charged_bytes += session.charged_bytes();
    }
    if (std::optional<LeaseRecord> record = TakeUp(described, held)) {
      FARGPU_LOG(kWarning, "lease ", held.lease_id(), " runs on node ", name, ": taken up again");
      change.append_events.push_back(
          LeaseEvent(*record, absl::StrCat("runs on node ", name, ": taken up again")));
      changed.emplace(id, *std::move(record));
    }
  }
  const auto active = active_by_node_.find(name);
  if (active != active_by_node_.end()) {
    for (const LeaseId& id : active->second) {
      if (changed.count(id) != 0) continue;
      std::optional<LeaseRecord> record = Refresh(described, leases_.at(id).record);
      if (!record.has_value()) continue;
      if (record->lease.state() == pb::LEASE_STATE_ENDED) {
        FARGPU_LOG(kWarning, "lease ", record->lease.id(), " ended: ", record->lease.end_reason());
        change.append_events.push_back(LeaseEvent(*record, record->lease.end_reason()));
      }
      changed.emplace(id, *std::move(record));
    }
  }
  for (const auto& [id, record] : changed) change.put_leases.push_back(record);
  change.put_nodes.push_back({.hello = described.hello, .last_heard_ms = clock_->WallMillis()});
  change.append_events.push_back(
      NodeEvent(name, pb::EVENT_KIND_NODE_ALIVE,
                absl::StrCat("registered with ", hello.devices_size(), " cards")));
  RETURN_IF_ERROR(Commit(std::move(change)));

  // Then in memory. Put forgets what was lent, so it is booked anew lease by lease.
  for (auto& [id, record] : changed) Insert(std::move(record));
  PoolNode& node = pool_.Put(hello);
  for (const LeaseId& id : active_by_node_[name]) {
    LeaseEntry& entry = leases_.at(id);
    const pb::Lease& lease = entry.record.lease;
    pool_.Hold(name, DeviceUuids(lease), lease.memory_bytes(), lease.cores_percent());
    entry.expires = clock_->Steady() + absl::Milliseconds(lease.ttl_ms());
  }
  node.registration = next_registration_++;
  node.channel = std::move(channel);
  node.last_heard = clock_->Steady();
  node.last_heard_ms = clock_->WallMillis();
  registrations_[node.registration] = name;
  ApplySessions(name, sessions);
  FARGPU_LOG(kInfo, "node ", name, " registered: ", hello.devices_size(), " cards, ",
             active_by_node_[name].size(), " leases");
  SendFullState(node);
  const uint64_t registration = node.registration;
  RetryWaiting(&deferred);
  return registration;
}

void Broker::SendFullState(const PoolNode& node) {
  node::v1::BrokerMessage message;
  node::v1::FullState& state = *message.mutable_full_state();
  for (const LeaseId& id : active_by_node_[node.hello.node_name()]) {
    const LeaseRecord& record = leases_.at(id).record;
    node::v1::Reserve& reserve = *state.add_leases();
    reserve.set_lease_id(record.lease.id());
    reserve.set_secret(record.secret.bytes.data(), record.secret.bytes.size());
    for (const pb::LeasedDevice& device : record.lease.devices()) {
      reserve.add_device_uuids(device.uuid());
    }
    reserve.set_memory_bytes(record.lease.memory_bytes());
    reserve.set_cores_percent(record.lease.cores_percent());
    reserve.set_ttl_ms(record.lease.ttl_ms());
  }
  node.channel->Send(std::move(message));
}

absl::Status Broker::HandleNodeMessage(uint64_t registration,
                                       const node::v1::NodeMessage& message) {
  Deferred deferred;
  MutexLock lock(&mutex_);
  PoolNode* const node = FindRegistration(registration);
  if (node == nullptr) return absl::AbortedError("this registration has ended; register anew");
  const std::string name = node->hello.node_name();
  node->last_heard = clock_->Steady();
  node->last_heard_ms = clock_->WallMillis();
  switch (message.message_case()) {
    case node::v1::NodeMessage::kHello:
      return absl::InvalidArgumentError("hello was sent twice on one stream");
    case node::v1::NodeMessage::kHeartbeat: {
      const node::v1::Heartbeat& heartbeat = message.heartbeat();
      RETURN_IF_ERROR(CheckHeartbeat(heartbeat));
      for (const node::v1::DeviceUse& use : heartbeat.devices()) {
        const auto card = node->cards.find(use.uuid());
        if (card != node->cards.end()) card->second.used_memory_bytes = use.used_bytes();
      }
      ApplySessions(name, Sum(heartbeat.sessions()));
      return absl::OkStatus();
    }
    case node::v1::NodeMessage::kReserveResult:
      HandleReserveResult(name, message.reserve_result(), &deferred);
      return absl::OkStatus();
    case node::v1::NodeMessage::kLeaseEnded: {
      const node::v1::LeaseEnded& ended = message.lease_ended();
      ASSIGN_OR_RETURN(const LeaseId id, CheckLeaseId("lease_ended.lease_id", ended.lease_id()));
      RETURN_IF_ERROR(CheckText("lease_ended.reason", ended.reason(), /*max_bytes=*/1024));
      const auto it = leases_.find(id);
      if (it == leases_.end() || NodeOf(it->second.record.lease) != name) return absl::OkStatus();
      return EndLease(it->second, EndCause::kNode,
                      absl::StrCat("node ", name, ": ",
                                   ended.reason().empty() ? "no longer held" : ended.reason()),
                      &deferred);
    }
    case node::v1::NodeMessage::MESSAGE_NOT_SET:
      return absl::OkStatus();  // of a newer daemon
  }
  return absl::OkStatus();
}

void Broker::ApplySessions(const std::string& node, const SessionSums& sessions) {
  const absl::Duration now = clock_->Steady();
  for (const LeaseId& id : active_by_node_[node]) {
    LeaseEntry& entry = leases_.at(id);
    pb::Lease& lease = entry.record.lease;
    const auto it = sessions.find(id);
    lease.set_session_count(it != sessions.end() ? it->second.count : 0);
    lease.set_charged_bytes(it != sessions.end() ? it->second.charged_bytes : 0);
    if (it != sessions.end()) entry.expires = now + absl::Milliseconds(lease.ttl_ms());
  }
}

void Broker::Disconnect(PoolNode& node, const std::string& why, Deferred* deferred) {
  const std::string name = node.hello.node_name();
  const uint64_t registration = node.registration;
  registrations_.erase(registration);
  node.registration = 0;
  node.channel.reset();
  FARGPU_LOG(kWarning, "node ", name, " is silent: ", why);
  StoreChange change;
  change.put_nodes = {{.hello = node.hello, .last_heard_ms = node.last_heard_ms}};
  change.append_events = {NodeEvent(name, pb::EVENT_KIND_NODE_SILENT, why)};
  if (absl::Status written = Commit(std::move(change)); !written.ok()) {
    FARGPU_LOG(kError, "node ", name, ": ", written.message());
  }
  std::vector<uint64_t> asked;
  for (const auto& [number, pending] : pending_) {
    if (pending.placement.has_value() && pending.registration == registration) {
      asked.push_back(number);
    }
  }
  for (const uint64_t number : asked) {
    const auto it = pending_.find(number);
    Refused(it, absl::UnavailableError(absl::StrCat("node ", name, " went away: ", why)), deferred);
  }
}

void Broker::NodeStreamEnded(uint64_t registration) {
  Deferred deferred;
  MutexLock lock(&mutex_);
  PoolNode* const node = FindRegistration(registration);
  if (node == nullptr) return;
  node->expected_until = clock_->Steady() + options_.reconnect_grace;
  Disconnect(*node, "its connection ended", &deferred);
}

void Broker::TickNodes(absl::Duration now, Deferred* deferred) {
  std::vector<PoolNode*> silent;
  for (auto& [name, node] : pool_.nodes()) {
    if (node.connected() && now - node.last_heard >= options_.silent_after) silent.push_back(&node);
  }
  for (PoolNode* node : silent) {
    const std::string why =
        absl::StrCat("nothing heard for ", absl::FormatDuration(options_.silent_after));
    node->channel->Close(absl::UnavailableError(why));
    Disconnect(*node, why, deferred);
  }
}

pb::ListNodesResponse Broker::ListNodes() const {
  MutexLock lock(&mutex_);
  pb::ListNodesResponse response;
  for (const auto& [name, node] : pool_.nodes()) *response.add_nodes() = pool_.ToProto(node);
  return response;
}

}  // namespace fargpu::scheduler
