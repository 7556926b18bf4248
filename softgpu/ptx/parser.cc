#include "softgpu/ptx/parser.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "common/status_macros.h"
#include "softgpu/ptx/lexer.h"

namespace fargpu::softgpu::ptx {
namespace {

// Deeper nesting than this in source text is refused, so that hostile text cannot use up the stack.
constexpr int kMaxNesting = 64;
constexpr uint64_t kMaxVariableBytes = uint64_t{1} << 40;
constexpr uint64_t kMaxRegisters = 1 << 20;
constexpr uint64_t kMaxInitializerBytes = uint64_t{1} << 30;

struct Scope {
  struct Entry {
    enum Kind { kRegister, kVariable } kind;
    int index;
  };
  struct Range {
    int base;
    uint64_t count;
  };
  absl::flat_hash_map<absl::string_view, Entry> names;
  absl::flat_hash_map<absl::string_view, Range> ranges;  // %r<8>, by "%r"
};

bool SpaceOfName(absl::string_view name, Space* space) {
  if (name == "global") return *space = Space::kGlobal, true;
  if (name == "const") return *space = Space::kConst, true;
  if (name == "shared") return *space = Space::kShared, true;
  if (name == "local") return *space = Space::kLocal, true;
  if (name == "param") return *space = Space::kParam, true;
  return false;
}

class Parser {
 public:
  explicit Parser(std::shared_ptr<const std::string> source)
      : module_(std::make_unique<Module>()), lexer_(*source) {
    module_->source = std::move(source);
    Take();
  }

  absl::StatusOr<std::unique_ptr<Module>> Run() {
    while (token_.kind != TokenKind::kEnd) RETURN_IF_ERROR(ModuleItem());
    if (module_->version == 0) return Error("there is no .version directive");
    return std::move(module_);
  }

 private:
  void Take() { token_ = lexer_.Next(); }

  absl::Status ErrorAt(Location at, absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat("line ", at.line, ", column ", at.column, ": ", what));
  }
  absl::Status Error(absl::string_view what) const {
    if (token_.kind == TokenKind::kError) return ErrorAt(token_.location, token_.text);
    return ErrorAt(token_.location, what);
  }
  absl::Status Expected(absl::string_view what) const {
    const absl::string_view dot = token_.kind == TokenKind::kDot ? "." : "";
    if (token_.kind == TokenKind::kEnd)
      return Error(absl::StrCat("expected ", what, ", not the end of the text"));
    if (token_.text.empty()) return Error(absl::StrCat("expected ", what));
    return Error(absl::StrCat("expected ", what, ", not '", dot, token_.text, "'"));
  }
  absl::Status Expect(char c) {
    if (!token_.Is(c)) return Expected(absl::StrCat("'", absl::string_view(&c, 1), "'"));
    Take();
    return absl::OkStatus();
  }
  bool Accept(char c) {
    if (!token_.Is(c)) return false;
    Take();
    return true;
  }
  absl::StatusOr<uint64_t> Integer(absl::string_view what) {
    if (token_.kind != TokenKind::kInteger) return Expected(what);
    const uint64_t value = token_.value;
    Take();
    return value;
  }
  absl::StatusOr<absl::string_view> Identifier(absl::string_view what) {
    if (token_.kind != TokenKind::kIdentifier) return Expected(what);
    const absl::string_view text = token_.text;
    Take();
    return text;
  }

  struct Linkage {
    bool is_extern = false, is_visible = false, is_weak = false;
  };

  absl::Status ModuleItem() {
    Linkage linkage;
    while (token_.kind == TokenKind::kDot) {
      const absl::string_view name = token_.text;
      if (name == "extern") {
        linkage.is_extern = true;
      } else if (name == "visible") {
        linkage.is_visible = true;
      } else if (name == "weak" || name == "common") {
        linkage.is_visible = linkage.is_weak = true;
      } else {
        break;
      }
      Take();
    }
    if (Accept(';')) return absl::OkStatus();
    if (token_.kind != TokenKind::kDot) return Expected("a directive");
    const absl::string_view name = token_.text;
    if (name == "entry" || name == "func") return ParseFunction(linkage);
    Space space;
    if (SpaceOfName(name, &space)) {
      Take();
      return Variables(space, linkage, &module_->variables, nullptr);
    }
    Take();
    if (name == "version") return Version();
    if (name == "target") return Target();
    if (name == "address_size") {
      ASSIGN_OR_RETURN(const uint64_t size, Integer("an address size"));
      if (size != 64) return Error(absl::StrCat("address size ", size, " is not 64"));
      return absl::OkStatus();
    }
    if (name == "file" || name == "loc") return SkipLine();
    if (name == "pragma") return SkipPast(';');
    if (name == "section") {
      while (token_.kind != TokenKind::kEnd && !token_.Is('{')) Take();
      return SkipBraces();
    }
    if (name == "alias") return SkipPast(';');
    return Error(absl::StrCat("unknown directive .", name));
  }

  absl::Status SkipLine() {
    // The token behind the directive is already read and lies on the same line.
    const int line = token_.location.line;
    while (token_.kind != TokenKind::kEnd && token_.location.line == line) Take();
    return absl::OkStatus();
  }
  absl::Status SkipPast(char end) {
    while (token_.kind != TokenKind::kEnd && !token_.Is(end)) Take();
    return Expect(end);
  }
  absl::Status SkipBraces() {
    RETURN_IF_ERROR(Expect('{'));
    int depth = 1;
    while (depth > 0) {
      if (token_.kind == TokenKind::kEnd) return Expected("'}'");
      depth += token_.Is('{') ? 1 : token_.Is('}') ? -1 : 0;
      Take();
    }
    return absl::OkStatus();
  }

  absl::Status Version() {
    double version = 0;
    if ((token_.kind != TokenKind::kDouble && token_.kind != TokenKind::kInteger) ||
        !absl::SimpleAtod(token_.text, &version) || version < 1 || version > 99) {
      return Expected("a PTX version like 9.0");
    }
    module_->version = static_cast<int>(version * 10 + 0.5);
    Take();
    return absl::OkStatus();
  }
  absl::Status Target() {
    do {
      ASSIGN_OR_RETURN(absl::string_view target, Identifier("a target like sm_75"));
      if (absl::ConsumePrefix(&target, "sm_")) {
        const size_t digits = target.find_first_not_of("0123456789");
        if (!absl::SimpleAtoi(target.substr(0, digits), &module_->target)) {
          return Error("malformed target");
        }
      }
    } while (Accept(','));
    return absl::OkStatus();
  }

  // ".align 8 .b8 name[16] = {...}, other;" behind the state space. `function` is null at module
  // level.
  absl::Status Variables(Space space, Linkage linkage, std::vector<Variable>* out,
                         Function* function) {
    Variable model;
    RETURN_IF_ERROR(VariableType(space, linkage, &model));
    do {
      Variable variable = model;
      RETURN_IF_ERROR(Declarator(&variable));
      if (Accept('=')) RETURN_IF_ERROR(ParseInitializer(&variable));
      if (function != nullptr) {
        Declare(variable.name, {Scope::Entry::kVariable, static_cast<int>(out->size())});
      }
      out->push_back(std::move(variable));
    } while (Accept(','));
    return Expect(';');
  }

  absl::Status VariableType(Space space, Linkage linkage, Variable* v) {
    v->space = space;
    v->is_extern = linkage.is_extern;
    v->is_visible = linkage.is_visible;
    v->is_weak = linkage.is_weak;
    uint32_t alignment = 0;
    uint32_t vector = 1;
    while (token_.kind == TokenKind::kDot) {
      const absl::string_view name = token_.text;
      Take();
      Space ignored;
      if (name == "align") {
        ASSIGN_OR_RETURN(const uint64_t value, Integer("an alignment"));
        if (value == 0 || value > 4096 || (value & (value - 1)) != 0) {
          return Error(absl::StrCat("alignment ", value, " is not a power of two up to 4096"));
        }
        alignment = static_cast<uint32_t>(value);
      } else if (name == "attribute") {
        RETURN_IF_ERROR(Expect('('));
        while (!token_.Is(')') && token_.kind != TokenKind::kEnd) {
          if (token_.IsDot("managed")) v->is_managed = true;
          Take();
        }
        RETURN_IF_ERROR(Expect(')'));
      } else if (name == "v2" || name == "v4") {
        vector = name == "v2" ? 2 : 4;
      } else if (name == "ptr") {
        while (SpaceOfName(token_.text, &ignored) && token_.kind == TokenKind::kDot) Take();
      } else if (!ParseType(name, &v->type) && !SpaceOfName(name, &ignored)) {
        if (name == "texref" || name == "samplerref" || name == "surfref") {
          v->type = {Type::kBits, 1, 64};
        } else {
          return Error(absl::StrCat("unknown attribute .", name, " of a variable"));
        }
      }
    }
    if (v->type.kind == Type::kNone || v->type.kind == Type::kPred) {
      return Expected("the type of a variable");
    }
    v->size = uint64_t{v->type.bits} / 8 * vector;
    v->alignment = alignment != 0 ? alignment : static_cast<uint32_t>(v->size);
    return absl::OkStatus();
  }

  absl::Status Declarator(Variable* variable) {
    variable->location = token_.location;
    ASSIGN_OR_RETURN(variable->name, Identifier("the name of a variable"));
    while (Accept('[')) {
      if (Accept(']')) {
        variable->unsized = true;
        continue;
      }
      ASSIGN_OR_RETURN(const uint64_t count, Integer("an array size"));
      RETURN_IF_ERROR(Expect(']'));
      if (count != 0 && variable->size > kMaxVariableBytes / count) {
        return Error(absl::StrCat("variable ", variable->name, " is larger than ",
                                  kMaxVariableBytes, " bytes"));
      }
      variable->size *= count;
    }
    return absl::OkStatus();
  }

  absl::Status ParseInitializer(Variable* variable) {
    Initializer& init = variable->initializer;
    const uint32_t element = variable->type.bits / 8;
    if (token_.Is('{')) {
      RETURN_IF_ERROR(InitializerList(element, variable, 0));
    } else {
      RETURN_IF_ERROR(InitializerElement(element, variable));
    }
    if (variable->unsized) {
      variable->size = init.bytes.size();
      variable->unsized = false;
    }
    if (init.bytes.size() > variable->size) {
      return Error(absl::StrCat("initialiser of ", variable->name, " has ", init.bytes.size(),
                                " bytes, more than the ", variable->size, " of the variable"));
    }
    return absl::OkStatus();
  }
  absl::Status InitializerList(uint32_t element, Variable* variable, int depth) {
    if (depth > kMaxNesting) return Error("initialiser is nested too deeply");
    RETURN_IF_ERROR(Expect('{'));
    while (!token_.Is('}')) {
      if (token_.Is('{')) {
        RETURN_IF_ERROR(InitializerList(element, variable, depth + 1));
      } else {
        RETURN_IF_ERROR(InitializerElement(element, variable));
      }
      if (!Accept(',')) break;
    }
    return Expect('}');
  }
  absl::Status InitializerElement(uint32_t element, Variable* variable) {
    Initializer& init = variable->initializer;
    const uint64_t position = init.bytes.size();
    if (position + element > kMaxInitializerBytes) return Error("initialiser is too large");
    init.bytes.resize(position + element, 0);
    const bool negative = Accept('-');
    if (token_.kind == TokenKind::kIdentifier) {
      Initializer::Address address;
      address.position = position;
      address.bytes = static_cast<uint8_t>(element);
      if (token_.text == "generic") {
        address.generic = true;
        Take();
        RETURN_IF_ERROR(Expect('('));
        RETURN_IF_ERROR(AddressWithOffset(&address));
        RETURN_IF_ERROR(Expect(')'));
        RETURN_IF_ERROR(Offset(&address.addend));
      } else {
        RETURN_IF_ERROR(AddressWithOffset(&address));
      }
      init.addresses.push_back(address);
      return absl::OkStatus();
    }
    uint64_t bits = token_.value;
    const Type type = variable->type;
    if (token_.kind == TokenKind::kInteger) {
      Take();
      if (token_.Is('(')) {  // 0xFF00(symbol): one byte of an address
        Initializer::Address address;
        address.position = position;
        address.bytes = static_cast<uint8_t>(element);
        while (address.shift < 56 && (bits >> address.shift & 0xff) == 0) address.shift += 8;
        Take();
        if (token_.text == "generic" && token_.kind == TokenKind::kIdentifier) {
          address.generic = true;
          Take();
          RETURN_IF_ERROR(Expect('('));
          RETURN_IF_ERROR(AddressWithOffset(&address));
          RETURN_IF_ERROR(Expect(')'));
          RETURN_IF_ERROR(Offset(&address.addend));
        } else {
          RETURN_IF_ERROR(AddressWithOffset(&address));
        }
        init.addresses.push_back(address);
        return Expect(')');
      }
      if (negative) bits = 0 - bits;
      if (type.is_float() && type.bits >= 32) {
        const double value = static_cast<double>(static_cast<int64_t>(bits));
        const float narrow = static_cast<float>(value);
        bits = 0;
        if (type.bits == 64)
          std::memcpy(&bits, &value, 8);
        else
          std::memcpy(&bits, &narrow, 4);
      }
    } else if (token_.kind == TokenKind::kSingle || token_.kind == TokenKind::kDouble) {
      const bool single = token_.kind == TokenKind::kSingle;
      Take();
      if (negative) bits ^= single ? uint64_t{1} << 31 : uint64_t{1} << 63;
      if (single && element == 8) {
        float narrow;
        std::memcpy(&narrow, &bits, 4);
        const double wide = narrow;
        std::memcpy(&bits, &wide, 8);
      } else if (!single && element == 4) {
        double wide;
        std::memcpy(&wide, &bits, 8);
        const float narrow = static_cast<float>(wide);
        bits = 0;
        std::memcpy(&bits, &narrow, 4);
      }
    } else {
      return Expected("an initial value");
    }
    std::memcpy(init.bytes.data() + position, &bits, std::min<size_t>(element, 8));
    return absl::OkStatus();
  }
  absl::Status AddressWithOffset(Initializer::Address* address) {
    ASSIGN_OR_RETURN(address->symbol, Identifier("the name of a variable or function"));
    return Offset(&address->addend);
  }
  absl::Status Offset(int64_t* offset) {
    while (token_.Is('+') || token_.Is('-')) {
      bool negative = token_.Is('-');
      Take();
      if (Accept('-')) negative = !negative;  // [%r+-8]
      ASSIGN_OR_RETURN(const uint64_t value, Integer("an offset"));
      *offset =
          static_cast<int64_t>(static_cast<uint64_t>(*offset) + (negative ? 0 - value : value));
    }
    return absl::OkStatus();
  }

  absl::Status ParseFunction(Linkage linkage) {
    module_->functions.emplace_back();
    Function& f = module_->functions.back();
    function_ = &f;
    f.is_entry = token_.text == "entry";
    f.is_extern = linkage.is_extern;
    f.is_visible = linkage.is_visible;
    f.is_weak = linkage.is_weak;
    Take();
    scopes_.clear();
    scopes_.emplace_back();
    label_ids_.clear();
    if (token_.Is('(')) RETURN_IF_ERROR(Parameters(&f.returns));
    f.location = token_.location;
    ASSIGN_OR_RETURN(f.name, Identifier("the name of a function"));
    if (token_.Is('(')) RETURN_IF_ERROR(Parameters(&f.params));
    f.variables = f.params;
    f.variables.insert(f.variables.end(), f.returns.begin(), f.returns.end());
    for (size_t i = 0; i < f.variables.size(); ++i) {
      const Variable& v = f.variables[i];
      if (v.is_register) {
        Declare(v.name, {Scope::Entry::kRegister, v.index});
      } else {
        Declare(v.name, {Scope::Entry::kVariable, static_cast<int>(i)});
      }
    }
    RETURN_IF_ERROR(FunctionDirectives(&f));
    if (Accept(';')) return absl::OkStatus();
    if (!token_.Is('{')) return Expected("'{' or ';'");
    f.has_body = true;
    RETURN_IF_ERROR(Block(0));
    for (const Function::Label& label : f.labels) {
      if (label.position < 0) {
        return ErrorAt(f.location,
                       absl::StrCat("label ", label.name, " is used but not defined in ", f.name));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Parameters(std::vector<Variable>* out) {
    RETURN_IF_ERROR(Expect('('));
    while (!token_.Is(')')) {
      if (token_.kind != TokenKind::kDot) return Expected("a parameter");
      Variable variable;
      const bool is_register = token_.text == "reg";
      if (!is_register && token_.text != "param") return Expected(".param or .reg");
      Take();
      RETURN_IF_ERROR(VariableType(Space::kParam, {}, &variable));
      RETURN_IF_ERROR(Declarator(&variable));
      if (is_register) {
        variable.is_register = true;
        variable.index = static_cast<int>(function_->registers.size());
        function_->registers.push_back({variable.name, variable.type});
      }
      out->push_back(std::move(variable));
      if (!Accept(',')) break;
    }
    return Expect(')');
  }

  absl::Status FunctionDirectives(Function* f) {
    while (token_.kind == TokenKind::kDot) {
      const absl::string_view name = token_.text;
      Take();
      if (name == "pragma") {
        RETURN_IF_ERROR(SkipPast(';'));
        continue;
      }
      if (name == "noreturn") continue;
      const bool threads = name == "maxntid" || name == "reqntid";
      if (!threads && name != "minnctapersm" && name != "maxnctapersm" && name != "maxnreg" &&
          name != "maxclusterrank" && name != "reqnctapercluster" && name != "explicitcluster" &&
          name != "blocksareclusters" && name != "noreturn") {
        return Error(absl::StrCat("unknown directive .", name, " of a function"));
      }
      for (int i = 0; token_.kind == TokenKind::kInteger; ++i) {
        if (i >= 3) return Error(absl::StrCat("too many numbers for .", name));
        if (threads) {
          f->max_threads[i] = static_cast<uint32_t>(std::min<uint64_t>(token_.value, UINT32_MAX));
        }
        Take();
        if (!Accept(',')) break;
      }
      if (threads) {
        for (uint32_t& n : f->max_threads) n = n == 0 ? 1 : n;
      }
    }
    return absl::OkStatus();
  }

  void Declare(absl::string_view name, Scope::Entry entry) { scopes_.back().names[name] = entry; }

  bool Lookup(absl::string_view name, Scope::Entry* entry) const {
    size_t digits = name.size();
    while (digits > 0 && absl::ascii_isdigit(static_cast<unsigned char>(name[digits - 1])))
      --digits;
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

  int LabelId(absl::string_view name) {
    const auto [it, added] =
        label_ids_.try_emplace(name, static_cast<int>(function_->labels.size()));
    if (added) function_->labels.push_back({name, -1});
    return it->second;
  }

  absl::Status Block(int depth) {
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

  absl::Status BodyDirective() {
    const absl::string_view name = token_.text;
    Take();
    Space space;
    if (name == "reg") return Registers();
    if (name == "extern" && token_.IsDot("shared")) {
      Take();
      return Variables(Space::kShared, {.is_extern = true}, &function_->variables, function_);
    }
    if (SpaceOfName(name, &space)) {
      return Variables(space, {}, &function_->variables, function_);
    }
    if (name == "loc" || name == "file") return SkipLine();
    if (name == "pragma") return SkipPast(';');
    if (name == "branchtargets" || name == "callprototype" || name == "calltargets") {
      return SkipPast(';');
    }
    return Error(absl::StrCat("unknown directive .", name, " in a function"));
  }

  absl::Status Registers() {
    Type type;
    uint32_t vector = 1;
    while (token_.kind == TokenKind::kDot) {
      if (token_.text == "v2" || token_.text == "v4") {
        return Error("vector registers are not supported");
      }
      if (!ParseType(token_.text, &type)) return Error(absl::StrCat("unknown type .", token_.text));
      Take();
    }
    (void)vector;
    if (type.kind == Type::kNone) return Expected("the type of registers");
    do {
      const Location at = token_.location;
      ASSIGN_OR_RETURN(const absl::string_view name, Identifier("the name of a register"));
      const int base = static_cast<int>(function_->registers.size());
      uint64_t count = 1;
      const bool is_range = Accept('<');
      if (is_range) {
        ASSIGN_OR_RETURN(count, Integer("the number of registers"));
        RETURN_IF_ERROR(Expect('>'));
      }
      if (count > kMaxRegisters || count + function_->registers.size() > kMaxRegisters) {
        return ErrorAt(at, absl::StrCat("more than ", kMaxRegisters, " registers"));
      }
      if (is_range) {
        scopes_.back().ranges[name] = {base, count};
      } else {
        Declare(name, {Scope::Entry::kRegister, base});
      }
      function_->registers.resize(function_->registers.size() + count, {name, type});
    } while (Accept(','));
    return Expect(';');
  }

  absl::Status Statement() {
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
      if (token_.IsDot("branchtargets") || token_.IsDot("callprototype") ||
          token_.IsDot("calltargets")) {
        return SkipPast(';');
      }
      Function::Label& label = function_->labels[LabelId(instruction.opcode)];
      if (label.position >= 0) {
        return ErrorAt(instruction.location,
                       absl::StrCat("label ", label.name, " is defined twice"));
      }
      label.position = static_cast<int>(function_->body.size());
      return absl::OkStatus();
    }
    // Only video instructions select parts of registers and negate them.
    in_video_ = instruction.opcode[0] == 'v';
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
    function_->body.push_back(std::move(instruction));
    return Expect(';');
  }

  absl::Status ParseOperand(Operand* out, int depth) {
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
      if (negative && out->kind != Operand::Kind::kRegister)
        return Expected("a register behind '-'");
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

  absl::Status NamedOperand(Operand* out) {
    const Token name = token_;
    Take();
    out->name = name.text;
    if (name.text == "_") {
      out->kind = Operand::Kind::kSink;
      return absl::OkStatus();
    }
    Scope::Entry entry;
    if (Lookup(name.text, &entry)) {
      out->kind = entry.kind == Scope::Entry::kRegister ? Operand::Kind::kRegister
                                                        : Operand::Kind::kVariable;
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

  std::unique_ptr<Module> module_;
  Lexer lexer_;
  Token token_;
  Function* function_ = nullptr;
  bool in_video_ = false;
  std::vector<Scope> scopes_;
  absl::flat_hash_map<absl::string_view, int> label_ids_;
};

}  // namespace

bool ParseType(absl::string_view name, Type* type) {
  struct Row {
    absl::string_view name;
    Type type;
  };
  static constexpr Row kTypes[] = {
      {"b8", {Type::kBits, 1, 8}},
      {"b16", {Type::kBits, 1, 16}},
      {"b32", {Type::kBits, 1, 32}},
      {"b64", {Type::kBits, 1, 64}},
      {"b128", {Type::kBits, 1, 128}},
      {"u8", {Type::kUnsigned, 1, 8}},
      {"u16", {Type::kUnsigned, 1, 16}},
      {"u32", {Type::kUnsigned, 1, 32}},
      {"u64", {Type::kUnsigned, 1, 64}},
      {"s8", {Type::kSigned, 1, 8}},
      {"s16", {Type::kSigned, 1, 16}},
      {"s32", {Type::kSigned, 1, 32}},
      {"s64", {Type::kSigned, 1, 64}},
      {"u16x2", {Type::kUnsigned, 2, 32}},
      {"s16x2", {Type::kSigned, 2, 32}},
      {"f16", {Type::kFloat, 1, 16}},
      {"f16x2", {Type::kFloat, 2, 32}},
      {"f32", {Type::kFloat, 1, 32}},
      {"f32x2", {Type::kFloat, 2, 64}},
      {"f64", {Type::kFloat, 1, 64}},
      {"bf16", {Type::kBFloat, 1, 16}},
      {"bf16x2", {Type::kBFloat, 2, 32}},
      {"tf32", {Type::kOtherFloat, 1, 32}},
      {"e4m3x2", {Type::kOtherFloat, 2, 16}},
      {"e5m2x2", {Type::kOtherFloat, 2, 16}},
      {"pred", {Type::kPred, 1, 1}},
  };
  for (const Row& row : kTypes) {
    if (row.name == name) {
      *type = row.type;
      return true;
    }
  }
  return false;
}

std::string Instruction::Name() const {
  std::string name(opcode);
  for (absl::string_view modifier : modifiers) absl::StrAppend(&name, ".", modifier);
  return name;
}

absl::StatusOr<std::unique_ptr<Module>> ParseModule(std::string source) {
  return Parser(std::make_shared<const std::string>(std::move(source))).Run();
}

}  // namespace fargpu::softgpu::ptx
