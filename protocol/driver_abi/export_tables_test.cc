#include "protocol/driver_abi/export_tables.h"

#include <pthread.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/log.h"

namespace fargpu::driver_abi {
namespace {

constexpr char kCudart[] = "6bd5fb6c5bf4e74a8987d93912fd9df9";
constexpr char kHooks[] = "a094798c2e742e7493f20800200c0a66";
constexpr char kTls[] = "42d85a8123f6cb478298f6e78a3aecdc";
constexpr char kStorage[] = "c693336e1121df11a8c368f355d89593";
constexpr char kChecks[] = "263e88607cd2614392f6bbd5006dfa7e";
constexpr char kIntegrity[] = "d4082055bde6704b8d34ba123c66e1f2";
constexpr char kContextTools[] = "21318c60971432488ca641ff7324c8f2";
constexpr char kModuleTools[] = "6e163fbeb958444d835ce182aff1991e";

CUcontext const kPrimary = reinterpret_cast<CUcontext>(0x1000);
CUcontext const kCurrent = reinterpret_cast<CUcontext>(0x2000);
CUmodule const kModule = reinterpret_cast<CUmodule>(0x3000);

class FakeHost : public ExportTableHost {
 public:
  int DriverVersion() override { return 13000; }
  std::vector<DeviceIdentity> Devices() override { return devices; }
  CUresult PrimaryContext(CUdevice device, CUcontext* context) override {
    if (device != 0) return CUDA_ERROR_INVALID_DEVICE;
    *context = kPrimary;
    return CUDA_SUCCESS;
  }
  CUcontext CurrentContext() override { return current; }
  CUresult ContextId(CUcontext context, uint64_t* id) override {
    *id = reinterpret_cast<uintptr_t>(context) + 1;
    return CUDA_SUCCESS;
  }
  CUresult StreamObject(CUcontext context, CUstream stream, void** object) override {
    if (stream == reinterpret_cast<CUstream>(0xbad)) return CUDA_ERROR_INVALID_HANDLE;
    *object = reinterpret_cast<char*>(stream) + 0x100;
    return CUDA_SUCCESS;
  }
  CUresult StreamId(CUcontext context, void* object, uint64_t* id) override {
    *id = reinterpret_cast<uintptr_t>(object) + 2;
    return CUDA_SUCCESS;
  }
  CUresult ModuleFunctions(CUmodule module, std::vector<CUfunction>* functions) override {
    if (module != kModule) return CUDA_ERROR_INVALID_HANDLE;
    *functions = {reinterpret_cast<CUfunction>(0x11), reinterpret_cast<CUfunction>(0x22)};
    return CUDA_SUCCESS;
  }
  CUresult LoadFatBinary(CUmodule* module, const void* wrapper) override {
    *module = kModule;
    return CUDA_SUCCESS;
  }

  CUcontext current = kCurrent;
  std::vector<DeviceIdentity> devices{1};
};

class ExportTablesTest : public testing::Test {
 protected:
  ExportTablesTest() { InstallExportTableHost(&host_); }
  ~ExportTablesTest() override { InstallExportTableHost(nullptr); }

  static const void* const* Table(const char* uuid) {
    CUuuid id;
    std::memcpy(id.bytes, absl::HexStringToBytes(uuid).data(), 16);
    const void* table = nullptr;
    EXPECT_EQ(GetExportTable(&table, &id), CUDA_SUCCESS) << uuid;
    return static_cast<const void* const*>(table);
  }

  template <typename Function>
  static Function* Slot(const char* uuid, size_t slot) {
    return reinterpret_cast<Function*>(const_cast<void*>(Table(uuid)[slot]));
  }

  FakeHost host_;
};

TEST_F(ExportTablesTest, TablesHaveTheirSizesAndStayWhereTheyAre) {
  const struct {
    const char* uuid;
    size_t slots;
  } rows[] = {{kCudart, 13},   {kHooks, 7},         {kTls, 4},         {kChecks, 4},
              {kIntegrity, 3}, {kContextTools, 64}, {kModuleTools, 64}};
  for (const auto& row : rows) {
    const void* const* table = Table(row.uuid);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(table[0]), 8 * row.slots) << row.uuid;
    for (size_t slot = 1; slot < row.slots; ++slot) EXPECT_NE(table[slot], nullptr);
    EXPECT_EQ(Table(row.uuid), table);
  }
  EXPECT_EQ(Table(kStorage), Table(kStorage));
}

TEST_F(ExportTablesTest, RefusesUnknownTablesAndNull) {
  for (const char* uuid : {"f8cff95121468b4eb9e2fb469e7c0dd9", "da9151d33ae6cc41a5c04f26d533e328",
                           "00000000000000000000000000000000"}) {
    CUuuid id;
    std::memcpy(id.bytes, absl::HexStringToBytes(uuid).data(), 16);
    const void* table = &id;
    EXPECT_EQ(GetExportTable(&table, &id), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(table, nullptr);
  }
  CUuuid id{};
  const void* table = nullptr;
  EXPECT_EQ(GetExportTable(nullptr, &id), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(GetExportTable(&table, nullptr), CUDA_ERROR_INVALID_VALUE);
}

std::vector<std::string>& LogLines() {
  static auto* const lines = new std::vector<std::string>;
  return *lines;
}

TEST_F(ExportTablesTest, UnusedSlotsRefuseAndLogOnce) {
  SetLogSink([](LogLevel, const std::string& line) { LogLines().push_back(line); });
  SetLogLevel(LogLevel::kWarning);
  using Function = CUresult();
  EXPECT_EQ(Slot<Function>(kCudart, 7)(), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(Slot<Function>(kCudart, 7)(), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(Slot<Function>(kContextTools, 50)(), CUDA_ERROR_NOT_SUPPORTED);
  SetLogSink(nullptr);
  SetLogLevel(LogLevel::kError);
  EXPECT_THAT(
      LogLines(),
      testing::ElementsAre(
          testing::AllOf(testing::HasSubstr("CUDART_INTERFACE"), testing::HasSubstr("slot 7 ")),
          testing::AllOf(testing::HasSubstr("2131"), testing::HasSubstr("slot 50 "))));
}

TEST_F(ExportTablesTest, CudartInterface) {
  using PrimaryContext = CUresult(CUcontext*, CUdevice);
  CUcontext context = nullptr;
  EXPECT_EQ(Slot<PrimaryContext>(kCudart, 2)(&context, 0), CUDA_SUCCESS);
  EXPECT_EQ(context, kPrimary);
  EXPECT_EQ(Slot<PrimaryContext>(kCudart, 2)(&context, 1), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_EQ(Slot<PrimaryContext>(kCudart, 2)(nullptr, 0), CUDA_ERROR_INVALID_VALUE);

  EXPECT_EQ(Slot<CUresult()>(kCudart, 12)(), CUDA_SUCCESS);

  using LoadFatBinary = CUresult(CUmodule*, const void*);
  CUmodule module = nullptr;
  EXPECT_EQ(Slot<LoadFatBinary>(kCudart, 1)(&module, "wrapper"), CUDA_SUCCESS);
  EXPECT_EQ(module, kModule);
  EXPECT_EQ(Slot<LoadFatBinary>(kCudart, 1)(&module, nullptr), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(ExportTablesTest, HooksAreLargeAndOff) {
  using Flags = void(uint32_t**, size_t*);
  const struct {
    size_t slot;
    size_t count;
  } rows[] = {{2, 4096}, {6, 64}};
  for (const auto& row : rows) {
    uint32_t* flags = nullptr;
    size_t count = 0;
    Slot<Flags>(kHooks, row.slot)(&flags, &count);
    ASSERT_EQ(count, row.count);
    for (size_t i = 0; i < count; ++i) EXPECT_EQ(flags[i], 0u);
  }
}

TEST_F(ExportTablesTest, TlsGivesTheCurrentContext) {
  using CurrentContext = CUresult(CUcontext*);
  CUcontext context = nullptr;
  EXPECT_EQ(Slot<CurrentContext>(kTls, 2)(&context), CUDA_SUCCESS);
  EXPECT_EQ(context, kCurrent);
}

TEST_F(ExportTablesTest, StorageTakesTheCurrentContextForNull) {
  using Put = CUresult(CUcontext, void*, void*, void (*)(CUcontext, void*, void*));
  using Delete = CUresult(CUcontext, void*);
  using Get = CUresult(void**, CUcontext, void*);
  int key = 0;
  int contents = 0;
  void* value = nullptr;
  EXPECT_EQ(Slot<Get>(kStorage, 2)(&value, nullptr, &key), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(Slot<Put>(kStorage, 0)(nullptr, &key, &contents, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(Slot<Get>(kStorage, 2)(&value, kCurrent, &key), CUDA_SUCCESS);
  EXPECT_EQ(value, &contents);
  EXPECT_EQ(Slot<Delete>(kStorage, 1)(nullptr, &key), CUDA_SUCCESS);

  host_.current = nullptr;
  EXPECT_EQ(Slot<Put>(kStorage, 0)(nullptr, &key, &contents, nullptr), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(Slot<Get>(kStorage, 2)(&value, nullptr, &key), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(Slot<Delete>(kStorage, 1)(nullptr, &key), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(ExportTablesTest, ContextChecksWriteTheirOutputs) {
  using Check = CUresult(CUcontext, uint32_t*, const void**);
  uint32_t flag = 7;
  const void* detail = &flag;
  EXPECT_EQ(Slot<Check>(kChecks, 2)(kCurrent, &flag, &detail), CUDA_SUCCESS);
  EXPECT_EQ(flag, 0u);
  EXPECT_EQ(detail, nullptr);
  EXPECT_EQ(Slot<uint32_t()>(kChecks, 3)(), 0u);
}

TEST_F(ExportTablesTest, IntegrityAnswersForThisProcess) {
  using Check = CUresult(uint32_t, uint64_t, uint64_t*);
  IntegrityQuestion question;
  question.driver_version = 13000;
  question.version = 13002;
  question.process_id = static_cast<uint32_t>(getpid());
  question.thread_id = static_cast<uint32_t>(pthread_self());
  question.cudart_table = reinterpret_cast<uintptr_t>(Table(kCudart));
  question.integrity_table = reinterpret_cast<uintptr_t>(Table(kIntegrity));
  question.integrity_function = reinterpret_cast<uintptr_t>(Table(kIntegrity)[1]);
  question.seconds = 123456;
  question.devices = host_.devices;
  uint64_t answer[2] = {};
  EXPECT_EQ(Slot<Check>(kIntegrity, 1)(13002, 123456, answer), CUDA_SUCCESS);
  EXPECT_THAT(answer, testing::ElementsAreArray(AnswerIntegrityQuestion(question)));
}

TEST_F(ExportTablesTest, ContextTools) {
  using ContextId = CUresult(CUcontext, uint64_t*);
  using StreamObject = CUresult(CUcontext, CUstream, void**);
  using StreamId = CUresult(CUcontext, void*, uint64_t*);
  uint64_t id = 0;
  EXPECT_EQ(Slot<ContextId>(kContextTools, 4)(nullptr, &id), CUDA_SUCCESS);
  EXPECT_EQ(id, 0x2001u);
  void* object = nullptr;
  CUstream const stream = reinterpret_cast<CUstream>(0x500);
  EXPECT_EQ(Slot<StreamObject>(kContextTools, 51)(kPrimary, stream, &object), CUDA_SUCCESS);
  EXPECT_EQ(object, reinterpret_cast<void*>(0x600));
  EXPECT_EQ(Slot<StreamId>(kContextTools, 39)(kPrimary, object, &id), CUDA_SUCCESS);
  EXPECT_EQ(id, 0x602u);
  EXPECT_EQ(
      Slot<StreamObject>(kContextTools, 51)(kPrimary, reinterpret_cast<CUstream>(0xbad), &object),
      CUDA_ERROR_INVALID_HANDLE);
  host_.current = nullptr;
  EXPECT_EQ(Slot<ContextId>(kContextTools, 4)(nullptr, &id), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(ExportTablesTest, ModuleToolsCountFunctions) {
  using Callback = void (*)(void*, CUfunction, uint64_t);
  using Enumerate = uint32_t(CUcontext, CUmodule, Callback, void*);
  std::vector<CUfunction> seen;
  const Callback callback = [](void* user, CUfunction function, uint64_t owner) {
    EXPECT_EQ(owner, 0x3000u);
    static_cast<std::vector<CUfunction>*>(user)->push_back(function);
  };
  EXPECT_EQ(Slot<Enumerate>(kModuleTools, 7)(kCurrent, kModule, callback, &seen), 2u);
  EXPECT_THAT(seen, testing::ElementsAre(reinterpret_cast<CUfunction>(0x11),
                                         reinterpret_cast<CUfunction>(0x22)));
  EXPECT_EQ(Slot<Enumerate>(kModuleTools, 7)(kCurrent, nullptr, callback, &seen), 0u);
}

TEST_F(ExportTablesTest, WithoutHostNothingIsInitialized) {
  InstallExportTableHost(nullptr);
  uint64_t words[2] = {};
  CUcontext context = nullptr;
  EXPECT_EQ((Slot<CUresult(uint32_t, uint64_t, uint64_t*)>(kIntegrity, 1)(13002, 0, words)),
            CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ((Slot<CUresult(CUcontext*, CUdevice)>(kCudart, 2)(&context, 0)),
            CUDA_ERROR_NOT_INITIALIZED);
  EXPECT_EQ((Slot<CUresult(CUcontext, uint64_t*)>(kContextTools, 4)(kCurrent, words)),
            CUDA_ERROR_NOT_INITIALIZED);
}

}  // namespace
}  // namespace fargpu::driver_abi
