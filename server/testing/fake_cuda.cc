// A driver library for tests of the daemon and of worker processes: FakeDriver, with kernels that
// crash or hang, and a start that fails where FARGPU_FAKE_CUDA says so.
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "server/driver/fake_driver.h"

namespace fargpu::server {

Driver& LibraryDriver();

namespace {

// Grid sizes that mean harm.
constexpr unsigned kCrashes = 666;
constexpr unsigned kHangs = 667;

class HarmfulDriver : public FakeDriver {
 public:
  HarmfulDriver() : FakeDriver(/*devices=*/2) {}

  CUresult cuInit(unsigned int Flags) override {
    const char* text = std::getenv("FARGPU_FAKE_CUDA");
    const std::string mode = text != nullptr ? text : "";
    if (mode == "no-device") return CUDA_ERROR_NO_DEVICE;
    if (mode == "crash") std::abort();
    return FakeDriver::cuInit(Flags);
  }
  CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                          unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                          unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                          void** kernelParams, void** extra) override {
    if (gridDimX == kCrashes) std::abort();
    while (gridDimX == kHangs) pause();
    return FakeDriver::cuLaunchKernel(f, gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY,
                                      blockDimZ, sharedMemBytes, hStream, kernelParams, extra);
  }
};

}  // namespace

Driver& LibraryDriver() {
  static HarmfulDriver* const driver = new HarmfulDriver;  // outlives exit handlers
  return *driver;
}

}  // namespace fargpu::server
