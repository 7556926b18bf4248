#include "cli/table.h"

#include "gtest/gtest.h"

namespace fargpu::cli {
namespace {

TEST(TableTest, BoxIsAsWideAsItsColumns) {
  EXPECT_EQ(FormatBox("Title", {{"GPU", "Name"}, {"0", "A long name"}, {"1", ""}}),
            "+-------------------+\n"
            "| Title             |\n"
            "+-----+-------------+\n"
            "| GPU | Name        |\n"
            "|=====+=============|\n"
            "| 0   | A long name |\n"
            "| 1   |             |\n"
            "+-----+-------------+\n");
}

TEST(TableTest, BoxIsAsWideAsItsTitle) {
  EXPECT_EQ(FormatBox("A title that is long", {{"A", "B"}, {"1", "2"}}),
            "+----------------------+\n"
            "| A title that is long |\n"
            "+---+------------------+\n"
            "| A | B                |\n"
            "|===+==================|\n"
            "| 1 | 2                |\n"
            "+---+------------------+\n");
}

TEST(TableTest, ARowOfOneCellSpansTheBox) {
  EXPECT_EQ(FormatBox("T", {{"A", "B"}, {"nothing at all"}}),
            "+----------------+\n"
            "| T              |\n"
            "+---+------------+\n"
            "| A | B          |\n"
            "|===+============|\n"
            "| nothing at all |\n"
            "+---+------------+\n");
}

TEST(TableTest, Ages) {
  EXPECT_EQ(FormatAge(-1), "0 s");
  EXPECT_EQ(FormatAge(3599), "59 min");
}

}  // namespace
}  // namespace fargpu::cli
