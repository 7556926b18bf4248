#include "protocol/driver_abi/proc_address.h"

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "protocol/driver_abi/export_tables.h"
#include "protocol/driver_abi/runtime_launch.h"

namespace fargpu::driver_abi {
namespace {

// Functions are only compared: each is the address of one of these bytes.
char functions[16];

const ProcRow kRows[] = {
    {"cuMemAlloc", "cuMemAlloc", 2000, &functions[0], 0, nullptr},
    {"cuMemcpyHtoD", "cuMemcpyHtoD_v2", 3020, &functions[2], 7000, &functions[3]},
    {"cuMemAlloc", "cuMemAlloc_v2", 3020, &functions[1], 0, nullptr},
    {"cuMemcpyHtoD", "cuMemcpyHtoD", 2000, &functions[4], 0, nullptr},
    {"cuCtxGetDevice", "cuCtxGetDevice", 2000, &functions[5], 0, nullptr},
    {"cuCtxGetDevice", "cuCtxGetDevice_v2", 13000, &functions[6], 0, nullptr},
    {"cuNewAbiMissing", "cuNewAbiMissing", 10000, &functions[7], 0, nullptr},
    {"cuNewAbiMissing", "cuNewAbiMissing_v2", 12000, nullptr, 0, nullptr},
};

struct Answer {
  CUresult result;
  void* function;
  CUdriverProcAddressQueryResult status;
};

bool operator==(const Answer& a, const Answer& b) {
  return a.result == b.result && a.function == b.function && a.status == b.status;
}

Answer Found(void* function) { return {CUDA_SUCCESS, function, CU_GET_PROC_ADDRESS_SUCCESS}; }
const Answer kNoSuchName = {CUDA_ERROR_NOT_FOUND, nullptr, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND};
const Answer kTooOld = {CUDA_ERROR_NOT_FOUND, nullptr, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT};

Answer Find(const ProcAddressTable& table, const char* name, int version,
            cuuint64_t flags = CU_GET_PROC_ADDRESS_DEFAULT) {
  Answer answer{CUDA_ERROR_UNKNOWN, &functions[15], CU_GET_PROC_ADDRESS_SUCCESS};
  answer.result = table.Find(name, version, flags, &answer.function, &answer.status);
  return answer;
}

TEST(ProcAddressTableTest, NewestAbiUpToTheVersion) {
  const ProcAddressTable table(kRows);
  EXPECT_EQ(Find(table, "cuMemAlloc", 13000), Found(&functions[1]));
  EXPECT_EQ(Find(table, "cuMemAlloc", 3020), Found(&functions[1]));
  EXPECT_EQ(Find(table, "cuMemAlloc", 3019), Found(&functions[0]));
  EXPECT_EQ(Find(table, "cuMemAlloc", 1999), kTooOld);
  EXPECT_EQ(Find(table, "cuCtxGetDevice", 12080), Found(&functions[5]));
  EXPECT_EQ(Find(table, "cuCtxGetDevice", 13000), Found(&functions[6]));
}

TEST(ProcAddressTableTest, TwinsForThePerThreadDefaultStream) {
  const ProcAddressTable table(kRows);
  constexpr cuuint64_t kPerThread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  EXPECT_EQ(Find(table, "cuMemcpyHtoD", 13000, kPerThread), Found(&functions[3]));
  EXPECT_EQ(Find(table, "cuMemcpyHtoD", 13000, CU_GET_PROC_ADDRESS_LEGACY_STREAM),
            Found(&functions[2]));
  EXPECT_EQ(Find(table, "cuMemcpyHtoD", 6999, kPerThread), Found(&functions[2]));
  EXPECT_EQ(Find(table, "cuMemAlloc", 13000, kPerThread), Found(&functions[1]));
}

TEST(ProcAddressTableTest, UnknownNames) {
  const ProcAddressTable table(kRows);
  EXPECT_EQ(Find(table, "", 0), kNoSuchName);
  EXPECT_EQ(Find(table, "cuMemAllo", 13000), kNoSuchName);
  // Names are asked for without the suffix of an ABI.
  EXPECT_EQ(Find(table, "cuMemAlloc_v2", 13000), kNoSuchName);
  const ProcAddressTable empty({});
  EXPECT_EQ(Find(empty, "cuInit", 13000), kNoSuchName);
}

TEST(ProcAddressTableTest, NeverGivesAnOlderAbiInPlaceOfAMissingOne) {
  const ProcAddressTable table(kRows);
  EXPECT_EQ(Find(table, "cuNewAbiMissing", 12000), kNoSuchName);
  EXPECT_EQ(Find(table, "cuNewAbiMissing", 11000), Found(&functions[7]));
}

TEST(ProcAddressTableTest, ChecksArguments) {
  const ProcAddressTable table(kRows);
  void* function = nullptr;
  EXPECT_EQ(table.Find(nullptr, 13000, 0, &function, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(table.Find("cuMemAlloc", 13000, 0, nullptr, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(table.Find("cuMemAlloc", 13000, 3, &function, nullptr), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(table.Find("cuMemAlloc", 13000, 0, &function, nullptr), CUDA_SUCCESS);
  EXPECT_EQ(function, &functions[1]);
  EXPECT_EQ(table.Find("cuNothing", 13000, 0, &function, nullptr), CUDA_ERROR_NOT_FOUND);
}

TEST(ProcAddressTableTest, ARuntimeThatStartsUpGetsReplacements) {
  const ProcAddressTable table(kRows, {{&functions[1], &functions[9]}});
  RuntimeHasItsFunctions();  // other tests ask for "", too
  EXPECT_EQ(Find(table, "cuMemAlloc", 13000), Found(&functions[1]));
  EXPECT_EQ(Find(table, "", 0), kNoSuchName);
  EXPECT_EQ(Find(table, "cuMemAlloc", 13000), Found(&functions[9]));
  EXPECT_EQ(Find(table, "cuMemAlloc", 3019), Found(&functions[0]));
  std::thread([&] {
    EXPECT_EQ(Find(table, "cuMemAlloc", 13000), Found(&functions[1])) << "not this thread";
  }).join();
  const void* none = nullptr;
  const CUuuid unknown = {};
  EXPECT_EQ(GetExportTable(&none, &unknown), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Find(table, "cuMemAlloc", 13000), Found(&functions[1]));
}

CUresult Launch(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                CUstream, void**, void**) {
  return CUDA_ERROR_INVALID_VALUE;
}

TEST(RuntimeLaunchTest, TellsGeometryFromOtherValues) {
  const auto launch = &RuntimeLaunch<&Launch>::Call;
  const auto of = [&](unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                      unsigned bz) {
    return launch(nullptr, gx, gy, gz, bx, by, bz, 0, nullptr, nullptr, nullptr);
  };
  EXPECT_EQ(of(1, 1, 1, 1024, 1, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(of(0x7fffffff, 65535, 65535, 4, 4, 64), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(of(1, 1, 1, 1025, 1, 1), kInvalidConfiguration);
  EXPECT_EQ(of(1, 1, 1, 33, 32, 1), kInvalidConfiguration);
  EXPECT_EQ(of(1, 1, 1, 1, 1, 65), kInvalidConfiguration);
  EXPECT_EQ(of(1, 65536, 1, 1, 1, 1), kInvalidConfiguration);
  EXPECT_EQ(of(0, 1, 1, 1, 1, 1), kInvalidConfiguration);
  EXPECT_EQ(of(1, 1, 1, 0, 1, 1), kInvalidConfiguration);
}

TEST(ProcAddressTableTest, FindsEveryNameOfALargeTable) {
  std::vector<std::string> names;
  for (int i = 0; i < 1000; ++i) names.push_back(absl::StrCat("cuFunction", i));
  std::vector<char> targets(names.size());
  std::vector<ProcRow> rows;
  for (size_t i = 0; i < names.size(); ++i) {
    rows.push_back({names[i].c_str(), names[i].c_str(), 1000, &targets[i], 0, nullptr});
  }
  const ProcAddressTable table(rows);
  for (size_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(Find(table, names[i].c_str(), 13000), Found(&targets[i]));
  }
  EXPECT_EQ(Find(table, "cuFunction1000", 13000), kNoSuchName);
}

}  // namespace
}  // namespace fargpu::driver_abi
