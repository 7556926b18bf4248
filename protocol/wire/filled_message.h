#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "protocol/wire/codec.h"

// For tests and fuzz seeds: messages of any type with every field set.
namespace fargpu::wire {

// Fills every field with something other than its default.
class FillVisitor {
 public:
  template <typename T>
  void operator()(T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      value = "text";
    } else if constexpr (std::is_same_v<T, Bytes>) {
      value = absl::MakeConstSpan(kBytes, sizeof(kBytes));
    } else if constexpr (std::is_same_v<T, bool>) {
      value = true;
    } else if constexpr (PlainField<T>) {
      std::memset(static_cast<void*>(&value), 0x41, sizeof(T));
    } else if constexpr (StructField<T>) {
      value.VisitFields(*this);
    } else {
      for (int i = 0; i < 3; ++i) (*this)(value.emplace_back());
    }
  }

 private:
  static constexpr char kBytes[] = {1, 2, 3, 4, 5};
};

template <typename Message>
std::vector<char> EncodedFilled() {
  Message message;
  FillVisitor fill;
  message.VisitFields(fill);
  std::vector<char> bytes;
  EncodeMessage(message, &bytes);
  return bytes;
}

}  // namespace fargpu::wire
