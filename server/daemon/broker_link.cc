#include "server/daemon/broker_link.h"

#include <algorithm>
#include <cuda.h>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "common/log.h"
#include "common/status_macros.h"
#include "memory/process_id.h"
#include "server/worker/device_list.h"

namespace fargpu::server {
namespace {

constexpr absl::Duration kHeartbeat = absl::Seconds(1);
constexpr absl::Duration kFirstWait = absl::Milliseconds(200);
constexpr absl::Duration kLongestWait = absl::Seconds(5);

int32_t Attribute(const DeviceInfo& device, CUdevice_attribute attribute) {
  const size_t index = static_cast<size_t>(attribute);
  return index < device.attributes.size() ? device.attributes[index] : 0;
}

absl::StatusOr<Lease> FromProto(const node::v1::Reserve& reserve) {
  Lease lease;
  ASSIGN_OR_RETURN(lease.id, ParseId<LeaseId>(reserve.lease_id()));
  if (reserve.secret().size() != lease.secret.bytes.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a secret of ", reserve.secret().size(),
                                                   " bytes; it must have ",
                                                   lease.secret.bytes.size()));
  }
  std::copy(reserve.secret().begin(), reserve.secret().end(), lease.secret.bytes.begin());
  lease.device_uuids.assign(reserve.device_uuids().begin(), reserve.device_uuids().end());
  lease.memory_bytes = reserve.memory_bytes();
  lease.cores_percent = reserve.cores_percent();
  lease.ttl_ms = reserve.ttl_ms();
  return lease;
}

// The sessions of a lease that live, from its ledger: right also when a daemon has just started.
template <typename Add>
void ForEachSession(const Lease& lease, Add add) {
  for (const memory::LeaseLedger::Use& use : lease.ledger->Sessions()) {
    if (!memory::IsAlive(use.process)) continue;
    uint64_t bytes = 0;
    for (uint64_t charged : use.charged_bytes) bytes += charged;
    node::v1::Session session;
    session.set_lease_id(ToString(lease.id));
    session.set_pid(use.process.pid);
    session.set_charged_bytes(bytes);
    add(std::move(session));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<BrokerLink>> BrokerLink::Start(Options options, LeaseTable* leases,
                                                              WorkerPool* workers) {
  auto link = std::unique_ptr<BrokerLink>(new BrokerLink(std::move(options), leases, workers));
  ASSIGN_OR_RETURN(link->channel_, MakeBrokerChannel(link->options_.address, link->options_.tls));
  BrokerLink* self = link.get();
  link->thread_ = std::thread([self] { self->Run(); });
  return link;
}

BrokerLink::~BrokerLink() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    if (context_ != nullptr) context_->TryCancel();
    stop_wanted_.SignalAll();
  }
  thread_.join();
}

void BrokerLink::Run() {
  absl::Duration wait = kFirstWait;
  bool told = false;  // about this outage
  while (true) {
    bool registered = false;
    const absl::Status end = Talk(&registered);
    if (registered) {
      wait = kFirstWait;
      told = false;
    }
    MutexLock lock(&mutex_);
    if (stopping_) return;
    if (!told) {
      FARGPU_LOG(kWarning, "no broker at ", options_.address.text, ": ", std::string(end.message()),
                 "; running sessions go on, connecting again");
      told = true;
    }
    const absl::Time until = absl::Now() + wait;
    while (!stopping_ && absl::Now() < until) {
      stop_wanted_.WaitFor(&mutex_, absl::ToChronoNanoseconds(until - absl::Now()));
    }
    wait = std::min(2 * wait, kLongestWait);
  }
}

absl::Status BrokerLink::Talk(bool* registered) {
  grpc::ClientContext context;
  {
    MutexLock lock(&mutex_);
    if (stopping_) return absl::CancelledError("the daemon is shutting down");
    context_ = &context;
  }
  const std::unique_ptr<node::v1::NodeRegistry::Stub> stub =
      node::v1::NodeRegistry::NewStub(channel_);
  const std::unique_ptr<Stream> stream = stub->RegisterNode(&context);
  bool ended = !Write(stream.get(), MakeHello());
  std::thread heart([this, &ended, stream = stream.get()]() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    MutexLock lock(&mutex_);
    while (!ended && !stopping_) {
      stop_wanted_.WaitFor(&mutex_, absl::ToChronoNanoseconds(kHeartbeat));
      if (ended || stopping_) return;
      mutex_.Unlock();
      const bool alive = Write(stream, MakeHeartbeat());
      mutex_.Lock();
      if (!alive) return;  // the reader learns why
    }
  });
  node::v1::BrokerMessage message;
  while (stream->Read(&message)) {
    if (!*registered) {
      FARGPU_LOG(kInfo, "registered with the broker at ", options_.address.text, " as ",
                 options_.node_name);
      *registered = true;
    }
    Handle(message, stream.get());
  }
  {
    MutexLock lock(&mutex_);
    ended = true;
    stop_wanted_.SignalAll();
  }
  heart.join();
  const grpc::Status status = stream->Finish();
  MutexLock lock(&mutex_);
  context_ = nullptr;
  if (status.ok()) return absl::UnavailableError("the broker ended the stream");
  return FromGrpcStatus(status);
}

bool BrokerLink::Write(Stream* stream, const node::v1::NodeMessage& message) {
  MutexLock lock(&write_mutex_);
  return stream->Write(message);
}

node::v1::NodeMessage BrokerLink::MakeHello() {
  node::v1::NodeMessage message;
  node::v1::Hello& hello = *message.mutable_hello();
  hello.set_node_name(options_.node_name);
  hello.set_fargpu_version(FARGPU_VERSION);
  for (const std::string& endpoint : options_.endpoints) hello.add_endpoints(endpoint);
  for (const DeviceInfo& info : leases_->devices()) {
    node::v1::Device& device = *hello.add_devices();
    device.set_uuid(UuidText(info));
    device.set_name(info.name.substr(0, 128));
    device.set_memory_bytes(info.total_memory_bytes);
    device.set_capability_major(
        static_cast<uint32_t>(Attribute(info, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)));
    device.set_capability_minor(
        static_cast<uint32_t>(Attribute(info, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)));
    device.set_cores_percent(100);
    device.set_pci_bus_id(info.pci_bus_id);
  }
  for (const std::shared_ptr<const Lease>& lease : leases_->All()) {
    node::v1::HeldLease& held = *hello.add_leases();
    held.set_lease_id(ToString(lease->id));
    held.set_secret(lease->secret.bytes.data(), lease->secret.bytes.size());
    for (const std::string& uuid : lease->device_uuids) held.add_device_uuids(uuid);
    held.set_memory_bytes(lease->memory_bytes);
    held.set_cores_percent(lease->cores_percent);
    held.set_ttl_ms(lease->ttl_ms);
    ForEachSession(*lease, [&](node::v1::Session session) { *held.add_sessions() = session; });
  }
  return message;
}

node::v1::NodeMessage BrokerLink::MakeHeartbeat() {
  node::v1::NodeMessage message;
  node::v1::Heartbeat& heartbeat = *message.mutable_heartbeat();
  std::map<std::string, uint64_t> used;
  for (const std::shared_ptr<const Lease>& lease : leases_->All()) {
    for (size_t i = 0; i < lease->device_uuids.size(); ++i) {
      used[lease->device_uuids[i]] += lease->ledger->UsedBytes(static_cast<int>(i));
    }
    ForEachSession(*lease, [&](node::v1::Session session) { *heartbeat.add_sessions() = session; });
  }
  for (const DeviceInfo& device : leases_->devices()) {
    node::v1::DeviceUse& use = *heartbeat.add_devices();
    use.set_uuid(UuidText(device));
    use.set_used_bytes(used[use.uuid()]);
  }
  return message;
}

void BrokerLink::Handle(const node::v1::BrokerMessage& message, Stream* stream) {
  switch (message.message_case()) {
    case node::v1::BrokerMessage::kFullState:
      TakeFullState(message.full_state(), stream);
      break;
    case node::v1::BrokerMessage::kReserve: {
      absl::StatusOr<Lease> lease = FromProto(message.reserve());
      const absl::Status status = lease.ok() ? leases_->Reserve(*std::move(lease)) : lease.status();
      node::v1::NodeMessage answer;
      answer.mutable_reserve_result()->set_request_id(message.reserve().request_id());
      answer.mutable_reserve_result()->set_code(static_cast<uint32_t>(status.code()));
      answer.mutable_reserve_result()->set_message(std::string(status.message()));
      Write(stream, answer);
      break;
    }
    case node::v1::BrokerMessage::kReleaseLease: {
      const absl::StatusOr<LeaseId> id = ParseId<LeaseId>(message.release_lease().lease_id());
      if (id.ok()) Release(*id, message.release_lease().reason(), stream);
      break;
    }
    case node::v1::BrokerMessage::MESSAGE_NOT_SET:
      break;  // of a newer broker
  }
}

void BrokerLink::TakeFullState(const node::v1::FullState& state, Stream* stream) {
  std::set<std::string> named;
  for (const node::v1::Reserve& reserve : state.leases()) named.insert(reserve.lease_id());
  // What the broker no longer knows goes first, so that it cannot stand in the way of what it does.
  for (const std::shared_ptr<const Lease>& lease : leases_->All()) {
    if (named.count(ToString(lease->id)) == 0) {
      Release(lease->id, "the broker does not know the lease", stream);
    }
  }
  for (const node::v1::Reserve& reserve : state.leases()) {
    absl::StatusOr<Lease> lease = FromProto(reserve);
    const absl::Status status = lease.ok() ? leases_->Reserve(*std::move(lease)) : lease.status();
    if (status.ok()) continue;
    node::v1::NodeMessage ended;
    ended.mutable_lease_ended()->set_lease_id(reserve.lease_id());
    ended.mutable_lease_ended()->set_reason(std::string(status.message()));
    Write(stream, ended);
  }
}

void BrokerLink::Release(const LeaseId& id, const std::string& why, Stream* stream) {
  // First out of the table, so that no session begins meanwhile.
  const std::shared_ptr<const Lease> lease = leases_->Find(id);
  leases_->Release(id);
  if (lease != nullptr) workers_->EndLease(*lease, why.empty() ? "its lease was released" : why);
  node::v1::NodeMessage ended;
  ended.mutable_lease_ended()->set_lease_id(ToString(id));
  Write(stream, ended);
}

}  // namespace fargpu::server
