#include <cstdlib>

#include "gtest/gtest.h"

namespace {

class DriverTestEnvironment : public ::testing::Environment {
 public:
  void SetUp() override {
    setenv("FARGPU_SOFTGPU", "devices=2,memory=256MiB,name=Test Card,sms=4,machine=test",
           /*overwrite=*/1);
  }
};

const ::testing::Environment* const environment =
    ::testing::AddGlobalTestEnvironment(new DriverTestEnvironment);

}  // namespace
