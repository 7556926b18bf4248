#include "softgpu/ptx/declaration_parser.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/status_macros.h"

namespace fargpu::softgpu::ptx {
namespace {

// No memory is larger; and sums of a few of them, which are made later, do not overflow.
constexpr int64_t kMaxOffset = int64_t{1} << 48;

// Deeper nesting than this in source text is refused, so that hostile text cannot use up the stack.
constexpr size_t kMaxNesting = 64;
constexpr uint64_t kMaxVariableBytes = uint64_t{1} << 40;
constexpr uint64_t kMaxInitializerBytes = uint64_t{1} << 30;

}  // namespace

bool SpaceOfName(absl::string_view name, Space* space) {
  if (name == "global") return *space = Space::kGlobal, true;
  if (name == "const") return *space = Space::kConst, true;
  if (name == "shared") return *space = Space::kShared, true;
  if (name == "local") return *space = Space::kLocal, true;
  if (name == "param") return *space = Space::kParam, true;
  return false;
}

absl::Status DeclarationParser::Variables(Space space, Linkage linkage,
                                          std::vector<Variable>* out) {
  Variable model;
  RETURN_IF_ERROR(VariableType(space, linkage, &model));
  do {
    Variable variable = model;
    RETURN_IF_ERROR(Declarator(&variable));
    if (Accept('=')) RETURN_IF_ERROR(ParseInitializer(&variable));
    out->push_back(std::move(variable));
  } while (Accept(','));
  return Expect(';');
}

absl::Status DeclarationParser::VariableType(Space space, Linkage linkage, Variable* v) {
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

absl::Status DeclarationParser::Declarator(Variable* variable) {
  variable->location = token_.location;
  ASSIGN_OR_RETURN(variable->name, Identifier("the name of a variable"));
  dimensions_.clear();
  while (Accept('[')) {
    if (Accept(']')) {
      variable->unsized = true;
      dimensions_.push_back(0);
      continue;
    }
    ASSIGN_OR_RETURN(const uint64_t count, Integer("an array size"));
    RETURN_IF_ERROR(Expect(']'));
    if (count != 0 && variable->size > kMaxVariableBytes / count) {
      return Error(absl::StrCat("variable ", variable->name, " is larger than ", kMaxVariableBytes,
                                " bytes"));
    }
    variable->size *= count;
    dimensions_.push_back(count);
  }
  return absl::OkStatus();
}

absl::Status DeclarationParser::ParseInitializer(Variable* variable) {
  Initializer& init = variable->initializer;
  if (token_.Is('{')) {
    RETURN_IF_ERROR(InitializerList(variable, 0));
  } else {
    RETURN_IF_ERROR(InitializerElement(variable));
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

absl::Status DeclarationParser::InitializerList(Variable* variable, size_t dimension) {
  if (dimension > kMaxNesting) return Error("initialiser is nested too deeply");
  Initializer& init = variable->initializer;
  const uint64_t start = init.bytes.size();
  RETURN_IF_ERROR(Expect('{'));
  while (!token_.Is('}')) {
    if (token_.Is('{')) {
      RETURN_IF_ERROR(InitializerList(variable, dimension + 1));
    } else {
      RETURN_IF_ERROR(InitializerElement(variable));
    }
    if (!Accept(',')) break;
  }
  // A row that gives fewer values than it has is filled up with zeros.
  uint64_t row = dimension > 0 && dimension < dimensions_.size() ? variable->type.bits / 8u : 0;
  for (size_t k = dimension; k < dimensions_.size() && row != 0; ++k) {
    if (dimensions_[k] != 0 && row > kMaxInitializerBytes / dimensions_[k]) {
      return Error("initialiser is too large");
    }
    row *= dimensions_[k];
  }
  if (init.bytes.size() - start < row) {
    if (start + row > kMaxInitializerBytes) return Error("initialiser is too large");
    init.bytes.resize(start + row, 0);
  }
  return Expect('}');
}

// Behind "generic" or at a name.
absl::Status DeclarationParser::InitializerAddress(Variable* variable,
                                                   Initializer::Address address) {
  if (token_.kind == TokenKind::kIdentifier && token_.text == "generic") {
    address.generic = true;
    Take();
    RETURN_IF_ERROR(Expect('('));
    RETURN_IF_ERROR(AddressWithOffset(&address));
    RETURN_IF_ERROR(Expect(')'));
    RETURN_IF_ERROR(Offset(&address.addend));
  } else {
    RETURN_IF_ERROR(AddressWithOffset(&address));
  }
  variable->initializer.addresses.push_back(address);
  return absl::OkStatus();
}

absl::Status DeclarationParser::InitializerElement(Variable* variable) {
  const uint32_t element = variable->type.bits / 8;
  Initializer& init = variable->initializer;
  const uint64_t position = init.bytes.size();
  if (position + element > kMaxInitializerBytes) return Error("initialiser is too large");
  init.bytes.resize(position + element, 0);
  const bool negative = Accept('-');
  if (token_.kind == TokenKind::kIdentifier) {
    Initializer::Address address;
    address.position = position;
    address.bytes = static_cast<uint8_t>(element);
    return InitializerAddress(variable, address);
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
      RETURN_IF_ERROR(InitializerAddress(variable, address));
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

absl::Status DeclarationParser::AddressWithOffset(Initializer::Address* address) {
  ASSIGN_OR_RETURN(address->symbol, Identifier("the name of a variable or function"));
  return Offset(&address->addend);
}

absl::Status DeclarationParser::Offset(int64_t* offset) {
  while (token_.Is('+') || token_.Is('-')) {
    bool negative = token_.Is('-');
    Take();
    if (Accept('-')) negative = !negative;  // [%r+-8]
    const Location at = token_.location;
    ASSIGN_OR_RETURN(const uint64_t value, Integer("an offset"));
    const auto sum =
        static_cast<int64_t>(static_cast<uint64_t>(*offset) + (negative ? 0 - value : value));
    if (sum > kMaxOffset || sum < -kMaxOffset) {
      return ErrorAt(at, absl::StrCat("offset ", sum, " is beyond the limit of ", kMaxOffset));
    }
    *offset = sum;
  }
  return absl::OkStatus();
}

}  // namespace fargpu::softgpu::ptx
