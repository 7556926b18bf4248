#pragma once

#include <string>
#include <vector>

namespace fargpu::cli {

// Columns as wide as their widest cell, two blanks between them, no blanks at line ends. The first
// row is the heading.
std::string FormatTable(const std::vector<std::vector<std::string>>& rows);

// A box of lines, with a title over all columns and the first row as the heading. A row of one cell
// spans the box where the heading has more.
std::string FormatBox(const std::string& title, const std::vector<std::vector<std::string>>& rows);

// "42 s", "7 min", "3 h", "2 d": the largest unit that is not zero.
std::string FormatAge(int64_t seconds);

}  // namespace fargpu::cli
