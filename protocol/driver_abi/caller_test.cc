#include "protocol/driver_abi/caller.h"

#include <gtest/gtest.h>

namespace fargpu::driver_abi {
namespace {

TEST(CallerTest, LibrariesAreKnownByTheirFiles) {
  EXPECT_EQ(CallerOfFile("/opt/cuda/lib64/libcublasLt.so.13"), Caller::kLibrary);
  EXPECT_EQ(CallerOfFile("libcudnn_ops.so.9"), Caller::kLibrary);
  EXPECT_EQ(CallerOfFile("/usr/bin/fargpud"), Caller::kLibrary);
  EXPECT_EQ(CallerOfFile("/opt/libcublas/app"), Caller::kProgram);
  EXPECT_EQ(CallerOfFile("libcudart.so.13"), Caller::kProgram);
  EXPECT_EQ(CallerOfFile(nullptr), Caller::kProgram);
  EXPECT_EQ(CallerOf(reinterpret_cast<const void*>(&CallerOfFile)), Caller::kProgram);
}

}  // namespace
}  // namespace fargpu::driver_abi
