#pragma once

#include <array>
#include <deque>
#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/Module.h"

#include "softgpu/compiler.h"
#include "softgpu/llvm/lane_value.h"
#include "softgpu/passes/flat_kernel.h"

namespace fargpu::softgpu {

// What compiled code may rely on beyond the kernel itself.
struct CompileOptions {
  Dim3 block{0, 0, 0};  // all zero: known at run time only
  AddressWindow window;
  bool avx512 = false;
};

// A floating point format that is narrower than f32 but laid out alike. Patterns from `infinity`
// on, without the sign, are no numbers.
struct NarrowFormat {
  unsigned fraction_bits;
  int min_exponent;
  unsigned bits;
  uint32_t infinity;
  uint32_t nan;
};
inline constexpr NarrowFormat kHalfFormat = {10, -14, 16, 0x7c00, 0x7fff};
inline constexpr NarrowFormat kBFloatFormat = {7, -126, 16, 0x7f80, 0x7fff};
inline constexpr NarrowFormat kTF32Format = {10, -126, 19, 0x3fc00, 0x3ffff};
inline constexpr NarrowFormat kE4M3Format = {3, -6, 8, 0x7f, 0x7f};
inline constexpr NarrowFormat kE5M2Format = {2, -14, 8, 0x7c, 0x7f};

// Emits LLVM IR for single PTX instructions; control flow and registers are the subclasses'
// business. Where operands are uniform the result is computed once, as a scalar.
class InstructionEmitter {
 public:
  InstructionEmitter(const FlatKernel& kernel, const CompileOptions& options, llvm::Module* module);
  virtual ~InstructionEmitter() = default;

 protected:
  using Type = ptx::Type;
  using Operand = ptx::Operand;
  using Instruction = ptx::Instruction;

  // Registers are bit containers: iN, i1 for predicates.
  virtual LaneValue ReadRegister(int reg) = 0;
  // Writes under the active mask and guard().
  virtual void WriteRegister(int reg, LaneValue value) = 0;
  // <32 x i1>: lanes that execute the present block. Never empty when code runs.
  virtual llvm::Value* BlockMask() = 0;
  virtual bool BlockMaskIsFull() = 0;
  // Of an instruction at which lanes of the warp meet: the lanes among `members` that do, for each
  // lane, and what all of them have brought along, wherever they execute it.
  virtual LaneValue Participants(const LaneValue& members);
  virtual llvm::Value* Contributed(llvm::Value* own) { return own; }

  // Starts the function `name`(WarpContext*), or one that is declared already and has more
  // parameters behind that.
  llvm::Function* BeginFunction(const std::string& name);
  void BeginFunction(llvm::Function* function);
  absl::Status Emit(const Instruction& instruction);
  // Lets the accesses of `block`, whose registers are written once, share their checks. To be
  // called before the first of its instructions is emitted.
  void GroupChecks(const std::vector<Instruction>& block);
  // A predicate of the present instruction, or null.
  const LaneValue* guard() const { return guard_set_ ? &guard_ : nullptr; }
  LaneValue ReadPredicate(int reg, bool negated);

  // Lanes that execute the present instruction.
  llvm::Value* ExecMask();
  llvm::Value* MaskBits(llvm::Value* mask);  // <32 x i1> -> i32
  llvm::Value* MaskFromBits(llvm::Value* bits);
  llvm::Value* Any(llvm::Value* mask);  // i1

  // Of the warp that runs.
  llvm::Value* WarpIndex();
  llvm::Value* BlockIndex(int axis);
  llvm::Value* LocalBase();  // address of lane 0's local memory
  // The warp waits at barrier `id` for the block's warps, or for some `threads` (if not 0).
  virtual void BlockBarrier(llvm::Value* id, llvm::Value* threads);
  // The warp waits for something that others do and cannot be told of: they run for a while.
  // Does the present block lie in a loop in which the warps of a block meet at barriers?
  virtual bool InLoopWithBarrier() { return false; }
  virtual void LetOthersRun() { CallRuntime(kRuntimeYield, builder_.getVoidTy(), {}); }
  llvm::Value* CallRuntime(RuntimeFunction function, llvm::Type* result,
                           std::initializer_list<llvm::Value*> arguments);
  // Calls a runtime function that does not return, where `bad` (i1) is true.
  void FailIf(llvm::Value* bad, RuntimeFunction function,
              std::initializer_list<llvm::Value*> arguments);
  llvm::MDNode* ColdBranch();    // weights of a branch that is hardly ever taken
  llvm::MDNode* LikelyBranch();  // ... nearly always
  llvm::Value* Int32(uint32_t value) { return builder_.getInt32(value); }
  llvm::AllocaInst* EntryAlloca(llvm::Type* type, const char* name);
  llvm::Value* ContextField(llvm::Type* type, size_t offset, const char* name);
  const LaneOffsets* Keep(const LaneOffsets& offsets);
  const ScaledIndex* Keep(const ScaledIndex& scaled);
  llvm::Type* RegisterType(int reg);
  llvm::VectorType* VectorOf(llvm::Type* type) {
    return llvm::FixedVectorType::get(type, kWarpSize);
  }

  absl::StatusOr<LaneValue> Get(const Instruction& at, size_t operand, Type type);
  struct BarrierOperands {
    BarrierOp op;
    LaneValue id;
    LaneValue threads;    // zero: all
    LaneValue predicate;  // of reductions
  };
  absl::StatusOr<BarrierOperands> ParseBarrier(const Instruction& i);
  absl::Status SetBarrierResult(const Instruction& i, BarrierOp op, const LaneValue& result);
  // `value` where the guard holds, else `old`. There is a guard.
  LaneValue GuardedValue(const LaneValue& value, const LaneValue& old);
  llvm::Value* FirstActive(llvm::Value* vector);                   // its element in the lowest lane
  llvm::Value* SpillLanes(llvm::Value* vector, const char* name);  // -> alloca holding it

  llvm::LLVMContext& context_;
  const FlatKernel& kernel_;
  const CompileOptions& options_;
  llvm::Module* const module_;
  llvm::IRBuilder<> builder_;
  llvm::Function* function_ = nullptr;
  llvm::Value* warp_ = nullptr;  // WarpContext*
  // Set where code runs more than one warp; otherwise they are in the context.
  llvm::Value* warp_index_ = nullptr;
  llvm::Value* block_index_[3] = {};
  // The context's local memory is that of warp 0; the others' lies behind it.
  bool local_by_warp_ = false;
  // A runtime function has been called that may let other warps run before it returns.
  bool suspends_ = false;

 private:
  // Operands fetched together: all scalars, or all vectors.
  struct Args {
    bool uniform = false;
    llvm::Value* v[4] = {};
    LaneValue Wrap(llvm::Value* result) const {
      return uniform ? LaneValue::Uniform(result) : LaneValue::Varying(result);
    }
  };
  using Handler = absl::Status (InstructionEmitter::*)(const Instruction&);
  static Handler FindHandler(absl::string_view opcode);
  // What is wrong with the type that an instruction is written with, if anything.
  static const char* WrongType(const Instruction& i);

  absl::Status Unsupported(const Instruction& at, absl::string_view what);
  absl::Status Malformed(const Instruction& at, absl::string_view what);

  llvm::Type* ValueType(Type type);
  llvm::Type* IntType(unsigned bits) { return builder_.getIntNTy(bits); }
  absl::StatusOr<LaneValue> Get(const Instruction& at, const Operand& operand, Type type);
  absl::StatusOr<LaneValue> ReadSpecial(const Instruction& at, const Operand& operand);
  absl::StatusOr<Args> Fetch(const Instruction& at,
                             std::initializer_list<std::pair<size_t, Type>> operands);
  Args Unify(std::initializer_list<LaneValue> values);
  absl::Status Set(const Instruction& at, const Operand& operand, LaneValue value, Type type);
  absl::Status Set(const Instruction& at, size_t operand, LaneValue value, Type type);
  LaneValue Resize(const LaneValue& value, unsigned bits, bool sign);
  LaneValue CastTo(const LaneValue& value, llvm::Type* type);  // bitcast of each lane
  llvm::Value* Splatted(const Args& args, llvm::Value* scalar) {
    return args.uniform ? scalar : Splat(builder_, scalar);
  }
  llvm::Value* Constant(llvm::Value* like, uint64_t value);
  llvm::Value* FloatConstant(llvm::Value* like, double value);
  llvm::Type* SameShape(llvm::Value* like, llvm::Type* element);
  llvm::Value* Intrinsic(llvm::Intrinsic::ID id, std::initializer_list<llvm::Value*> arguments);
  llvm::Value* AsBits(llvm::Value* value);             // float -> int of the same size
  llvm::Value* AsType(llvm::Value* value, Type type);  // int -> the float type of `type`

  // emit_integer.cc
  absl::Status EmitAddSub(const Instruction& i);
  absl::Status EmitMul(const Instruction& i);
  absl::Status EmitMad(const Instruction& i);
  absl::Status EmitDivRem(const Instruction& i);
  absl::Status EmitIntegerDivRem(const Instruction& i);
  absl::Status EmitAbsNeg(const Instruction& i);
  absl::Status EmitMinMax(const Instruction& i);
  llvm::Value* Mul24(const Instruction& i, llvm::Value* a, llvm::Value* b);

  // emit_bits.cc
  absl::Status EmitLogic(const Instruction& i);
  absl::Status EmitShift(const Instruction& i);
  absl::Status EmitFunnelShift(const Instruction& i);
  absl::Status EmitBitCount(const Instruction& i);
  absl::Status EmitBitField(const Instruction& i);
  absl::Status EmitBitFieldExtract(const Instruction& i);
  absl::Status EmitBitFieldInsert(const Instruction& i);
  absl::Status EmitFindNth(const Instruction& i);
  absl::Status EmitPermute(const Instruction& i);
  absl::Status EmitLop3(const Instruction& i);
  absl::Status EmitCarryAdd(const Instruction& i, llvm::Value* a, llvm::Value* b, const Args& args,
                            Type type, bool subtract);
  llvm::Value* MulHigh(llvm::Value* a, llvm::Value* b, bool is_signed);
  // Is more known of it than that it differs between lanes?
  static bool HasForm(const LaneValue& v) { return v.pattern() || v.scaled != nullptr; }
  LaneValue PatternAdd(const LaneValue& a, const LaneValue& b, bool subtract);
  LaneValue PatternMul(const LaneValue& a, const LaneValue& b);
  LaneValue PatternWiden(const LaneValue& value, unsigned bits, bool sign);

  // emit_move.cc
  absl::Status EmitMov(const Instruction& i);
  absl::Status EmitCvta(const Instruction& i);
  absl::Status EmitSelp(const Instruction& i);
  absl::Status EmitSetp(const Instruction& i);
  absl::Status EmitSet(const Instruction& i);
  absl::StatusOr<std::vector<LaneValue>> CompareOperands(const Instruction& i, Type type);
  absl::StatusOr<LaneValue> CombinePredicate(const Instruction& i, const LaneValue& value);
  absl::Status EmitSlct(const Instruction& i);
  absl::Status EmitNothing(const Instruction& i);
  absl::Status EmitTrap(const Instruction& i);
  absl::StatusOr<llvm::Value*> Compare(const Instruction& i, llvm::Value* a, llvm::Value* b,
                                       Type type);

  // emit_float.cc
  absl::Status EmitFloatArithmetic(const Instruction& i);  // add sub mul div fma rcp sqrt
  absl::Status EmitFloatMinMax(const Instruction& i);
  llvm::Value* PickFloat(const Instruction& i, llvm::Value* a, llvm::Value* b);
  absl::Status EmitFloatAbsNeg(const Instruction& i);
  absl::Status EmitApproximate(const Instruction& i);  // ex2 lg2 sin cos tanh rsqrt
  absl::Status EmitCopysign(const Instruction& i);
  absl::Status EmitTestp(const Instruction& i);
  llvm::Value* Flush(const Instruction& i, Type type, llvm::Value* value);  // denormals, if .ftz
  llvm::Value* Saturate(const Instruction& i, llvm::Value* value);          // if .sat
  absl::StatusOr<llvm::Value*> Rounded(const Instruction& i, RoundedOp op, Type type,
                                       llvm::Value* a, llvm::Value* b, llvm::Value* c);
  llvm::Value* Exp2(llvm::Value* x);
  llvm::Value* Log2(llvm::Value* x);
  llvm::Value* SinCos(llvm::Value* x, bool cosine);
  llvm::Value* Tanh(llvm::Value* x);
  llvm::Value* RoundedByRuntime(RoundedOp op, RoundingMode mode, bool is_f64, llvm::Value* a,
                                llvm::Value* b, llvm::Value* c);
  llvm::Value* RoundedByAvx512(RoundedOp op, RoundingMode mode, bool is_f64, llvm::Value* a,
                               llvm::Value* b, llvm::Value* c);
  llvm::Value* BFloatToFloat(llvm::Value* bits);
  llvm::Value* FloatToBFloat(llvm::Value* value);
  llvm::Value* LoadHalf(Type type, llvm::Value* bits);  // 16-bit pattern -> float (or half)
  llvm::Value* StoreHalf(Type type, llvm::Value* value);
  // double -> float, inexact results made odd, so that a second rounding to a half comes out right.
  llvm::Value* NarrowToOdd(llvm::Value* wide);
  llvm::Value* AddToOdd(llvm::Value* a, llvm::Value* b);                  // doubles, likewise
  llvm::Value* FmaToOdd(llvm::Value* a, llvm::Value* b, llvm::Value* c);  // floats; AVX-512
  llvm::Value* FlushHalf(Type type, llvm::Value* bits);
  absl::StatusOr<llvm::Value*> HalfOperation(const Instruction& i, Type type,
                                             const std::array<llvm::Value*, 3>& bits);
  absl::Status EmitHalfArithmetic(const Instruction& i);
  absl::Status EmitFloatPair(const Instruction& i);

  // emit_convert.cc
  absl::Status EmitCvt(const Instruction& i);
  absl::Status ConvertIntegerToFloat(const Instruction& i, Type to, Type from);
  absl::Status ConvertFloatToInteger(const Instruction& i, Type to, Type from);
  absl::Status ConvertFloatToFloat(const Instruction& i, Type to, Type from);
  absl::Status ConvertPacked(const Instruction& i);
  absl::Status EmitConvertPack(const Instruction& i);
  // The float `x` in another format, as an i32; `finite`: never infinite.
  llvm::Value* Narrow(const NarrowFormat& format, RoundingMode mode, bool finite, llvm::Value* x);
  llvm::Value* RoundToHalf(Type type, RoundingMode mode, bool finite, llvm::Value* x);
  llvm::Value* RoundWhole(const Instruction& i, llvm::Value* x);
  llvm::Value* IntegerToOdd(llvm::Value* v, bool is_signed);
  llvm::Value* ClampInteger(llvm::Value* value, Type from, unsigned bits, bool is_signed);
  llvm::Value* Relu(llvm::Value* x);

  // emit_video.cc
  absl::Status EmitVideo(const Instruction& i);
  absl::Status EmitVideoLanes(const Instruction& i, unsigned lanes);
  absl::Status EmitVideoMad(const Instruction& i);
  absl::StatusOr<llvm::Value*> VideoOperation(const Instruction& i, absl::string_view op,
                                              llvm::Value* a, llvm::Value* b);
  llvm::Value* VideoSelect(llvm::Value* value, absl::string_view selector, Type type);
  absl::Status EmitDotProduct(const Instruction& i);
  absl::Status EmitSad(const Instruction& i);
  absl::Status EmitPackedInteger(const Instruction& i);

  // emit_memory.cc
  struct Access {
    ptx::Space space = ptx::Space::kGeneric;
    Type type;
    unsigned count = 1;  // elements of a vector access
    unsigned bytes() const { return type.bits / 8 * count; }
  };
  absl::StatusOr<Access> ParseAccess(const Instruction& i);
  // Accesses of a block through one register, checked together by the first.
  struct CheckGroup {
    int64_t low = 0;  // offsets from the register
    int64_t high = 0;
    int64_t anchor = 0;  // of an access of the widest kind, `bytes`
    unsigned bytes = 0;
    bool done = false;
    LaneValue first;  // plain address at `low`
  };
  LaneValue CheckRange(const Instruction& i, const LaneValue& base, ptx::Space space,
                       const CheckGroup& group);
  // The plain address, checked for all executing lanes.
  absl::StatusOr<LaneValue> CheckedAddress(const Instruction& i, const Operand& operand,
                                           ptx::Space space, unsigned bytes);
  absl::Status EmitLoad(const Instruction& i);
  absl::Status EmitStore(const Instruction& i);
  absl::Status EmitStoreOf(const Instruction& i, const Access& access);
  llvm::Value* CountLanes(llvm::Value* address, llvm::Value* step, bool block_private);
  absl::Status EmitAtomic(const Instruction& i);
  absl::Status EmitAtomic128(const Instruction& i, const Access& access, AtomicOp op);
  absl::Status EmitPrefetch(const Instruction& i);
  absl::Status EmitFence(const Instruction& i);
  bool IsOrdered(const Instruction& i);
  void KeepOrder(const Instruction& i);  // if it is ordered
  llvm::Value* LoadWithPattern(const LaneValue& address, unsigned offset, unsigned extent,
                               llvm::Type* type, llvm::Value* mask);

  // emit_pattern.cc
  llvm::Value* PatternLoad(const LaneValue& address, unsigned offset, unsigned extent,
                           llvm::Type* type, llvm::Value* mask, bool full);
  llvm::Value* HalfPatternLoad(llvm::Value* address, const int64_t* lanes, int64_t offset,
                               int64_t extent, llvm::Type* type);
  bool PatternStore(const LaneValue& address, unsigned offset, llvm::Value* value,
                    llvm::Value* mask, bool full);

  // emit_runs.cc
  llvm::Value* AllLanes(const LaneValue& value);           // <32 x i64>, made anew
  llvm::Value* OneLane(const LaneValue& value, int lane);  // i64
  llvm::Value* FormRuns(const ScaledIndex& at, unsigned stride, llvm::Value* mask);
  llvm::Value* HalfOf(llvm::Value* vector, int half);
  // As the machine does it, lane by lane.
  llvm::Value* LanePointers(const LaneValue& address, unsigned offset);
  llvm::Value* Gather(const LaneValue& address, unsigned offset, llvm::Type* type,
                      llvm::Value* mask);
  void Scatter(const LaneValue& address, unsigned offset, llvm::Value* value, llvm::Value* mask);
  // Elements `offset` bytes behind the addresses of an access of `extent` bytes.
  llvm::Value* GatherElement(const LaneValue& address, unsigned offset, unsigned extent,
                             llvm::Type* type, llvm::Value* mask);
  // Asks for what the same load will read in the next round of its loop, if it goes on as it did.
  void PrefetchNextRound(const LaneValue& address);
  void ScatterElement(const LaneValue& address, unsigned offset, llvm::Value* value,
                      llvm::Value* mask);

  // emit_operation.cc
  void PutSlot(unsigned slot, llvm::Value* vector);
  llvm::Value* GetSlot(unsigned slot, llvm::Type* element);  // <32 x element>
  void RunOperation(Operation operation, uint64_t code, const Instruction& at);
  // Puts operand `operand`, read as `type`, into `slot`.
  absl::Status PutOperand(const Instruction& i, const Operand& operand, Type type, unsigned slot);
  llvm::Value* SlotAddress(unsigned slot);

  // emit_matrix.cc
  absl::Status EmitMatrixMultiply(const Instruction& i);  // mma, wmma.mma
  absl::Status EmitWmma(const Instruction& i);
  absl::Status EmitTile(const Instruction& i);  // ldmatrix stmatrix movmatrix
  absl::StatusOr<MatrixCode> ParseMatrix(const Instruction& i, std::vector<MatrixType>* types);
  absl::Status PutRegisters(const Instruction& i, const Operand& operand, unsigned slot,
                            unsigned bits, unsigned count);
  absl::Status SetRegisters(const Instruction& i, const Operand& operand, unsigned slot,
                            unsigned bits, unsigned count);
  // Base and offset of an address in shared memory (an offset) or elsewhere, unchecked, as 64 bits.
  absl::Status PutUncheckedAddress(const Instruction& i, const Operand& operand, unsigned slot);

  // emit_async.cc
  absl::Status EmitCpAsync(const Instruction& i);
  absl::Status EmitBulkCopy(const Instruction& i);
  absl::Status EmitBarrierObject(const Instruction& i);  // mbarrier
  absl::Status EmitIsSpace(const Instruction& i);
  absl::Status EmitCreatePolicy(const Instruction& i);

  // emit_cluster.cc
  llvm::Value* ClusterSize(int axis);
  llvm::Value* ClusterRank();
  llvm::Value* ClusterField(size_t offset, const char* name);
  // Addresses in .shared::cluster and plain ones. What lies outside becomes zero.
  LaneValue PlainOfCluster(const LaneValue& address, unsigned bytes);
  LaneValue ClusterOfPlain(const LaneValue& address);
  absl::Status EmitClusterAddress(const Instruction& i);  // mapa getctarank
  // What st.async and red.async do at their barrier object.
  absl::Status CompleteAsync(const Instruction& i, unsigned bytes);

  // emit_tensor.cc
  absl::Status EmitTensorCopy(const Instruction& i);  // cp.async.bulk.tensor
  absl::Status EmitTensorMap(const Instruction& i);
  absl::Status EmitMultimem(const Instruction& i);

  // emit_texture.cc
  absl::Status EmitTexture(const Instruction& i);        // tex
  absl::Status EmitTextureGather(const Instruction& i);  // tld4
  absl::Status EmitImageQuery(const Instruction& i);     // txq suq
  absl::Status EmitSurface(const Instruction& i);        // suld sust sured
  absl::Status PutImageHandle(const Instruction& i, const Operand& address, unsigned slot);
  absl::Status PutTexturePoint(const Instruction& i, const Operand& address, bool integer,
                               bool sampler);

  // emit_warp.cc
  absl::Status EmitBarrier(const Instruction& i);
  absl::Status EmitElect(const Instruction& i);
  absl::Status EmitShuffle(const Instruction& i);
  llvm::Value* Permute(llvm::Value* source, llvm::Value* lanes);  // AVX-512
  absl::Status EmitVote(const Instruction& i);
  absl::Status EmitActiveMask(const Instruction& i);
  absl::Status EmitMatch(const Instruction& i);
  absl::Status EmitRedux(const Instruction& i);
  absl::Status EmitNanosleep(const Instruction& i);
  absl::Status EmitCall(const Instruction& i);

  std::map<std::pair<int, ptx::Space>, CheckGroup> check_groups_;
  LaneValue guard_;
  bool guard_set_ = false;
  llvm::Value* exec_mask_ = nullptr;
  std::deque<LaneOffsets> offsets_;
  std::deque<ScaledIndex> scaled_;
  LaneOffsets lane_ids_;
  llvm::AllocaInst* slots_ = nullptr;  // of RunOperation, one set for the whole function
};

}  // namespace fargpu::softgpu
