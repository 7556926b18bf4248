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
  // From `offset` on, which is at `location`.
  Lexer(absl::string_view source, size_t offset, Location location)
      : source_(source),
        position_(offset),
        line_start_(offset - static_cast<size_t>(location.column - 1)),
        line_(location.line) {}

  Token Next();
  // Skips to the end of the present line; for .loc and .file, which have no semicolon.
  void SkipLine();
  // Skips blanks and a ':', if that follows.
  bool SkipLabelColon();
  // Skips to behind the next ';' and tells `visit` the names on the way that do not begin with '%'.
  // False if the text, or the block, ends before.
  template <typename Visit>
  bool SkipInstruction(const Visit& visit);

 private:
  static bool IsIdentifierPart(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '$';
  }
  static bool IsIdentifierStart(char c) { return IsIdentifierPart(c) && !(c >= '0' && c <= '9'); }

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

template <typename Visit>
bool Lexer::SkipInstruction(const Visit& visit) {
  int depth = 0;
  while (position_ < source_.size()) {
    const char c = source_[position_];
    if (c == ';') {
      ++position_;
      return true;
    }
    if (IsIdentifierPart(c) || c == '%' || c == '.') {
      const size_t start = position_++;
      while (position_ < source_.size() &&
             (IsIdentifierPart(source_[position_]) || (c == '.' && source_[position_] == ':'))) {
        ++position_;
      }
      if (IsIdentifierStart(c)) visit(source_.substr(start, position_ - start));
    } else if (c == '\n' || (c == '/' && (Peek(1) == '/' || Peek(1) == '*'))) {
      SkipBlanks();
    } else {
      depth += c == '{' ? 1 : c == '}' ? -1 : 0;
      if (depth < 0 || c == '"') return false;
      ++position_;
    }
  }
  return false;
}

}  // namespace fargpu::softgpu::ptx
