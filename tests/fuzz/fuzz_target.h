#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

// What a fuzz target is: one file that defines the two functions below. It is linked with
// libFuzzer, and with replay_main.cc, which runs what was once found as a plain test.
namespace fargpu::fuzz {

struct Seed {
  std::string name;  // of the file that it is written to
  std::string bytes;
};

// Valid inputs, from which the fuzzer starts. Made by the program's own encoders, so that they stay
// valid when the format grows.
std::vector<Seed> Seeds();

// What must hold for every input. Ends the process, which both libFuzzer and ctest take as a find.
inline void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "violated: %s\n", what);
  std::abort();
}

// Cuts an input into pieces; what is missing at the end reads as zero.
class InputReader {
 public:
  InputReader(const uint8_t* data, size_t size)
      : rest_(reinterpret_cast<const char*>(data), size) {}

  uint8_t U8() { return Plain<uint8_t>(); }
  uint16_t U16() { return Plain<uint16_t>(); }
  // At most `size` bytes.
  absl::Span<const char> Take(size_t size) {
    const absl::Span<const char> taken = rest_.first(size < rest_.size() ? size : rest_.size());
    rest_.remove_prefix(taken.size());
    return taken;
  }
  absl::Span<const char> rest() const { return rest_; }
  bool empty() const { return rest_.empty(); }

 private:
  template <typename T>
  T Plain() {
    T value = 0;
    const absl::Span<const char> bytes = Take(sizeof(T));
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }

  absl::Span<const char> rest_;
};

// Appends what InputReader takes.
template <typename T>
void PutPlain(std::string* out, T value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}
inline std::string ToBytes(absl::Span<const char> bytes) {
  return std::string(bytes.data(), bytes.size());
}

}  // namespace fargpu::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
