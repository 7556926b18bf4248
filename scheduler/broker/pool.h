#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

#include "protocol/proto/broker.pb.h"
#include "protocol/proto/node.pb.h"
#include "scheduler/policies/placement_policy.h"

namespace fargpu::scheduler {

// The way to a connected daemon. Neither call blocks, nor calls back into the broker on the calling
// thread; after Close nothing more is sent.
class NodeChannel {
 public:
  virtual ~NodeChannel() = default;
  virtual void Send(node::v1::BrokerMessage message) = 0;
  virtual void Close(absl::Status why) = 0;
};

// A card, and what of it is lent.
struct PoolCard {
  node::v1::Device device;
  uint64_t lent_memory_bytes = 0;
  uint32_t lent_cores_percent = 0;
  uint32_t lease_count = 0;
  uint64_t used_memory_bytes = 0;  // as last reported
};

struct PoolNode {
  node::v1::Hello hello;  // without leases
  // 0: not connected, so nothing is placed on it.
  uint64_t registration = 0;
  std::shared_ptr<NodeChannel> channel;  // shared with the stream's reactor; set while connected
  absl::Duration last_heard;             // steady clock
  int64_t last_heard_ms = 0;             // wall clock
  // Not connected, but its daemon should be back by then (steady clock): requests wait for it.
  absl::Duration expected_until;
  std::map<std::string, PoolCard> cards;  // by uuid

  bool connected() const { return registration != 0; }
};

// (node, uuid): software cards of two machines may have the same uuid.
using CardKey = std::pair<std::string, std::string>;

// Nodes and cards and what is lent of them. Plain data; the broker's lock guards it.
class Pool {
 public:
  // Adds the node or replaces its description. Its cards come back with nothing lent of them:
  // the caller holds again what is lent.
  PoolNode& Put(node::v1::Hello hello);
  PoolNode* Find(absl::string_view name);
  std::map<std::string, PoolNode>& nodes() { return nodes_; }
  const std::map<std::string, PoolNode>& nodes() const { return nodes_; }

  // Books a slice of each card, or gives it back. Cards that are unknown are passed over. A card
  // may be lent beyond its size, when a node reports that more is running than should be.
  void Hold(absl::string_view node, const std::vector<std::string>& uuids, uint64_t memory_bytes,
            uint32_t cores_percent);
  void Unhold(absl::string_view node, const std::vector<std::string>& uuids, uint64_t memory_bytes,
              uint32_t cores_percent);

  // A snapshot for a policy. Cards of silent nodes and those in `refused` are not usable.
  std::vector<CardState> CardStates(const std::set<CardKey>& refused) const;

  // kInvalidArgument if no card that the pool knows could serve the request even when idle;
  // kUnavailable if there is no node, or none that answers. `now` is on the steady clock.
  absl::Status CheckPossible(const PlacementRequest& request) const;
  absl::Status CheckAnyConnected(absl::Duration now) const;

  // Until when a node that is not connected is expected back; zero if none is.
  absl::Duration ExpectedUntil() const;

  broker::v1::Node ToProto(const PoolNode& node) const;

 private:
  std::map<std::string, PoolNode> nodes_;
};

}  // namespace fargpu::scheduler
