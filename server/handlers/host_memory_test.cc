// Memory of the card that stands for memory of the client's process.
#include <cstring>

#include "server/testing/session_harness.h"

namespace fargpu::server {
namespace {

class HostMemoryTest : public SessionTest {
 protected:
  uint64_t Reserve(uint64_t bytes) {
    const auto reply = client_->Call(wire::SharedReserveRequest{.bytes = bytes});
    EXPECT_EQ(reply.result, CUDA_SUCCESS);
    return WireClient::Decode<wire::SharedReserveReply>(reply).address;
  }
  uint64_t ReserveAndBack(uint64_t bytes) {
    const uint64_t address = Reserve(bytes);
    EXPECT_EQ(client_->Call(wire::SharedBackRequest{.address = address, .bytes = bytes}).result,
              CUDA_SUCCESS);
    return address;
  }
  void Write(const wire::SharedWriteRequest& request, const std::string& bytes) {
    client_->Add(request);
    ASSERT_OK(client_->Flush(bytes));
  }
  wire::SharedChangesReply Changes(uint64_t from = 0) {
    const auto reply = client_->Call(wire::SharedChangesRequest{.from = from});
    EXPECT_EQ(reply.result, CUDA_SUCCESS);
    return WireClient::Decode<wire::SharedChangesReply>(reply);
  }
  // The fake driver's memory is memory of this process.
  static uint32_t* OnCard(uint64_t address) { return reinterpret_cast<uint32_t*>(address); }
  void ExpectUsed(uint64_t bytes) {
    for (int i = 0; i < 500 && ledger_->UsedBytes(0) != bytes; ++i) usleep(10000);
    EXPECT_EQ(ledger_->UsedBytes(0), bytes);
  }
};

TEST_F(HostMemoryTest, ChangesAreWhatNeitherSideKnows) {
  const uint64_t address = ReserveAndBack(2 * kMiB);
  EXPECT_EQ(ledger_->UsedBytes(0), 2 * kMiB);
  client_->Add(wire::SharedWatchRequest{.address = address, .bytes = 8192});
  Write({.addresses = {address, address + 4096}, .sizes = {4, 8}}, "aaaabbbbcccc");
  EXPECT_TRUE(Changes().addresses.empty());
  EXPECT_EQ(std::memcmp(OnCard(address), "aaaa", 4), 0);
  EXPECT_EQ(std::memcmp(OnCard(address + 4096), "bbbbcccc", 8), 0);
  OnCard(address)[1] = 77;
  OnCard(address + 4096)[0] = 78;
  OnCard(address + 4096)[1] = 79;
  OnCard(address + 8192)[0] = 80;  // not watched
  const wire::SharedChangesReply changes = Changes();
  EXPECT_THAT(changes.addresses, testing::ElementsAre(address + 4, address + 4096));
  EXPECT_THAT(changes.sizes, testing::ElementsAre(1u, 2u));
  EXPECT_THAT(changes.words, testing::ElementsAre(77u, 78u, 79u));
  EXPECT_EQ(changes.next, 0u);
  EXPECT_TRUE(Changes().addresses.empty());
  // The range grows; what was known stays known.
  client_->Add(wire::SharedWatchRequest{.address = address, .bytes = 16384});
  EXPECT_THAT(Changes().addresses, testing::ElementsAre(address + 8192));
}

TEST_F(HostMemoryTest, ManyChangesComeInSeveralReplies) {
  const uint64_t address = ReserveAndBack(2 * kMiB);
  client_->Add(wire::SharedWatchRequest{.address = address, .bytes = 2 * kMiB});
  constexpr uint32_t kWords = 2 * kMiB / 4;
  for (uint32_t i = 0; i < kWords; ++i) OnCard(address)[i] = i + 1;
  uint64_t from = 0;
  uint32_t next_word = 0;
  int replies = 0;
  do {
    const wire::SharedChangesReply changes = Changes(from);
    size_t word = 0;
    for (size_t run = 0; run < changes.addresses.size(); ++run) {
      ASSERT_EQ(changes.addresses[run], address + 4 * uint64_t{next_word});
      for (uint32_t i = 0; i < changes.sizes[run]; ++i) {
        ASSERT_EQ(changes.words[word++], ++next_word);
      }
    }
    EXPECT_EQ(word, changes.words.size());
    from = changes.next;
    ++replies;
  } while (from != 0);
  EXPECT_EQ(next_word, kWords);
  EXPECT_EQ(replies, 8);
}

TEST_F(HostMemoryTest, ReleasedMemoryIsRefundedAndItsAddressesFree) {
  const uint64_t address = ReserveAndBack(4 * kMiB);
  EXPECT_NE(Reserve(2 * kMiB), address);
  // Once is enough, and not more than there is.
  EXPECT_EQ(client_->Call(wire::SharedBackRequest{.address = address, .bytes = 4 * kMiB}).result,
            CUDA_ERROR_INVALID_VALUE);
  const uint64_t large = Reserve(2 * kLimit);
  EXPECT_EQ(client_->Call(wire::SharedBackRequest{.address = large, .bytes = 2 * kLimit}).result,
            CUDA_ERROR_OUT_OF_MEMORY);
  client_->Add(wire::SharedReleaseRequest{.address = address, .bytes = 4 * kMiB});
  EXPECT_EQ(client_->Call(wire::MemGetInfoV2Request{}).result, CUDA_SUCCESS);
  ExpectUsed(0);
  EXPECT_EQ(Reserve(4 * kMiB), address);
}

TEST_F(HostMemoryTest, ReadsWaitForNoStreamOfTheProgram) {
  const uint64_t address = ReserveAndBack(2 * kMiB);
  OnCard(address)[3] = 5;
  const auto reply = client_->Call(wire::SharedReadRequest{.address = address, .bytes = 16});
  EXPECT_EQ(reply.result, CUDA_SUCCESS);
  EXPECT_EQ(driver_.Count("cuStreamCreate"), 1);
  EXPECT_EQ(client_->Call(wire::SharedReadRequest{.address = address, .bytes = 16}).result,
            CUDA_SUCCESS);
  EXPECT_EQ(driver_.Count("cuStreamCreate"), 1);
}

}  // namespace
}  // namespace fargpu::server
