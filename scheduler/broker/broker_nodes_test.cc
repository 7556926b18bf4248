// Nodes: registration, reconciliation, silence.
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/status_matchers.h"
#include "scheduler/broker/broker_test_support.h"

namespace fargpu::scheduler {
namespace {

namespace pb = broker::v1;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

}  // namespace
}  // namespace fargpu::scheduler
