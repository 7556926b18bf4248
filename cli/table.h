#pragma once

#include <string>
#include <vector>

namespace fargpu::cli {

// Columns as wide as their widest cell, two blanks between them, no blanks at line ends. The first
// row is the heading.
std::string FormatTable(const std::vector<std::vector<std::string>>& rows);

// "42 s", "7 min", "3 h", "2 d": the largest unit that is not zero.
std::string FormatAge(int64_t seconds);

}  // namespace fargpu::cli
