#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

#include "softgpu/ptx/ast.h"

namespace fargpu::softgpu::ptx {

enum class TokenKind {
  kEnd,
  kIdentifier,  // foo, %r1, $L__BB0_1
  kDot,         // .visible, .u32, .L1::no_allocate: `text` is without the dot
  kInteger,     // `value`
  kDouble,      // 1.5, 0d...: `value` holds the bits of a double
  kSingle,      // 0f...: `value` holds the bits of a float
  kString,
  kPunctuation,  // `text` is the one character
  kError,        // `text` says what is wrong
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  absl::string_view text;
  uint64_t value = 0;
  Location location;

  bool Is(char c) const { return kind == TokenKind::kPunctuation && text[0] == c; }
  bool IsDot(absl::string_view name) const { return kind == TokenKind::kDot && text == name; }
};

// Cuts PTX text into tokens. Comments and line breaks are skipped.
class Lexer {
 public:
  explicit Lexer(absl::string_view source) : source_(source) {}

  Token Next();
  // Skips to the end of the present line; for .loc and .file, which have no semicolon.
  void SkipLine();

 private:
  void SkipBlanks();
  void Advance();
  char Peek(size_t ahead = 0) const {
    return position_ + ahead < source_.size() ? source_[position_ + ahead] : '\0';
  }
  Token Number(Token token);

  absl::string_view source_;
  size_t position_ = 0;
  size_t line_start_ = 0;
  int line_ = 1;
};

}  // namespace fargpu::softgpu::ptx
