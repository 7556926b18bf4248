// Which function emits an instruction.
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"

#include "softgpu/llvm/instruction_emitter.h"

namespace fargpu::softgpu {

InstructionEmitter::Handler InstructionEmitter::FindHandler(absl::string_view opcode) {
  using E = InstructionEmitter;
  static const auto* const kHandlers = new absl::flat_hash_map<absl::string_view, Handler>{
      {"mov", &E::EmitMov},
      {"cvta", &E::EmitCvta},
      {"selp", &E::EmitSelp},
      {"setp", &E::EmitSetp},
      {"set", &E::EmitSet},
      {"slct", &E::EmitSlct},
      {"trap", &E::EmitTrap},
      {"brkpt", &E::EmitNothing},
      {"griddepcontrol", &E::EmitNothing},
      {"pmevent", &E::EmitNothing},
      {"add", &E::EmitAddSub},
      {"sub", &E::EmitAddSub},
      {"addc", &E::EmitAddSub},
      {"subc", &E::EmitAddSub},
      {"mul", &E::EmitMul},
      {"mul24", &E::EmitMul},
      {"mad", &E::EmitMad},
      {"madc", &E::EmitMad},
      {"mad24", &E::EmitMad},
      {"fma", &E::EmitFloatArithmetic},
      {"div", &E::EmitDivRem},
      {"rem", &E::EmitDivRem},
      {"rcp", &E::EmitFloatArithmetic},
      {"sqrt", &E::EmitFloatArithmetic},
      {"rsqrt", &E::EmitApproximate},
      {"ex2", &E::EmitApproximate},
      {"lg2", &E::EmitApproximate},
      {"sin", &E::EmitApproximate},
      {"cos", &E::EmitApproximate},
      {"tanh", &E::EmitApproximate},
      {"copysign", &E::EmitCopysign},
      {"testp", &E::EmitTestp},
      {"abs", &E::EmitAbsNeg},
      {"neg", &E::EmitAbsNeg},
      {"min", &E::EmitMinMax},
      {"max", &E::EmitMinMax},
      {"and", &E::EmitLogic},
      {"or", &E::EmitLogic},
      {"xor", &E::EmitLogic},
      {"not", &E::EmitLogic},
      {"cnot", &E::EmitLogic},
      {"shl", &E::EmitShift},
      {"shr", &E::EmitShift},
      {"shf", &E::EmitFunnelShift},
      {"popc", &E::EmitBitCount},
      {"clz", &E::EmitBitCount},
      {"brev", &E::EmitBitCount},
      {"bfind", &E::EmitBitCount},
      {"bfe", &E::EmitBitField},
      {"bfi", &E::EmitBitField},
      {"bmsk", &E::EmitBitField},
      {"szext", &E::EmitBitField},
      {"fns", &E::EmitBitField},
      {"prmt", &E::EmitPermute},
      {"lop3", &E::EmitLop3},
      {"dp4a", &E::EmitDotProduct},
      {"dp2a", &E::EmitDotProduct},
      {"sad", &E::EmitSad},
      {"vadd", &E::EmitVideo},
      {"vsub", &E::EmitVideo},
      {"vabsdiff", &E::EmitVideo},
      {"vmin", &E::EmitVideo},
      {"vmax", &E::EmitVideo},
      {"vset", &E::EmitVideo},
      {"vshl", &E::EmitVideo},
      {"vshr", &E::EmitVideo},
      {"vmad", &E::EmitVideo},
      {"vadd2", &E::EmitVideo},
      {"vsub2", &E::EmitVideo},
      {"vavrg2", &E::EmitVideo},
      {"vabsdiff2", &E::EmitVideo},
      {"vmin2", &E::EmitVideo},
      {"vmax2", &E::EmitVideo},
      {"vset2", &E::EmitVideo},
      {"vadd4", &E::EmitVideo},
      {"vsub4", &E::EmitVideo},
      {"vavrg4", &E::EmitVideo},
      {"vabsdiff4", &E::EmitVideo},
      {"vmin4", &E::EmitVideo},
      {"vmax4", &E::EmitVideo},
      {"vset4", &E::EmitVideo},
      {"cvt", &E::EmitCvt},
      {"ld", &E::EmitLoad},
      {"ldu", &E::EmitLoad},
      {"st", &E::EmitStore},
      {"atom", &E::EmitAtomic},
      {"red", &E::EmitAtomic},
      {"prefetch", &E::EmitPrefetch},
      {"prefetchu", &E::EmitPrefetch},
      {"membar", &E::EmitFence},
      {"fence", &E::EmitFence},
      {"cp", &E::EmitCpAsync},
      {"bar", &E::EmitBarrier},
      {"barrier", &E::EmitBarrier},
      {"shfl", &E::EmitShuffle},
      {"vote", &E::EmitVote},
      {"activemask", &E::EmitActiveMask},
      {"match", &E::EmitMatch},
      {"redux", &E::EmitRedux},
      {"elect", &E::EmitElect},
      {"nanosleep", &E::EmitNanosleep},
      {"call", &E::EmitCall},
      {"mma", &E::EmitMatrixMultiply},
      {"wmma", &E::EmitWmma},
      {"ldmatrix", &E::EmitTile},
      {"stmatrix", &E::EmitTile},
      {"movmatrix", &E::EmitTile},
      {"mbarrier", &E::EmitBarrierObject},
      {"isspacep", &E::EmitIsSpace},
      {"createpolicy", &E::EmitCreatePolicy},
      {"discard", &E::EmitNothing},
      {"applypriority", &E::EmitNothing},
      {"mapa", &E::EmitClusterAddress},
      {"getctarank", &E::EmitClusterAddress},
      {"multimem", &E::EmitMultimem},
      {"tensormap", &E::EmitTensorMap},
      {"setmaxnreg", &E::EmitNothing},
      {"tex", &E::EmitTexture},
      {"tld4", &E::EmitTextureGather},
      {"txq", &E::EmitImageQuery},
      {"suq", &E::EmitImageQuery},
      {"suld", &E::EmitSurface},
      {"sust", &E::EmitSurface},
      {"sured", &E::EmitSurface},
  };
  const auto it = kHandlers->find(opcode);
  return it == kHandlers->end() ? nullptr : it->second;
}

const char* InstructionEmitter::WrongType(const Instruction& i) {
  using Set = absl::flat_hash_set<absl::string_view>;
  static const Set* const kForFloats = new Set{"fma", "rcp", "sqrt", "rsqrt",    "ex2",  "lg2",
                                               "sin", "cos", "tanh", "copysign", "testp"};
  static const Set* const kForIntegers =
      new Set{"addc", "subc",  "madc", "mul24", "mad24", "sad",   "rem",  "shl",
              "shr",  "shf",   "popc", "clz",   "brev",  "bfind", "bfe",  "bfi",
              "bmsk", "szext", "fns",  "prmt",  "lop3",  "dp4a",  "dp2a", "match"};
  static const Set* const kForNumbers =
      new Set{"add", "sub", "mul", "mad", "div", "min", "max", "abs", "neg"};
  const Type type = i.type();
  const bool floats = type.is_float();
  const bool predicate = type.kind == Type::kPred;
  if (kForFloats->contains(i.opcode)) {
    return floats || type.kind == Type::kNone ? nullptr : "a floating point type is needed";
  }
  if (kForIntegers->contains(i.opcode)) {
    return floats || predicate ? "an integer type is needed" : nullptr;
  }
  return predicate && kForNumbers->contains(i.opcode) ? "a type of numbers is needed" : nullptr;
}

}  // namespace fargpu::softgpu
