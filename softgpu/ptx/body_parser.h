#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "softgpu/ptx/ast.h"
#include "softgpu/ptx/declaration_parser.h"

namespace fargpu::softgpu::ptx {

// The body of a function: scopes, registers, labels, instructions.
class BodyParser : protected DeclarationParser {
 public:
  // `lexer` stands at the body's '{'; `function` has its parameters.
  BodyParser(Lexer lexer, Function* function);

  absl::Status Run();

  // Reads the body without its instructions: fills in Function::summary. Linear and fast; what it
  // does not understand is an error, which Run() would describe better.
  absl::Status Scan();
  // Behind the body, once it is read.
  const Lexer& lexer() const { return lexer_; }
  const Token& token() const { return token_; }

 private:
  struct Scope {
    struct Entry {
      enum Kind { kRegister, kVariable, kVector } kind;
      int index;
      int count = 1;  // of kVector: so many registers from `index` on
    };
    struct Range {
      int base;
      uint64_t count;
    };
    absl::flat_hash_map<absl::string_view, Entry> names;
    absl::flat_hash_map<absl::string_view, Range> ranges;  // %r<8>, by "%r"
  };

  void Declare(absl::string_view name, Scope::Entry entry) { scopes_.back().names[name] = entry; }
  bool Lookup(absl::string_view name, Scope::Entry* entry) const;
  int LabelId(absl::string_view name);
  absl::Status Block(int depth);
  absl::Status BodyDirective();
  absl::Status FunctionVariables(Space space, Linkage linkage);
  absl::Status Registers();
  absl::Status Statement();
  absl::Status BranchTargets(absl::string_view name);
  absl::Status LowerIndexedBranch(const Instruction& branch);
  absl::Status ParseOperand(Operand* out, int depth);
  absl::Status NamedOperand(Operand* out);
  absl::Status VectorRegister(const Token& name, int base, int count, Operand* out);

  Function* function_;
  bool in_video_ = false;
  std::vector<Scope> scopes_;
  absl::flat_hash_map<absl::string_view, int> label_ids_;
  absl::flat_hash_map<absl::string_view, std::vector<int>> branch_targets_;  // labels, by list
};

}  // namespace fargpu::softgpu::ptx
