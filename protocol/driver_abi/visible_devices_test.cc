#include "protocol/driver_abi/visible_devices.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fargpu::driver_abi {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class VisibleDevicesTest : public ::testing::Test {
 protected:
  VisibleDevicesTest() : uuids_(3) {
    uuids_[0] = {0x46, 0x61, 0x72, 0x01, 0xab, 0xcd};
    uuids_[1] = {0x46, 0x61, 0x72, 0x02, 0xab, 0xcd};
    uuids_[2] = {0x89, 0x32, 0xf9, 0x37, 0xd7, 0x2c, 0x41, 0x06,
                 0xc1, 0x2f, 0x20, 0xbd, 0x9f, 0xae, 0xd9, 0xf6};
  }

  std::vector<int> Visible(const char* variable) { return VisibleDevices(variable, uuids_); }

  std::vector<DeviceUuid> uuids_;
};

TEST_F(VisibleDevicesTest, ShowsAllIfNotSetAndNoneIfEmpty) {
  EXPECT_THAT(Visible(nullptr), ElementsAre(0, 1, 2));
  EXPECT_THAT(Visible(""), IsEmpty());
}

TEST_F(VisibleDevicesTest, TakesOrdinalsInTheirOrder) {
  EXPECT_THAT(Visible("1"), ElementsAre(1));
  EXPECT_THAT(Visible("2,0"), ElementsAre(2, 0));
  EXPECT_THAT(Visible(" 2 , 1 "), ElementsAre(2, 1));
}

TEST_F(VisibleDevicesTest, EndsAtTheFirstThatIsNone) {
  EXPECT_THAT(Visible("0,2,-1,1"), ElementsAre(0, 2));
  EXPECT_THAT(Visible("1,3,0"), ElementsAre(1));
  EXPECT_THAT(Visible("7"), IsEmpty());
  EXPECT_THAT(Visible("none"), IsEmpty());
  EXPECT_THAT(Visible("1x"), IsEmpty());
  EXPECT_THAT(Visible("99999999999999999999"), IsEmpty());
  EXPECT_THAT(Visible("0,,1"), ElementsAre(0));
  EXPECT_THAT(Visible("0,1,"), ElementsAre(0, 1));
}

TEST_F(VisibleDevicesTest, ShowsNoCardTwice) {
  EXPECT_THAT(Visible("1,1,0"), ElementsAre(1));
  EXPECT_THAT(Visible("2,GPU-8932,0"), ElementsAre(2));
}

TEST_F(VisibleDevicesTest, TakesUuidsAndWhatBeginsOneAlone) {
  EXPECT_THAT(Visible("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"), ElementsAre(2));
  EXPECT_THAT(Visible("GPU-8932F937,0"), ElementsAre(2, 0));
  EXPECT_THAT(Visible("GPU-46617202,GPU-46617201"), ElementsAre(1, 0));
  EXPECT_THAT(Visible("GPU-466172"), IsEmpty()) << "two cards begin so";
  EXPECT_THAT(Visible("GPU-8932f937d72c"), IsEmpty());
  EXPECT_THAT(Visible("GPU-8932f937-d72c-4106-c12f-20bd9faed9f60"), IsEmpty());
  EXPECT_THAT(Visible("8932f937"), IsEmpty());
}

}  // namespace
}  // namespace fargpu::driver_abi
