#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/ids.h"
#include "protocol/proto/broker.pb.h"
#include "protocol/proto/node.pb.h"

namespace fargpu::scheduler {

// Why a lease ended. What the owner ended stays ended; what only our bookkeeping ended comes to
// life again when its node reports that it still runs (DESIGN D10).
enum class EndCause { kNone = 0, kOwner = 1, kExpired = 2, kNode = 3 };

// A lease as the broker remembers it.
struct LeaseRecord {
  LeaseId id;
  LeaseSecret secret;
  std::string request_id;   // empty: the request was not idempotent
  std::string fingerprint;  // of the request, to notice a request_id used for another one
  EndCause end_cause = EndCause::kNone;
  broker::v1::Lease lease;
};

// A node as it last introduced itself (without its leases), kept so that a silent node is shown.
struct NodeRecord {
  node::v1::Hello hello;
  int64_t last_heard_ms = 0;
};

struct EventRecord {
  uint64_t sequence = 0;  // grows by one per event
  broker::v1::Event event;
};

// Changes that happen together or not at all.
struct StoreChange {
  std::vector<LeaseRecord> put_leases;  // new or changed
  std::vector<LeaseId> delete_leases;
  std::vector<NodeRecord> put_nodes;
  std::vector<EventRecord> append_events;
  uint64_t delete_events_before = 0;  // events with a smaller sequence number go; 0: none
};

struct StoreContents {
  // Random, made with the store: tells resume tokens of one store from those of another.
  std::string store_id;
  std::vector<LeaseRecord> leases;  // in order of creation
  std::vector<NodeRecord> nodes;    // by name
  std::vector<EventRecord> events;  // by sequence
};

// Where the broker's state survives. One broker uses a store at a time. Not thread-safe.
class Store {
 public:
  virtual ~Store() = default;

  // Everything that was committed.
  virtual absl::StatusOr<StoreContents> Load() = 0;

  // When it returns OK, the change survives the death of the process and of the machine.
  // Otherwise nothing of it happened. kUnavailable: the disk does not take it.
  virtual absl::Status Commit(const StoreChange& change) = 0;
};

}  // namespace fargpu::scheduler
