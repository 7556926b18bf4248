#pragma once

#include <concepts>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

// The encoder and decoder of record fields. Generated messages list their fields once, in
// VisitFields(visitor); encoding, decoding and measuring are visitors, so every bounds check of the
// protocol stands in this file. Field layouts: protocol/README.md.
namespace fargpu::wire {

// An id that the client chose for one of its objects (DESIGN D4). Ids of different kinds are
// different types. Small numbers can be reserved by a kind: the stream ids 0, 1 and 2 mean the
// streams that CUDA's handles of the same value mean.
template <typename Tag>
struct HandleId {
  uint64_t value = 0;
  friend auto operator<=>(const HandleId&, const HandleId&) = default;
  template <typename H>
  friend H AbslHashValue(H hash, const HandleId& id) {
    return H::combine(std::move(hash), id.value);
  }
};

using ContextId = HandleId<struct ContextTag>;
using ModuleId = HandleId<struct ModuleTag>;
using LibraryId = HandleId<struct LibraryTag>;
using FunctionId = HandleId<struct FunctionTag>;  // CUfunction and CUkernel alike
using StreamId = HandleId<struct StreamTag>;
using EventId = HandleId<struct EventTag>;
using MemAllocationId = HandleId<struct MemAllocationTag>;  // CUmemGenericAllocationHandle
using MemPoolId = HandleId<struct MemPoolTag>;
using ImageId = HandleId<struct ImageTag>;
using ArrayId = HandleId<struct ArrayTag>;
using LinkId = HandleId<struct LinkTag>;
using MipmappedArrayId = HandleId<struct MipmappedArrayTag>;

// Variable-length fields say how long they may be; the decoder refuses more before it allocates.
inline constexpr size_t kMaxStringBytes = 4096;
inline constexpr size_t kMaxListItems = 65536;

// Bytes of any content. Decoded in place: a view into the frame, valid as long as the frame is.
using Bytes = absl::Span<const char>;
inline constexpr size_t kMaxBytesField = 1 << 20;  // a frame body is no longer than that

template <typename T>
concept PlainField =
    std::is_trivially_copyable_v<T> && !std::is_pointer_v<T> && !std::is_same_v<T, Bytes>;

// A struct that lists its fields itself.
template <typename T>
concept StructField = !PlainField<T> && requires {
  &T::template VisitFields<class Encoder>;
};

// Appends fields to a byte vector.
class Encoder {
 public:
  explicit Encoder(std::vector<char>* out) : out_(out) {}

  template <typename T>
  void operator()(const T& value) {
    if constexpr (std::is_same_v<T, std::string> || std::is_same_v<T, Bytes>) {
      PutBytes(value.data(), value.size());
    } else if constexpr (std::is_same_v<T, bool>) {
      PutRaw(static_cast<uint8_t>(value));
    } else if constexpr (PlainField<T>) {
      PutRaw(value);
    } else if constexpr (StructField<T>) {
      // VisitFields serves decoding too and is therefore not const; the encoder only reads.
      const_cast<T&>(value).VisitFields(*this);
    } else {
      (*this)(static_cast<uint32_t>(value.size()));
      for (const auto& item : value) (*this)(item);
    }
  }

 private:
  template <typename T>
  void PutRaw(const T& value) {
    PutChars(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void PutBytes(const char* data, size_t size) {
    PutRaw(static_cast<uint32_t>(size));
    if (size > 0) PutChars(data, size);
  }
  void PutChars(const char* data, size_t size) {
    const size_t end = out_->size();
    out_->resize(end + size);
    std::memcpy(out_->data() + end, data, size);
  }

  std::vector<char>* const out_;
};

// Takes fields from bytes that a peer sent: every byte is hostile (DESIGN D11). The first violation
// makes the decoder bad for good; fields read afterwards stay at their defaults.
class Decoder {
 public:
  explicit Decoder(absl::Span<const char> in) : in_(in) {}

  template <typename T>
  void operator()(T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      absl::Span<const char> bytes = TakeBytes(kMaxStringBytes);
      value.assign(bytes.data(), bytes.size());
    } else if constexpr (std::is_same_v<T, Bytes>) {
      value = TakeBytes(kMaxBytesField);
    } else if constexpr (std::is_same_v<T, bool>) {
      uint8_t byte = 0;
      TakeRaw(byte);
      if (byte > 1) Fail("a boolean field holds neither 0 nor 1");
      value = byte == 1;
    } else if constexpr (PlainField<T>) {
      TakeRaw(value);
    } else if constexpr (StructField<T>) {
      value.VisitFields(*this);
    } else {
      TakeList(value);
    }
  }

  // OK if every field was there. `what` names the message in the error.
  absl::Status Finish(absl::string_view what) const {
    if (bad_ != nullptr) return absl::InvalidArgumentError(absl::StrCat(what, ": ", bad_));
    if (!in_.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": ", in_.size(), " bytes too many"));
    }
    return absl::OkStatus();
  }
  bool ok() const { return bad_ == nullptr; }
  absl::Span<const char> rest() const { return in_; }

 private:
  void Fail(const char* why) {
    if (bad_ == nullptr) bad_ = why;
    in_ = {};
  }
  template <typename T>
  void TakeRaw(T& value) {
    if (bad_ != nullptr || in_.size() < sizeof(T)) {
      Fail("it ends inside a field");
      return;
    }
    std::memcpy(&value, in_.data(), sizeof(T));
    in_.remove_prefix(sizeof(T));
  }
  absl::Span<const char> TakeBytes(size_t limit) {
    uint32_t size = 0;
    TakeRaw(size);
    if (size > limit || size > in_.size()) {
      Fail("a variable-length field is longer than its limit or than the message");
      return {};
    }
    absl::Span<const char> bytes = in_.first(size);
    in_.remove_prefix(size);
    return bytes;
  }
  template <typename T>
  void TakeList(T& list) {
    uint32_t count = 0;
    TakeRaw(count);
    // Every item takes at least one byte, so a count over what is left is a lie; nothing is
    // allocated for it.
    if (count > kMaxListItems || count > in_.size()) {
      Fail("a list has more items than its limit or than the message can hold");
      return;
    }
    list.clear();
    for (uint32_t i = 0; i < count && ok(); ++i) {
      (*this)(list.emplace_back());
    }
  }

  absl::Span<const char> in_;
  const char* bad_ = nullptr;
};

template <typename Message>
void EncodeMessage(const Message& message, std::vector<char>* out) {
  Encoder encoder(out);
  const_cast<Message&>(message).VisitFields(encoder);
}

template <typename Message>
absl::Status DecodeMessage(absl::Span<const char> in, Message* message) {
  Decoder decoder(in);
  message->VisitFields(decoder);
  return decoder.Finish(Message::kName);
}

}  // namespace fargpu::wire
