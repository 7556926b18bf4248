// Instruction families: textures and surfaces. The runtime samples, lane by lane.
#include <algorithm>

#include "absl/strings/str_cat.h"

#include "common/status_macros.h"
#include "softgpu/llvm/instruction_emitter.h"

namespace fargpu::softgpu {

using Kind = ptx::Operand::Kind;

namespace {

constexpr ptx::Type kU32 = {ptx::Type::kUnsigned, 1, 32};
constexpr ptx::Type kS32 = {ptx::Type::kSigned, 1, 32};
constexpr ptx::Type kF32 = {ptx::Type::kFloat, 1, 32};
constexpr ptx::Type kU64 = {ptx::Type::kUnsigned, 1, 64};

struct Geometry {
  absl::string_view name;
  bool layered;
  unsigned coordinates;
};
constexpr Geometry kGeometries[] = {{"1d", false, 1},  {"2d", false, 2}, {"3d", false, 3},
                                    {"a1d", true, 1},  {"a2d", true, 2}, {"cube", false, 3},
                                    {"acube", true, 3}};

const Geometry* GeometryOf(const ptx::Instruction& i) {
  for (const Geometry& g : kGeometries) {
    if (i.Has(g.name)) return &g;
  }
  return nullptr;
}

// The elements of {a, b, ...}, or the operand itself.
std::vector<ptx::Operand> PartsOf(const ptx::Operand& operand) {
  if (operand.kind == Kind::kVector) return operand.parts;
  return {operand};
}

}  // namespace

absl::Status InstructionEmitter::PutImageHandle(const Instruction& i, const Operand& address,
                                                unsigned slot) {
  ASSIGN_OR_RETURN(const LaneValue value, Get(i, address, kU64));
  if (address.kind != Kind::kSymbol && address.kind != Kind::kVariable) {
    PutSlot(slot, AsVector(builder_, value));
    return absl::OkStatus();
  }
  // A texture reference is a variable, or a parameter, that holds the handle.
  llvm::Value* handle = builder_.CreateLoad(
      builder_.getInt64Ty(), builder_.CreateIntToPtr(value.scalar, builder_.getPtrTy()));
  PutSlot(slot, Splat(builder_, handle));
  return absl::OkStatus();
}

// Handle, sampler, layer and coordinates of [tex, {sampler,} {...}].
absl::Status InstructionEmitter::PutTexturePoint(const Instruction& i, const Operand& address,
                                                 bool integer, bool sampler) {
  const Geometry* geometry = GeometryOf(i);
  if (geometry == nullptr) return Unsupported(i, "this geometry");
  RETURN_IF_ERROR(PutImageHandle(i, address.parts[0], 4));
  if (sampler) RETURN_IF_ERROR(PutImageHandle(i, address.parts[1], 5));
  const std::vector<Operand> at = PartsOf(address.parts.back());
  const unsigned first = geometry->layered ? 1 : 0;
  if (at.size() < first + geometry->coordinates) {
    return Malformed(i, absl::StrCat("has ", at.size(), " coordinates, ",
                                     first + geometry->coordinates, " are needed"));
  }
  if (geometry->layered) {
    RETURN_IF_ERROR(PutOperand(i, at[0], kU32, 6));
  } else {
    PutSlot(6, llvm::Constant::getNullValue(VectorOf(builder_.getInt32Ty())));
  }
  for (unsigned k = 0; k < 3; ++k) {
    if (k < geometry->coordinates) {
      RETURN_IF_ERROR(PutOperand(i, at[first + k], integer ? kS32 : kF32, 7 + k));
    } else {
      PutSlot(7 + k, llvm::Constant::getNullValue(VectorOf(builder_.getInt32Ty())));
    }
  }
  return absl::OkStatus();
}

absl::Status InstructionEmitter::EmitTexture(const Instruction& i) {
  if (i.types.size() < 2 || i.operands.size() < 2 || i.operands[1].kind != Kind::kAddress ||
      i.operands[1].parts.size() < 2 || i.operands[1].parts.size() > 3) {
    return Malformed(i, "takes two types, a destination and [texture, coordinates]");
  }
  const Type result = i.types[0];
  if (result.bits != 32 || result.lanes != 1) return Unsupported(i, "results of this type");
  const bool integer = !i.types[1].is_float();
  const bool sampler = i.operands[1].parts.size() == 3;
  uint64_t code = (integer ? kTextureInteger : 0) | (sampler ? kTextureSampler : 0);
  RETURN_IF_ERROR(PutTexturePoint(i, i.operands[1], integer, sampler));
  size_t next = 2;
  const auto put_vector = [&](const Operand& operand, Type type, unsigned slot) -> absl::Status {
    const std::vector<Operand> parts = PartsOf(operand);
    for (unsigned k = 0; k < 3; ++k) {
      if (k < parts.size() && parts[k].kind != Kind::kSink) {
        RETURN_IF_ERROR(PutOperand(i, parts[k], type, slot + k));
      } else {
        PutSlot(slot + k, llvm::Constant::getNullValue(VectorOf(builder_.getInt32Ty())));
      }
    }
    return absl::OkStatus();
  };
  if (i.Has("level")) {
    if (i.operands.size() <= next) return Malformed(i, "the level is missing");
    const Type type = integer ? kS32 : kF32;
    ASSIGN_OR_RETURN(const LaneValue level, Get(i, next++, type));
    llvm::Value* lod = AsVector(builder_, level);
    if (integer) lod = builder_.CreateSIToFP(lod, VectorOf(builder_.getFloatTy()));
    PutSlot(10, lod);
    code |= kTextureLevel;
  } else if (i.Has("grad")) {
    if (i.operands.size() <= next + 1) return Malformed(i, "the gradient is missing");
    RETURN_IF_ERROR(put_vector(i.operands[next++], kF32, 11));
    RETURN_IF_ERROR(put_vector(i.operands[next++], kF32, 14));
    code |= kTextureGradient;
  }
  if (next < i.operands.size()) {
    // An offset is a vector of as many elements as there are coordinates; a single float beside
    // that is the reference of a depth comparison.
    if (i.operands[next].kind != Kind::kVector && GeometryOf(i)->coordinates > 1) {
      return Unsupported(i, "depth comparison");
    }
    RETURN_IF_ERROR(put_vector(i.operands[next++], kS32, 17));
    code |= kTextureOffset;
  }
  if (next < i.operands.size()) return Unsupported(i, "depth comparison");
  RunOperation(Operation::kTexture, code, i);
  const Operand& all = i.operands[0];
  if (all.kind == Kind::kPair) {
    // Every element is resident.
    RETURN_IF_ERROR(
        Set(i, all.parts[1], LaneValue::Uniform(builder_.getTrue()), {Type::kPred, 1, 1}));
  }
  const std::vector<Operand> to = PartsOf(all.kind == Kind::kPair ? all.parts[0] : all);
  for (unsigned k = 0; k < to.size() && k < 4; ++k) {
    RETURN_IF_ERROR(Set(i, to[k], LaneValue::Varying(GetSlot(k, builder_.getInt32Ty())), kU32));
  }
  return absl::OkStatus();
}

absl::Status InstructionEmitter::EmitTextureGather(const Instruction& i) {
  if (i.types.size() < 2 || i.operands.size() < 2 || i.operands[1].kind != Kind::kAddress ||
      i.operands[1].parts.size() < 2) {
    return Malformed(i, "takes two types, a destination and [texture, coordinates]");
  }
  if (i.operands.size() > 2) return Unsupported(i, "offsets and depth comparison");
  const bool sampler = i.operands[1].parts.size() == 3;
  RETURN_IF_ERROR(PutTexturePoint(i, i.operands[1], false, sampler));
  const uint64_t component = i.Has("g") ? 1 : i.Has("b") ? 2 : i.Has("a") ? 3 : 0;
  RunOperation(Operation::kTextureGather,
               (sampler ? kTextureSampler : 0) | component << kTextureComponentShift, i);
  const Operand& all = i.operands[0];
  if (all.kind == Kind::kPair) {
    RETURN_IF_ERROR(
        Set(i, all.parts[1], LaneValue::Uniform(builder_.getTrue()), {Type::kPred, 1, 1}));
  }
  const std::vector<Operand> to = PartsOf(all.kind == Kind::kPair ? all.parts[0] : all);
  for (unsigned k = 0; k < to.size() && k < 4; ++k) {
    RETURN_IF_ERROR(Set(i, to[k], LaneValue::Varying(GetSlot(k, builder_.getInt32Ty())), kU32));
  }
  return absl::OkStatus();
}

absl::Status InstructionEmitter::EmitImageQuery(const Instruction& i) {
  struct Row {
    absl::string_view name;
    ImageQuery query;
  };
  static constexpr Row kQueries[] = {{"width", ImageQuery::kWidth},
                                     {"height", ImageQuery::kHeight},
                                     {"depth", ImageQuery::kDepth},
                                     {"array_size", ImageQuery::kArraySize},
                                     {"num_mipmap_levels", ImageQuery::kLevels},
                                     {"num_samples", ImageQuery::kSamples},
                                     {"channel_data_type", ImageQuery::kChannelType},
                                     {"channel_order", ImageQuery::kChannelOrder},
                                     {"normalized_coords", ImageQuery::kNormalizedCoordinates},
                                     {"force_unnormalized_coords", ImageQuery::kForceUnnormalized},
                                     {"filter_mode", ImageQuery::kFilterMode},
                                     {"addr_mode_0", ImageQuery::kAddressMode0},
                                     {"addr_mode_1", ImageQuery::kAddressMode1},
                                     {"addr_mode_2", ImageQuery::kAddressMode2},
                                     {"memory_layout", ImageQuery::kMemoryLayout}};
  const Row* row = nullptr;
  for (const Row& candidate : kQueries) {
    if (i.Has(candidate.name)) row = &candidate;
  }
  if (row == nullptr) return Unsupported(i, "this query");
  if (i.operands.size() < 2 || i.operands[1].kind != Kind::kAddress) {
    return Malformed(i, "takes a destination and a texture or surface");
  }
  RETURN_IF_ERROR(PutImageHandle(i, i.operands[1].parts[0], 4));
  if (i.operands.size() > 2) {
    RETURN_IF_ERROR(PutOperand(i, i.operands[2], kU32, 10));
  } else {
    PutSlot(10, llvm::Constant::getNullValue(VectorOf(builder_.getInt32Ty())));
  }
  RunOperation(i.opcode == "txq" ? Operation::kTextureQuery : Operation::kSurfaceQuery,
               static_cast<uint64_t>(row->query), i);
  return Set(i, 0, LaneValue::Varying(GetSlot(0, builder_.getInt32Ty())), kU32);
}

absl::Status InstructionEmitter::EmitSurface(const Instruction& i) {
  const bool load = i.opcode == "suld";
  const Geometry* geometry = GeometryOf(i);
  if (geometry == nullptr) return Unsupported(i, "this geometry");
  if (i.types.empty() || i.operands.size() < 2) return Malformed(i, "takes a type, [surface, at]");
  const Operand& address = i.operands[load ? 1 : 0];
  const Operand& values = i.operands[load ? 0 : 1];
  if (address.kind != Kind::kAddress || address.parts.size() != 2) {
    return Malformed(i, "takes [surface, coordinates]");
  }
  const bool formatted = i.Has("p");
  if (formatted && load) return Unsupported(i, "formatted loads");
  const Type type = i.types.back();
  if (type.bits < 8 || type.bits > 64 || type.lanes != 1) return Unsupported(i, "this type");
  const std::vector<Operand> parts = PartsOf(values);
  const unsigned count = i.Has("v4") ? 4 : i.Has("v2") ? 2 : 1;
  if (parts.size() != count) return Malformed(i, "the number of registers does not fit");
  RETURN_IF_ERROR(PutImageHandle(i, address.parts[0], 4));
  // In the order of the operand: {layer,} x {, y {, z}}; z or the layer comes last in the slots.
  const std::vector<Operand> at = PartsOf(address.parts[1]);
  const unsigned first = geometry->layered ? 1 : 0;
  if (at.size() < first + geometry->coordinates) return Malformed(i, "coordinates are missing");
  for (unsigned k = 0; k < 3; ++k) {
    if (k < geometry->coordinates) {
      RETURN_IF_ERROR(PutOperand(i, at[first + k], kS32, 5 + k));
    } else if (k == 2 && geometry->layered) {
      RETURN_IF_ERROR(PutOperand(i, at[0], kS32, 7));
    } else {
      PutSlot(5 + k, llvm::Constant::getNullValue(VectorOf(builder_.getInt32Ty())));
    }
  }
  const SurfaceBounds bounds = i.Has("clamp")  ? SurfaceBounds::kClamp
                               : i.Has("zero") ? SurfaceBounds::kZero
                                               : SurfaceBounds::kTrap;
  uint64_t code = type.bits / 8 | uint64_t{count} << 8 | static_cast<uint64_t>(bounds) << 16;
  if (formatted) code |= kSurfaceFormatted;
  if (formatted && type.is_float()) code |= kSurfaceFloat;
  llvm::Type* element = IntType(type.bits);
  const Type bits = {Type::kBits, 1, type.bits};
  if (!load) {
    for (unsigned k = 0; k < count; ++k) RETURN_IF_ERROR(PutOperand(i, parts[k], bits, 8 + k));
  }
  if (i.opcode == "sured") {
    if (type.bits < 32) return Unsupported(i, "this type");
    const AtomicOp op = i.Has("add")   ? AtomicOp::kAdd
                        : i.Has("min") ? AtomicOp::kMin
                        : i.Has("max") ? AtomicOp::kMax
                        : i.Has("and") ? AtomicOp::kAnd
                                       : AtomicOp::kOr;
    const AtomicType word = type.bits == 32
                                ? (type.is_signed() ? AtomicType::kS32 : AtomicType::kU32)
                                : (type.is_signed() ? AtomicType::kS64 : AtomicType::kU64);
    code |= static_cast<uint64_t>(op) << 24 | static_cast<uint64_t>(word) << 32;
    RunOperation(Operation::kSurfaceReduce, code, i);
    return absl::OkStatus();
  }
  RunOperation(load ? Operation::kSurfaceLoad : Operation::kSurfaceStore, code, i);
  if (!load) return absl::OkStatus();
  for (unsigned k = 0; k < count; ++k) {
    RETURN_IF_ERROR(Set(i, parts[k], LaneValue::Varying(GetSlot(k, element)), bits));
  }
  return absl::OkStatus();
}

}  // namespace fargpu::softgpu
