#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

// What the parser makes of one PTX module. Text (names, modifiers) points into the source, which
// Module::source keeps alive.
namespace fargpu::softgpu::ptx {

struct Location {
  int line = 0;
  int column = 0;
};

// kSharedCluster: of all blocks of a cluster.
enum class Space { kGeneric, kGlobal, kConst, kShared, kLocal, kParam, kSharedCluster };

// A type of PTX, e.g. .s32, .f16x2, .pred. `bits` is the size of the whole (32 for f16x2).
struct Type {
  enum Kind : uint8_t { kNone, kBits, kUnsigned, kSigned, kFloat, kBFloat, kOtherFloat, kPred };
  Kind kind = kNone;
  uint8_t lanes = 1;  // 2 for f16x2 and the like
  uint16_t bits = 0;

  bool is_float() const { return kind == kFloat || kind == kBFloat; }
  bool is_signed() const { return kind == kSigned; }
  bool operator==(const Type&) const = default;
};

struct Operand {
  enum class Kind : uint8_t {
    kRegister,   // reg; negated for !%p and, in vmad, -%r
    kImmediate,  // bits; is_float if it was written as a floating point number (bits of a double)
    kSingle,     // 0fXXXXXXXX: bits of a float
    kSpecial,    // name "%tid", component 'x' or 0
    kVariable,   // variable of the function (index in Function::variables) + offset
    kSymbol,     // module-level name + offset; function names and labels too
    kAddress,    // [base + offset]: parts[0] is a register, variable, symbol or immediate
    kVector,     // {a, b, ...}
    kPair,       // d|p
    kList,       // (a, b): arguments of a call
    kSink,       // _
    kLabel,      // index in Function::labels
  };
  Kind kind = Kind::kSink;
  bool negated = false;
  bool is_float = false;
  char component = 0;
  absl::string_view selector;  // of a register in a video instruction: "b0", "h10"
  int index = -1;              // register, variable or label
  uint64_t bits = 0;
  int64_t offset = 0;
  absl::string_view name;
  std::vector<Operand> parts;
};

struct Instruction {
  Location location;
  absl::string_view opcode;
  std::vector<absl::string_view> modifiers;  // without the dot, in the order written
  std::vector<Type> types;                   // those modifiers that are types, in order
  int guard = -1;                            // register of @p
  bool guard_negated = false;
  std::vector<Operand> operands;
  int carry_in = -1;  // registers of the condition code, once there are several
  int carry_out = -1;

  bool Has(absl::string_view modifier) const {
    for (absl::string_view m : modifiers) {
      if (m == modifier) return true;
    }
    return false;
  }
  Type type() const { return types.empty() ? Type{} : types.front(); }
  // "add.rn.f32", for messages.
  std::string Name() const;
};

struct Register {
  absl::string_view name;
  Type type;
};

// An initial value: bytes, and places where an address is to be added.
struct Initializer {
  struct Address {
    uint64_t position = 0;
    uint8_t bytes = 8;
    int64_t addend = 0;
    bool generic = false;
    absl::string_view symbol;
    uint8_t shift = 0;  // mask(symbol) form: which byte of the address
  };
  std::vector<char> bytes;
  std::vector<Address> addresses;
};

struct Variable {
  Location location;
  absl::string_view name;
  Space space = Space::kGlobal;
  Type type;
  uint64_t size = 0;
  uint32_t alignment = 1;
  bool is_extern = false;
  bool is_visible = false;  // .visible, .weak or .common: other modules may see it
  bool is_weak = false;
  bool is_managed = false;
  bool unsized = false;      // name[] without initialiser
  bool is_register = false;  // parameter of a .func declared as .reg; `index` is its register
  int index = -1;
  Initializer initializer;
};

// What a module's linker needs to know of a function's body.
struct FunctionSummary {
  uint64_t register_words = 0;           // 32-bit words in all registers together
  std::vector<Variable> local;           // .local variables
  std::vector<Variable> shared;          // .shared variables that are not extern
  std::vector<absl::string_view> calls;  // names in calls; most are parameters
  std::vector<absl::string_view> names;  // other names that may be of the module
};

struct Function {
  Location location;
  absl::string_view name;
  bool is_entry = false;
  bool is_extern = false;
  bool is_visible = false;
  bool is_weak = false;
  bool has_body = false;
  std::vector<Variable> returns;
  std::vector<Variable> params;  // variables[i] for i < params.size(), then the returns
  size_t body_offset = 0;        // of the body's '{' in the source
  Location body_location;
  FunctionSummary summary;
  // What follows is complete once the body is parsed (ParseBody).
  bool is_parsed = false;
  std::vector<Register> registers;
  std::vector<Variable> variables;
  std::vector<Instruction> body;
  struct Label {
    absl::string_view name;
    int position = -1;  // index into body
  };
  std::vector<Label> labels;
  uint32_t max_threads[3] = {0, 0, 0};  // .maxntid
  uint32_t cluster[3] = {0, 0, 0};      // .reqnctapercluster
  uint32_t max_cluster_blocks = 0;      // .maxclusterrank
  bool explicit_cluster = false;
  bool blocks_are_clusters = false;
};

struct Module {
  std::shared_ptr<const std::string> source;
  int version = 0;  // 90 for 9.0
  int target = 0;   // 75 for sm_75
  std::vector<Variable> variables;
  std::vector<Function> functions;
  struct Alias {
    Location location;
    absl::string_view name;
    absl::string_view target;
  };
  std::vector<Alias> aliases;
};

// False if `name` ("u32", "f16x2", ...) is not a type.
bool ParseType(absl::string_view name, Type* type);

}  // namespace fargpu::softgpu::ptx
