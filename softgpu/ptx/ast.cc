#include "softgpu/ptx/ast.h"

#include "absl/strings/str_cat.h"

namespace fargpu::softgpu::ptx {

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
      {"e2m3x2", {Type::kOtherFloat, 2, 16}},
      {"e3m2x2", {Type::kOtherFloat, 2, 16}},
      {"e2m1x2", {Type::kOtherFloat, 2, 8}},
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

}  // namespace fargpu::softgpu::ptx
