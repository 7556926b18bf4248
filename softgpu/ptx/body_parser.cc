#include "softgpu/ptx/body_parser.h"

#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "common/status_macros.h"

namespace fargpu::softgpu::ptx {
namespace {

// Those of PTX 9.1 (section 10 of its manual), supported or not.
bool IsSpecialRegister(absl::string_view name) {
  static const auto* const kNames =
      new absl::flat_hash_set<absl::string_view>{"%tid",
                                                 "%ntid",
                                                 "%laneid",
                                                 "%warpid",
                                                 "%nwarpid",
                                                 "%ctaid",
                                                 "%nctaid",
                                                 "%smid",
                                                 "%nsmid",
                                                 "%gridid",
                                                 "%clusterid",
                                                 "%nclusterid",
                                                 "%cluster_ctaid",
                                                 "%cluster_nctaid",
                                                 "%cluster_ctarank",
                                                 "%cluster_nctarank",
                                                 "%lanemask_eq",
                                                 "%lanemask_le",
                                                 "%lanemask_lt",
                                                 "%lanemask_ge",
                                                 "%lanemask_gt",
                                                 "%clock",
                                                 "%clock_hi",
                                                 "%clock64",
                                                 "%globaltimer",
                                                 "%globaltimer_lo",
                                                 "%globaltimer_hi",
                                                 "%is_explicit_cluster",
                                                 "%total_smem_size",
                                                 "%aggr_smem_size",
                                                 "%dynamic_smem_size",
                                                 "%current_graph_exec"};
  return kNames->contains(name) || absl::StartsWith(name, "%pm") ||
         absl::StartsWith(name, "%envreg") || absl::StartsWith(name, "%reserved_smem_offset");
}

// Deeper nesting than this in source text is refused, so that hostile text cannot use up the stack.
constexpr int kMaxNesting = 64;
constexpr uint64_t kMaxRegisters = 1 << 20;

}  // namespace

BodyParser::BodyParser(Lexer lexer, Function* function)
    : DeclarationParser(lexer), function_(function) {
  scopes_.emplace_back();
  for (size_t i = 0; i < function->variables.size(); ++i) {
    const Variable& v = function->variables[i];
    if (v.is_register) {
      Declare(v.name, {Scope::Entry::kRegister, v.index});
    } else {
      Declare(v.name, {Scope::Entry::kVariable, static_cast<int>(i)});
    }
  }
}

absl::Status BodyParser::Run() {
  RETURN_IF_ERROR(Block(0));
  for (const Function::Label& label : function_->labels) {
    if (label.position < 0) {
      return ErrorAt(
          function_->location,
          absl::StrCat("label ", label.name, " is used but not defined in ", function_->name));
    }
  }
  return absl::OkStatus();
}

absl::Status BodyParser::Scan() {
  // Declarations are few and read as always, into a function of their own.
  Function scratch = *function_;
  const size_t parameters = scratch.variables.size();
  Function* const real = std::exchange(function_, &scratch);
  absl::flat_hash_set<absl::string_view> calls, names;
  const auto scan = [&]() -> absl::Status {
    int depth = 0;
    do {
      if (token_.kind == TokenKind::kEnd) return Expected("'}'");
      if (token_.Is('{')) {
        if (++depth > kMaxNesting) return Error("blocks are nested too deeply");
        if (depth > 1) scopes_.emplace_back();
        Take();
      } else if (token_.Is('}')) {
        if (--depth > 0) scopes_.pop_back();
        Take();
      } else if (token_.kind == TokenKind::kDot) {
        RETURN_IF_ERROR(BodyDirective());
      } else {
        if (Accept('@')) {
          Accept('!');
          RETURN_IF_ERROR(Identifier("a predicate").status());
        }
        if (token_.kind != TokenKind::kIdentifier) return Expected("an instruction");
        const bool is_call = token_.text == "call";
        const bool is_branch = token_.text == "bra";
        if (lexer_.SkipLabelColon()) {
          Take();
          continue;
        }
        const bool complete = lexer_.SkipInstruction([&](absl::string_view name) {
          if (is_call) calls.insert(name);
          if (!is_call && !is_branch) names.insert(name);
        });
        if (!complete) return Error("an instruction has no end");
        Take();
      }
    } while (depth > 0);
    return absl::OkStatus();
  };
  const absl::Status status = scan();
  function_ = real;
  RETURN_IF_ERROR(status);
  FunctionSummary& summary = function_->summary;
  for (const Register& r : scratch.registers) summary.register_words += r.type.bits > 32 ? 2 : 1;
  for (size_t i = parameters; i < scratch.variables.size(); ++i) {
    Variable& v = scratch.variables[i];
    names.erase(v.name);
    if (v.space == Space::kLocal)
      summary.local.push_back(std::move(v));
    else if (v.space == Space::kShared && !v.is_extern)
      summary.shared.push_back(std::move(v));
  }
  for (const Variable& v : function_->variables) names.erase(v.name);
  summary.calls.assign(calls.begin(), calls.end());
  summary.names.assign(names.begin(), names.end());
  return absl::OkStatus();
}

bool BodyParser::Lookup(absl::string_view name, Scope::Entry* entry) const {
  size_t digits = name.size();
  while (digits > 0 && absl::ascii_isdigit(static_cast<unsigned char>(name[digits - 1]))) --digits;
  const absl::string_view prefix = name.substr(0, digits);
  uint64_t number = 0;
  const bool numbered = digits < name.size() && name.size() - digits < 10 &&
                        absl::SimpleAtoi(name.substr(digits), &number);
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (const auto it = scope->names.find(name); it != scope->names.end()) {
      *entry = it->second;
      return true;
    }
    if (!numbered) continue;
    if (const auto it = scope->ranges.find(prefix);
        it != scope->ranges.end() && number < it->second.count) {
      *entry = {Scope::Entry::kRegister, it->second.base + static_cast<int>(number)};
      return true;
    }
  }
  return false;
}

int BodyParser::LabelId(absl::string_view name) {
  const auto [it, added] = label_ids_.try_emplace(name, static_cast<int>(function_->labels.size()));
  if (added) function_->labels.push_back({name, -1});
  return it->second;
}

absl::Status BodyParser::Block(int depth) {
  if (depth > kMaxNesting) return Error("blocks are nested too deeply");
  RETURN_IF_ERROR(Expect('{'));
  scopes_.emplace_back();
  while (!token_.Is('}')) {
    if (token_.kind == TokenKind::kEnd) return Expected("'}'");
    if (token_.Is('{')) {
      RETURN_IF_ERROR(Block(depth + 1));
    } else if (token_.kind == TokenKind::kDot) {
      RETURN_IF_ERROR(BodyDirective());
    } else {
      RETURN_IF_ERROR(Statement());
    }
  }
  scopes_.pop_back();
  return Expect('}');
}

absl::Status BodyParser::BodyDirective() {
  const absl::string_view name = token_.text;
  Take();
  Space space;
  if (name == "reg") return Registers();
  if (name == "extern" && token_.IsDot("shared")) {
    Take();
    return FunctionVariables(Space::kShared, {.is_extern = true});
  }
  if (SpaceOfName(name, &space)) {
    return FunctionVariables(space, {});
  }
  if (name == "loc" || name == "file") return SkipLine();
  if (name == "pragma") return SkipPast(';');
  if (name == "branchtargets" || name == "callprototype" || name == "calltargets") {
    return SkipPast(';');
  }
  return Error(absl::StrCat("unknown directive .", name, " in a function"));
}

absl::Status BodyParser::FunctionVariables(Space space, Linkage linkage) {
  std::vector<Variable>& variables = function_->variables;
  const size_t before = variables.size();
  RETURN_IF_ERROR(Variables(space, linkage, &variables));
  for (size_t i = before; i < variables.size(); ++i) {
    Declare(variables[i].name, {Scope::Entry::kVariable, static_cast<int>(i)});
  }
  return absl::OkStatus();
}

absl::Status BodyParser::Registers() {
  Type type;
  int vector = 1;
  while (token_.kind == TokenKind::kDot) {
    if (token_.text == "v2" || token_.text == "v4") {
      vector = token_.text[1] - '0';
    } else if (!ParseType(token_.text, &type)) {
      return Error(absl::StrCat("unknown type .", token_.text));
    }
    Take();
  }
  if (type.kind == Type::kNone) return Expected("the type of registers");
  do {
    const Location at = token_.location;
    ASSIGN_OR_RETURN(const absl::string_view name, Identifier("the name of a register"));
    const int base = static_cast<int>(function_->registers.size());
    uint64_t count = static_cast<uint64_t>(vector);
    const bool is_range = Accept('<');
    if (is_range) {
      if (vector != 1) return ErrorAt(at, "a range of vector registers");
      ASSIGN_OR_RETURN(count, Integer("the number of registers"));
      RETURN_IF_ERROR(Expect('>'));
    }
    if (count > kMaxRegisters || count + function_->registers.size() > kMaxRegisters) {
      return ErrorAt(at, absl::StrCat("more than ", kMaxRegisters, " registers"));
    }
    if (is_range) {
      scopes_.back().ranges[name] = {base, count};
    } else if (vector != 1) {
      Declare(name, {Scope::Entry::kVector, base, vector});
    } else {
      Declare(name, {Scope::Entry::kRegister, base});
    }
    function_->registers.resize(function_->registers.size() + count, {name, type});
  } while (Accept(','));
  return Expect(';');
}

absl::Status BodyParser::Statement() {
  Instruction instruction;
  instruction.location = token_.location;
  if (Accept('@')) {
    instruction.guard_negated = Accept('!');
    const Location at = token_.location;
    ASSIGN_OR_RETURN(const absl::string_view name, Identifier("a predicate"));
    Scope::Entry entry;
    if (!Lookup(name, &entry) || entry.kind != Scope::Entry::kRegister ||
        function_->registers[entry.index].type.kind != Type::kPred) {
      return ErrorAt(at, absl::StrCat(name, " is not a predicate register"));
    }
    instruction.guard = entry.index;
  }
  instruction.location = token_.location;
  ASSIGN_OR_RETURN(instruction.opcode, Identifier("an instruction"));
  if (token_.Is(':')) {
    if (instruction.guard >= 0) return Error("a label cannot have a predicate");
    Take();
    if (token_.IsDot("branchtargets")) return BranchTargets(instruction.opcode);
    if (token_.IsDot("callprototype") || token_.IsDot("calltargets")) return SkipPast(';');
    Function::Label& label = function_->labels[LabelId(instruction.opcode)];
    if (label.position >= 0) {
      return ErrorAt(instruction.location, absl::StrCat("label ", label.name, " is defined twice"));
    }
    label.position = static_cast<int>(function_->body.size());
    return absl::OkStatus();
  }
  // Only video instructions select parts of registers and negate them.
  in_video_ = instruction.opcode[0] == 'v' && instruction.opcode != "vote";
  while (token_.kind == TokenKind::kDot) {
    instruction.modifiers.push_back(token_.text);
    Type type;
    if (ParseType(token_.text, &type)) instruction.types.push_back(type);
    Take();
  }
  while (!token_.Is(';')) {
    Operand operand;
    RETURN_IF_ERROR(ParseOperand(&operand, 0));
    instruction.operands.push_back(std::move(operand));
    if (!Accept(',')) break;
  }
  if (instruction.opcode == "bra") {
    if (instruction.operands.size() != 1 ||
        instruction.operands[0].kind != Operand::Kind::kSymbol) {
      return ErrorAt(instruction.location, "bra needs one label");
    }
    Operand& target = instruction.operands[0];
    target.kind = Operand::Kind::kLabel;
    target.index = LabelId(target.name);
  }
  if (instruction.opcode == "brx") {
    RETURN_IF_ERROR(LowerIndexedBranch(instruction));
  } else {
    function_->body.push_back(std::move(instruction));
  }
  return Expect(';');
}

absl::Status BodyParser::BranchTargets(absl::string_view name) {
  Take();
  std::vector<int>& targets = branch_targets_[name];
  targets.clear();
  do {
    ASSIGN_OR_RETURN(const absl::string_view target, Identifier("a label"));
    targets.push_back(LabelId(target));
  } while (Accept(','));
  return Expect(';');
}

// brx.idx as comparisons and branches. An index that the list does not have means nothing in PTX:
// it goes to the last of the list.
absl::Status BodyParser::LowerIndexedBranch(const Instruction& branch) {
  const auto targets = branch.operands.size() == 2 ? branch_targets_.find(branch.operands[1].name)
                                                   : branch_targets_.end();
  if (!branch.Has("idx") || targets == branch_targets_.end() || targets->second.empty()) {
    return ErrorAt(branch.location, "brx.idx needs an index and a list of branch targets");
  }
  const auto jump = [&](int label, int guard, bool negated) {
    Instruction bra;
    bra.location = branch.location;
    bra.opcode = "bra";
    bra.guard = guard;
    bra.guard_negated = negated;
    Operand target;
    target.kind = Operand::Kind::kLabel;
    target.index = label;
    bra.operands.push_back(std::move(target));
    function_->body.push_back(std::move(bra));
  };
  int skip = -1;
  if (branch.guard >= 0) {
    skip = static_cast<int>(function_->labels.size());
    function_->labels.push_back({"", -1});
    jump(skip, branch.guard, !branch.guard_negated);
  }
  for (size_t k = 0; k + 1 < targets->second.size(); ++k) {
    const int is_it = static_cast<int>(function_->registers.size());
    function_->registers.push_back({"", {Type::kPred, 1, 1}});
    Instruction compare;
    compare.location = branch.location;
    compare.opcode = "setp";
    compare.modifiers = {"eq", "u32"};
    compare.types = {{Type::kUnsigned, 1, 32}};
    Operand result;
    result.kind = Operand::Kind::kRegister;
    result.index = is_it;
    Operand number;
    number.kind = Operand::Kind::kImmediate;
    number.bits = k;
    compare.operands = {std::move(result), branch.operands[0], std::move(number)};
    function_->body.push_back(std::move(compare));
    jump(targets->second[k], is_it, false);
  }
  jump(targets->second.back(), -1, false);
  if (skip >= 0) function_->labels[skip].position = static_cast<int>(function_->body.size());
  return absl::OkStatus();
}

absl::Status BodyParser::ParseOperand(Operand* out, int depth) {
  if (depth > 4) return Error("operand is nested too deeply");
  if (Accept('[')) {
    out->kind = Operand::Kind::kAddress;
    out->parts.emplace_back();
    RETURN_IF_ERROR(ParseOperand(&out->parts[0], depth + 1));
    RETURN_IF_ERROR(Offset(&out->offset));
    out->offset = static_cast<int64_t>(static_cast<uint64_t>(out->offset) +
                                       static_cast<uint64_t>(out->parts[0].offset));
    out->parts[0].offset = 0;
    while (Accept(',')) {  // [tex, {x, y}]
      out->parts.emplace_back();
      RETURN_IF_ERROR(ParseOperand(&out->parts.back(), depth + 1));
    }
    return Expect(']');
  }
  if (token_.Is('{') || token_.Is('(')) {
    const char end = token_.Is('{') ? '}' : ')';
    out->kind = token_.Is('{') ? Operand::Kind::kVector : Operand::Kind::kList;
    Take();
    while (!token_.Is(end)) {
      out->parts.emplace_back();
      RETURN_IF_ERROR(ParseOperand(&out->parts.back(), depth + 1));
      if (!Accept(',')) break;
    }
    return Expect(end);
  }
  if (Accept('!')) {
    RETURN_IF_ERROR(ParseOperand(out, depth + 1));
    out->negated = !out->negated;
    return absl::OkStatus();
  }
  const bool negative = Accept('-');
  if (token_.kind == TokenKind::kInteger) {
    out->kind = Operand::Kind::kImmediate;
    out->bits = negative ? 0 - token_.value : token_.value;
    Take();
  } else if (token_.kind == TokenKind::kDouble) {
    out->kind = Operand::Kind::kImmediate;
    out->is_float = true;
    out->bits = negative ? token_.value ^ uint64_t { 1 } << 63 : token_.value;
    Take();
  } else if (token_.kind == TokenKind::kSingle) {
    out->kind = Operand::Kind::kSingle;
    out->bits = negative ? token_.value ^ uint64_t { 1 } << 31 : token_.value;
    Take();
  } else if (token_.kind == TokenKind::kIdentifier && (!negative || in_video_)) {
    RETURN_IF_ERROR(NamedOperand(out));
    if (negative && out->kind != Operand::Kind::kRegister) return Expected("a register behind '-'");
    if (negative) out->negated = true;
  } else {
    return Expected("an operand");
  }
  if (token_.Is('|') && depth == 0) {  // d|p
    Take();
    Operand pair;
    pair.kind = Operand::Kind::kPair;
    pair.parts.push_back(std::move(*out));
    pair.parts.emplace_back();
    RETURN_IF_ERROR(ParseOperand(&pair.parts[1], 1));
    *out = std::move(pair);
  }
  return absl::OkStatus();
}

absl::Status BodyParser::NamedOperand(Operand* out) {
  const Token name = token_;
  Take();
  out->name = name.text;
  if (name.text == "_") {
    out->kind = Operand::Kind::kSink;
    return absl::OkStatus();
  }
  Scope::Entry entry;
  if (Lookup(name.text, &entry)) {
    if (entry.kind == Scope::Entry::kVector)
      return VectorRegister(name, entry.index, entry.count, out);
    out->kind =
        entry.kind == Scope::Entry::kRegister ? Operand::Kind::kRegister : Operand::Kind::kVariable;
    out->index = entry.index;
    if (out->kind == Operand::Kind::kVariable) return Offset(&out->offset);
    if (in_video_ && token_.kind == TokenKind::kDot) {
      out->selector = token_.text;
      Take();
    }
    return absl::OkStatus();
  }
  if (name.text == "WARP_SZ") {
    out->kind = Operand::Kind::kImmediate;
    out->bits = 32;
    return absl::OkStatus();
  }
  if (name.text[0] == '%') {
    if (!IsSpecialRegister(name.text)) {
      return ErrorAt(name.location, absl::StrCat("register ", name.text, " is not declared"));
    }
    out->kind = Operand::Kind::kSpecial;
    if (token_.kind == TokenKind::kDot && token_.text.size() == 1) {
      out->component = token_.text[0];
      Take();
    }
    return absl::OkStatus();
  }
  out->kind = Operand::Kind::kSymbol;
  return Offset(&out->offset);
}

// %v.x, or all of %v.
absl::Status BodyParser::VectorRegister(const Token& name, int base, int count, Operand* out) {
  const auto element = [&](int k) {
    Operand operand;
    operand.kind = Operand::Kind::kRegister;
    operand.name = name.text;
    operand.index = base + k;
    return operand;
  };
  if (token_.kind == TokenKind::kDot) {
    static constexpr absl::string_view kNames[] = {"xyzw", "rgba"};
    for (const absl::string_view names : kNames) {
      const size_t k = token_.text.size() == 1 ? names.find(token_.text[0]) : names.npos;
      if (k == names.npos || k >= static_cast<size_t>(count)) continue;
      *out = element(static_cast<int>(k));
      Take();
      return absl::OkStatus();
    }
    return Expected(absl::StrCat("an element of the vector ", name.text));
  }
  out->kind = Operand::Kind::kVector;
  for (int k = 0; k < count; ++k) out->parts.push_back(element(k));
  return absl::OkStatus();
}

}  // namespace fargpu::softgpu::ptx
