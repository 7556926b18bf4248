#pragma once

#include <cstdint>
#include <vector>

#include "softgpu/ptx/ast.h"
#include "softgpu/ptx/token_reader.h"

namespace fargpu::softgpu::ptx {

// False if `name` is not a state space.
bool SpaceOfName(absl::string_view name, Space* space);

struct Linkage {
  bool is_extern = false, is_visible = false, is_weak = false;
};

// Declarations of variables, in modules and in functions, with their initial values.
class DeclarationParser : protected TokenReader {
 protected:
  using TokenReader::TokenReader;

  // ".align 8 .b8 name[16] = {...}, other;" behind the state space. Appends to `out`.
  absl::Status Variables(Space space, Linkage linkage, std::vector<Variable>* out);
  absl::Status VariableType(Space space, Linkage linkage, Variable* v);
  absl::Status Declarator(Variable* variable);
  // "+8", "+-8", ..., if there is any; adds to `offset`.
  absl::Status Offset(int64_t* offset);

 private:
  absl::Status ParseInitializer(Variable* variable);
  // `dimension`: index of the array dimension whose elements the list gives.
  absl::Status InitializerList(Variable* variable, size_t dimension);
  absl::Status InitializerElement(Variable* variable);
  absl::Status InitializerAddress(Variable* variable, Initializer::Address address);
  absl::Status AddressWithOffset(Initializer::Address* address);

  std::vector<uint64_t> dimensions_;  // of the present declarator; 0: not given
};

}  // namespace fargpu::softgpu::ptx
