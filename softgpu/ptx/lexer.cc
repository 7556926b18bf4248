#include "softgpu/ptx/lexer.h"

#include <cstring>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"

namespace fargpu::softgpu::ptx {

void Lexer::Advance() {
  if (source_[position_] == '\n') {
    ++line_;
    line_start_ = position_ + 1;
  }
  ++position_;
}

void Lexer::SkipLine() {
  while (position_ < source_.size() && source_[position_] != '\n') ++position_;
}

void Lexer::SkipBlanks() {
  while (position_ < source_.size()) {
    const char c = source_[position_];
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v') {
      Advance();
    } else if (c == '/' && Peek(1) == '/') {
      SkipLine();
    } else if (c == '/' && Peek(1) == '*') {
      position_ += 2;
      while (position_ < source_.size() && !(Peek() == '*' && Peek(1) == '/')) Advance();
      position_ = std::min(position_ + 2, source_.size());
    } else {
      return;
    }
  }
}

bool Lexer::SkipLabelColon() {
  SkipBlanks();
  if (Peek() != ':') return false;
  ++position_;
  return true;
}

Token Lexer::Number(Token token) {
  const size_t start = position_;
  const auto digits = [&](auto accept) {
    const size_t first = position_;
    while (accept(Peek())) ++position_;
    return source_.substr(first, position_ - first);
  };
  const auto hex = [](char c) { return absl::ascii_isxdigit(static_cast<unsigned char>(c)); };
  const auto fail = [&](absl::string_view what) {
    token.kind = TokenKind::kError;
    token.text = what;
    return token;
  };
  if (Peek() == '0' && (Peek(1) == 'f' || Peek(1) == 'F' || Peek(1) == 'd' || Peek(1) == 'D')) {
    const bool single = absl::ascii_tolower(Peek(1)) == 'f';
    position_ += 2;
    const absl::string_view text = digits(hex);
    if (text.size() != (single ? 8u : 16u) || !absl::SimpleHexAtoi(text, &token.value)) {
      return fail("malformed floating point constant");
    }
    token.kind = single ? TokenKind::kSingle : TokenKind::kDouble;
    return token;
  }
  token.kind = TokenKind::kInteger;
  if (Peek() == '0' && (Peek(1) == 'x' || Peek(1) == 'X')) {
    position_ += 2;
    const absl::string_view text = digits(hex);
    if (!absl::SimpleHexAtoi(text, &token.value)) return fail("malformed hexadecimal constant");
  } else if (Peek() == '0' && (Peek(1) == 'b' || Peek(1) == 'B')) {
    position_ += 2;
    const absl::string_view text = digits([](char c) { return c == '0' || c == '1'; });
    if (text.empty() || text.size() > 64) return fail("malformed binary constant");
    for (const char c : text) token.value = token.value << 1 | (c == '1');
  } else {
    const auto decimal = [](char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); };
    digits(decimal);
    bool is_float = false;
    if (Peek() == '.') {
      is_float = true;
      ++position_;
      digits(decimal);
    }
    if ((Peek() == 'e' || Peek() == 'E') &&
        (decimal(Peek(1)) || ((Peek(1) == '-' || Peek(1) == '+') && decimal(Peek(2))))) {
      is_float = true;
      position_ += 2;
      digits(decimal);
    }
    const absl::string_view text = source_.substr(start, position_ - start);
    token.text = text;
    if (is_float) {
      double value = 0;
      if (!absl::SimpleAtod(text, &value)) return fail("malformed floating point constant");
      std::memcpy(&token.value, &value, sizeof value);
      token.kind = TokenKind::kDouble;
      return token;
    }
    if (text.size() > 1 && text[0] == '0') {  // octal
      for (const char c : text) {
        if (c > '7') return fail("malformed octal constant");
        token.value = token.value << 3 | static_cast<uint64_t>(c - '0');
      }
    } else if (!absl::SimpleAtoi(text, &token.value)) {
      return fail("integer constant does not fit in 64 bits");
    }
  }
  if (Peek() == 'U' || Peek() == 'u') ++position_;
  return token;
}

Token Lexer::Next() {
  SkipBlanks();
  Token token;
  token.location = {line_, static_cast<int>(position_ - line_start_) + 1};
  if (position_ >= source_.size()) return token;
  const size_t start = position_;
  const char c = source_[position_];
  if (IsIdentifierStart(c) || c == '%') {
    ++position_;
    while (IsIdentifierPart(Peek())) ++position_;
    token.kind = TokenKind::kIdentifier;
    token.text = source_.substr(start, position_ - start);
  } else if (c == '.' && (IsIdentifierPart(Peek(1)))) {
    ++position_;
    while (IsIdentifierPart(Peek()) || (Peek() == ':' && Peek(1) == ':')) {
      position_ += Peek() == ':' ? 2 : 1;
    }
    token.kind = TokenKind::kDot;
    token.text = source_.substr(start + 1, position_ - start - 1);
  } else if (absl::ascii_isdigit(static_cast<unsigned char>(c))) {
    return Number(token);
  } else if (c == '"') {
    ++position_;
    while (position_ < source_.size() && Peek() != '"' && Peek() != '\n') {
      position_ += Peek() == '\\' && Peek(1) != '\n' && Peek(1) != '\0' ? 2 : 1;
    }
    if (Peek() != '"') {
      token.kind = TokenKind::kError;
      token.text = "string without end";
      return token;
    }
    token.kind = TokenKind::kString;
    token.text = source_.substr(start + 1, position_ - start - 1);
    ++position_;
  } else if (std::strchr("{}()[]<>,;:=+-|!@&*/~?", c) != nullptr && c != '\0') {
    token.kind = TokenKind::kPunctuation;
    token.text = source_.substr(start, 1);
    ++position_;
  } else {
    token.kind = TokenKind::kError;
    token.text = "unexpected character";
    ++position_;
  }
  return token;
}

}  // namespace fargpu::softgpu::ptx
