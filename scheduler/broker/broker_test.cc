#include "scheduler/broker/broker.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/status_matchers.h"
#include "scheduler/broker/broker_test_support.h"
#include "scheduler/policies/best_fit_policy.h"
#include "scheduler/store/sqlite_store.h"

namespace fargpu::scheduler {
namespace {

namespace pb = broker::v1;
namespace nb = node::v1;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The answer to an Allocate, once it is there.
struct Call {
  uint64_t ticket = 0;
  int answers = 0;
  absl::StatusOr<pb::AllocateResponse> answer = absl::UnknownError("not answered");
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

  static pb::AllocateRequest Request(uint64_t mib, uint32_t cores = 10,
                                     const std::string& request_id = "") {
    pb::AllocateRequest request;
    request.set_memory_mib(mib);
    request.set_cores_percent(cores);
    request.set_request_id(request_id);
    return request;
  }
  std::shared_ptr<Call> Allocate(const pb::AllocateRequest& request) {
    auto call = std::make_shared<Call>();
    call->ticket = broker_->NewTicket();
    broker_->Allocate(request, call->ticket, [call](absl::StatusOr<pb::AllocateResponse> answer) {
      ++call->answers;
      call->answer = std::move(answer);
    });
    return call;
  }
  // Allocates on `node`, which says yes.
  pb::AllocateResponse Granted(FakeNode& node, const pb::AllocateRequest& request) {
    const auto call = Allocate(request);
    node.Answer(node.TakeReserve());
    EXPECT_OK(call->answer);
    EXPECT_EQ(call->answers, 1);
    return call->answer.ok() ? *call->answer : pb::AllocateResponse();
  }
  pb::Lease Get(const std::string& id) {
    pb::GetRequest request;
    request.set_lease_id(id);
    const auto lease = broker_->Get(request);
    EXPECT_OK(lease);
    return lease.ok() ? *lease : pb::Lease();
  }
  absl::Status Release(const std::string& id) {
    pb::ReleaseRequest request;
    request.set_lease_id(id);
    return broker_->Release(request);
  }
  pb::Card CardOf(const std::string& node_name, int card = 0) {
    const pb::ListNodesResponse response = broker_->ListNodes();
    for (const pb::Node& node : response.nodes()) {
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

TEST_F(BrokerTest, ALeaseIsReservedOnItsNodeBeforeItIsHandedOut) {
  FakeNode node("gpu-1", {{1, 16384}});
  node.Register(broker_.get());
  pb::AllocateRequest request = Request(4096, 30);
  request.set_name("app");
  const auto call = Allocate(request);
  EXPECT_EQ(call->answers, 0);
  const nb::Reserve reserve = node.TakeReserve();
  EXPECT_EQ(reserve.memory_bytes(), 4096 * kMiB);
  EXPECT_EQ(reserve.cores_percent(), 30u);
  EXPECT_THAT(reserve.device_uuids(), ElementsAre(Uuid(1)));
  node.Answer(reserve);
  ASSERT_OK(call->answer);
  const pb::Lease& lease = call->answer->lease();
  EXPECT_EQ(lease.id(), reserve.lease_id());
  EXPECT_EQ(lease.id().size(), 32u);
  EXPECT_EQ(call->answer->secret(), reserve.secret());
  EXPECT_EQ(call->answer->secret().size(), 32u);
  EXPECT_EQ(lease.state(), pb::LEASE_STATE_ACTIVE);
  EXPECT_EQ(lease.tenant(), "default");
  EXPECT_EQ(lease.name(), "app");
  EXPECT_EQ(lease.memory_bytes(), 4096 * kMiB);
  EXPECT_THAT(lease.endpoints(), ElementsAre("unix:/run/gpu-1.sock"));
  ASSERT_EQ(lease.devices_size(), 1);
  EXPECT_EQ(lease.devices(0).node(), "gpu-1");
  EXPECT_EQ(lease.devices(0).model(), "Soft GPU");
  EXPECT_EQ(lease.devices(0).card_memory_bytes(), 16384 * kMiB);
  EXPECT_EQ(CardOf("gpu-1").lent_memory_bytes(), 4096 * kMiB);
  EXPECT_EQ(CardOf("gpu-1").lent_cores_percent(), 30u);
  EXPECT_EQ(CardOf("gpu-1").lease_count(), 1u);

  ASSERT_OK(Release(lease.id()));
  ASSERT_EQ(node.channel->sent.size(), 1u);
  EXPECT_EQ(node.channel->sent[0].release_lease().lease_id(), lease.id());
  EXPECT_EQ(Get(lease.id()).state(), pb::LEASE_STATE_ENDED);
  EXPECT_EQ(Get(lease.id()).end_reason(), "released by its owner");
  EXPECT_EQ(CardOf("gpu-1").lent_memory_bytes(), 0u);
  EXPECT_EQ(CardOf("gpu-1").lent_cores_percent(), 0u);
  EXPECT_OK(Release(lease.id()));  // again
  EXPECT_EQ(node.channel->sent.size(), 1u);
}

TEST_F(BrokerTest, MoreThanIsLeftIsRefusedWithWhatIsLeft) {
  FakeNode node("x", {{1, 8192}});
  node.Register(broker_.get());
  Granted(node, Request(6144));
  const auto call = Allocate(Request(6144));
  EXPECT_THAT(call->answer, StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(
      call->answer.status().message(),
      absl::StrCat("no card has 6144 MiB free; the largest free slice is 2048 MiB on node x (",
                   Uuid(1), ")"));
  EXPECT_TRUE(node.channel->sent.empty());
  EXPECT_THAT(Allocate(Request(1024, 95))->answer, StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(BrokerTest, WhatNoCardCouldEverGiveIsInvalid) {
  FakeNode node("x", {{1, 8192}, {2, 4096}});
  node.Register(broker_.get());
  const auto memory = Allocate(Request(9000));
  EXPECT_THAT(memory->answer, StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(std::string(memory->answer.status().message()),
              HasSubstr("memory_mib is 9000 MiB, but the pool's largest card has 8192 MiB"));
  pb::AllocateRequest three = Request(100);
  three.set_count(3);
  EXPECT_THAT(Allocate(three)->answer, StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(BrokerTest, BadRequestsNameFieldValueAndLimit) {
  FakeNode node("x", {{1, 8192}});
  node.Register(broker_.get());
  const auto message = [&](const pb::AllocateRequest& request) {
    const auto call = Allocate(request);
    EXPECT_THAT(call->answer, StatusIs(absl::StatusCode::kInvalidArgument));
    return std::string(call->answer.status().message());
  };
  EXPECT_EQ(message(Request(0)), "memory_mib is 0 MiB; allowed are 1 to 1073741824 MiB");
  EXPECT_THAT(message(Request(~0ull)), HasSubstr("memory_mib is 18446744073709551615 MiB"));
  EXPECT_EQ(message(Request(1, 101)), "cores_percent is 101%; allowed are 1 to 100%");
  pb::AllocateRequest request = Request(1);
  request.set_count(65);
  EXPECT_EQ(message(request), "count is 65; allowed are 1 to 64");
  request = Request(1);
  request.set_tenant("a b");
  EXPECT_THAT(message(request), HasSubstr("tenant is \"a b\""));
  request = Request(1);
  request.set_queue(std::string(64, 'q'));
  EXPECT_THAT(message(request), HasSubstr("queue is"));
  request = Request(1);
  request.set_name("line\nbreak");
  EXPECT_THAT(message(request), HasSubstr("name is \"line\\nbreak\""));
  request = Request(1);
  request.set_request_id(std::string(10 << 20, 'x'));
  EXPECT_LT(message(request).size(), 200u);
  request = Request(1);
  request.set_ttl_ms(999);
  EXPECT_THAT(message(request), HasSubstr("ttl_ms is 999 ms; allowed are 1000 to"));
  request = Request(1);
  request.set_wait_ms(86'400'001);
  EXPECT_THAT(message(request), HasSubstr("wait_ms"));
  EXPECT_TRUE(node.channel->sent.empty());

  EXPECT_THAT(Release("xyz"), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Release(std::string(32, '0')), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(BrokerTest, NoNodeIsUnavailable) {
  EXPECT_THAT(Allocate(Request(1))->answer, StatusIs(absl::StatusCode::kUnavailable));
  FakeNode node("gpu-1", {{1, 8192}});
  node.Register(broker_.get());
  broker_->NodeStreamEnded(node.registration);
  // Its daemon may just have been started anew, so the request waits a little.
  const auto call = Allocate(Request(1));
  Pass(absl::Seconds(5));
  EXPECT_EQ(call->answers, 0);
  Pass(absl::Seconds(1) + absl::Milliseconds(100));
  EXPECT_THAT(call->answer, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(std::string(call->answer.status().message()), HasSubstr("gpu-1"));
  EXPECT_THAT(Allocate(Request(1))->answer, StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(BrokerTest, ARequestAfterARestartWaitsForTheNodesToComeBack) {
  FakeNode node("gpu-1", {{1, 8192}});
  node.Register(broker_.get());
  StartBroker();
  const auto call = Allocate(Request(1024));
  Pass(absl::Seconds(2));
  EXPECT_EQ(call->answers, 0);
  node.Register(broker_.get());
  node.Answer(node.TakeReserve());
  EXPECT_OK(call->answer);
}

TEST_F(BrokerTest, SameRequestIdGivesSameLease) {
  FakeNode node("gpu-1", {{1, 8192}});
  node.Register(broker_.get());
  // Twice before the node answers: one reservation, two equal answers.
  const auto first = Allocate(Request(1024, 10, "r1"));
  const auto second = Allocate(Request(1024, 10, "r1"));
  EXPECT_EQ(node.channel->sent.size(), 1u);
  node.Answer(node.TakeReserve());
  ASSERT_OK(first->answer);
  ASSERT_OK(second->answer);
  EXPECT_EQ(first->answer->lease().id(), second->answer->lease().id());
  // And after it, also after a restart.
  StartBroker();
  const auto third = Allocate(Request(1024, 10, "r1"));
  ASSERT_OK(third->answer);
  EXPECT_EQ(third->answer->lease().id(), first->answer->lease().id());
  EXPECT_EQ(third->answer->secret(), first->answer->secret());
  // Another request under the same id.
  EXPECT_THAT(Allocate(Request(2048, 10, "r1"))->answer,
              StatusIs(absl::StatusCode::kAlreadyExists));
  // Another tenant may use the same id.
  node.Register(broker_.get());
  pb::AllocateRequest other = Request(1024, 10, "r1");
  other.set_tenant("other");
  EXPECT_NE(Granted(node, other).lease().id(), first->answer->lease().id());
  // When it has ended, the id does not start a new lease.
  ASSERT_OK(Release(first->answer->lease().id()));
  const auto late = Allocate(Request(1024, 10, "r1"));
  EXPECT_THAT(late->answer, StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(BrokerTest, ARefusedRequestIdMayBeTriedAgain) {
  FakeNode node("gpu-1", {{1, 2048}});
  node.Register(broker_.get());
  const std::string id = Granted(node, Request(2048)).lease().id();
  EXPECT_THAT(Allocate(Request(1024, 10, "r"))->answer,
              StatusIs(absl::StatusCode::kResourceExhausted));
  ASSERT_OK(Release(id));
  node.channel->sent.clear();
  Granted(node, Request(1024, 10, "r"));
}

TEST_F(BrokerTest, ARefusalMovesToTheNextCard) {
  FakeNode a("a", {{1, 4096}});
  FakeNode b("b", {{2, 8192}});
  a.Register(broker_.get());
  b.Register(broker_.get());
  const auto call = Allocate(Request(2048));
  const nb::Reserve refused = a.TakeReserve();  // the tighter fit
  a.Answer(refused, absl::StatusCode::kResourceExhausted, "ledger says 100 MiB");
  const nb::Reserve accepted = b.TakeReserve();
  EXPECT_NE(accepted.lease_id(), refused.lease_id());
  b.Answer(accepted);
  ASSERT_OK(call->answer);
  EXPECT_EQ(call->answer->lease().devices(0).node(), "b");
  EXPECT_EQ(CardOf("a").lent_memory_bytes(), 0u);
}

TEST_F(BrokerTest, AllRefusalsEndInTheLastReason) {
  FakeNode a("a", {{1, 4096}});
  a.Register(broker_.get());
  const auto call = Allocate(Request(2048));
  a.Answer(a.TakeReserve(), absl::StatusCode::kResourceExhausted, "ledger says 100 MiB");
  EXPECT_THAT(call->answer, StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(call->answer.status().message(), "node a refused: ledger says 100 MiB");
}

TEST_F(BrokerTest, ANodeThatDoesNotAnswerIsPassedOver) {
  FakeNode a("a", {{1, 4096}});
  FakeNode b("b", {{2, 8192}});
  a.Register(broker_.get());
  b.Register(broker_.get());
  const auto call = Allocate(Request(2048));
  const nb::Reserve unanswered = a.TakeReserve();
  Pass(absl::Seconds(3));
  ASSERT_EQ(a.channel->sent.size(), 1u);
  EXPECT_EQ(a.channel->sent[0].release_lease().lease_id(), unanswered.lease_id());
  const nb::Reserve accepted = b.TakeReserve();
  a.Answer(unanswered);  // too late: changes nothing
  EXPECT_EQ(call->answers, 0);
  b.Answer(accepted);
  ASSERT_OK(call->answer);
  EXPECT_EQ(call->answer->lease().devices(0).node(), "b");
  EXPECT_EQ(CardOf("a").lent_memory_bytes(), 0u);
}

TEST_F(BrokerTest, ANodeThatGoesAwayWhileAskedIsPassedOver) {
  FakeNode a("a", {{1, 4096}});
  FakeNode b("b", {{2, 8192}});
  a.Register(broker_.get());
  b.Register(broker_.get());
  const auto call = Allocate(Request(2048));
  a.TakeReserve();
  broker_->NodeStreamEnded(a.registration);
  b.Answer(b.TakeReserve());
  ASSERT_OK(call->answer);
  EXPECT_EQ(call->answer->lease().devices(0).node(), "b");
  // What does not fit on the other is refused once the lost one should have been back.
  const auto large = Allocate(Request(8192));
  EXPECT_EQ(large->answers, 0);
  for (int second = 0; second < 7; ++second) {
    Pass(absl::Seconds(1));
    b.Heartbeat();
  }
  EXPECT_THAT(large->answer, StatusIs(absl::StatusCode::kResourceExhausted));
}

TEST_F(BrokerTest, SilentNodesAreMarkedNotForgottenAndNotPlacedOn) {
  FakeNode a("a", {{1, 4096}});
  FakeNode b("b", {{2, 8192}});
  a.Register(broker_.get());
  b.Register(broker_.get());
  const pb::AllocateResponse lease = Granted(a, Request(1024));
  for (int second = 0; second < 6; ++second) {
    Pass(absl::Seconds(1));
    b.Heartbeat();
  }
  EXPECT_THAT(a.channel->closed, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_OK(b.channel->closed);
  const pb::ListNodesResponse nodes = broker_->ListNodes();
  ASSERT_EQ(nodes.nodes_size(), 2);
  EXPECT_EQ(nodes.nodes(0).state(), pb::NODE_STATE_SILENT);
  EXPECT_EQ(nodes.nodes(0).cards_size(), 1);
  EXPECT_EQ(nodes.nodes(1).state(), pb::NODE_STATE_ALIVE);
  Granted(b, Request(1024));
  // Its lease outlives any time-to-live: what runs there is not known.
  for (int second = 0; second < 1200; ++second) {
    clock_.Advance(absl::Seconds(1));
    b.Heartbeat();
    broker_->Tick();
  }
  EXPECT_EQ(Get(lease.lease().id()).state(), pb::LEASE_STATE_ACTIVE);
  // The stale stream's messages are not taken any more.
  nb::NodeMessage message;
  message.mutable_heartbeat();
  EXPECT_THAT(broker_->HandleNodeMessage(a.registration, message),
              StatusIs(absl::StatusCode::kAborted));
  a.Register(broker_.get());
  ASSERT_EQ(a.full_state.leases_size(), 1);
  EXPECT_EQ(a.full_state.leases(0).lease_id(), lease.lease().id());
  EXPECT_EQ(a.full_state.leases(0).secret(), lease.secret());
  EXPECT_EQ(CardOf("a").lent_memory_bytes(), 1024 * kMiB);
}

TEST_F(BrokerTest, ALeaseWithoutSessionOrRenewalEnds) {
  FakeNode node("a", {{1, 4096}});
  node.Register(broker_.get());
  pb::AllocateRequest request = Request(1024);
  request.set_ttl_ms(10'000);
  const std::string used = Granted(node, request).lease().id();
  const std::string renewed = Granted(node, request).lease().id();
  const std::string idle = Granted(node, request).lease().id();
  for (int second = 0; second < 25; ++second) {
    Pass(absl::Seconds(1));
    node.Heartbeat({used, used});
    pb::RenewRequest renew;
    renew.set_lease_id(renewed);
    EXPECT_OK(broker_->Renew(renew));
  }
  EXPECT_EQ(Get(used).state(), pb::LEASE_STATE_ACTIVE);
  EXPECT_EQ(Get(used).session_count(), 2u);
  EXPECT_EQ(Get(used).charged_bytes(), 6 * kMiB);
  EXPECT_EQ(Get(renewed).state(), pb::LEASE_STATE_ACTIVE);
  EXPECT_EQ(Get(idle).state(), pb::LEASE_STATE_ENDED);
  EXPECT_EQ(Get(idle).end_reason(), "neither a session nor a renewal for 10 s");
  ASSERT_EQ(node.channel->sent.size(), 1u);
  EXPECT_EQ(node.channel->sent[0].release_lease().lease_id(), idle);
  EXPECT_EQ(CardOf("a").lease_count(), 2u);
  pb::RenewRequest renew;
  renew.set_lease_id(idle);
  EXPECT_THAT(broker_->Renew(renew), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(BrokerTest, ARestartKeepsLeases) {
  FakeNode node("a", {{1, 4096}, {2, 4096}});
  node.Register(broker_.get());
  const pb::AllocateResponse kept = Granted(node, Request(1024, 20));
  const std::string released = Granted(node, Request(512, 10)).lease().id();
  ASSERT_OK(Release(released));

  StartBroker();
  pb::ListRequest list;
  const auto leases = broker_->List(list);
  ASSERT_OK(leases);
  ASSERT_EQ(leases->leases_size(), 1);
  EXPECT_EQ(leases->leases(0).id(), kept.lease().id());
  EXPECT_EQ(leases->leases(0).endpoints(0), "unix:/run/a.sock");
  const pb::ListNodesResponse nodes = broker_->ListNodes();
  ASSERT_EQ(nodes.nodes_size(), 1);
  EXPECT_EQ(nodes.nodes(0).state(), pb::NODE_STATE_SILENT);
  EXPECT_EQ(nodes.nodes(0).cards(0).lent_memory_bytes(), 1024 * kMiB);

  node.Register(broker_.get());
  ASSERT_EQ(node.full_state.leases_size(), 1);
  EXPECT_EQ(node.full_state.leases(0).lease_id(), kept.lease().id());
  EXPECT_EQ(node.full_state.leases(0).secret(), kept.secret());
  EXPECT_EQ(CardOf("a").lent_memory_bytes() + CardOf("a", 1).lent_memory_bytes(), 1024 * kMiB);
  // And it expires as usual if nobody shows up.
  for (int second = 0; second < 601; ++second) {
    clock_.Advance(absl::Seconds(1));
    node.Heartbeat();
    broker_->Tick();
  }
  EXPECT_EQ(Get(kept.lease().id()).state(), pb::LEASE_STATE_ENDED);
}

nb::HeldLease Held(const nb::Reserve& reserve, int sessions) {
  nb::HeldLease held;
  held.set_lease_id(reserve.lease_id());
  held.set_secret(reserve.secret());
  *held.mutable_device_uuids() = reserve.device_uuids();
  held.set_memory_bytes(reserve.memory_bytes());
  held.set_cores_percent(reserve.cores_percent());
  held.set_ttl_ms(reserve.ttl_ms());
  for (int i = 0; i < sessions; ++i) {
    held.add_sessions()->set_lease_id(reserve.lease_id());
    held.mutable_sessions(i)->set_charged_bytes(kMiB);
  }
  return held;
}

// After a crash the books and the node differ; what runs counts (DESIGN D10).
TEST_F(BrokerTest, ReconcilesInFavourOfWhatRuns) {
  FakeNode node("a", {{1, 8192}});
  node.Register(broker_.get());
  pb::AllocateRequest request = Request(1024);
  request.set_ttl_ms(1000);
  std::vector<nb::Reserve> reserves;
  for (int i = 0; i < 3; ++i) {
    const auto call = Allocate(request);
    reserves.push_back(node.TakeReserve());
    node.Answer(reserves.back());
  }
  // 0 expires, 1 is released, 2 stays alive by renewals; all three still run on the node.
  ASSERT_OK(Release(reserves[1].lease_id()));
  for (int second = 0; second < 3; ++second) {
    Pass(absl::Seconds(1));
    node.Heartbeat({reserves[2].lease_id()});
  }
  EXPECT_EQ(Get(reserves[0].lease_id()).state(), pb::LEASE_STATE_ENDED);
  broker_->NodeStreamEnded(node.registration);

  // A lease that our store never saw, with and without sessions.
  nb::Reserve unknown = reserves[2];
  unknown.set_lease_id(std::string(32, 'a'));
  nb::Reserve unknown_idle = reserves[2];
  unknown_idle.set_lease_id(std::string(32, 'b'));
  for (const nb::Reserve& reserve : reserves) *node.hello.add_leases() = Held(reserve, 1);
  *node.hello.add_leases() = Held(unknown, 2);
  *node.hello.add_leases() = Held(unknown_idle, 0);
  node.Register(broker_.get());

  std::vector<std::string> told;
  for (const nb::Reserve& reserve : node.full_state.leases()) told.push_back(reserve.lease_id());
  EXPECT_THAT(told, testing::UnorderedElementsAre(reserves[0].lease_id(), reserves[2].lease_id(),
                                                  unknown.lease_id()));
  EXPECT_EQ(Get(reserves[0].lease_id()).state(), pb::LEASE_STATE_ACTIVE);
  EXPECT_EQ(Get(reserves[0].lease_id()).end_reason(), "");
  EXPECT_EQ(Get(reserves[1].lease_id()).state(), pb::LEASE_STATE_ENDED);
  EXPECT_EQ(Get(unknown.lease_id()).session_count(), 2u);
  EXPECT_EQ(Get(unknown.lease_id()).charged_bytes(), 2 * kMiB);
  EXPECT_EQ(CardOf("a").lent_memory_bytes(), 3 * 1024 * kMiB);
  EXPECT_EQ(CardOf("a").lease_count(), 3u);

  StartBroker();  // all of it is in the store
  EXPECT_EQ(Get(unknown.lease_id()).state(), pb::LEASE_STATE_ACTIVE);
  EXPECT_EQ(CardOf("a").lease_count(), 3u);
}

TEST_F(BrokerTest, AReplacedStreamIsClosedAndAVanishedCardEndsItsLeases) {
  FakeNode node("a", {{1, 4096}, {2, 8192}});
  node.Register(broker_.get());
  const std::string on_first = Granted(node, Request(4096, 100)).lease().id();
  const std::string on_second = Granted(node, Request(4096, 100)).lease().id();
  FakeNode again("a", {{2, 8192}});
  again.hello.set_endpoints(0, "unix:/run/new.sock");
  again.Register(broker_.get());
  EXPECT_THAT(node.channel->closed, StatusIs(absl::StatusCode::kAborted));
  EXPECT_EQ(Get(on_first).state(), pb::LEASE_STATE_ENDED);
  EXPECT_EQ(Get(on_first).end_reason(), absl::StrCat("node a no longer has card ", Uuid(1)));
  EXPECT_EQ(Get(on_second).state(), pb::LEASE_STATE_ACTIVE);
  EXPECT_THAT(Get(on_second).endpoints(), ElementsAre("unix:/run/new.sock"));
  EXPECT_EQ(CardOf("a").lent_memory_bytes(), 4096 * kMiB);
}

TEST_F(BrokerTest, ANodeEndsALease) {
  FakeNode node("a", {{1, 4096}});
  node.Register(broker_.get());
  const std::string id = Granted(node, Request(4096)).lease().id();
  nb::NodeMessage message;
  message.mutable_lease_ended()->set_lease_id(id);
  message.mutable_lease_ended()->set_reason("card fell off the bus");
  ASSERT_OK(broker_->HandleNodeMessage(node.registration, message));
  EXPECT_EQ(Get(id).end_reason(), "node a: card fell off the bus");
  EXPECT_EQ(CardOf("a").lent_memory_bytes(), 0u);
  EXPECT_TRUE(node.channel->sent.empty());
}

TEST_F(BrokerTest, WaitingRequestsGetWhatBecomesFreeInOrder) {
  FakeNode node("a", {{1, 4096}});
  node.Register(broker_.get());
  const std::string id = Granted(node, Request(4096)).lease().id();
  pb::AllocateRequest request = Request(3000);
  request.set_wait_ms(5000);
  const auto first = Allocate(request);
  const auto second = Allocate(request);
  Pass(absl::Seconds(2));
  node.Heartbeat();
  EXPECT_EQ(first->answers + second->answers, 0);
  ASSERT_OK(Release(id));
  node.channel->sent.erase(node.channel->sent.begin());  // ReleaseLease
  node.Answer(node.TakeReserve());
  EXPECT_OK(first->answer);
  Pass(absl::Seconds(3) + absl::Milliseconds(200));
  EXPECT_THAT(second->answer, StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(second->answers, 1);
}

TEST_F(BrokerTest, AWaitingRequestIsServedByANodeThatComes) {
  pb::AllocateRequest request = Request(1000);
  request.set_wait_ms(5000);
  const auto call = Allocate(request);
  EXPECT_EQ(call->answers, 0);
  FakeNode node("a", {{1, 4096}});
  node.broker = broker_.get();
  node.channel = std::make_shared<FakeChannel>();
  ASSERT_OK_AND_ASSIGN(node.registration, broker_->RegisterNode(node.hello, node.channel));
  ASSERT_EQ(node.channel->sent.size(), 2u);  // FullState, then the waiting request
  node.channel->sent.erase(node.channel->sent.begin());
  node.Answer(node.TakeReserve());
  EXPECT_OK(call->answer);
}

TEST_F(BrokerTest, ACancelledRequestGivesItsReservationBack) {
  FakeNode node("a", {{1, 4096}});
  node.Register(broker_.get());
  const auto call = Allocate(Request(4096));
  const nb::Reserve reserve = node.TakeReserve();
  broker_->CancelAllocate(call->ticket);
  EXPECT_THAT(call->answer, StatusIs(absl::StatusCode::kCancelled));
  ASSERT_EQ(node.channel->sent.size(), 1u);
  EXPECT_EQ(node.channel->sent[0].release_lease().lease_id(), reserve.lease_id());
  EXPECT_EQ(CardOf("a").lent_memory_bytes(), 0u);
  node.Answer(reserve);
  EXPECT_EQ(call->answers, 1);
  EXPECT_EQ(broker_->List({})->leases_size(), 0);
}

TEST_F(BrokerTest, ShutdownAnswersWhatWaits) {
  FakeNode node("a", {{1, 4096}});
  node.Register(broker_.get());
  const auto asked = Allocate(Request(4096));
  pb::AllocateRequest request = Request(4096);
  request.set_wait_ms(5000);
  const auto waiting = Allocate(request);
  broker_->Shutdown();
  EXPECT_THAT(asked->answer, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(waiting->answer, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(node.channel->closed, StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(Allocate(Request(1))->answer, StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(BrokerTest, ListsInPagesAndByTenant) {
  FakeNode node("a", {{1, 4096}});
  node.Register(broker_.get());
  std::vector<std::string> ids;
  for (int i = 0; i < 7; ++i) {
    pb::AllocateRequest request = Request(16, 1);
    request.set_tenant(i % 2 == 0 ? "even" : "odd");
    ids.push_back(Granted(node, request).lease().id());
    if (i % 3 == 0) clock_.Advance(absl::Milliseconds(1));  // some share a millisecond
  }
  ASSERT_OK(Release(ids[2]));
  const auto collect = [&](pb::ListRequest request) {
    std::vector<std::string> found;
    do {
      const auto page = broker_->List(request);
      EXPECT_OK(page);
      EXPECT_LE(page->leases_size(), static_cast<int>(request.page_size()));
      for (const pb::Lease& lease : page->leases()) found.push_back(lease.id());
      request.set_page_token(page->next_page_token());
    } while (!request.page_token().empty());
    return found;
  };
  pb::ListRequest request;
  request.set_page_size(2);
  EXPECT_EQ(collect(request).size(), 6u);
  request.set_include_ended(true);
  EXPECT_THAT(collect(request), testing::UnorderedElementsAreArray(ids));
  request.set_tenant("odd");
  EXPECT_EQ(collect(request).size(), 3u);
  request.set_page_token("nonsense");
  EXPECT_THAT(broker_->List(request), StatusIs(absl::StatusCode::kInvalidArgument));
  request.clear_page_token();
  request.set_page_size(1001);
  EXPECT_THAT(broker_->List(request), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(BrokerTest, EndedLeasesAreForgottenAfterADay) {
  FakeNode node("a", {{1, 4096}});
  node.Register(broker_.get());
  const std::string id = Granted(node, Request(16, 1, "r")).lease().id();
  ASSERT_OK(Release(id));
  node.channel->sent.clear();
  clock_.Advance(absl::Hours(25));
  node.Heartbeat();
  Pass(absl::Seconds(2));
  EXPECT_THAT(Release(id), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_NE(Granted(node, Request(16, 1, "r")).lease().id(), id);  // the request id is free again
  StartBroker();
  EXPECT_THAT(Release(id), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(BrokerTest, BadHellosAreRefusedAndNameTheField) {
  const auto refusal = [&](const std::function<void(nb::Hello&)>& spoil) {
    FakeNode node("a", {{1, 4096}, {2, 4096}});
    spoil(node.hello);
    const auto result = broker_->RegisterNode(node.hello, std::make_shared<FakeChannel>());
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kInvalidArgument));
    return std::string(result.status().message());
  };
  EXPECT_THAT(refusal([](nb::Hello& h) { h.set_node_name(""); }), HasSubstr("hello.node_name"));
  EXPECT_THAT(refusal([](nb::Hello& h) { h.clear_endpoints(); }), HasSubstr("hello.endpoints"));
  EXPECT_THAT(refusal([](nb::Hello& h) { h.set_endpoints(0, "tcp:0.0.0.0:1"); }),
              HasSubstr("0.0.0.0"));
  EXPECT_THAT(refusal([](nb::Hello& h) { h.set_endpoints(0, "http://x"); }),
              HasSubstr("hello.endpoints[0]"));
  EXPECT_THAT(refusal([](nb::Hello& h) { h.mutable_devices(1)->set_uuid(Uuid(1)); }),
              HasSubstr("named twice"));
  EXPECT_THAT(refusal([](nb::Hello& h) { h.mutable_devices(1)->set_uuid("GPU-1"); }),
              HasSubstr("hello.devices[1].uuid"));
  EXPECT_THAT(refusal([](nb::Hello& h) { h.mutable_devices(0)->set_memory_bytes(0); }),
              HasSubstr("hello.devices[0].memory_bytes"));
  EXPECT_THAT(refusal([](nb::Hello& h) { h.add_leases()->set_lease_id("x"); }),
              HasSubstr("hello.leases[0].lease_id"));
  EXPECT_EQ(broker_->ListNodes().nodes_size(), 0);
}

TEST_F(BrokerTest, EventsGoOnAfterARestart) {
  FakeNode node("a", {{1, 4096}});
  node.Register(broker_.get());
  uint64_t cursor = broker_->events().CursorAfter("").value();
  const std::string id = Granted(node, Request(16, 1)).lease().id();
  pb::Event event;
  ASSERT_TRUE(broker_->events().Next("", &cursor, &event).value());
  EXPECT_EQ(event.kind(), pb::EVENT_KIND_LEASE_ACTIVE);
  EXPECT_EQ(event.lease().id(), id);
  EXPECT_FALSE(broker_->events().Next("", &cursor, &event).value());
  const std::string token = event.resume_token();
  ASSERT_OK(Release(id));
  StartBroker();
  ASSERT_OK_AND_ASSIGN(cursor, broker_->events().CursorAfter(token));
  ASSERT_TRUE(broker_->events().Next("", &cursor, &event).value());
  EXPECT_EQ(event.kind(), pb::EVENT_KIND_LEASE_ENDED);
  EXPECT_EQ(event.message(), "released by its owner");
  EXPECT_THAT(broker_->events().CursorAfter("x"), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(broker_->events().CursorAfter("0123456789abcdef-1"),
              StatusIs(absl::StatusCode::kOutOfRange));
}

TEST(EventLogTest, SlowReadersAreTold) {
  EventLog log(/*capacity=*/3);
  log.Load("s", {});
  ASSERT_OK_AND_ASSIGN(uint64_t cursor, log.CursorAfter(""));
  for (uint64_t sequence = 1; sequence <= 5; ++sequence) log.Publish({{sequence, {}}});
  pb::Event event;
  EXPECT_THAT(log.Next("", &cursor, &event), StatusIs(absl::StatusCode::kOutOfRange));
  EXPECT_THAT(log.CursorAfter("s-1"), StatusIs(absl::StatusCode::kOutOfRange));
  ASSERT_OK_AND_ASSIGN(cursor, log.CursorAfter("s-2"));
  ASSERT_TRUE(log.Next("", &cursor, &event).value());
  EXPECT_EQ(event.resume_token(), "s-3");
}

}  // namespace
}  // namespace fargpu::scheduler
