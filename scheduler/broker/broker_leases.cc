// Leases: what clients ask about them, and how they end.
#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "common/log.h"
#include "common/status_macros.h"
#include "scheduler/broker/broker.h"

namespace fargpu::scheduler {

namespace pb = broker::v1;

namespace {

constexpr uint32_t kDefaultPage = 100;
constexpr uint32_t kMaxPage = 1000;

// "<create time>-<lease id>" of the last lease of a page.
absl::StatusOr<std::pair<int64_t, LeaseId>> ParsePageToken(absl::string_view token) {
  const size_t dash = token.find('-');
  int64_t create_time_ms = 0;
  if (dash != absl::string_view::npos && absl::SimpleAtoi(token.substr(0, dash), &create_time_ms)) {
    absl::StatusOr<LeaseId> id = ParseId<LeaseId>(token.substr(dash + 1));
    if (id.ok()) return std::make_pair(create_time_ms, *id);
  }
  return absl::InvalidArgumentError("page_token is not one that List gave");
}

bool Ended(const pb::Lease& lease) { return lease.state() == pb::LEASE_STATE_ENDED; }

}  // namespace

void Broker::HoldLease(const LeaseRecord& record) {
  const pb::Lease& lease = record.lease;
  if (Ended(lease)) return;
  const std::string node = NodeOf(lease);
  pool_.Hold(node, DeviceUuids(lease), lease.memory_bytes(), lease.cores_percent());
  active_by_node_[node].insert(record.id);
}

void Broker::UnholdLease(const LeaseRecord& record) {
  const pb::Lease& lease = record.lease;
  if (Ended(lease)) return;
  const std::string node = NodeOf(lease);
  pool_.Unhold(node, DeviceUuids(lease), lease.memory_bytes(), lease.cores_percent());
  active_by_node_[node].erase(record.id);
}

Broker::LeaseEntry& Broker::Insert(LeaseRecord record) {
  const LeaseId id = record.id;
  const auto [it, inserted] = leases_.try_emplace(id);
  LeaseEntry& entry = it->second;
  if (!inserted) UnholdLease(entry.record);
  HoldLease(record);
  by_creation_.insert({record.lease.create_time_ms(), id});
  if (!record.request_id.empty()) by_request_[{record.lease.tenant(), record.request_id}] = id;
  entry.record = std::move(record);
  // Also after a restart everybody gets a whole time-to-live to show up.
  entry.expires = clock_->Steady() + absl::Milliseconds(entry.record.lease.ttl_ms());
  return entry;
}

pb::Lease Broker::ToProto(const LeaseEntry& entry) const {
  pb::Lease lease = entry.record.lease;
  if (!Ended(lease)) {
    lease.set_expire_time_ms(clock_->WallMillis() +
                             absl::ToInt64Milliseconds(entry.expires - clock_->Steady()));
  }
  return lease;
}

absl::StatusOr<const Broker::LeaseEntry*> Broker::FindLease(const std::string& text) const {
  ASSIGN_OR_RETURN(const LeaseId id, CheckLeaseId("lease_id", text));
  const auto it = leases_.find(id);
  if (it == leases_.end()) return absl::NotFoundError(absl::StrCat("there is no lease ", text));
  return &it->second;
}

absl::StatusOr<pb::Lease> Broker::Get(const pb::GetRequest& request) const {
  MutexLock lock(&mutex_);
  ASSIGN_OR_RETURN(const LeaseEntry* entry, FindLease(request.lease_id()));
  return ToProto(*entry);
}

absl::StatusOr<pb::ListResponse> Broker::List(const pb::ListRequest& request) const {
  if (!request.tenant().empty()) RETURN_IF_ERROR(CheckName("tenant", request.tenant()));
  if (request.page_size() > kMaxPage) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_size is ", request.page_size(), "; allowed are 1 to ", kMaxPage));
  }
  const uint32_t page_size = request.page_size() == 0 ? kDefaultPage : request.page_size();
  MutexLock lock(&mutex_);
  auto it = by_creation_.begin();
  if (!request.page_token().empty()) {
    ASSIGN_OR_RETURN(const auto last, ParsePageToken(request.page_token()));
    it = by_creation_.upper_bound(last);
  }
  pb::ListResponse response;
  std::string token;
  for (; it != by_creation_.end(); ++it) {
    const LeaseEntry& entry = leases_.at(it->second);
    const pb::Lease& lease = entry.record.lease;
    if (!request.include_ended() && Ended(lease)) continue;
    if (!request.tenant().empty() && lease.tenant() != request.tenant()) continue;
    if (static_cast<uint32_t>(response.leases_size()) == page_size) {
      response.set_next_page_token(token);
      break;
    }
    *response.add_leases() = ToProto(entry);
    token = absl::StrCat(lease.create_time_ms(), "-", lease.id());
  }
  return response;
}

absl::Status Broker::Release(const pb::ReleaseRequest& request) {
  RETURN_IF_ERROR(CheckText("reason", request.reason(), /*max_bytes=*/256));
  Deferred deferred;
  MutexLock lock(&mutex_);
  ASSIGN_OR_RETURN(const LeaseEntry* found, FindLease(request.lease_id()));
  return EndLease(leases_.at(found->record.id), EndCause::kOwner,
                  request.reason().empty() ? "released by its owner" : request.reason(), &deferred);
}

absl::StatusOr<pb::Lease> Broker::Renew(const pb::RenewRequest& request) {
  MutexLock lock(&mutex_);
  ASSIGN_OR_RETURN(const LeaseEntry* found, FindLease(request.lease_id()));
  LeaseEntry& entry = leases_.at(found->record.id);
  const pb::Lease& lease = entry.record.lease;
  if (Ended(lease)) {
    return absl::FailedPreconditionError(
        absl::StrCat("lease ", lease.id(), " has ended: ", lease.end_reason()));
  }
  entry.expires = clock_->Steady() + absl::Milliseconds(lease.ttl_ms());
  return ToProto(entry);
}

absl::Status Broker::EndLease(LeaseEntry& entry, EndCause cause, const std::string& reason,
                              Deferred* deferred) {
  if (Ended(entry.record.lease)) {
    // The owner's word also counts for a lease that ended by itself: it must not come back.
    if (cause != EndCause::kOwner || entry.record.end_cause == EndCause::kOwner) {
      return absl::OkStatus();
    }
    LeaseRecord settled = entry.record;
    settled.end_cause = EndCause::kOwner;
    StoreChange change;
    change.put_leases = {settled};
    RETURN_IF_ERROR(Commit(std::move(change)));
    entry.record = std::move(settled);
    return absl::OkStatus();
  }
  LeaseRecord ended = entry.record;
  ended.end_cause = cause;
  ended.lease.set_state(pb::LEASE_STATE_ENDED);
  ended.lease.set_end_reason(reason);
  ended.lease.set_end_time_ms(clock_->WallMillis());
  ended.lease.set_expire_time_ms(0);
  ended.lease.set_session_count(0);
  ended.lease.set_charged_bytes(0);
  StoreChange change;
  change.put_leases = {ended};
  change.append_events = {LeaseEvent(ended, reason)};
  RETURN_IF_ERROR(Commit(std::move(change)));
  Insert(std::move(ended));  // the same entry

  const pb::Lease& lease = entry.record.lease;
  FARGPU_LOG(kInfo, "lease ", lease.id(), " ended: ", reason);
  PoolNode* const node = pool_.Find(NodeOf(lease));
  if (cause != EndCause::kNode && node != nullptr && node->connected()) {
    node::v1::BrokerMessage message;
    message.mutable_release_lease()->set_lease_id(lease.id());
    message.mutable_release_lease()->set_reason(reason);
    node->channel->Send(std::move(message));
  }
  RetryWaiting(deferred);
  return absl::OkStatus();
}

void Broker::TickLeases(absl::Duration now, Deferred* deferred) {
  const int64_t forget_before =
      clock_->WallMillis() - absl::ToInt64Milliseconds(options_.keep_ended);
  std::vector<LeaseId> expired;
  StoreChange forget;
  for (const auto& [id, entry] : leases_) {
    const pb::Lease& lease = entry.record.lease;
    if (Ended(lease)) {
      if (lease.end_time_ms() < forget_before) forget.delete_leases.push_back(id);
      continue;
    }
    if (now < entry.expires || lease.session_count() > 0) continue;
    // What runs on a node that we do not hear is not known, so its leases do not expire.
    const PoolNode* node = pool_.Find(NodeOf(lease));
    if (node != nullptr && node->connected()) expired.push_back(id);
  }
  for (const LeaseId& id : expired) {
    LeaseEntry& entry = leases_.at(id);
    const absl::Status ended = EndLease(entry, EndCause::kExpired,
                                        absl::StrCat("neither a session nor a renewal for ",
                                                     entry.record.lease.ttl_ms() / 1000, " s"),
                                        deferred);
    if (!ended.ok()) {
      FARGPU_LOG(kError, "lease ", ToString(id), " cannot be ended: ", ended.message());
      return;  // the store is in trouble; the next tick tries again
    }
  }
  if (forget.delete_leases.empty()) return;
  const std::vector<LeaseId> forgotten = forget.delete_leases;
  if (!Commit(std::move(forget)).ok()) return;
  for (const LeaseId& id : forgotten) {
    const LeaseRecord& record = leases_.at(id).record;
    by_creation_.erase({record.lease.create_time_ms(), id});
    if (!record.request_id.empty()) by_request_.erase({record.lease.tenant(), record.request_id});
    leases_.erase(id);
  }
}

}  // namespace fargpu::scheduler
