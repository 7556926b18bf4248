#include "softgpu/exec/texture_avx512.h"

#include <immintrin.h>

#include <bit>
#include <cstdint>

#include "softgpu/exec/cpu_features.h"
#include "softgpu/exec/texture.h"

// Only these functions may use AVX-512: the rest of the library runs on any CPU.
#define FARGPU_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))

// Half a warp is a vector. What texture.cc computes in doubles and in integers of 64 bits is exact
// here in floats and in 32 bits, for coordinates up to kMaxCoordinate and levels of less than 2
// GiB; everything else is left to texture.cc. Products and sums must not be fused (CMakeLists.txt).
namespace fargpu::softgpu {
namespace {

constexpr int kHalf = 16;
constexpr float kMaxCoordinate = 1 << 22;
constexpr uint64_t kMaxBytes = uint64_t{1} << 31;

// What is the same for all lanes.
struct Plan {
  const TextureDescriptor& texture;
  const ImageLevel& level;
  int dimensions = 1;
  bool layered = false;
  bool linear = false;
  bool row = false;  // of linear memory: zeros around
  int32_t size[3] = {1, 1, 1};
  AddressMode mode[3] = {AddressMode::kClamp, AddressMode::kClamp, AddressMode::kClamp};
  uint32_t element_bytes = 0;
  uint32_t channel_bytes = 0;
  uint64_t base = 0;   // of words of four bytes
  int32_t within = 0;  // bytes of the first element behind that
  // The components that the image lacks, and those of the border.
  uint32_t missing[4] = {0, 0, 0, 0};
  uint32_t border[4] = {0, 0, 0, 0};
};

int DimensionsOf(ImageShape shape) {
  switch (shape) {
    case ImageShape::kLinear:
    case ImageShape::k1D:
    case ImageShape::k1DLayered:
      return 1;
    case ImageShape::k2D:
    case ImageShape::k2DLayered:
      return 2;
    case ImageShape::k3D:
      return 3;
    default:
      return 0;
  }
}

// False if the texture is one for texture.cc.
bool Prepare(const OperationCall& call, Plan* plan) {
  const TextureDescriptor& t = plan->texture;
  const ImageLevel& level = plan->level;
  const bool integer = (call.code & kTextureInteger) != 0;
  // With one level there is nothing to choose.
  if (t.image.level_count != 1 || t.srgb || (call.code & kTextureOffset) != 0) return false;
  plan->dimensions = DimensionsOf(t.image.shape);
  if (plan->dimensions == 0) return false;
  plan->layered =
      t.image.shape == ImageShape::k1DLayered || t.image.shape == ImageShape::k2DLayered;
  plan->row = t.image.shape == ImageShape::kLinear;
  const bool floats = t.image.channel == ChannelType::kF16 ||
                      t.image.channel == ChannelType::kF32 ||
                      (t.normalized_values && t.image.channel != ChannelType::kU32 &&
                       t.image.channel != ChannelType::kS32);
  plan->linear = !integer && t.linear_filter && floats;
  const uint32_t sizes[3] = {level.width, level.height, level.depth};
  for (int k = 0; k < plan->dimensions; ++k) {
    AddressMode mode = t.address_mode[k];
    const bool repeats = mode == AddressMode::kWrap || mode == AddressMode::kMirror;
    if (!t.normalized_coordinates && repeats) mode = AddressMode::kClamp;
    if (integer && t.normalized_coordinates && repeats) return false;
    if (sizes[k] >= (integer ? kMaxBytes : static_cast<uint64_t>(kMaxCoordinate))) return false;
    plan->size[k] = static_cast<int32_t>(sizes[k]);
    plan->mode[k] = plan->row ? AddressMode::kBorder : mode;
  }
  if (plan->row && !integer) return false;
  plan->element_bytes = ElementBytes(t.image);
  plan->channel_bytes = plan->element_bytes / t.image.channels;
  plan->base = level.address & ~uint64_t{3};
  plan->within = static_cast<int32_t>(level.address & 3);
  // An element of two bytes lies in one word.
  if (plan->element_bytes == 2 &&
      ((level.address | level.row_pitch | level.slice_pitch) & 1) != 0) {
    return false;
  }
  const uint64_t end = uint64_t{level.depth - 1} * level.slice_pitch +
                       uint64_t{level.height - 1} * level.row_pitch +
                       uint64_t{level.width} * plan->element_bytes + 8;
  if (level.slice_pitch >= kMaxBytes || level.row_pitch >= kMaxBytes || end >= kMaxBytes) {
    return false;
  }
  plan->missing[3] = floats ? std::bit_cast<uint32_t>(1.0f) : 1;
  for (int c = 0; c < 4; ++c) {
    plan->border[c] = plan->missing[c];
    if (plan->row) {
      plan->border[c] = 0;
    } else if (c < t.image.channels) {
      plan->border[c] = floats ? std::bit_cast<uint32_t>(t.border[c])
                               : static_cast<uint32_t>(static_cast<int64_t>(t.border[c]));
    }
  }
  return true;
}

// An index on one axis: the element that it stands for. Lanes on the border are added to `*border`.
FARGPU_AVX512 __m512i Place(const Plan& plan, int axis, __m512i index, __mmask16* border) {
  const __m512i zero = _mm512_setzero_si512();
  const __m512i size = _mm512_set1_epi32(plan.size[axis]);
  const __m512i last = _mm512_set1_epi32(plan.size[axis] - 1);
  switch (plan.mode[axis]) {
    case AddressMode::kBorder: {
      const __mmask16 outside = _mm512_cmpge_epu32_mask(index, size);
      *border = static_cast<__mmask16>(*border | outside);
      return _mm512_mask_mov_epi32(index, outside, zero);
    }
    case AddressMode::kClamp:
      return _mm512_min_epi32(_mm512_max_epi32(index, zero), last);
    case AddressMode::kWrap:
    case AddressMode::kMirror:
      break;
  }
  const bool mirror = plan.mode[axis] == AddressMode::kMirror;
  // The quotient is off by one at most.
  const __m512i period = mirror ? _mm512_slli_epi32(size, 1) : size;
  const __m512 turns = _mm512_div_ps(_mm512_cvtepi32_ps(index), _mm512_cvtepi32_ps(period));
  const __m512i whole =
      _mm512_cvttps_epi32(_mm512_roundscale_ps(turns, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC));
  __m512i rest = _mm512_sub_epi32(index, _mm512_mullo_epi32(whole, period));
  rest = _mm512_mask_add_epi32(rest, _mm512_cmplt_epi32_mask(rest, zero), rest, period);
  rest = _mm512_mask_sub_epi32(rest, _mm512_cmpge_epi32_mask(rest, period), rest, period);
  if (!mirror) return rest;
  const __m512i back = _mm512_sub_epi32(_mm512_sub_epi32(period, _mm512_set1_epi32(1)), rest);
  return _mm512_min_epi32(rest, back);
}

FARGPU_AVX512 __m512i HalvesToFloats(__m512i halves) {
  const __m512i wide = _mm512_castps_si512(_mm512_cvtph_ps(_mm512_cvtepi32_epi16(halves)));
  // The instruction makes signalling numbers quiet.
  const __m512i exponent = _mm512_set1_epi32(0x7c00);
  const __mmask16 special = _mm512_cmpeq_epi32_mask(_mm512_and_si512(halves, exponent), exponent);
  const __m512i sign = _mm512_slli_epi32(_mm512_and_si512(halves, _mm512_set1_epi32(0x8000)), 16);
  const __m512i mantissa =
      _mm512_slli_epi32(_mm512_and_si512(halves, _mm512_set1_epi32(0x3ff)), 13);
  const __m512i kept =
      _mm512_or_si512(_mm512_or_si512(sign, mantissa), _mm512_set1_epi32(0x7f800000));
  return _mm512_mask_mov_epi32(wide, special, kept);
}

FARGPU_AVX512 __m512i Normalized(__m512i value, float most) {
  const __m512 ratio = _mm512_div_ps(_mm512_cvtepi32_ps(value), _mm512_set1_ps(most));
  return _mm512_castps_si512(_mm512_max_ps(ratio, _mm512_set1_ps(-1.0f)));
}

// `raw` holds the channel in its low bits.
FARGPU_AVX512 __m512i ChannelValue(const TextureDescriptor& t, __m512i raw) {
  switch (t.image.channel) {
    case ChannelType::kU8: {
      const __m512i v = _mm512_and_si512(raw, _mm512_set1_epi32(0xff));
      return t.normalized_values ? Normalized(v, 255.0f) : v;
    }
    case ChannelType::kU16: {
      const __m512i v = _mm512_and_si512(raw, _mm512_set1_epi32(0xffff));
      return t.normalized_values ? Normalized(v, 65535.0f) : v;
    }
    case ChannelType::kS8: {
      const __m512i v = _mm512_srai_epi32(_mm512_slli_epi32(raw, 24), 24);
      return t.normalized_values ? Normalized(v, 127.0f) : v;
    }
    case ChannelType::kS16: {
      const __m512i v = _mm512_srai_epi32(_mm512_slli_epi32(raw, 16), 16);
      return t.normalized_values ? Normalized(v, 32767.0f) : v;
    }
    case ChannelType::kF16:
      return HalvesToFloats(_mm512_and_si512(raw, _mm512_set1_epi32(0xffff)));
    default:
      return raw;
  }
}

// The elements at `place`, or the border's where `border` is set.
FARGPU_AVX512 void Read(const Plan& plan, const __m512i place[3], __mmask16 lanes, __mmask16 border,
                        __m512i out[4]) {
  const Image& image = plan.texture.image;
  __m512i at =
      _mm512_mullo_epi32(place[0], _mm512_set1_epi32(static_cast<int32_t>(plan.element_bytes)));
  if (plan.dimensions > 1) {
    at = _mm512_add_epi32(
        at, _mm512_mullo_epi32(place[1],
                               _mm512_set1_epi32(static_cast<int32_t>(plan.level.row_pitch))));
  }
  if (plan.dimensions > 2 || plan.layered) {
    at = _mm512_add_epi32(
        at, _mm512_mullo_epi32(place[2],
                               _mm512_set1_epi32(static_cast<int32_t>(plan.level.slice_pitch))));
  }
  at = _mm512_add_epi32(at, _mm512_set1_epi32(plan.within));
  __m512i shift = _mm512_setzero_si512();
  if (plan.element_bytes < 4) {
    shift = _mm512_slli_epi32(_mm512_and_si512(at, _mm512_set1_epi32(3)), 3);
    at = _mm512_and_si512(at, _mm512_set1_epi32(-4));
  }
  const auto inside = static_cast<__mmask16>(lanes & ~border);
  const void* base = reinterpret_cast<const void*>(plan.base);
  __m512i word = _mm512_setzero_si512();
  uint32_t have = ~0u;
  for (uint32_t c = 0; c < 4; ++c) {
    if (c >= image.channels) {
      out[c] = _mm512_set1_epi32(static_cast<int32_t>(plan.missing[c]));
    } else {
      const uint32_t byte = c * plan.channel_bytes;
      if (byte / 4 != have) {
        have = byte / 4;
        word = _mm512_mask_i32gather_epi32(
            _mm512_setzero_si512(), inside,
            _mm512_add_epi32(at, _mm512_set1_epi32(static_cast<int32_t>(4 * have))), base, 1);
      }
      __m512i raw = _mm512_srlv_epi32(word, shift);
      raw = _mm512_srl_epi32(raw, _mm_cvtsi32_si128(static_cast<int>(byte % 4 * 8)));
      out[c] = ChannelValue(plan.texture, raw);
    }
    if (border != 0) {
      out[c] = _mm512_mask_mov_epi32(out[c], border,
                                     _mm512_set1_epi32(static_cast<int32_t>(plan.border[c])));
    }
  }
}

FARGPU_AVX512 void Put(const OperationCall& call, int half, const __m512i values[4]) {
  for (unsigned c = 0; c < 4; ++c) {
    _mm512_storeu_si512(call.slots.Of<uint32_t>(c) + half * kHalf, values[c]);
  }
}

FARGPU_AVX512 bool SampleHalf(const OperationCall& call, const Plan& plan, int half) {
  const auto lanes = static_cast<__mmask16>(call.mask >> (half * kHalf));
  if (lanes == 0) return true;
  __m512i index[3] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512()};
  __m512 fraction[3] = {};
  for (int k = 0; k < plan.dimensions; ++k) {
    const void* from = call.slots.Of<uint32_t>(static_cast<unsigned>(7 + k)) + half * kHalf;
    if ((call.code & kTextureInteger) != 0) {
      index[k] = _mm512_maskz_loadu_epi32(lanes, from);
      continue;
    }
    __m512 at = _mm512_maskz_loadu_ps(lanes, from);
    if (plan.texture.normalized_coordinates) {
      at = _mm512_mul_ps(at, _mm512_set1_ps(static_cast<float>(plan.size[k])));
    }
    // What is no number is not smaller either.
    if (_mm512_cmp_ps_mask(_mm512_abs_ps(at), _mm512_set1_ps(kMaxCoordinate), _CMP_LT_OQ) !=
        0xffff) {
      return false;
    }
    constexpr int kDown = _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC;
    if (!plan.linear) {
      index[k] = _mm512_cvttps_epi32(_mm512_roundscale_ps(at, kDown));
      continue;
    }
    // (at - 0.5) * 256, rounded to the nearest: the half is 128 of these units.
    const __m512 scaled = _mm512_mul_ps(at, _mm512_set1_ps(256));
    __m512 whole = _mm512_roundscale_ps(scaled, kDown);
    const __mmask16 up =
        _mm512_cmp_ps_mask(_mm512_sub_ps(scaled, whole), _mm512_set1_ps(0.5f), _CMP_GE_OQ);
    whole = _mm512_mask_add_ps(whole, up, whole, _mm512_set1_ps(1));
    const __m512i fixed = _mm512_sub_epi32(_mm512_cvttps_epi32(whole), _mm512_set1_epi32(128));
    index[k] = _mm512_srai_epi32(fixed, 8);
    fraction[k] = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_and_si512(fixed, _mm512_set1_epi32(255))),
                                _mm512_set1_ps(1.0f / 256));
  }
  __m512i slice = _mm512_setzero_si512();
  if (plan.layered) {
    slice =
        _mm512_min_epu32(_mm512_maskz_loadu_epi32(lanes, call.slots.Of<uint32_t>(6) + half * kHalf),
                         _mm512_set1_epi32(static_cast<int32_t>(plan.level.depth - 1)));
  }
  __m512i result[4];
  if (!plan.linear) {
    __mmask16 border = 0;
    __m512i place[3] = {index[0], index[1], slice};
    for (int k = 0; k < plan.dimensions; ++k) place[k] = Place(plan, k, index[k], &border);
    Read(plan, place, lanes, border, result);
    Put(call, half, result);
    return true;
  }
  // Both neighbours on each axis.
  __m512i places[3][2];
  __mmask16 borders[3][2] = {};
  __m512 weights[3][2];
  for (int k = 0; k < plan.dimensions; ++k) {
    places[k][0] = Place(plan, k, index[k], &borders[k][0]);
    places[k][1] = Place(plan, k, _mm512_add_epi32(index[k], _mm512_set1_epi32(1)), &borders[k][1]);
    weights[k][0] = _mm512_sub_ps(_mm512_set1_ps(1), fraction[k]);
    weights[k][1] = fraction[k];
  }
  __m512 sum[4] = {};
  for (int corner = 0; corner < 1 << plan.dimensions; ++corner) {
    __m512i place[3] = {slice, slice, slice};
    __mmask16 border = 0;
    __m512 weight = _mm512_set1_ps(1);
    for (int k = 0; k < plan.dimensions; ++k) {
      const int up = corner >> k & 1;
      place[k] = places[k][up];
      border = static_cast<__mmask16>(border | borders[k][up]);
      weight = _mm512_mul_ps(weight, weights[k][up]);
    }
    // An element of no weight does not count even if it is infinite.
    const auto counts = static_cast<__mmask16>(
        lanes & _mm512_cmp_ps_mask(weight, _mm512_setzero_ps(), _CMP_NEQ_OQ));
    if (counts == 0) continue;
    Read(plan, place, counts, border, result);
    for (int c = 0; c < 4; ++c) {
      sum[c] = _mm512_mask_add_ps(sum[c], counts, sum[c],
                                  _mm512_mul_ps(weight, _mm512_castsi512_ps(result[c])));
    }
  }
  for (int c = 0; c < 4; ++c) result[c] = _mm512_castps_si512(sum[c]);
  Put(call, half, result);
  return true;
}

}  // namespace

bool SampleByAvx512(const OperationCall& call, const TextureDescriptor& texture) {
  if (!HasAvx512()) return false;
  Plan plan = {.texture = texture, .level = texture.image.levels[0]};
  if (!Prepare(call, &plan)) return false;
  return SampleHalf(call, plan, 0) && SampleHalf(call, plan, 1);
}

}  // namespace fargpu::softgpu
