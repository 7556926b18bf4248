#include "softgpu/ptx/token_reader.h"

#include "absl/strings/str_cat.h"

#include "common/status_macros.h"

namespace fargpu::softgpu::ptx {

absl::Status TokenReader::ErrorAt(Location at, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("line ", at.line, ", column ", at.column, ": ", what));
}

absl::Status TokenReader::Error(absl::string_view what) const {
  if (token_.kind == TokenKind::kError) return ErrorAt(token_.location, token_.text);
  return ErrorAt(token_.location, what);
}

absl::Status TokenReader::Expected(absl::string_view what) const {
  const absl::string_view dot = token_.kind == TokenKind::kDot ? "." : "";
  if (token_.kind == TokenKind::kEnd)
    return Error(absl::StrCat("expected ", what, ", not the end of the text"));
  if (token_.text.empty()) return Error(absl::StrCat("expected ", what));
  return Error(absl::StrCat("expected ", what, ", not '", dot, token_.text, "'"));
}

absl::Status TokenReader::Expect(char c) {
  if (!token_.Is(c)) return Expected(absl::StrCat("'", absl::string_view(&c, 1), "'"));
  Take();
  return absl::OkStatus();
}

bool TokenReader::Accept(char c) {
  if (!token_.Is(c)) return false;
  Take();
  return true;
}

absl::StatusOr<uint64_t> TokenReader::Integer(absl::string_view what) {
  if (token_.kind != TokenKind::kInteger) return Expected(what);
  const uint64_t value = token_.value;
  Take();
  return value;
}

absl::StatusOr<absl::string_view> TokenReader::Identifier(absl::string_view what) {
  if (token_.kind != TokenKind::kIdentifier) return Expected(what);
  const absl::string_view text = token_.text;
  Take();
  return text;
}

absl::Status TokenReader::SkipLine() {
  // The token behind the directive is already read and lies on the same line.
  const int line = token_.location.line;
  while (token_.kind != TokenKind::kEnd && token_.location.line == line) Take();
  return absl::OkStatus();
}

absl::Status TokenReader::SkipPast(char end) {
  while (token_.kind != TokenKind::kEnd && !token_.Is(end)) Take();
  return Expect(end);
}

absl::Status TokenReader::SkipBraces() {
  RETURN_IF_ERROR(Expect('{'));
  int depth = 1;
  while (depth > 0) {
    if (token_.kind == TokenKind::kEnd) return Expected("'}'");
    depth += token_.Is('{') ? 1 : token_.Is('}') ? -1 : 0;
    Take();
  }
  return absl::OkStatus();
}

}  // namespace fargpu::softgpu::ptx
