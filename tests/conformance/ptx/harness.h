#pragma once

#include <cstdint>
#include <cuda.h>
#include <deque>
#include <functional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "softgpu/compiler.h"
#include "tests/conformance/ptx/reference.h"

// A table of instruction forms. A row names the form (opcode and modifiers as a program writes
// them), shows how it is used, and computes in C++ what it must give:
//
//   table->Add("add.s32", "$ %d, %a, %b;", [](int32_t a, int32_t b) { return a + b; });
//
// '$' stands for the form. The registers %a, %b, %c and %d have the widths of the function's
// arguments and of its result (predicates for bool); %p, %q, %r (predicates), %h<8>, %x<8> and
// %y<8> (16, 32 and 64 bits) are free to use. Every combination of the arguments' edge values is
// tried twice: with values that differ from lane to lane, and with values that a warp has in
// common.
namespace fargpu::conformance {

using Values = std::vector<uint64_t>;

// Edge values of an operand, by its C++ type.
const Values& Ints16();
const Values& Ints32();
const Values& Ints64();
const Values& Floats();
const Values& Doubles();
const Values& Halves();
const Values& BHalves();
const Values& HalfPairs();
const Values& BHalfPairs();
const Values& Booleans();

// How close a result must be.
template <typename T>
struct Near {
  double value = 0;
  double absolute = 0;
  double relative = 0;
};

enum class Compare {
  kBits,
  kHalf,  // the floating point ones: any NaN is as good as another
  kHalfPair,
  kBHalf,
  kBHalfPair,
  kFloat,
  kDouble,
  kNearHalf,  // within a tolerance
  kNearBHalf,
  kNearFloat,
  kNearDouble,
};

struct Expectation {
  uint64_t bits = 0;
  double value = 0, absolute = 0, relative = 0;  // kNear...
};

template <typename T>
struct OperandOf;
#define FARGPU_OPERAND(TYPE, WIDTH, POOL, COMPARE, TO_BITS, FROM_BITS)  \
  template <>                                                           \
  struct OperandOf<TYPE> {                                              \
    static constexpr int kBits = WIDTH;                                 \
    static constexpr Compare kCompare = Compare::COMPARE;               \
    static const Values& Pool() { return POOL(); }                      \
    static Expectation Expect(TYPE v) { return {.bits = TO_BITS}; }     \
    static TYPE From([[maybe_unused]] uint64_t u) { return FROM_BITS; } \
  };
FARGPU_OPERAND(bool, 1, Booleans, kBits, v ? 1u : 0u, u != 0)
FARGPU_OPERAND(uint16_t, 16, Ints16, kBits, v, static_cast<uint16_t>(u))
FARGPU_OPERAND(int16_t, 16, Ints16, kBits, static_cast<uint16_t>(v), static_cast<int16_t>(u))
FARGPU_OPERAND(uint32_t, 32, Ints32, kBits, v, static_cast<uint32_t>(u))
FARGPU_OPERAND(int32_t, 32, Ints32, kBits, static_cast<uint32_t>(v), static_cast<int32_t>(u))
FARGPU_OPERAND(uint64_t, 64, Ints64, kBits, v, u)
FARGPU_OPERAND(int64_t, 64, Ints64, kBits, static_cast<uint64_t>(v), static_cast<int64_t>(u))
FARGPU_OPERAND(float, 32, Floats, kFloat, Bits(v), F32(u))
FARGPU_OPERAND(double, 64, Doubles, kDouble, Bits(v), F64(u))
FARGPU_OPERAND(Half, 16, Halves, kHalf, v.bits, Half{static_cast<uint16_t>(u)})
FARGPU_OPERAND(BHalf, 16, BHalves, kBHalf, v.bits, BHalf{static_cast<uint16_t>(u)})
FARGPU_OPERAND(Half2, 32, HalfPairs, kHalfPair, v.bits, Half2{static_cast<uint32_t>(u)})
FARGPU_OPERAND(BHalf2, 32, BHalfPairs, kBHalfPair, v.bits, BHalf2{static_cast<uint32_t>(u)})
#undef FARGPU_OPERAND

template <typename T>
struct OperandOf<Near<T>> {
  static constexpr int kBits = OperandOf<T>::kBits;
  static constexpr Compare kCompare = std::is_same_v<T, float>    ? Compare::kNearFloat
                                      : std::is_same_v<T, double> ? Compare::kNearDouble
                                      : std::is_same_v<T, Half>   ? Compare::kNearHalf
                                                                  : Compare::kNearBHalf;
  static Expectation Expect(Near<T> v) {
    return {.value = v.value, .absolute = v.absolute, .relative = v.relative};
  }
};

// Other values than the types' own for the arguments; null: the type's.
struct Pools {
  const Values* a = nullptr;
  const Values* b = nullptr;
  const Values* c = nullptr;
};

struct OperandSpec {
  int bits = 0;  // 0: there is none
  const Values* values = nullptr;
  bool operator==(const OperandSpec&) const = default;
};

struct Row {
  std::string form;
  std::string code;  // with the form put in
  std::function<Expectation(const uint64_t* inputs)> expected;
  Compare compare = Compare::kBits;
};

// Rows with the same operands; they share kernels.
struct Group {
  OperandSpec inputs[3];
  int result_bits = 0;
  std::vector<Row> rows;
};

// A kernel that is more than one instruction between loads and a store: memory, warps, blocks.
// `code` is its body; %in and %out (64 bits) hold addresses, %p<16>, %h<32>, %x<64>, %y<32> are
// registers of 1, 16, 32 and 64 bits.
struct KernelRow {
  std::vector<std::string> forms;  // the forms that it tests
  std::string code;
  std::function<std::vector<uint32_t>()> expected;  // the words at %out; they start as zeros
  std::vector<uint32_t> input = {};                 // the words at %in
  softgpu::Dim3 grid = {1, 1, 1};
  softgpu::Dim3 block = {32, 1, 1};
  uint32_t dynamic_shared_bytes = 0;
  std::string module = "";        // text before the kernel: variables, functions
  CUresult error = CUDA_SUCCESS;  // what the launch gives
};

class Table {
 public:
  template <typename F>
  void Add(std::string form, std::string code, F expected, Pools pools = {}) {
    AddRow(std::move(form), std::move(code), std::function(std::move(expected)), pools);
  }
  void AddKernel(KernelRow row);

  const std::deque<Group>& groups() const { return groups_; }
  const std::vector<KernelRow>& kernels() const { return kernels_; }
  std::vector<std::string> Forms() const;

 private:
  template <typename R, typename... A>
  void AddRow(std::string form, std::string code, std::function<R(A...)> expected, Pools pools) {
    static_assert(sizeof...(A) <= 3);
    constexpr size_t kCount = sizeof...(A);
    OperandSpec specs[3];
    size_t n = 0;
    ((specs[n++] = {OperandOf<A>::kBits, &OperandOf<A>::Pool()}), ...);
    const Values* given[3] = {pools.a, pools.b, pools.c};
    for (size_t k = 0; k < kCount; ++k) {
      if (given[k] != nullptr) specs[k].values = given[k];
    }
    Row row;
    row.compare = OperandOf<R>::kCompare;
    row.expected = [expected = std::move(expected)](const uint64_t* in) {
      return [&]<size_t... I>(std::index_sequence<I...>) {
        return OperandOf<R>::Expect(expected(OperandOf<A>::From(in[I])...));
      }
      (std::make_index_sequence<kCount>());
    };
    Insert(std::move(form), std::move(code), std::move(row), specs, OperandOf<R>::kBits);
  }
  void Insert(std::string form, std::string code, Row row, const OperandSpec (&specs)[3],
              int result_bits);

  std::deque<Group> groups_;
  std::vector<KernelRow> kernels_;
};

// Runs all rows of `table` and adds a GoogleTest failure for each that is wrong, unless its form is
// one of ExpectedFailures(); those must be wrong.
void RunTable(const Table& table);

// The forms in expected_failures.txt.
const std::set<std::string>& ExpectedFailures();

}  // namespace fargpu::conformance
