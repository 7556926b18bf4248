#include "softgpu/exec/matrix_operations.h"

#include <cpuid.h>
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "softgpu/exec/half.h"
#include "softgpu/exec/matrix_avx512.h"

namespace fargpu::softgpu {
namespace {

constexpr int kMaxElements = 32 * 64;  // of A or B of 32 bits each; b1 is not unpacked

uint32_t BitsOf(MatrixType type) {
  switch (type) {
    case MatrixType::kF16:
    case MatrixType::kBF16:
      return 16;
    case MatrixType::kS8:
    case MatrixType::kU8:
    case MatrixType::kE4M3:
    case MatrixType::kE5M2:
      return 8;
    case MatrixType::kS4:
    case MatrixType::kU4:
      return 4;
    case MatrixType::kB1:
      return 1;
    case MatrixType::kF64:
      return 64;
    default:
      return 32;
  }
}
uint32_t WordBits(MatrixType type) { return type == MatrixType::kF64 ? 64 : 32; }

// A lane's place: the quad it belongs to, and its place in the quad.
struct Place {
  uint32_t group;
  uint32_t thread;
};
Place PlaceOf(uint32_t lane) { return {lane >> 2, lane & 3}; }

// Where register r of a lane lies in A (m rows of words along k), B (words along k by columns) or
// an accumulator (elements 2r and 2r + 1 for packed ones).
struct WordPlace {
  uint32_t line;  // row of A, column of B
  uint32_t word;  // along k
};
WordPlace WordOfA(uint32_t m, uint32_t r, uint32_t lane) {
  const Place p = PlaceOf(lane);
  const uint32_t tiles = m / 8;
  return {p.group + 8 * (r % tiles), p.thread + 4 * (r / tiles)};
}
WordPlace WordOfB(uint32_t words, uint32_t r, uint32_t lane) {
  const Place p = PlaceOf(lane);
  const uint32_t tiles = words / 4;
  return {p.group + 8 * (r / tiles), p.thread + 4 * (r % tiles)};
}
struct ElementPlace {
  uint32_t row;
  uint32_t column;
};
ElementPlace ElementOfC(uint32_t m, uint32_t e, uint32_t lane) {
  const Place p = PlaceOf(lane);
  const uint32_t tile = e / 2;
  const uint32_t tiles = m / 8;
  return {p.group + 8 * (tile % tiles), 8 * (tile / tiles) + 2 * p.thread + e % 2};
}

float SmallFloat(uint32_t bits, bool e4m3) {
  const uint32_t sign = (bits & 0x80) << 24;
  if (e4m3) {
    const uint32_t magnitude = bits & 0x7f;
    if (magnitude == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
    if (magnitude < 8) {
      const float small = static_cast<float>(magnitude) * 0x1p-9f;
      return sign != 0 ? -small : small;
    }
    return std::bit_cast<float>(sign | ((magnitude << 20) + (120u << 23)));
  }
  return HalfToFloat(static_cast<uint16_t>(bits << 8));
}

const std::array<float, 256>& SmallTable(bool e4m3) {
  static const auto make = [](bool first) {
    std::array<float, 256> table;
    for (uint32_t k = 0; k < 256; ++k) table[k] = SmallFloat(k, first);
    return table;
  };
  static const std::array<float, 256> kE4M3 = make(true);
  static const std::array<float, 256> kE5M2 = make(false);
  return e4m3 ? kE4M3 : kE5M2;
}

__attribute__((target("avx,f16c"))) void WidenHalvesF16c(const uint16_t* in, float* out) {
  for (int k = 0; k < 2 * kWarpSize; k += 8) {
    _mm256_storeu_ps(out + k,
                     _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + k))));
  }
}

// clang 14's __builtin_cpu_supports does not know F16C.
bool HasF16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool HasAvx2() {
  static const bool has =
      __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 && HasF16c();
  return has;
}

// The elements of one register of all lanes, lane by lane.
void UnpackFloats(MatrixType type, const uint32_t* words, float* out) {
  switch (type) {
    case MatrixType::kF16: {
      const auto* halves = reinterpret_cast<const uint16_t*>(words);
      if (HasAvx2()) return WidenHalvesF16c(halves, out);
      for (int k = 0; k < 2 * kWarpSize; ++k) out[k] = HalfToFloat(halves[k]);
      return;
    }
    case MatrixType::kBF16:
      for (int k = 0; k < kWarpSize; ++k) {
        out[2 * k] = std::bit_cast<float>(words[k] << 16);
        out[2 * k + 1] = std::bit_cast<float>(words[k] & 0xffff0000);
      }
      return;
    case MatrixType::kTF32:  // the low bits are not looked at
      for (int k = 0; k < kWarpSize; ++k) out[k] = std::bit_cast<float>(words[k] & 0xffffe000);
      return;
    default: {
      const std::array<float, 256>& table = SmallTable(type == MatrixType::kE4M3);
      const auto* bytes = reinterpret_cast<const uint8_t*>(words);
      for (int k = 0; k < 4 * kWarpSize; ++k) out[k] = table[bytes[k]];
    }
  }
}

void UnpackIntegers(MatrixType type, const uint32_t* words, int32_t* out) {
  const uint32_t bits = BitsOf(type);
  const bool is_signed = type == MatrixType::kS8 || type == MatrixType::kS4;
  const uint32_t per_word = 32 / bits;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    for (uint32_t e = 0; e < per_word; ++e) {
      const uint32_t raw = words[lane] << (32 - bits * (e + 1));
      *out++ = is_signed ? static_cast<int32_t>(raw) >> (32 - bits)
                         : static_cast<int32_t>(raw >> (32 - bits));
    }
  }
}

// C, A (by rows) and B (by rows of k) of one product.
template <typename T>
struct Tiles {
  alignas(64) T a[kMaxElements];
  alignas(64) T b[kMaxElements];
  alignas(64) T c[256];
};

template <typename T>
void MultiplyPlain(Tiles<T>* t, uint32_t m, uint32_t n, uint32_t k) {
  for (uint32_t row = 0; row < m; ++row) {
    for (uint32_t x = 0; x < k; ++x) {
      const T a = t->a[row * k + x];
      for (uint32_t column = 0; column < n; ++column) {
        if constexpr (std::is_floating_point_v<T>) {
          t->c[row * n + column] = std::fma(a, t->b[x * n + column], t->c[row * n + column]);
        } else {
          t->c[row * n + column] += a * t->b[x * n + column];
        }
      }
    }
  }
}

__attribute__((target("avx2,fma"))) void MultiplyAvx2(Tiles<float>* t, uint32_t m, uint32_t n,
                                                      uint32_t k) {
  for (uint32_t row = 0; row < m; row += 4) {
    for (uint32_t column = 0; column < n; column += 8) {
      float* c = t->c + row * n + column;
      __m256 sum[4];
      for (uint32_t r = 0; r < 4; ++r) sum[r] = _mm256_load_ps(c + r * n);
      for (uint32_t x = 0; x < k; ++x) {
        const __m256 b = _mm256_load_ps(t->b + x * n + column);
        for (uint32_t r = 0; r < 4; ++r) {
          sum[r] = _mm256_fmadd_ps(_mm256_broadcast_ss(t->a + (row + r) * k + x), b, sum[r]);
        }
      }
      for (uint32_t r = 0; r < 4; ++r) _mm256_store_ps(c + r * n, sum[r]);
    }
  }
}

void Multiply(Tiles<float>* t, uint32_t m, uint32_t n, uint32_t k) {
  if (HasAvx2()) return MultiplyAvx2(t, m, n, k);
  MultiplyPlain(t, m, n, k);
}

// Fills A and B from fragments. `unpack(register, elements)` gives the elements of a register.
template <typename T, typename Unpack>
void FillOperands(const MatrixCode& code, Tiles<T>* t, const Unpack& unpack) {
  const uint32_t word_bits = WordBits(code.a);
  const uint32_t per_word = word_bits / BitsOf(code.a);
  const uint32_t words = code.k / per_word;
  const uint32_t a_registers = code.m * words / kWarpSize;
  const uint32_t b_registers = code.n * words / kWarpSize;
  T elements[8 * kWarpSize];
  for (uint32_t r = 0; r < a_registers; ++r) {
    unpack(code.a, 8 + r, elements);
    for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
      const WordPlace p = WordOfA(code.m, r, lane);
      std::memcpy(t->a + p.line * code.k + p.word * per_word, elements + lane * per_word,
                  per_word * sizeof(T));
    }
  }
  for (uint32_t r = 0; r < b_registers; ++r) {
    unpack(code.b, 16 + r, elements);
    for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
      const WordPlace p = WordOfB(words, r, lane);
      for (uint32_t e = 0; e < per_word; ++e) {
        t->b[(p.word * per_word + e) * code.n + p.line] = elements[lane * per_word + e];
      }
    }
  }
}

float LoadAccumulator(const OperationCall& call, MatrixType type, unsigned slot, uint32_t e,
                      uint32_t lane) {
  if (type == MatrixType::kF16) {
    return HalfToFloat(call.slots.Of<uint16_t>(slot + e / 2)[2 * lane + e % 2]);
  }
  return call.slots.Of<float>(slot + e)[lane];
}
void StoreAccumulator(const OperationCall& call, MatrixType type, unsigned slot, uint32_t e,
                      uint32_t lane, float value) {
  if (type == MatrixType::kF16) {
    call.slots.Of<uint16_t>(slot + e / 2)[2 * lane + e % 2] = FloatToHalf(value);
  } else {
    call.slots.Of<float>(slot + e)[lane] = value;
  }
}

void MultiplyFloats(const OperationCall& call, const MatrixCode& code) {
  Tiles<float> t;
  FillOperands(code, &t, [&](MatrixType type, unsigned slot, float* out) {
    UnpackFloats(type, call.slots.Of<uint32_t>(slot), out);
  });
  const uint32_t per_lane = code.m * code.n / kWarpSize;
  for (uint32_t e = 0; e < per_lane; ++e) {
    for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
      const ElementPlace p = ElementOfC(code.m, e, lane);
      t.c[p.row * code.n + p.column] = LoadAccumulator(call, code.c, 24, e, lane);
    }
  }
  Multiply(&t, code.m, code.n, code.k);
  for (uint32_t e = 0; e < per_lane; ++e) {
    for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
      const ElementPlace p = ElementOfC(code.m, e, lane);
      StoreAccumulator(call, code.d, 0, e, lane, t.c[p.row * code.n + p.column]);
    }
  }
}

template <typename T, typename Unpack>
void MultiplyWide(const OperationCall& call, const MatrixCode& code, const Unpack& unpack) {
  Tiles<T> t;
  FillOperands(code, &t, unpack);
  const uint32_t per_lane = code.m * code.n / kWarpSize;
  using Stored = std::conditional_t<std::is_same_v<T, double>, double, int32_t>;
  for (uint32_t e = 0; e < per_lane; ++e) {
    for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
      const ElementPlace p = ElementOfC(code.m, e, lane);
      t.c[p.row * code.n + p.column] = static_cast<T>(call.slots.Of<Stored>(24 + e)[lane]);
    }
  }
  MultiplyPlain(&t, code.m, code.n, code.k);
  for (uint32_t e = 0; e < per_lane; ++e) {
    for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
      const ElementPlace p = ElementOfC(code.m, e, lane);
      T value = t.c[p.row * code.n + p.column];
      if constexpr (!std::is_same_v<T, double>) {
        if (code.clamp) value = std::clamp<T>(value, INT32_MIN, INT32_MAX);
      }
      call.slots.Of<Stored>(e)[lane] = static_cast<Stored>(value);
    }
  }
}

void MultiplyBits(const OperationCall& call, const MatrixCode& code) {
  const uint32_t words = code.k / 32;
  uint32_t a[32][8] = {};
  uint32_t b[32][8] = {};
  for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
    for (uint32_t r = 0; r < code.m * words / kWarpSize; ++r) {
      const WordPlace p = WordOfA(code.m, r, lane);
      a[p.line][p.word] = call.slots.Of<uint32_t>(8 + r)[lane];
    }
    for (uint32_t r = 0; r < code.n * words / kWarpSize; ++r) {
      const WordPlace p = WordOfB(words, r, lane);
      b[p.line][p.word] = call.slots.Of<uint32_t>(16 + r)[lane];
    }
  }
  for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
    for (uint32_t e = 0; e < code.m * code.n / static_cast<uint32_t>(kWarpSize); ++e) {
      const ElementPlace p = ElementOfC(code.m, e, lane);
      uint32_t sum = call.slots.Of<uint32_t>(24 + e)[lane];
      for (uint32_t w = 0; w < words; ++w) {
        const uint32_t x = a[p.row][w], y = b[p.column][w];
        sum += static_cast<uint32_t>(std::popcount(code.and_bits ? x & y : x ^ y));
      }
      call.slots.Of<uint32_t>(e)[lane] = sum;
    }
  }
}

// m8n8k4 of f16: lanes 4q .. 4q + 3 and 16 + 4q .. 16 + 4q + 3 hold the matrices of quarter q.
void MultiplyQuads(const OperationCall& call, const MatrixCode& code) {
  const auto half = [&](unsigned slot, uint32_t lane, uint32_t e) {
    return HalfToFloat(call.slots.Of<uint16_t>(slot + e / 2)[2 * lane + e % 2]);
  };
  const auto place = [](MatrixType type, uint32_t lane, uint32_t e) -> ElementPlace {
    const uint32_t upper = lane >= 16 ? 4 : 0;
    if (type == MatrixType::kF16) return {lane % 4 + upper, e};
    return {(lane & 1) + (e & 2) + upper, (e & 4) + (lane & 2) + (e & 1)};
  };
  float results[8][kWarpSize];
  for (uint32_t q = 0; q < 4; ++q) {
    float a[8][4], b[4][8], c[8][8];
    for (uint32_t in_quad = 0; in_quad < 8; ++in_quad) {
      const uint32_t lane = 4 * q + in_quad % 4 + (in_quad >= 4 ? 16 : 0);
      const uint32_t upper = in_quad >= 4 ? 4 : 0;
      for (uint32_t e = 0; e < 4; ++e) {
        const float x = half(8, lane, e);
        if (code.column_major_a) {
          a[e + upper][lane % 4] = x;
        } else {
          a[lane % 4 + upper][e] = x;
        }
        const float y = half(16, lane, e);
        if (code.row_major_b) {
          b[lane % 4][e + upper] = y;
        } else {
          b[e][lane % 4 + upper] = y;
        }
      }
      for (uint32_t e = 0; e < 8; ++e) {
        const ElementPlace p = place(code.c, lane, e);
        c[p.row][p.column] = LoadAccumulator(call, code.c, 24, e, lane);
      }
    }
    for (uint32_t row = 0; row < 8; ++row) {
      for (uint32_t column = 0; column < 8; ++column) {
        for (uint32_t x = 0; x < 4; ++x) {
          c[row][column] = std::fma(a[row][x], b[x][column], c[row][column]);
        }
      }
    }
    for (uint32_t in_quad = 0; in_quad < 8; ++in_quad) {
      const uint32_t lane = 4 * q + in_quad % 4 + (in_quad >= 4 ? 16 : 0);
      for (uint32_t e = 0; e < 8; ++e) {
        const ElementPlace p = place(code.d, lane, e);
        results[e][lane] = c[p.row][p.column];
      }
    }
  }
  for (uint32_t e = 0; e < 8; ++e) {
    for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
      StoreAccumulator(call, code.d, 0, e, lane, results[e][lane]);
    }
  }
}

// Loads A or B, elements T in registers of type Word, from lines of `stride` elements. Fragments
// are tiles of eight rows of A (columns of B) by four words along k.
template <typename Word, typename T>
void LoadOperand(const MatrixCode& code, const Slots& slots, const char* from, uint64_t stride) {
  constexpr uint32_t kPerWord = sizeof(Word) / sizeof(T);
  const uint32_t bits = BitsOf(code.a);
  const bool is_a = code.role == MatrixRole::kA;
  const uint32_t words = code.k * bits / (8 * sizeof(Word));
  const uint32_t line_tiles = (is_a ? code.m : code.n) / 8;
  const uint32_t word_tiles = words / 4;
  // Along k the elements are neighbours in rows of A and columns of B.
  const bool contiguous = code.column_major_a != is_a;
  for (uint32_t r = 0; r < line_tiles * word_tiles; ++r) {
    const uint32_t line = 8 * (is_a ? r % line_tiles : r / word_tiles);
    const uint32_t word = 4 * (is_a ? r / line_tiles : r % word_tiles);
    for (uint32_t group = 0; group < 8; ++group) {
      char* held = slots.Of<char>(r) + 4 * group * sizeof(Word);
      if (contiguous) {
        std::memcpy(held, from + (line + group) * stride * bits / 8 + word * sizeof(Word),
                    4 * sizeof(Word));
        continue;
      }
      for (uint32_t e = 0; e < 4 * kPerWord; ++e) {
        std::memcpy(held + e * sizeof(T),
                    from + ((word * kPerWord + e) * stride + line + group) * sizeof(T), sizeof(T));
      }
    }
  }
}

void LoadOperand(const MatrixCode& code, const Slots& slots, const char* from, uint64_t stride) {
  switch (BitsOf(code.a)) {
    case 64:
      return LoadOperand<uint64_t, uint64_t>(code, slots, from, stride);
    case 32:
      return LoadOperand<uint32_t, uint32_t>(code, slots, from, stride);
    case 16:
      return LoadOperand<uint32_t, uint16_t>(code, slots, from, stride);
    default:  // of less than a byte: always contiguous
      return LoadOperand<uint32_t, uint8_t>(code, slots, from, stride);
  }
}

enum class Way { kLoad, kStore };

// Moves an accumulator of elements T: tiles of eight by eight, of which a lane has two neighbours.
template <Way kWay, typename T>
void MoveAccumulator(const MatrixCode& code, const Slots& slots, char* memory, uint64_t stride) {
  const uint64_t next_row = (code.column_major_a ? 1 : stride) * sizeof(T);
  const uint64_t next_column = (code.column_major_a ? stride : 1) * sizeof(T);
  constexpr bool kPacked = sizeof(T) == 2;
  constexpr uint32_t kStep = kPacked ? 4 : sizeof(T);
  const uint32_t rows = code.m / 8;
  for (uint32_t tile = 0; tile < code.m * code.n / 64u; ++tile) {
    char* const corner = memory + 8 * (tile % rows) * next_row + 8 * (tile / rows) * next_column;
    char* const first = slots.Of<char>(kPacked ? tile : 2 * tile);
    char* const second = kPacked ? first + sizeof(T) : slots.Of<char>(2 * tile + 1);
    for (uint32_t lane = 0; lane < kWarpSize; ++lane) {
      const Place p = PlaceOf(lane);
      char* const at = corner + p.group * next_row + 2 * p.thread * next_column;
      if constexpr (kWay == Way::kLoad) {
        std::memcpy(first + lane * kStep, at, sizeof(T));
        std::memcpy(second + lane * kStep, at + next_column, sizeof(T));
      } else {
        std::memcpy(at, first + lane * kStep, sizeof(T));
        std::memcpy(at + next_column, second + lane * kStep, sizeof(T));
      }
    }
  }
}

template <Way kWay>
void MoveAccumulator(const MatrixCode& code, const Slots& slots, char* memory, uint64_t stride) {
  switch (BitsOf(code.a)) {
    case 64:
      return MoveAccumulator<kWay, uint64_t>(code, slots, memory, stride);
    case 16:
      return MoveAccumulator<kWay, uint16_t>(code, slots, memory, stride);
    default:
      return MoveAccumulator<kWay, uint32_t>(code, slots, memory, stride);
  }
}

// The start of the matrix, after the whole of it has been checked.
char* MatrixAddress(const OperationCall& call, const MatrixCode& code, uint64_t* stride) {
  const int lane = std::countr_zero(call.mask);
  const uint64_t offset = call.slots.Of<uint64_t>(8)[lane];
  *stride = call.slots.Of<uint32_t>(9)[lane];
  const uint32_t rows = code.role == MatrixRole::kB ? code.k : code.m;
  const uint32_t columns = code.role == MatrixRole::kA ? code.k : code.n;
  const uint64_t lines = code.column_major_a ? columns : rows;
  const uint64_t length = code.column_major_a ? rows : columns;
  const uint64_t bytes = ((lines - 1) * *stride + length) * BitsOf(code.a) / 8;
  return reinterpret_cast<char*>(
      PlainAddress(call, lane, code.shared, offset, bytes, std::max(BitsOf(code.a) / 8, 1u)));
}

}  // namespace

void MatrixMultiply(const OperationCall& call) {
  const MatrixCode code = MatrixCode::Unpack(call.code);
  if (MultiplyByAvx512(call, code)) return;
  if (code.quads) return MultiplyQuads(call, code);
  switch (code.a) {
    case MatrixType::kF64:
      return MultiplyWide<double>(call, code, [&](MatrixType, unsigned slot, double* out) {
        std::memcpy(out, call.slots.Of<double>(slot), kWarpSize * sizeof(double));
      });
    case MatrixType::kB1:
      return MultiplyBits(call, code);
    case MatrixType::kS8:
    case MatrixType::kU8:
    case MatrixType::kS4:
    case MatrixType::kU4:
      return MultiplyWide<int64_t>(call, code, [&](MatrixType type, unsigned slot, int64_t* out) {
        int32_t narrow[8 * kWarpSize];
        UnpackIntegers(type, call.slots.Of<uint32_t>(slot), narrow);
        for (uint32_t k = 0; k < kWarpSize * 32 / BitsOf(type); ++k) out[k] = narrow[k];
      });
    default:
      return MultiplyFloats(call, code);
  }
}

void MatrixLoad(const OperationCall& call) {
  if (call.mask == 0) return;
  const MatrixCode code = MatrixCode::Unpack(call.code);
  uint64_t stride = 0;
  char* from = MatrixAddress(call, code, &stride);
  if (code.role == MatrixRole::kAccumulator) {
    return MoveAccumulator<Way::kLoad>(code, call.slots, from, stride);
  }
  LoadOperand(code, call.slots, from, stride);
  // Fragments of f16 have eight registers, which hold everything twice.
  if (code.a != MatrixType::kF16) return;
  const uint32_t lines = code.role == MatrixRole::kA ? code.m : code.n;
  const uint32_t registers = lines * code.k / (2 * kWarpSize);
  for (uint32_t r = registers; r < 8; ++r) {
    std::memcpy(call.slots.Of<char>(r), call.slots.Of<char>(r - registers), 4 * kWarpSize);
  }
}

void MatrixStore(const OperationCall& call) {
  if (call.mask == 0) return;
  const MatrixCode code = MatrixCode::Unpack(call.code);
  uint64_t stride = 0;
  char* to = MatrixAddress(call, code, &stride);
  MoveAccumulator<Way::kStore>(code, call.slots, to, stride);
}

namespace {

constexpr int kTileSide = 8;

// Three times each pair of rows that lie four apart is merged element by element.
void Transpose(const uint16_t* from, uint16_t* to) {
  __m128i rows[kTileSide];
  for (int k = 0; k < kTileSide; ++k) {
    rows[k] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + k);
  }
  for (int step = 0; step < 3; ++step) {
    __m128i merged[kTileSide];
    for (int k = 0; k < kTileSide / 2; ++k) {
      merged[2 * k] = _mm_unpacklo_epi16(rows[k], rows[k + kTileSide / 2]);
      merged[2 * k + 1] = _mm_unpackhi_epi16(rows[k], rows[k + kTileSide / 2]);
    }
    std::copy(merged, merged + kTileSide, rows);
  }
  for (int k = 0; k < kTileSide; ++k) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to) + k, rows[k]);
  }
}

}  // namespace

void MoveTiles(const OperationCall& call, bool store) {
  const uint32_t count = static_cast<uint32_t>(call.code & 7);
  const bool transposed = (call.code & kTileTransposed) != 0;
  const bool shared = (call.code & kTileShared) != 0;
  const AddressCheck check(call);
  // A register of all lanes is the tile, row after row: two elements a lane, four lanes a row.
  for (uint32_t tile = 0; tile < count; ++tile) {
    uint16_t elements[kTileSide * kTileSide];
    if (store) {
      const uint16_t* held = call.slots.Of<uint16_t>(tile);
      if (transposed) {
        Transpose(held, elements);
      } else {
        std::memcpy(elements, held, sizeof elements);
      }
    }
    for (uint32_t row = 0; row < kTileSide; ++row) {
      const int lane = static_cast<int>(tile * kTileSide + row);
      auto* memory = reinterpret_cast<char*>(
          check.Plain(lane, shared, call.slots.Of<uint64_t>(8)[lane], 16, 16));
      if (store) {
        std::memcpy(memory, elements + row * kTileSide, 16);
      } else {
        std::memcpy(elements + row * kTileSide, memory, 16);
      }
    }
    if (store) continue;
    uint16_t* held = call.slots.Of<uint16_t>(tile);
    if (transposed) {
      Transpose(elements, held);
    } else {
      std::memcpy(held, elements, sizeof elements);
    }
  }
}

void TransposeTile(const OperationCall& call) {
  Transpose(call.slots.Of<uint16_t>(8), call.slots.Of<uint16_t>(0));
}

}  // namespace fargpu::softgpu
