#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

#include "softgpu/ptx/lexer.h"

namespace fargpu::softgpu::ptx {

// The tokens of a text with one of look-ahead. What the parsers share: expectations, and errors of
// the form "line L, column C: what".
class TokenReader {
 protected:
  explicit TokenReader(Lexer lexer) : lexer_(lexer) { Take(); }

  void Take() { token_ = lexer_.Next(); }
  static absl::Status ErrorAt(Location at, absl::string_view what);
  absl::Status Error(absl::string_view what) const;     // at the present token
  absl::Status Expected(absl::string_view what) const;  // ... which is something else
  absl::Status Expect(char c);
  bool Accept(char c);
  absl::StatusOr<uint64_t> Integer(absl::string_view what);
  absl::StatusOr<absl::string_view> Identifier(absl::string_view what);

  // The rest of the line on which the last directive stands; its first token is already read.
  absl::Status SkipLine();
  absl::Status SkipPast(char end);
  absl::Status SkipBraces();

  Lexer lexer_;
  Token token_;
};

}  // namespace fargpu::softgpu::ptx
