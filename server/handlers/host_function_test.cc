// Functions of the program that streams call: a stream waits for the client, and only the stream.
#include "server/testing/session_harness.h"

namespace fargpu::server {
namespace {

using Wants = WireClient::Wants;

class HostFunctionTest : public SessionTest {
 protected:
  void CreateStream(uint64_t id) { client_->Add(wire::StreamCreateRequest{.phStream = {id}}); }
  std::vector<wire::HostFunctionRun> WaitForRuns(size_t count) {
    EXPECT_THAT(client_->link().WaitUntil([&] { return client_->runs().size() >= count; },
                                          absl::Now() + kTestLimit),
                IsOk());
    return client_->runs();
  }
  absl::Status Answer(uint64_t run) {
    const wire::HostFunctionDone done = {.run = run};
    const auto body = wire::FrameBodyOf(done);
    return client_->SendRaw(wire::FrameKind::kHostFunctionDone, 0, 0,
                            std::string(body.begin(), body.end()));
  }
};

TEST_F(HostFunctionTest, TheStreamGoesOnWhenTheClientHasAnswered) {
  CreateStream(20);
  client_->Add(wire::LaunchHostFuncRequest{.hStream = {20}, .token = 7});
  ASSERT_OK(client_->Flush());
  const auto runs = WaitForRuns(1);
  EXPECT_EQ(runs[0].token, 7u);
  EXPECT_EQ(runs[0].result, CUDA_SUCCESS);
  EXPECT_NE(runs[0].run, 0u);
  EXPECT_EQ(driver_.host_functions_running(), 1);
  // The session serves on meanwhile.
  EXPECT_EQ(client_->Call(wire::MemGetInfoV2Request{}).result, CUDA_SUCCESS);
  EXPECT_EQ(driver_.host_functions_running(), 1);
  ASSERT_OK(Answer(runs[0].run));
  for (int i = 0; i < 500 && driver_.host_functions_running() > 0; ++i) usleep(10000);
  EXPECT_EQ(driver_.host_functions_running(), 0);
}

TEST_F(HostFunctionTest, BytesOfCopiesComeBefore) {
  const uint64_t memory = Allocate(64);
  CreateStream(20);
  client_->Add(wire::MemcpyDtoHAsyncV2Request{
      .srcDevice = memory, .ByteCount = 64, .hStream = {20}, .delivery = 3});
  client_->Add(wire::LaunchHostFuncRequest{.hStream = {20}, .token = 7});
  ASSERT_OK(client_->Flush());
  const auto runs = WaitForRuns(1);
  EXPECT_EQ(client_->deliveries_before_first_run(), 1u);
  ASSERT_OK(Answer(runs[0].run));
}

TEST_F(HostFunctionTest, ACallbackThatCannotBeQueuedIsToldSo) {
  CreateStream(20);
  driver_.FailNext("cuStreamAddCallback", CUDA_ERROR_ILLEGAL_ADDRESS);
  client_->Add(wire::StreamAddCallbackRequest{.hStream = {20}, .token = 9});
  ASSERT_OK(client_->Flush());
  const auto runs = WaitForRuns(1);
  EXPECT_EQ(runs[0].run, 0u) << "nothing of the stream follows";
  EXPECT_EQ(runs[0].token, 9u);
  EXPECT_EQ(runs[0].result, CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(client_->Call(wire::MemGetInfoV2Request{}).deferred, CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(HostFunctionTest, AClientThatGoesHoldsNothingUp) {
  CreateStream(20);
  client_->Add(wire::StreamAddCallbackRequest{.hStream = {20}, .token = 9});
  ASSERT_OK(client_->Flush());
  WaitForRuns(1);
  client_.reset();
  EXPECT_TRUE(absl::IsUnavailable(WaitForEnd()));
  for (int i = 0; i < 500 && driver_.host_functions_running() > 0; ++i) usleep(10000);
  EXPECT_EQ(driver_.host_functions_running(), 0);
}

TEST_F(HostFunctionTest, AnAnswerToNothingEndsTheSession) {
  ASSERT_OK(Answer(12345));
  EXPECT_TRUE(absl::IsInvalidArgument(WaitForEnd()));
}

TEST_F(HostFunctionTest, AnAnswerOfTheWrongSizeEndsTheSession) {
  ASSERT_OK(client_->SendRaw(wire::FrameKind::kHostFunctionDone, 0, 0, "12345"));
  EXPECT_TRUE(absl::IsInvalidArgument(WaitForEnd()));
}

}  // namespace
}  // namespace fargpu::server
