// What AVX-512 samples for a warp is what SampleTexture samples lane by lane, bit for bit.
#include "softgpu/exec/texture_avx512.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "gtest/gtest.h"

#include "softgpu/exec/cpu_features.h"
#include "softgpu/exec/testing/ptx_runner.h"
#include "softgpu/exec/texture.h"

namespace fargpu::softgpu {
namespace {

constexpr uint32_t kWidth = 7, kHeight = 5, kDepth = 3;
constexpr int kRounds = 12;

class TextureAvx512Test : public testing::Test {
 protected:
  void SetUp() override {
    if (!HasAvx512()) GTEST_SKIP() << "this CPU has no AVX-512";
    for (size_t k = 0; k < memory_.size(); ++k) memory_[k] = static_cast<uint8_t>(random_());
  }

  Image MakeImage(ImageShape shape, ChannelType channel, uint8_t channels) {
    Image image = {.shape = shape, .channel = channel, .channels = channels};
    const uint32_t element = ElementBytes(image);
    const bool rows =
        shape == ImageShape::k2D || shape == ImageShape::k3D || shape == ImageShape::k2DLayered;
    const bool slices = shape == ImageShape::k3D || shape == ImageShape::k1DLayered ||
                        shape == ImageShape::k2DLayered;
    ImageLevel& level = image.levels[0];
    level.address = memory_.address() + 2 * element;  // not the start of a word
    level.width = kWidth;
    level.height = rows ? kHeight : 1;
    level.depth = slices ? kDepth : 1;
    level.row_pitch = uint64_t{kWidth} * element + 2 * element;
    level.slice_pitch = level.row_pitch * level.height + element * 2;
    return image;
  }

  float Coordinate(const TextureDescriptor& t, uint32_t size) {
    const float scale = t.normalized_coordinates ? 1 : static_cast<float>(size);
    static constexpr float kOdd[] = {0.0f,   -0.0f,   0.5f,       1.0f,     -1.0f,
                                     1e-30f, -1e-30f, 0.4999999f, -1.9e-3f, 1.001953125f};
    const uint32_t what = random_() % 8;
    if (what == 0) return kOdd[random_() % std::size(kOdd)] * scale;
    // In units of half a step of the fixed point numbers: ties are among them.
    if (what < 4) {
      const auto steps = static_cast<float>(static_cast<int>(random_() % 16384) - 4096);
      return steps / 512 / (t.normalized_coordinates ? static_cast<float>(size) : 1);
    }
    return std::uniform_real_distribution<float>(-2 * scale, 3 * scale)(random_);
  }

  // Samples a warp's worth of points in both ways. False if AVX-512 declined.
  bool Check(const TextureDescriptor& t, uint64_t code, uint32_t mask, float odd = 0) {
    alignas(64) char slots[kSlots * kSlotBytes];
    std::memset(slots, 0x5a, sizeof slots);
    WarpContext context;
    const OperationCall call = {&context, code, mask, Slots(slots), 1};
    TexturePoint points[kWarpSize];
    for (int lane = 0; lane < kWarpSize; ++lane) {
      TexturePoint& p = points[lane];
      p.integer = (code & kTextureInteger) != 0;
      p.layer = random_() % (kDepth + 2);
      call.slots.Of<uint32_t>(6)[lane] = p.layer;
      const uint32_t sizes[3] = {kWidth, kHeight, kDepth};
      for (unsigned k = 0; k < 3; ++k) {
        p.integer_at[k] = static_cast<int>(random_() % (sizes[k] + 4)) - 2;
        p.at[k] = odd != 0 && lane == 3 ? odd : Coordinate(t, sizes[k]);
        if (p.integer) {
          call.slots.Of<int32_t>(7 + k)[lane] = p.integer_at[k];
        } else {
          call.slots.Of<float>(7 + k)[lane] = p.at[k];
        }
      }
    }
    if (!SampleByAvx512(call, t)) return false;
    for (int lane = 0; lane < kWarpSize; ++lane) {
      if ((mask >> lane & 1) == 0) continue;
      uint32_t want[4];
      SampleTexture(t, points[lane], want);
      for (unsigned c = 0; c < 4; ++c) {
        // Which of two operands' NaN a sum is depends on the order that the compiler gave them.
        if (t.linear_filter && std::isnan(std::bit_cast<float>(want[c])) &&
            std::isnan(std::bit_cast<float>(call.slots.Of<uint32_t>(c)[lane]))) {
          continue;
        }
        EXPECT_EQ(call.slots.Of<uint32_t>(c)[lane], want[c])
            << "shape " << static_cast<int>(t.image.shape) << " channel "
            << static_cast<int>(t.image.channel) << " x " << int{t.image.channels} << " mode "
            << static_cast<int>(t.address_mode[0]) << " linear " << t.linear_filter << " code "
            << code << " at " << points[lane].at[0] << " " << points[lane].at[1] << " "
            << points[lane].at[2] << " component " << c;
        if (HasFailure()) return true;
      }
    }
    return true;
  }

  std::mt19937 random_{11};
  DeviceBuffer<uint8_t> memory_{4096};
};

TEST_F(TextureAvx512Test, AgreesWithSampleTexture) {
  constexpr ImageShape kShapes[] = {ImageShape::k1D, ImageShape::k2D, ImageShape::k3D,
                                    ImageShape::k1DLayered, ImageShape::k2DLayered};
  constexpr AddressMode kModes[] = {AddressMode::kWrap, AddressMode::kClamp, AddressMode::kMirror,
                                    AddressMode::kBorder};
  for (const ImageShape shape : kShapes) {
    for (int channel = 0; channel < 8; ++channel) {
      for (const uint8_t channels : {1, 2, 4}) {
        for (const AddressMode mode : kModes) {
          for (int flags = 0; flags < 8; ++flags) {
            TextureDescriptor t;
            t.image = MakeImage(shape, static_cast<ChannelType>(channel), channels);
            for (AddressMode& m : t.address_mode) m = mode;
            t.address_mode[1] = kModes[random_() % 4];
            t.linear_filter = (flags & 1) != 0;
            t.normalized_coordinates = (flags & 2) != 0;
            t.normalized_values = (flags & 4) != 0;
            const float border[4] = {1.5f, -2.25f, 300, 0.125f};
            std::copy(border, border + 4, t.border);
            for (int round = 0; round < kRounds; ++round) {
              const uint32_t mask = round == 0 ? ~0u : static_cast<uint32_t>(random_()) | 1;
              ASSERT_TRUE(Check(t, 0, mask));
              ASSERT_FALSE(HasFailure());
            }
          }
        }
      }
    }
  }
}

TEST_F(TextureAvx512Test, IntegerCoordinates) {
  for (const ImageShape shape : {ImageShape::kLinear, ImageShape::k1D, ImageShape::k2D,
                                 ImageShape::k3D, ImageShape::k2DLayered}) {
    for (int channel = 0; channel < 8; ++channel) {
      for (const uint8_t channels : {1, 2, 4}) {
        for (const AddressMode mode : {AddressMode::kClamp, AddressMode::kBorder}) {
          TextureDescriptor t;
          t.image = MakeImage(shape, static_cast<ChannelType>(channel), channels);
          for (AddressMode& m : t.address_mode) m = mode;
          t.border[0] = 9;
          t.normalized_values = (channel & 1) != 0;
          ASSERT_TRUE(Check(t, kTextureInteger, static_cast<uint32_t>(random_()) | 1));
          ASSERT_FALSE(HasFailure());
        }
      }
    }
  }
}

TEST_F(TextureAvx512Test, LeavesToOthersWhatItCannotDoExactly) {
  TextureDescriptor t;
  t.image = MakeImage(ImageShape::k2D, ChannelType::kF32, 1);
  const float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const float odd : {kNan, 5e6f, -1e30f, std::numeric_limits<float>::infinity()}) {
    EXPECT_FALSE(Check(t, 0, ~0u, odd)) << odd;
    EXPECT_TRUE(Check(t, 0, ~8u, odd)) << "of an idle lane: " << odd;
  }
  EXPECT_FALSE(Check(t, kTextureOffset, ~0u));
  TextureDescriptor cube = t;
  cube.image.shape = ImageShape::kCube;
  EXPECT_FALSE(Check(cube, 0, ~0u));
  TextureDescriptor levels = t;
  levels.image.level_count = 2;
  EXPECT_FALSE(Check(levels, 0, ~0u));
  TextureDescriptor large = t;
  large.image.levels[0].row_pitch = uint64_t{1} << 31;
  EXPECT_FALSE(Check(large, 0, ~0u));
}

}  // namespace
}  // namespace fargpu::softgpu
