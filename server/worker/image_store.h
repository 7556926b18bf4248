#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "common/mutex.h"
#include "protocol/driver_abi/image.h"
#include "protocol/wire/codec.h"

namespace fargpu::server {

// Images on their way from the client, which come in pieces before the call that loads them.
// Thread-safe.
class ImageStore {
 public:
  // What a session may have on the way at a time. The largest libraries' images have 1 GiB.
  static constexpr uint64_t kMaxBytes = uint64_t{4} << 30;
  static constexpr size_t kMaxImages = 1024;
  static constexpr size_t kMaxParts = 4096;

  // kInvalidArgument: no client of ours sends that. kResourceExhausted over a limit.
  absl::Status Begin(wire::ImageId id, uint8_t kind, const std::vector<uint64_t>& part_bytes);
  absl::Status Append(wire::ImageId id, uint32_t part, uint64_t offset,
                      absl::Span<const char> bytes);

  // Takes the image out. CUDA_ERROR_INVALID_IMAGE when it is damaged; kInvalidArgument when it is
  // not there or not complete.
  absl::StatusOr<std::shared_ptr<driver_abi::ReassembledImage>> Take(wire::ImageId id);

 private:
  struct Incoming {
    driver_abi::ImageKind kind;
    std::vector<uint64_t> part_bytes;
    std::vector<std::string> parts;
    uint64_t total = 0;
  };
  Mutex mutex_;
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // announced, over all images
  absl::flat_hash_map<wire::ImageId, Incoming> images_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fargpu::server
