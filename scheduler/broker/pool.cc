#include "scheduler/broker/pool.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace fargpu::scheduler {
namespace {

uint32_t CoresOf(const node::v1::Device& device) {
  return device.cores_percent() == 0 ? 100 : device.cores_percent();
}

template <typename T>
T LeftOf(T total, T lent) {
  return lent < total ? total - lent : 0;
}

}  // namespace

PoolNode& Pool::Put(node::v1::Hello hello) {
  PoolNode& node = nodes_[hello.node_name()];
  node.cards.clear();
  for (const node::v1::Device& device : hello.devices()) {
    node.cards[device.uuid()].device = device;
  }
  hello.clear_leases();
  node.hello = std::move(hello);
  return node;
}

PoolNode* Pool::Find(absl::string_view name) {
  const auto it = nodes_.find(std::string(name));
  return it != nodes_.end() ? &it->second : nullptr;
}

void Pool::Hold(absl::string_view node, const std::vector<std::string>& uuids,
                uint64_t memory_bytes, uint32_t cores_percent) {
  PoolNode* const entry = Find(node);
  if (entry == nullptr) return;
  for (const std::string& uuid : uuids) {
    const auto card = entry->cards.find(uuid);
    if (card == entry->cards.end()) continue;
    card->second.lent_memory_bytes += memory_bytes;
    card->second.lent_cores_percent += cores_percent;
    card->second.lease_count += 1;
  }
}

void Pool::Unhold(absl::string_view node, const std::vector<std::string>& uuids,
                  uint64_t memory_bytes, uint32_t cores_percent) {
  PoolNode* const entry = Find(node);
  if (entry == nullptr) return;
  for (const std::string& uuid : uuids) {
    const auto card = entry->cards.find(uuid);
    if (card == entry->cards.end()) continue;
    card->second.lent_memory_bytes = LeftOf(card->second.lent_memory_bytes, memory_bytes);
    card->second.lent_cores_percent = LeftOf(card->second.lent_cores_percent, cores_percent);
    card->second.lease_count = LeftOf(card->second.lease_count, 1u);
  }
}

std::vector<CardState> Pool::CardStates(const std::set<CardKey>& refused) const {
  std::vector<CardState> states;
  for (const auto& [name, node] : nodes_) {
    for (const auto& [uuid, card] : node.cards) {
      const uint32_t cores = CoresOf(card.device);
      states.push_back(CardState{
          .node = name,
          .uuid = uuid,
          .memory_bytes = card.device.memory_bytes(),
          .cores_percent = cores,
          .free_memory_bytes = LeftOf<uint64_t>(card.device.memory_bytes(), card.lent_memory_bytes),
          .free_cores_percent = LeftOf(cores, card.lent_cores_percent),
          .usable = node.connected() && refused.count({name, uuid}) == 0});
    }
  }
  return states;
}

absl::Status Pool::CheckPossible(const PlacementRequest& request) const {
  const PoolCard* largest = nullptr;
  const std::string* largest_node = nullptr;
  uint32_t most_cores = 0;
  size_t most_cards = 0;
  for (const auto& [name, node] : nodes_) {
    most_cards = std::max(most_cards, node.cards.size());
    for (const auto& [uuid, card] : node.cards) {
      most_cores = std::max(most_cores, CoresOf(card.device));
      if (largest == nullptr || card.device.memory_bytes() > largest->device.memory_bytes()) {
        largest = &card;
        largest_node = &name;
      }
    }
  }
  if (largest == nullptr) return absl::OkStatus();  // an empty pool says nothing about sizes
  if (request.memory_bytes > largest->device.memory_bytes()) {
    return absl::InvalidArgumentError(
        absl::StrCat("memory_mib is ", request.memory_bytes >> 20,
                     " MiB, but the pool's largest card has ", largest->device.memory_bytes() >> 20,
                     " MiB (", largest->device.uuid(), " on node ", *largest_node, ")"));
  }
  if (request.cores_percent > most_cores) {
    return absl::InvalidArgumentError(absl::StrCat("cores_percent is ", request.cores_percent,
                                                   "%, but no card lends more than ", most_cores,
                                                   "%"));
  }
  if (request.count > most_cards) {
    return absl::InvalidArgumentError(absl::StrCat("count is ", request.count,
                                                   ", but no node has more than ", most_cards,
                                                   most_cards == 1 ? " card" : " cards"));
  }
  return absl::OkStatus();
}

absl::Status Pool::CheckAnyConnected(absl::Duration now) const {
  if (nodes_.empty()) {
    return absl::UnavailableError(
        "no node is registered with this broker; start fargpud on a machine with cards");
  }
  const PoolNode* last = nullptr;
  for (const auto& [name, node] : nodes_) {
    if (node.connected()) return absl::OkStatus();
    if (last == nullptr || node.last_heard > last->last_heard) last = &node;
  }
  return absl::UnavailableError(
      absl::StrCat("none of the ", nodes_.size(), " known nodes answers; the last one heard was ",
                   last->hello.node_name(), ", ", absl::ToInt64Seconds(now - last->last_heard),
                   " s ago; check that fargpud runs there"));
}

absl::Duration Pool::ExpectedUntil() const {
  absl::Duration latest;
  for (const auto& [name, node] : nodes_) {
    if (!node.connected()) latest = std::max(latest, node.expected_until);
  }
  return latest;
}

broker::v1::Node Pool::ToProto(const PoolNode& node) const {
  broker::v1::Node proto;
  proto.set_name(node.hello.node_name());
  proto.set_state(node.connected() ? broker::v1::NODE_STATE_ALIVE : broker::v1::NODE_STATE_SILENT);
  *proto.mutable_endpoints() = node.hello.endpoints();
  proto.set_fargpu_version(node.hello.fargpu_version());
  proto.set_last_heard_ms(node.last_heard_ms);
  // In the node's own order, which is that of its devices' numbers.
  for (const node::v1::Device& device : node.hello.devices()) {
    const PoolCard& card = node.cards.at(device.uuid());
    broker::v1::Card& out = *proto.add_cards();
    out.set_uuid(device.uuid());
    out.set_model(device.name());
    out.set_memory_bytes(device.memory_bytes());
    out.set_cores_percent(CoresOf(device));
    out.set_capability_major(device.capability_major());
    out.set_capability_minor(device.capability_minor());
    out.set_pci_bus_id(device.pci_bus_id());
    out.set_lent_memory_bytes(card.lent_memory_bytes);
    out.set_lent_cores_percent(card.lent_cores_percent);
    out.set_lease_count(card.lease_count);
    out.set_used_memory_bytes(card.used_memory_bytes);
  }
  return proto;
}

}  // namespace fargpu::scheduler
