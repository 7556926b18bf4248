// Requests and leases.
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
