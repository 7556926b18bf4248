// Handlers over FakeDriver, through a session: what they ask of the driver and what they charge.
#include "server/testing/session_harness.h"

namespace fargpu::server {
namespace {

using testing::ElementsAre;
using Wants = WireClient::Wants;

constexpr char kPtx[] = ".version 9.0\n.target sm_75\n.address_size 64\n";

class HandlersTest : public SessionTest {
 protected:
  void SendImage(uint64_t image, const std::string& text) {
    client_->Add(
        wire::SessionImageBeginRequest{.image = {image}, .kind = 5, .part_bytes = {text.size()}});
    client_->Add(wire::SessionImagePartRequest{.image = {image}, .part = 0, .offset = 0});
    ASSERT_OK(client_->Flush(text));
  }
  WireClient::Reply LoadLibrary(uint64_t library) {
    SendImage(library + 1000, kPtx);
    return client_->Call(wire::LibraryLoadDataRequest{
        .library = {library}, .image = {library + 1000}, .first_function = {library + 10}});
  }
  void ExpectUsed(uint64_t bytes) {
    for (int i = 0; i < 500 && ledger_->UsedBytes(0) != bytes; ++i) usleep(10000);
    EXPECT_EQ(ledger_->UsedBytes(0), bytes);
  }
};

TEST_F(HandlersTest, RefundsWhenTheDriverFails) {
  driver_.FailNext("cuMemCreate", CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(client_->Call(wire::MemAllocV2Request{.bytesize = 4 * kMiB}).result,
            CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(ledger_->UsedBytes(0), 0u);
}

TEST_F(HandlersTest, OverTheLimitTheDriverIsNotAsked) {
  Allocate(40 * kMiB);
  const int asked = driver_.Count("cuMemCreate");
  EXPECT_EQ(client_->Call(wire::MemAllocV2Request{.bytesize = 32 * kMiB}).result,
            CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(driver_.Count("cuMemCreate"), asked);
}

TEST_F(HandlersTest, TheProgramSeesTheLeaseAsItsCard) {
  const uint64_t memory = Allocate(16 * kMiB);
  auto info =
      WireClient::Decode<wire::MemGetInfoV2Reply>(client_->Call(wire::MemGetInfoV2Request{}));
  EXPECT_EQ(info.total, kLimit);
  EXPECT_EQ(info.free, kLimit - 16 * kMiB);
  client_->Add(wire::MemFreeV2Request{.dptr = memory});
  info = WireClient::Decode<wire::MemGetInfoV2Reply>(client_->Call(wire::MemGetInfoV2Request{}));
  EXPECT_EQ(info.free, kLimit);
  ExpectUsed(0);
}

TEST_F(HandlersTest, AFailedContextSaysSoFromAllocationsToo) {
  driver_.FailNext("cuMemGetInfo_v2", CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_EQ(client_->Call(wire::MemAllocV2Request{.bytesize = 16}).result,
            CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_F(HandlersTest, PitchedAllocationsPadTheirRows) {
  const auto reply = client_->Call(
      wire::MemAllocPitchV2Request{.WidthInBytes = 1000, .Height = 2048, .ElementSizeBytes = 4});
  ASSERT_EQ(reply.result, CUDA_SUCCESS);
  EXPECT_EQ(WireClient::Decode<wire::MemAllocPitchV2Reply>(reply).pitch, 1024u);
  EXPECT_EQ(ledger_->UsedBytes(0), 2 * kMiB);
  EXPECT_EQ(client_
                ->Call(wire::MemAllocPitchV2Request{
                    .WidthInBytes = 1, .Height = 1, .ElementSizeBytes = 3})
                .result,
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(client_
                ->Call(wire::MemAllocPitchV2Request{.WidthInBytes = uint64_t{1} << 40,
                                                    .Height = uint64_t{1} << 40,
                                                    .ElementSizeBytes = 4})
                .result,
            CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(HandlersTest, CopiesThereAndBack) {
  const uint64_t memory = Allocate(kMiB);
  std::string bytes(100000, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7);
  client_->Add(wire::MemcpyHtoDAsyncV2Request{
      .dstDevice = memory, .ByteCount = bytes.size(), .hStream = {0}});
  ASSERT_OK(client_->Flush(bytes));
  const auto reply =
      client_->Call(wire::MemcpyDtoHV2Request{.srcDevice = memory, .ByteCount = bytes.size()});
  EXPECT_EQ(reply.result, CUDA_SUCCESS);
  EXPECT_EQ(reply.bulk, bytes);
  driver_.FailNext("cuMemcpyDtoH_v2", CUDA_ERROR_INVALID_VALUE);
  const auto failed = client_->Call(wire::MemcpyDtoHV2Request{.srcDevice = 1, .ByteCount = 8});
  EXPECT_EQ(failed.result, CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(failed.bulk, "");
}

TEST_F(HandlersTest, ALibrarysLoadDescribesItsKernels) {
  const auto reply = LoadLibrary(50);
  ASSERT_EQ(reply.result, CUDA_SUCCESS);
  const auto loaded = WireClient::Decode<wire::LibraryLoadDataReply>(reply);
  ASSERT_EQ(loaded.functions.size(), 2u);
  EXPECT_EQ(loaded.functions[0].name, "fill");
  EXPECT_THAT(loaded.functions[0].param_offsets, ElementsAre(0u, 8u, 12u));
  EXPECT_THAT(loaded.functions[0].param_sizes, ElementsAre(8u, 4u, 1u));
  ASSERT_EQ(loaded.functions[0].attributes.size(), static_cast<size_t>(CU_FUNC_ATTRIBUTE_MAX));
  EXPECT_EQ(loaded.functions[0].attributes[3], 103);
  EXPECT_EQ(loaded.functions[1].name, "no_parameters");
  EXPECT_TRUE(loaded.functions[1].param_sizes.empty());
}

TEST_F(HandlersTest, LaunchesPassTheParametersOn) {
  LoadLibrary(50);
  const uint64_t memory = Allocate(kMiB);
  const uint32_t count = 16;
  std::string params(13, '\0');
  std::memcpy(&params[0], &memory, 8);
  std::memcpy(&params[8], &count, 4);
  params[12] = 'x';
  client_->Add(wire::LaunchKernelRequest{.function = {60},
                                         .gridDimX = 2,
                                         .gridDimY = 3,
                                         .gridDimZ = 4,
                                         .blockDimX = 5,
                                         .blockDimY = 6,
                                         .blockDimZ = 7,
                                         .sharedMemBytes = 8,
                                         .hStream = {0},
                                         .cooperative = false,
                                         .params = params});
  const auto reply = client_->Call(wire::MemcpyDtoHV2Request{.srcDevice = memory, .ByteCount = 17});
  EXPECT_EQ(reply.deferred, CUDA_SUCCESS);
  EXPECT_EQ(reply.bulk, std::string(16, 'x') + '\0');
  const auto launches = driver_.launches();
  ASSERT_EQ(launches.size(), 1u);
  EXPECT_EQ(launches[0].kernel, "fill");
  EXPECT_THAT(launches[0].geometry, ElementsAre(2u, 3u, 4u, 5u, 6u, 7u, 8u));
}

TEST_F(HandlersTest, ALaunchWithTooFewParametersEndsTheSession) {
  LoadLibrary(50);
  const std::string params(12, '\0');
  client_->Add(wire::LaunchKernelRequest{.function = {60},
                                         .gridDimX = 1,
                                         .gridDimY = 1,
                                         .gridDimZ = 1,
                                         .blockDimX = 1,
                                         .blockDimY = 1,
                                         .blockDimZ = 1,
                                         .params = params});
  ASSERT_OK(client_->Flush());
  EXPECT_THAT(WaitForEnd(), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_F(HandlersTest, UnloadedLibrariesTakeTheirKernelsAlong) {
  LoadLibrary(50);
  EXPECT_EQ(client_->Call(wire::LibraryUnloadRequest{.library = {50}}).result, CUDA_SUCCESS);
  EXPECT_EQ(client_->Call(wire::LaunchKernelRequest{.function = {60}}).result,
            CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(client_->Call(wire::LibraryUnloadRequest{.library = {50}}).result,
            CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(HandlersTest, ADamagedImageIsACudaError) {
  SendImage(9, "no PTX at all");
  EXPECT_EQ(client_
                ->Call(wire::LibraryLoadDataRequest{
                    .library = {3}, .image = {9}, .first_function = {100}})
                .result,
            CUDA_ERROR_INVALID_IMAGE);
}

TEST_F(HandlersTest, PrimaryContextsComeBackAfterAReset) {
  Allocate(8 * kMiB);
  EXPECT_EQ(client_->Call(wire::DevicePrimaryCtxResetV2Request{.device = 0, .context = {1}}).result,
            CUDA_SUCCESS);
  EXPECT_EQ(ledger_->UsedBytes(0), 0u);
  EXPECT_EQ(client_->Call(wire::StreamQueryRequest{}).result, CUDA_ERROR_INVALID_CONTEXT);
  client_->Add(wire::DevicePrimaryCtxRetainRequest{.context = {1}, .device = 0});
  EXPECT_EQ(client_->Call(wire::StreamQueryRequest{}).result, CUDA_SUCCESS);
  EXPECT_EQ(client_->Call(wire::DevicePrimaryCtxRetainRequest{.context = {8}, .device = 1}).result,
            CUDA_ERROR_INVALID_DEVICE);
}

TEST_F(HandlersTest, MappedMemoryIsChargedUntilHandleAndMappingsAreGone) {
  wire::MemCreateRequest create{.handle = {30}, .size = 4 * kMiB};
  create.prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  create.prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  ASSERT_EQ(client_->Call(create).result, CUDA_SUCCESS);
  EXPECT_EQ(ledger_->UsedBytes(0), 4 * kMiB);
  const auto reserved = WireClient::Decode<wire::MemAddressReserveReply>(
      client_->Call(wire::MemAddressReserveRequest{.size = 8 * kMiB}));
  const wire::MemMapRequest map{.ptr = reserved.ptr, .size = 4 * kMiB, .offset = 0, .handle = {30}};
  ASSERT_EQ(client_->Call(map).result, CUDA_SUCCESS);
  EXPECT_EQ(client_->Call(wire::MemReleaseRequest{.handle = {30}}).result, CUDA_SUCCESS);
  EXPECT_EQ(ledger_->UsedBytes(0), 4 * kMiB);
  EXPECT_EQ(
      client_->Call(wire::MemAddressFreeRequest{.ptr = reserved.ptr, .size = 8 * kMiB}).result,
      CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(client_->Call(wire::MemUnmapRequest{.ptr = reserved.ptr, .size = 4 * kMiB}).result,
            CUDA_SUCCESS);
  EXPECT_EQ(ledger_->UsedBytes(0), 0u);
  EXPECT_EQ(
      client_->Call(wire::MemAddressFreeRequest{.ptr = reserved.ptr, .size = 8 * kMiB}).result,
      CUDA_SUCCESS);
  create.size = 128 * kMiB;
  EXPECT_EQ(client_->Call(create).result, CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(HandlersTest, NothingIsMappedOverOtherMemory) {
  const uint64_t memory = Allocate(4 * kMiB);
  wire::MemCreateRequest create{.handle = {30}, .size = 4 * kMiB};
  create.prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  create.prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  ASSERT_EQ(client_->Call(create).result, CUDA_SUCCESS);
  EXPECT_EQ(
      client_->Call(wire::MemMapRequest{.ptr = memory, .size = 4 * kMiB, .handle = {30}}).result,
      CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(client_->Call(wire::MemUnmapRequest{.ptr = memory, .size = 4 * kMiB}).result,
            CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace fargpu::server
