#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "driver.h"

namespace fargpu::server {

// Any libcuda-compatible library (DESIGN D1): NVIDIA's, softgpu's, a test's. Never unloaded,
// because drivers leave threads behind. One per process: each entry point is looked up once, by its
// first call.
class LoadedDriver : public Driver {
 public:
  // `path` as dlopen takes it. kNotFound: no such library, or it cannot be loaded;
  // kFailedPrecondition: it is no CUDA driver.
  static absl::StatusOr<std::unique_ptr<LoadedDriver>> Load(const std::string& path);

  // The generated members, one per entry point.
#include "loaded_driver_calls.inc"

  const std::string& path() const { return path_; }

 private:
  LoadedDriver(std::string path, void* library) : path_(std::move(path)), library_(library) {}
  void* Resolve(const char* symbol) const;

  const std::string path_;
  void* const library_;
};

}  // namespace fargpu::server
