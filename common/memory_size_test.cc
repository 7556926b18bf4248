#include "common/memory_size.h"

#include "gtest/gtest.h"

#include "common/status_matchers.h"

namespace fargpu {
namespace {

TEST(MemorySizeTest, ParsesWhatPeopleWrite) {
  const struct {
    const char* text;
    uint64_t mib;
  } cases[] = {{"4GiB", 4096},  {"4gib", 4096},   {"512MiB", 512},
               {"4096", 4096},  {"1.5GiB", 1536}, {"1TiB", 1024 * 1024},
               {"2 GiB", 2048}, {"0.5GiB", 512},  {"1", 1}};
  for (const auto& c : cases) {
    ASSERT_OK_AND_ASSIGN(const uint64_t mib, ParseMemoryMib(c.text));
    EXPECT_EQ(mib, c.mib) << c.text;
  }
}

TEST(MemorySizeTest, RefusesTheRest) {
  for (const char* text : {"", "GiB", "4GB", "4G", "-4", "0", "0.5", "1e3", "4GiBx", "1.2.3", "nan",
                           "99999999999999999999", "4,5GiB"}) {
    EXPECT_THAT(ParseMemoryMib(text), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
}

TEST(MemorySizeTest, Formats) {
  EXPECT_EQ(FormatMemory(0), "0 MiB");
  EXPECT_EQ(FormatMemory(uint64_t{4} << 30), "4 GiB");
  EXPECT_EQ(FormatMemory(uint64_t{1536} << 20), "1536 MiB");
  EXPECT_EQ(FormatMemory(123), "123 B");
}

}  // namespace
}  // namespace fargpu
