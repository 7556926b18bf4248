#include <cstdlib>

#include "gtest/gtest.h"

namespace {

class DriverTestEnvironment : public ::testing::Environment {
 public:
  void SetUp() override {
    setenv("FARGPU_SOFTGPU", "devices=3,memory=256MiB,name=Test Card,sms=4,machine=test",
           /*overwrite=*/1);
    // The tests see two of the machine's three cards.
    setenv("CUDA_VISIBLE_DEVICES", "0,2", /*overwrite=*/1);
  }
};

const ::testing::Environment* const environment =
    ::testing::AddGlobalTestEnvironment(new DriverTestEnvironment);

}  // namespace
