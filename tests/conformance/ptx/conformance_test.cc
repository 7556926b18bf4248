// Every row of every table, against values computed in C++.
#include "gtest/gtest.h"

#include "tests/conformance/ptx/tables.h"

namespace fargpu::conformance {
namespace {

class ConformanceTest : public testing::TestWithParam<Family> {};

TEST_P(ConformanceTest, RowsGiveTheExpectedValues) {
  Table table;
  GetParam().add(&table);
  RunTable(table);
}

INSTANTIATE_TEST_SUITE_P(Ptx, ConformanceTest, testing::ValuesIn(kFamilies),
                         [](const auto& family) { return std::string(family.param.name); });

}  // namespace
}  // namespace fargpu::conformance
