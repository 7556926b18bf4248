#include "softgpu/runtime/device_config.h"

#include <cstring>
#include <fstream>

#include "common/status_matchers.h"

namespace fargpu::softgpu {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr uint64_t kGiB = uint64_t{1} << 30;
const HostFacts kHost{.memory_bytes = 64 * kGiB, .machine_id = "machine"};

TEST(DeviceConfigTest, DefaultsToOneCard) {
  ASSERT_OK_AND_ASSIGN(const DeviceConfig config, ParseDeviceConfig("", kHost));
  ASSERT_EQ(config.devices.size(), 1u);
  const DeviceSpec& device = config.devices[0];
  EXPECT_EQ(device.name, "FarGPU Software Device");
  EXPECT_EQ(device.memory_bytes, 4 * kGiB);
  EXPECT_EQ(device.capability_major, 12);
  EXPECT_EQ(device.library_capability_major, 13);
  EXPECT_EQ(config.mode, ExecutionMode::kRun);
}

TEST(DeviceConfigTest, DefaultMemoryIsAtMostHalfTheHosts) {
  ASSERT_OK_AND_ASSIGN(const DeviceConfig config,
                       ParseDeviceConfig("", {.memory_bytes = 2 * kGiB, .machine_id = "m"}));
  EXPECT_EQ(config.devices[0].memory_bytes, kGiB);
}

TEST(DeviceConfigTest, ReadsEveryKey) {
  ASSERT_OK_AND_ASSIGN(
      const DeviceConfig config,
      ParseDeviceConfig("devices=2,memory=512MiB,name=Small One,capability=9.0,sms=4,mode=null;"
                        "memory=1073741824,name=Large",
                        kHost));
  ASSERT_EQ(config.devices.size(), 3u);
  EXPECT_EQ(config.devices[1].name, "Small One");
  EXPECT_EQ(config.devices[1].memory_bytes, kGiB / 2);
  EXPECT_EQ(config.devices[1].capability_major, 9);
  EXPECT_EQ(config.devices[1].multiprocessors, 4);
  EXPECT_EQ(config.devices[2].name, "Large");
  EXPECT_EQ(config.devices[2].memory_bytes, kGiB);
  EXPECT_EQ(config.devices[2].multiprocessors, 16);
  EXPECT_EQ(config.mode, ExecutionMode::kNull);
}

TEST(DeviceConfigTest, ModelsAreRealCards) {
  ASSERT_OK_AND_ASSIGN(
      const DeviceConfig config,
      ParseDeviceConfig("model=h100,memory=2GiB;model=t4,devices=2,clock=700", kHost));
  ASSERT_EQ(config.devices.size(), 3u);
  EXPECT_EQ(config.devices[0].name, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(config.devices[0].memory_bytes, 2 * kGiB);
  EXPECT_EQ(config.devices[0].multiprocessors, 132);
  EXPECT_EQ(config.devices[0].capability_major, 9);
  EXPECT_EQ(config.devices[0].library_capability_major, 13);
  EXPECT_EQ(config.devices[2].capability_minor, 5);
  EXPECT_EQ(config.devices[2].clock_khz, 700000);
  EXPECT_THAT(std::string(ParseDeviceConfig("model=riva128", kHost).status().message()),
              HasSubstr("h100"));
}

TEST(DeviceConfigTest, ReadsFiles) {
  ASSERT_OK_AND_ASSIGN(const DeviceConfig config, ParseDeviceConfigFile(R"(
# two kinds of cards
mode = "null"
[[device]]
model = "a100"      # as it is
devices = 2
[[device]]
name = "Small # One"
memory = "512MiB"
)",
                                                                        kHost));
  ASSERT_EQ(config.devices.size(), 3u);
  EXPECT_EQ(config.mode, ExecutionMode::kNull);
  EXPECT_EQ(config.devices[1].name, "NVIDIA A100-SXM4-80GB");
  EXPECT_EQ(config.devices[2].name, "Small # One");
  EXPECT_EQ(config.devices[2].memory_bytes, kGiB / 2);
  const auto message = [](absl::string_view contents) {
    return std::string(ParseDeviceConfigFile(contents, kHost).status().message());
  };
  EXPECT_THAT(message("\nsms = 0"), HasSubstr("line 2"));
  EXPECT_THAT(message("name = \"x"), HasSubstr("line 1: a text has no closing quote"));
  EXPECT_THAT(message("[device]"), HasSubstr("expected [[device]]"));
  EXPECT_THAT(message("name = \"a,b\""), HasSubstr("must not contain"));
  EXPECT_THAT(std::string(ReadDeviceConfig("/no/such.toml", kHost).status().message()),
              HasSubstr("cannot open the file /no/such.toml"));
  const std::string path = ::testing::TempDir() + "/device_config_test.toml";
  std::ofstream(path) << "[[device]]\nsms = 0\n";
  EXPECT_THAT(std::string(ReadDeviceConfig(path, kHost).status().message()),
              StartsWith("FARGPU_SOFTGPU: " + path + ": line 2: sms=\"0\": expected a number"));
}

TEST(DeviceConfigTest, CardsDifferAndStayTheSame) {
  ASSERT_OK_AND_ASSIGN(const DeviceConfig one, ParseDeviceConfig("devices=3", kHost));
  ASSERT_OK_AND_ASSIGN(const DeviceConfig two, ParseDeviceConfig("devices=3,name=x", kHost));
  ASSERT_OK_AND_ASSIGN(const DeviceConfig other,
                       ParseDeviceConfig("devices=3,machine=elsewhere", kHost));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(one.devices[i].uuid, two.devices[i].uuid);
    EXPECT_NE(one.devices[i].uuid, other.devices[i].uuid);
    // What common/software_card.h tells such cards by.
    EXPECT_EQ(std::memcmp(one.devices[i].uuid.data(), "FarG", 4), 0);
    EXPECT_EQ(one.devices[i].uuid[6] >> 4, 8);
    EXPECT_EQ(one.devices[i].pci_bus, 0x10 + i);
    for (int j = 0; j < i; ++j) EXPECT_NE(one.devices[i].uuid, one.devices[j].uuid);
  }
}

TEST(DeviceConfigTest, RefusesWhatItDoesNotUnderstand) {
  for (const char* text : {"devices=0", "devices=65", "devices=x", "devices", "memory=1",
                           "memory=4GB", "memory=99999999999999999999", "memory=2048TiB",
                           "memory=-1MiB", "capability=13", "capability=a.b", "capability=0.0",
                           "sms=0", "mode=fast", "color=red", "name=", "devices=40;devices=40"}) {
    const auto config = ParseDeviceConfig(text, kHost);
    EXPECT_THAT(config, StatusIs(absl::StatusCode::kInvalidArgument)) << text;
    EXPECT_THAT(std::string(config.status().message()), HasSubstr("FARGPU_SOFTGPU")) << text;
  }
  EXPECT_THAT(std::string(ParseDeviceConfig("memory=4GB", kHost).status().message()),
              HasSubstr("memory=\"4GB\": expected 16MiB to 1TiB"));
}

}  // namespace
}  // namespace fargpu::softgpu
