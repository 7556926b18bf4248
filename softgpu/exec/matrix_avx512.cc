#include "softgpu/exec/matrix_avx512.h"

#include <immintrin.h>

#include <cstdint>

#include "softgpu/exec/cpu_features.h"

// Only these functions may use AVX-512: the rest of the library runs on any CPU.
#define FARGPU_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))

namespace fargpu::softgpu {
namespace {

// Fragments hold four words along k per row of A (column of B), in the four lanes of a quad; the
// quads are eight rows (columns). Further rows, then further words, are in further registers.
// A lane of the accumulator is at row `quad`, columns 2 * (place in the quad) and the next.
//
// So for one word along k the lane's element of A is that of a lane of its own quad, and its
// element of B comes from the quad that has the column's number: eight different values in all, the
// same for both halves of the warp.

constexpr int kHalf = 16;

FARGPU_AVX512 __m512i Load(const OperationCall& call, unsigned slot, int half) {
  return _mm512_loadu_si512(call.slots.Of<uint32_t>(slot) + half * kHalf);
}

// Lanes of B's register where a lane finds column 2 * (its place in the quad) + next.
FARGPU_AVX512 __m512i LanesOfColumn(int word, int next) {
  const __m512i place = _mm512_and_si512(
      _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), _mm512_set1_epi32(3));
  return _mm512_add_epi32(_mm512_slli_epi32(place, 3), _mm512_set1_epi32(4 * next + word));
}

// Lanes of a half of A's register: the given one of each quad.
FARGPU_AVX512 __m512i LanesOfQuads(int word) {
  const __m512i quads = _mm512_set_epi32(12, 12, 12, 12, 8, 8, 8, 8, 4, 4, 4, 4, 0, 0, 0, 0);
  return _mm512_add_epi32(quads, _mm512_set1_epi32(word));
}

template <MatrixType kType>
constexpr int kPerWord = kType == MatrixType::kTF32 ? 1 : 2;

// Element `e` of each word.
template <MatrixType kType>
FARGPU_AVX512 __m512 Element(__m512i words, int e) {
  if constexpr (kType == MatrixType::kTF32) {
    return _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(-0x2000)));
  } else if constexpr (kType == MatrixType::kBF16) {
    return _mm512_castsi512_ps(e == 0 ? _mm512_slli_epi32(words, 16)
                                      : _mm512_and_si512(words, _mm512_set1_epi32(-0x10000)));
  } else {
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(e == 0 ? words : _mm512_srli_epi32(words, 16)));
  }
}

FARGPU_AVX512 __m512i HalvesOf(__m512 value) {
  const __m512i bits =
      _mm512_cvtepu16_epi32(_mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  return _mm512_mask_mov_epi32(bits, _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q),
                               _mm512_set1_epi32(0x7fff));
}

// kRows and kColumns count tiles of eight.
template <MatrixType kType, int kRows, int kColumns>
FARGPU_AVX512 void MultiplyFloats(const OperationCall& call, const MatrixCode& code) {
  const int words = code.k / kPerWord<kType>;
  __m512 sum[kColumns][kRows][2][2];  // column tile, row tile, which of two columns, half
  for (int j = 0; j < kColumns; ++j) {
    for (int i = 0; i < kRows; ++i) {
      const unsigned tile = static_cast<unsigned>(i + kRows * j);
      for (int half = 0; half < 2; ++half) {
        for (unsigned c = 0; c < 2; ++c) {
          sum[j][i][c][half] =
              code.c == MatrixType::kF16
                  ? Element<MatrixType::kF16>(Load(call, 24 + tile, half), static_cast<int>(c))
                  : _mm512_castsi512_ps(Load(call, 24 + 2 * tile + c, half));
        }
      }
    }
  }
  for (int word = 0; word < words; ++word) {
    const __m512i quads = LanesOfQuads(word % 4);
    const __m512i columns[2] = {LanesOfColumn(word % 4, 0), LanesOfColumn(word % 4, 1)};
    __m512i a[kRows][2];
    __m512i b[kColumns][2];
    for (int i = 0; i < kRows; ++i) {
      const auto slot = static_cast<unsigned>(8 + i + kRows * (word / 4));
      for (int half = 0; half < 2; ++half)
        a[i][half] = _mm512_permutexvar_epi32(quads, Load(call, slot, half));
    }
    for (int j = 0; j < kColumns; ++j) {
      const auto slot = static_cast<unsigned>(16 + j * (words / 4) + word / 4);
      for (int c = 0; c < 2; ++c) {
        b[j][c] = _mm512_permutex2var_epi32(Load(call, slot, 0), columns[c], Load(call, slot, 1));
      }
    }
    for (int e = 0; e < kPerWord<kType>; ++e) {
      for (int j = 0; j < kColumns; ++j) {
        for (int c = 0; c < 2; ++c) {
          const __m512 y = Element<kType>(b[j][c], e);
          for (int i = 0; i < kRows; ++i) {
            for (int half = 0; half < 2; ++half) {
              sum[j][i][c][half] =
                  _mm512_fmadd_ps(Element<kType>(a[i][half], e), y, sum[j][i][c][half]);
            }
          }
        }
      }
    }
  }
  for (int j = 0; j < kColumns; ++j) {
    for (int i = 0; i < kRows; ++i) {
      const unsigned tile = static_cast<unsigned>(i + kRows * j);
      for (int half = 0; half < 2; ++half) {
        if (code.d == MatrixType::kF16) {
          const __m512i both = _mm512_or_si512(HalvesOf(sum[j][i][0][half]),
                                               _mm512_slli_epi32(HalvesOf(sum[j][i][1][half]), 16));
          _mm512_storeu_si512(call.slots.Of<uint32_t>(tile) + half * kHalf, both);
          continue;
        }
        for (unsigned c = 0; c < 2; ++c)
          _mm512_storeu_ps(call.slots.Of<float>(2 * tile + c) + half * kHalf, sum[j][i][c][half]);
      }
    }
  }
}

// Part `part` of the integers of each word as pairs of 16 bits, of which one instruction adds the
// products. How elements are paired does not matter, as long as A's and B's are paired alike.
template <int kBits, bool kSigned>
FARGPU_AVX512 __m512i Pairs(__m512i words, int part) {
  const __m512i up = _mm512_sll_epi16(words, _mm_cvtsi32_si128(16 - kBits * (part + 1)));
  return kSigned ? _mm512_srai_epi16(up, 16 - kBits) : _mm512_srli_epi16(up, 16 - kBits);
}

template <int kBits, bool kSignedA, bool kSignedB, int kRows, int kColumns>
FARGPU_AVX512 void MultiplyIntegers(const OperationCall& call, const MatrixCode& code) {
  const int words = code.k * kBits / 32;
  __m512i sum[kColumns][kRows][2][2];
  for (int j = 0; j < kColumns; ++j) {
    for (int i = 0; i < kRows; ++i) {
      const unsigned tile = static_cast<unsigned>(i + kRows * j);
      for (int half = 0; half < 2; ++half) {
        for (unsigned c = 0; c < 2; ++c) sum[j][i][c][half] = Load(call, 24 + 2 * tile + c, half);
      }
    }
  }
  for (int word = 0; word < words; ++word) {
    const __m512i quads = LanesOfQuads(word % 4);
    const __m512i columns[2] = {LanesOfColumn(word % 4, 0), LanesOfColumn(word % 4, 1)};
    for (int part = 0; part < 16 / kBits; ++part) {
      __m512i a[kRows][2];
      for (int i = 0; i < kRows; ++i) {
        const auto slot = static_cast<unsigned>(8 + i + kRows * (word / 4));
        for (int half = 0; half < 2; ++half) {
          a[i][half] =
              Pairs<kBits, kSignedA>(_mm512_permutexvar_epi32(quads, Load(call, slot, half)), part);
        }
      }
      for (int j = 0; j < kColumns; ++j) {
        const auto slot = static_cast<unsigned>(16 + j * (words / 4) + word / 4);
        for (int c = 0; c < 2; ++c) {
          const __m512i b = Pairs<kBits, kSignedB>(
              _mm512_permutex2var_epi32(Load(call, slot, 0), columns[c], Load(call, slot, 1)),
              part);
          for (int i = 0; i < kRows; ++i) {
            for (int half = 0; half < 2; ++half) {
              sum[j][i][c][half] =
                  _mm512_add_epi32(sum[j][i][c][half], _mm512_madd_epi16(a[i][half], b));
            }
          }
        }
      }
    }
  }
  for (int j = 0; j < kColumns; ++j) {
    for (int i = 0; i < kRows; ++i) {
      const unsigned tile = static_cast<unsigned>(i + kRows * j);
      for (int half = 0; half < 2; ++half) {
        for (unsigned c = 0; c < 2; ++c) {
          _mm512_storeu_si512(call.slots.Of<uint32_t>(2 * tile + c) + half * kHalf,
                              sum[j][i][c][half]);
        }
      }
    }
  }
}

// Of f64: a word is an element, and eight lanes are a vector. n is 8.
template <int kRows>
FARGPU_AVX512 void MultiplyDoubles(const OperationCall& call, const MatrixCode& code) {
  constexpr int kParts = kWarpSize / 8;
  __m512d sum[kRows][2][kParts];
  for (int i = 0; i < kRows; ++i) {
    for (int c = 0; c < 2; ++c) {
      for (int part = 0; part < kParts; ++part) {
        sum[i][c][part] = _mm512_loadu_pd(
            call.slots.Of<double>(static_cast<unsigned>(24 + 2 * i + c)) + 8 * part);
      }
    }
  }
  for (int word = 0; word < code.k; ++word) {
    const int w = word % 4;
    const double* b = call.slots.Of<double>(static_cast<unsigned>(16 + word / 4)) + w;
    const __m512i quads =
        _mm512_add_epi64(_mm512_set_epi64(4, 4, 4, 4, 0, 0, 0, 0), _mm512_set1_epi64(w));
    for (int c = 0; c < 2; ++c) {
      const double* at = b + 4 * c;
      const __m512d y = _mm512_broadcast_f64x4(_mm256_set_pd(at[24], at[16], at[8], at[0]));
      for (int i = 0; i < kRows; ++i) {
        const double* a = call.slots.Of<double>(static_cast<unsigned>(8 + i + kRows * (word / 4)));
        for (int part = 0; part < kParts; ++part) {
          const __m512d x = _mm512_permutexvar_pd(quads, _mm512_loadu_pd(a + 8 * part));
          sum[i][c][part] = _mm512_fmadd_pd(x, y, sum[i][c][part]);
        }
      }
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int c = 0; c < 2; ++c) {
      for (int part = 0; part < kParts; ++part) {
        _mm512_storeu_pd(call.slots.Of<double>(static_cast<unsigned>(2 * i + c)) + 8 * part,
                         sum[i][c][part]);
      }
    }
  }
}

using Function = void (*)(const OperationCall&, const MatrixCode&);

template <MatrixType kType>
Function FloatsOfShape(int rows, int columns) {
  if (rows == 1 && columns == 1) return &MultiplyFloats<kType, 1, 1>;
  if (rows == 2 && columns == 1) return &MultiplyFloats<kType, 2, 1>;
  if (rows == 2 && columns == 2) return &MultiplyFloats<kType, 2, 2>;
  if (rows == 4 && columns == 1) return &MultiplyFloats<kType, 4, 1>;
  if (rows == 1 && columns == 4) return &MultiplyFloats<kType, 1, 4>;
  return nullptr;
}

template <int kBits, bool kSignedA, bool kSignedB>
Function IntegersOfShape(int rows, int columns) {
  if (rows == 1 && columns == 1) return &MultiplyIntegers<kBits, kSignedA, kSignedB, 1, 1>;
  if (rows == 2 && columns == 1) return &MultiplyIntegers<kBits, kSignedA, kSignedB, 2, 1>;
  if (rows == 2 && columns == 2) return &MultiplyIntegers<kBits, kSignedA, kSignedB, 2, 2>;
  if (rows == 4 && columns == 1) return &MultiplyIntegers<kBits, kSignedA, kSignedB, 4, 1>;
  if (rows == 1 && columns == 4) return &MultiplyIntegers<kBits, kSignedA, kSignedB, 1, 4>;
  return nullptr;
}

template <int kBits>
Function IntegersOfSigns(bool a, bool b, int rows, int columns) {
  if (a) {
    return b ? IntegersOfShape<kBits, true, true>(rows, columns)
             : IntegersOfShape<kBits, true, false>(rows, columns);
  }
  return b ? IntegersOfShape<kBits, false, true>(rows, columns)
           : IntegersOfShape<kBits, false, false>(rows, columns);
}

Function Find(const MatrixCode& code) {
  // Sums that are to be clamped need more than 32 bits.
  if (code.quads || code.clamp) return nullptr;
  const int rows = code.m / 8;
  const int columns = code.n / 8;
  switch (code.a) {
    case MatrixType::kF16:
      return FloatsOfShape<MatrixType::kF16>(rows, columns);
    case MatrixType::kBF16:
      return FloatsOfShape<MatrixType::kBF16>(rows, columns);
    case MatrixType::kTF32:
      return FloatsOfShape<MatrixType::kTF32>(rows, columns);
    case MatrixType::kS8:
    case MatrixType::kU8:
      return IntegersOfSigns<8>(code.a == MatrixType::kS8, code.b == MatrixType::kS8, rows,
                                columns);
    case MatrixType::kS4:
    case MatrixType::kU4:
      return IntegersOfSigns<4>(code.a == MatrixType::kS4, code.b == MatrixType::kS4, rows,
                                columns);
    case MatrixType::kF64:
      if (columns != 1) return nullptr;
      return rows == 1 ? &MultiplyDoubles<1> : rows == 2 ? &MultiplyDoubles<2> : nullptr;
    default:
      return nullptr;
  }
}

}  // namespace

bool MultiplyByAvx512(const OperationCall& call, const MatrixCode& code) {
  if (!HasAvx512()) return false;
  const Function function = Find(code);
  if (function == nullptr) return false;
  function(call, code);
  return true;
}

}  // namespace fargpu::softgpu
