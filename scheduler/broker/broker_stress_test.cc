// Random operations against the broker, with nodes that keep books of their own; and many threads.
#include <atomic>
#include <deque>
#include <filesystem>
#include <random>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/status_matchers.h"
#include "scheduler/broker/broker_test_support.h"
#include "scheduler/policies/best_fit_policy.h"
#include "scheduler/store/sqlite_store.h"

namespace fargpu::scheduler {
namespace {

namespace pb = broker::v1;

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = testing::TempDir() + "broker_stress_test_XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A daemon with a ledger: holds what it said yes to, also over a restart of the broker.
class LedgerNode : public FakeNode {
 public:
  using FakeNode::FakeNode;

  void Connect(Broker* to, std::mt19937& random) {
    hello.clear_leases();
    for (const auto& [id, reserve] : held) {
      nb::HeldLease& lease = *hello.add_leases();
      lease.set_lease_id(id);
      lease.set_secret(reserve.secret());
      *lease.mutable_device_uuids() = reserve.device_uuids();
      lease.set_memory_bytes(reserve.memory_bytes());
      lease.set_cores_percent(reserve.cores_percent());
      lease.set_ttl_ms(reserve.ttl_ms());
      if (random() % 2 == 0) lease.add_sessions()->set_lease_id(id);
    }
    Register(to);
    connected = true;
    held.clear();
    for (const nb::Reserve& reserve : full_state.leases()) Hold(reserve);
  }
  void Disconnect() {
    if (!connected) return;
    connected = false;
    broker->NodeStreamEnded(registration);
  }

  // Does what the oldest message asks. False: there is none.
  bool HandleOne(bool refuse) {
    if (!connected || channel->sent.empty()) return false;
    const nb::BrokerMessage message = channel->sent.front();
    channel->sent.erase(channel->sent.begin());
    if (message.has_reserve()) {
      if (!refuse) Hold(message.reserve());
      Answer(message.reserve(),
             refuse ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kOk, "no");
    } else if (message.has_release_lease()) {
      held.erase(message.release_lease().lease_id());
      nb::NodeMessage ended;
      ended.mutable_lease_ended()->set_lease_id(message.release_lease().lease_id());
      EXPECT_OK(broker->HandleNodeMessage(registration, ended));
    }
    return true;
  }

  std::map<std::string, nb::Reserve> held;
  bool connected = false;

 private:
  void Hold(const nb::Reserve& reserve) {
    held[reserve.lease_id()] = reserve;
    std::map<std::string, uint64_t> memory;
    std::map<std::string, uint32_t> cores;
    for (const auto& [id, lease] : held) {
      for (const std::string& uuid : lease.device_uuids()) {
        memory[uuid] += lease.memory_bytes();
        cores[uuid] += lease.cores_percent();
      }
    }
    for (const nb::Device& device : hello.devices()) {
      EXPECT_LE(memory[device.uuid()], device.memory_bytes()) << device.uuid();
      EXPECT_LE(cores[device.uuid()], 100u) << device.uuid();
    }
  }
};

class World {
 public:
  explicit World(uint32_t seed) : random_(seed) {
    for (int i = 0; i < 3; ++i) {
      nodes_.emplace_back("node-" + std::to_string(i), std::vector<std::pair<int, uint64_t>>{
                                                           {2 * i + 1, 4096}, {2 * i + 2, 8192}});
    }
    StartBroker();
  }

  void Step() {
    LedgerNode& node = nodes_[random_() % nodes_.size()];
    switch (random_() % 20) {
      case 0:
      case 1:
      case 2:
      case 3:
      case 4:
        return Allocate();
      case 5:
        if (!open_.empty()) broker_->CancelAllocate(open_[random_() % open_.size()]->ticket);
        return;
      case 6:
      case 7:
        return Release();
      case 8:
        if (random_() % 4 == 0) node.Disconnect();
        return;
      case 9:
        if (!node.connected) node.Connect(broker_.get(), random_);
        return;
      case 10:
        if (random_() % 20 == 0) StartBroker();
        return;
      case 11:
      case 12:
        return Pass();
      default:
        node.HandleOne(/*refuse=*/random_() % 10 == 0);
    }
  }

  // Lets everything that is under way come to its end, then compares all books.
  void Settle() {
    for (LedgerNode& node : nodes_) {
      if (!node.connected) node.Connect(broker_.get(), random_);
    }
    for (const auto& call : open_) broker_->CancelAllocate(call->ticket);
    bool busy = true;
    while (busy) {
      busy = false;
      for (LedgerNode& node : nodes_) busy |= node.HandleOne(/*refuse=*/false);
    }
    std::map<std::string, std::pair<uint64_t, uint32_t>> lent;  // by uuid: memory, cores
    std::map<std::string, std::set<std::string>> on_node;
    for (const pb::Lease& lease : ActiveLeases()) {
      for (const pb::LeasedDevice& device : lease.devices()) {
        lent[device.uuid()].first += lease.memory_bytes();
        lent[device.uuid()].second += lease.cores_percent();
        on_node[device.node()].insert(lease.id());
      }
    }
    const pb::ListNodesResponse response = broker_->ListNodes();
    for (const pb::Node& node : response.nodes()) {
      for (const pb::Card& card : node.cards()) {
        EXPECT_EQ(card.lent_memory_bytes(), lent[card.uuid()].first);
        EXPECT_EQ(card.lent_cores_percent(), lent[card.uuid()].second);
        EXPECT_LE(card.lent_memory_bytes(), card.memory_bytes());
        EXPECT_LE(card.lent_cores_percent(), 100u);
      }
    }
    for (const LedgerNode& node : nodes_) {
      std::set<std::string> held;
      for (const auto& [id, reserve] : node.held) held.insert(id);
      EXPECT_EQ(held, on_node[node.hello.node_name()]);
    }
    for (const auto& call : open_) EXPECT_EQ(call->answers, 1);
    open_.clear();
    // A request id never got two leases.
    for (const auto& [request_id, leases] : leases_by_request_) {
      EXPECT_EQ(leases.size(), 1u) << request_id;
    }
  }
  int granted() const { return granted_; }

 private:
  struct Call {
    uint64_t ticket = 0;
    int answers = 0;
  };

  void StartBroker() {
    if (broker_ != nullptr) broker_->Shutdown();
    for (LedgerNode& node : nodes_) node.connected = false;
    broker_.reset();
    store_.reset();
    auto store = SqliteStore::Open(directory_.path() + "/broker.db");
    ASSERT_OK(store);
    store_ = *std::move(store);
    broker_ = std::make_unique<Broker>(store_.get(), &policy_, &clock_, BrokerOptions());
    ASSERT_OK(broker_->Start());
  }
  void Allocate() {
    pb::AllocateRequest request;
    request.set_memory_mib(256 * (1 + random_() % 16));
    request.set_cores_percent(5 * (1 + random_() % 12));
    request.set_count(1 + random_() % 2);
    request.set_ttl_ms(1000 * (1 + random_() % 30));
    if (random_() % 2 == 0) request.set_wait_ms(random_() % 3000);
    if (random_() % 3 != 0) {
      // Small numbers, so that requests are repeated; what is asked for follows from the id.
      const uint32_t number = next_request_ + random_() % 4;
      if (random_() % 4 == 0) ++next_request_;
      request.set_request_id("request-" + std::to_string(number));
      request.set_memory_mib(256 * (1 + number % 16));
      request.set_cores_percent(10);
      request.set_count(1);
      request.set_ttl_ms(20'000);
    }
    auto call = std::make_shared<Call>();
    call->ticket = broker_->NewTicket();
    open_.push_back(call);
    const std::string request_id = request.request_id();
    broker_->Allocate(request, call->ticket,
                      [this, call, request_id](absl::StatusOr<pb::AllocateResponse> answer) {
                        ++call->answers;
                        if (!answer.ok()) return;
                        ++granted_;
                        if (!request_id.empty()) {
                          leases_by_request_[request_id].insert(answer->lease().id());
                        }
                      });
  }
  std::vector<pb::Lease> ActiveLeases() {
    pb::ListRequest request;
    request.set_page_size(1000);
    const auto response = broker_->List(request);
    EXPECT_OK(response);
    return {response->leases().begin(), response->leases().end()};
  }
  void Release() {
    const std::vector<pb::Lease> leases = ActiveLeases();
    if (leases.empty()) return;
    pb::ReleaseRequest request;
    request.set_lease_id(leases[random_() % leases.size()].id());
    EXPECT_OK(broker_->Release(request));
  }
  void Pass() {
    clock_.Advance(absl::Milliseconds(random_() % 1500));
    for (LedgerNode& node : nodes_) {
      if (!node.connected) continue;
      if (!node.channel->closed.ok()) {
        node.connected = false;  // the broker took it for dead
        continue;
      }
      if (random_() % 4 == 0) continue;
      std::vector<std::string> with_session;
      for (const auto& [id, reserve] : node.held) {
        if (id[0] < '8') with_session.push_back(id);
      }
      node.Heartbeat(with_session);
    }
    broker_->Tick();
    for (LedgerNode& node : nodes_) {
      if (node.connected && !node.channel->closed.ok()) node.connected = false;
    }
  }

  std::mt19937 random_;
  TemporaryDirectory directory_;
  FakeClock clock_;
  BestFitPolicy policy_;
  std::vector<LedgerNode> nodes_;
  std::unique_ptr<SqliteStore> store_;
  std::unique_ptr<Broker> broker_;
  std::vector<std::shared_ptr<Call>> open_;
  std::map<std::string, std::set<std::string>> leases_by_request_;
  uint32_t next_request_ = 1;
  int granted_ = 0;
};

TEST(BrokerStressTest, RandomOperationsKeepAllBooksEqual) {
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(seed);
    World world(seed);
    for (int round = 0; round < 20; ++round) {
      for (int step = 0; step < 60; ++step) world.Step();
      world.Settle();
      if (testing::Test::HasFailure()) return;
    }
    EXPECT_GT(world.granted(), 50);
  }
}

// Messages wait here for the node's thread.
class QueueChannel : public NodeChannel {
 public:
  void Send(nb::BrokerMessage message) override {
    MutexLock lock(&mutex_);
    queue_.push_back(std::move(message));
  }
  void Close(absl::Status why) override {}
  std::optional<nb::BrokerMessage> Take() {
    MutexLock lock(&mutex_);
    if (queue_.empty()) return std::nullopt;
    nb::BrokerMessage message = std::move(queue_.front());
    queue_.pop_front();
    return message;
  }

 private:
  Mutex mutex_;
  std::deque<nb::BrokerMessage> queue_ ABSL_GUARDED_BY(mutex_);
};

TEST(BrokerStressTest, ManyThreads) {
  TemporaryDirectory directory;
  ASSERT_OK_AND_ASSIGN(auto store, SqliteStore::Open(directory.path() + "/broker.db"));
  const BestFitPolicy policy;
  const Clock clock;
  Broker broker(store.get(), &policy, &clock, BrokerOptions());
  ASSERT_OK(broker.Start());
  const FakeNode node("node", {{1, 4096}, {2, 4096}});
  const auto channel = std::make_shared<QueueChannel>();
  ASSERT_OK_AND_ASSIGN(const uint64_t registration, broker.RegisterNode(node.hello, channel));

  std::atomic<bool> stop{false};
  std::thread daemon([&] {
    while (!stop) {
      nb::NodeMessage answer;
      answer.mutable_heartbeat();
      if (const auto message = channel->Take(); message.has_value() && message->has_reserve()) {
        answer.mutable_reserve_result()->set_request_id(message->reserve().request_id());
      }
      EXPECT_OK(broker.HandleNodeMessage(registration, answer));
      std::this_thread::yield();
    }
  });
  std::thread timer([&] {
    while (!stop) {
      broker.Tick();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  std::atomic<uint64_t> notified{0};
  const uint64_t subscription = broker.events().Subscribe([&] { ++notified; });
  std::thread watcher([&] {
    uint64_t cursor = broker.events().CursorAfter("").value();
    pb::Event event;
    while (!stop) {
      while (broker.events().Next("", &cursor, &event).value_or(false)) {
      }
      EXPECT_EQ(broker.ListNodes().nodes_size(), 1);
      EXPECT_OK(broker.List({}));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  std::atomic<int> done{0};
  std::vector<std::thread> clients;
  for (int client = 0; client < 4; ++client) {
    clients.emplace_back([&, client] {
      for (int i = 0; i < 50; ++i) {
        pb::AllocateRequest request;
        request.set_memory_mib(1024);
        request.set_cores_percent(10);
        request.set_wait_ms(60'000);
        std::atomic<bool> answered{false};
        absl::StatusOr<pb::AllocateResponse> answer = absl::UnknownError("");
        const uint64_t ticket = broker.NewTicket();
        broker.Allocate(request, ticket, [&](absl::StatusOr<pb::AllocateResponse> result) {
          answer = std::move(result);
          answered = true;
        });
        if (client == 0 && i % 5 == 0) broker.CancelAllocate(ticket);
        while (!answered) std::this_thread::yield();
        if (!answer.ok()) {
          EXPECT_THAT(answer, StatusIs(absl::StatusCode::kCancelled));
          continue;
        }
        pb::ReleaseRequest release;
        release.set_lease_id(answer->lease().id());
        EXPECT_OK(broker.Release(release));
        ++done;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  stop = true;
  daemon.join();
  timer.join();
  watcher.join();
  broker.events().Unsubscribe(subscription);
  EXPECT_GE(done, 190);
  EXPECT_GE(notified, 2u * static_cast<uint64_t>(done));
  const pb::ListNodesResponse nodes = broker.ListNodes();
  for (const pb::Card& card : nodes.nodes(0).cards()) EXPECT_EQ(card.lent_memory_bytes(), 0u);
  broker.Shutdown();
}

}  // namespace
}  // namespace fargpu::scheduler
