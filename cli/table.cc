#include "cli/table.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace fargpu::cli {

std::string FormatTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const std::vector<std::string>& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const std::vector<std::string>& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      if (i != 0) line += "  ";
      line += row[i];
      line.append(widths[i] - row[i].size(), ' ');
    }
    absl::StripTrailingAsciiWhitespace(&line);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

std::string FormatBox(const std::string& title, const std::vector<std::vector<std::string>>& rows) {
  const size_t columns = rows.empty() ? 1 : rows[0].size();
  std::vector<size_t> widths(columns);
  size_t spanning = title.size();
  for (const std::vector<std::string>& row : rows) {
    if (row.size() == 1) spanning = std::max(spanning, row[0].size());
    for (size_t i = 0; row.size() == columns && i < columns; ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  size_t inside = 3 * (columns - 1);
  for (const size_t width : widths) inside += width;
  // A title longer than the columns makes the last one wider.
  if (spanning > inside) {
    widths.back() += spanning - inside;
    inside = spanning;
  }

  const auto line = [&widths](char edge, char fill) {
    std::string text(1, edge);
    for (size_t i = 0; i < widths.size(); ++i) {
      if (i != 0) text += '+';
      text.append(widths[i] + 2, fill);
    }
    return text + edge + "\n";
  };
  const auto whole = [inside](const std::string& cell) {
    return absl::StrCat("| ", cell, std::string(inside - cell.size(), ' '), " |\n");
  };
  std::string text = absl::StrCat("+", std::string(inside + 2, '-'), "+\n", whole(title));
  text += line('+', '-');
  for (size_t number = 0; number < rows.size(); ++number) {
    const std::vector<std::string>& row = rows[number];
    if (row.size() != columns) {
      text += whole(row[0]);
    } else {
      for (size_t i = 0; i < columns; ++i) {
        absl::StrAppend(&text, "| ", row[i], std::string(widths[i] - row[i].size() + 1, ' '));
      }
      text += "|\n";
    }
    if (number == 0) text += line('|', '=');
  }
  return text + line('+', '-');
}

std::string FormatAge(int64_t seconds) {
  seconds = std::max<int64_t>(seconds, 0);
  if (seconds < 60) return absl::StrCat(seconds, " s");
  if (seconds < 3600) return absl::StrCat(seconds / 60, " min");
  if (seconds < 86400) return absl::StrCat(seconds / 3600, " h");
  return absl::StrCat(seconds / 86400, " d");
}

}  // namespace fargpu::cli
