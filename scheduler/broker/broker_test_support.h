#pragma once

// A clock, a node, and a fixture for tests of the broker.
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "common/mutex.h"
#include "common/status_matchers.h"
#include "scheduler/broker/broker.h"
#include "scheduler/policies/best_fit_policy.h"
#include "scheduler/store/sqlite_store.h"

namespace fargpu::scheduler {

namespace nb = node::v1;

constexpr uint64_t kMiB = 1 << 20;

inline std::string Uuid(int number) {
  return absl::StrCat("GPU-00000000-0000-0000-0000-", absl::Dec(number, absl::kZeroPad12));
}

class FakeClock : public Clock {
 public:
  absl::Duration Steady() const override { return now_; }
  int64_t WallMillis() const override {
    return 1'700'000'000'000 + absl::ToInt64Milliseconds(now_);
  }
  void Advance(absl::Duration by) { now_ += by; }

 private:
  absl::Duration now_ = absl::Hours(1);
};

class FakeChannel : public NodeChannel {
 public:
  void Send(nb::BrokerMessage message) override { sent.push_back(std::move(message)); }
  void Close(absl::Status why) override { closed = std::move(why); }
  std::vector<nb::BrokerMessage> sent;
  absl::Status closed;
};

// A daemon that does what the test says.
class FakeNode {
 public:
  FakeNode(std::string name, std::vector<std::pair<int, uint64_t>> cards) {
    hello.set_node_name(name);
    hello.add_endpoints(absl::StrCat("unix:/run/", name, ".sock"));
    for (const auto& [number, mib] : cards) {
      nb::Device& device = *hello.add_devices();
      device.set_uuid(Uuid(number));
      device.set_name("Soft GPU");
      device.set_memory_bytes(mib * kMiB);
    }
  }

  void Register(Broker* to) {
    broker = to;
    channel = std::make_shared<FakeChannel>();
    const auto result = broker->RegisterNode(hello, channel);
    ASSERT_OK(result);
    registration = *result;
    // Requests that waited may follow it.
    ASSERT_GE(channel->sent.size(), 1u);
    ASSERT_TRUE(channel->sent[0].has_full_state());
    full_state = channel->sent[0].full_state();
    channel->sent.erase(channel->sent.begin());
  }
  // Takes the next message; it must be a Reserve.
  nb::Reserve TakeReserve() {
    EXPECT_FALSE(channel->sent.empty());
    if (channel->sent.empty()) return {};
    EXPECT_TRUE(channel->sent[0].has_reserve());
    const nb::Reserve reserve = channel->sent[0].reserve();
    channel->sent.erase(channel->sent.begin());
    return reserve;
  }
  void Answer(const nb::Reserve& reserve, absl::StatusCode code = absl::StatusCode::kOk,
              const std::string& why = "") {
    nb::NodeMessage message;
    message.mutable_reserve_result()->set_request_id(reserve.request_id());
    message.mutable_reserve_result()->set_code(static_cast<uint32_t>(code));
    message.mutable_reserve_result()->set_message(why);
    EXPECT_OK(broker->HandleNodeMessage(registration, message));
  }
  void Heartbeat(const std::vector<std::string>& lease_ids = {}) {
    nb::NodeMessage message;
    message.mutable_heartbeat();
    for (const std::string& id : lease_ids) {
      nb::Session& session = *message.mutable_heartbeat()->add_sessions();
      session.set_lease_id(id);
      session.set_pid(1);
      session.set_charged_bytes(3 * kMiB);
    }
    EXPECT_OK(broker->HandleNodeMessage(registration, message));
  }

  Broker* broker = nullptr;
  nb::Hello hello;
  std::shared_ptr<FakeChannel> channel;
  uint64_t registration = 0;
  nb::FullState full_state;
};

// The answer to an Allocate, once it is there.
struct Call {
  uint64_t ticket = 0;
  int answers = 0;
  absl::StatusOr<broker::v1::AllocateResponse> answer = absl::UnknownError("not answered");
};

class BrokerTest : public testing::Test {
 protected:
  BrokerTest() {
    std::string pattern = testing::TempDir() + "broker_test_XXXXXX";
    directory_ = mkdtemp(pattern.data());
    StartBroker();
  }
  ~BrokerTest() override {
    broker_.reset();
    store_.reset();
    std::filesystem::remove_all(directory_);
  }

  void StartBroker() {
    broker_.reset();
    store_.reset();
    auto store = SqliteStore::Open(directory_ + "/broker.db");
    ASSERT_OK(store);
    store_ = *std::move(store);
    broker_ = std::make_unique<Broker>(store_.get(), &policy_, &clock_, BrokerOptions());
    ASSERT_OK(broker_->Start());
  }

  static broker::v1::AllocateRequest Request(uint64_t mib, uint32_t cores = 10,
                                             const std::string& request_id = "") {
    broker::v1::AllocateRequest request;
    request.set_memory_mib(mib);
    request.set_cores_percent(cores);
    request.set_request_id(request_id);
    return request;
  }
  std::shared_ptr<Call> Allocate(const broker::v1::AllocateRequest& request) {
    auto call = std::make_shared<Call>();
    call->ticket = broker_->NewTicket();
    broker_->Allocate(request, call->ticket,
                      [call](absl::StatusOr<broker::v1::AllocateResponse> answer) {
                        ++call->answers;
                        call->answer = std::move(answer);
                      });
    return call;
  }
  // Allocates on `node`, which says yes.
  broker::v1::AllocateResponse Granted(FakeNode& node, const broker::v1::AllocateRequest& request) {
    const auto call = Allocate(request);
    node.Answer(node.TakeReserve());
    EXPECT_OK(call->answer);
    EXPECT_EQ(call->answers, 1);
    return call->answer.ok() ? *call->answer : broker::v1::AllocateResponse();
  }
  broker::v1::Lease Get(const std::string& id) {
    broker::v1::GetRequest request;
    request.set_lease_id(id);
    const auto lease = broker_->Get(request);
    EXPECT_OK(lease);
    return lease.ok() ? *lease : broker::v1::Lease();
  }
  absl::Status Release(const std::string& id) {
    broker::v1::ReleaseRequest request;
    request.set_lease_id(id);
    return broker_->Release(request);
  }
  broker::v1::Card CardOf(const std::string& node_name, int card = 0) {
    const broker::v1::ListNodesResponse response = broker_->ListNodes();
    for (const broker::v1::Node& node : response.nodes()) {
      if (node.name() == node_name) return node.cards(card);
    }
    ADD_FAILURE() << "no node " << node_name;
    return {};
  }
  // Lets time pass as the timer would.
  void Pass(absl::Duration time) {
    for (absl::Duration step = absl::Milliseconds(100); time > absl::ZeroDuration(); time -= step) {
      clock_.Advance(step);
      broker_->Tick();
    }
  }

  FakeClock clock_;
  BestFitPolicy policy_;
  std::string directory_;
  std::unique_ptr<SqliteStore> store_;
  std::unique_ptr<Broker> broker_;
};

}  // namespace fargpu::scheduler
