#pragma once

// Shared by the bench programs, which are built by g++ and by nvcc, hence plain C++17 and no other
// header of ours. A program prints one line per figure:
//
//   name median lowest highest unit
//
// scripts/bench.sh puts the lines of several runs beside each other.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

namespace perf {

constexpr int kRounds = 5;

// Copies are measured at these sizes.
inline std::vector<size_t> CopySizes() {
  return {size_t{4} << 10,  size_t{64} << 10, size_t{1} << 20,
          size_t{16} << 20, size_t{64} << 20, size_t{256} << 20};
}

// How often a copy of `bytes` is repeated in a round, so that a round lasts about as long for all.
inline int CopyRepeats(size_t bytes) {
  return static_cast<int>(std::clamp<size_t>((size_t{64} << 20) / bytes, 1, 500));
}

inline std::string SizeName(size_t bytes) {
  return bytes >= (1 << 20) ? std::to_string(bytes >> 20) + "MiB"
                            : std::to_string(bytes >> 10) + "KiB";
}

// Seconds that `body` takes.
template <typename Body>
double Seconds(const Body& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline void Report(const std::string& name, std::vector<double> values, const char* unit) {
  std::sort(values.begin(), values.end());
  std::printf("%s %.6g %.6g %.6g %s\n", name.c_str(), values[values.size() / 2], values.front(),
              values.back(), unit);
  std::fflush(stdout);
}

// Measures kRounds times after one round that warms up. `round` gives the figure.
template <typename Round>
void Measure(const std::string& name, const char* unit, const Round& round) {
  round();
  std::vector<double> values;
  for (int i = 0; i < kRounds; ++i) values.push_back(round());
  Report(name, std::move(values), unit);
}

}  // namespace perf
