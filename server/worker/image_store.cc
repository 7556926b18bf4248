#include "server/worker/image_store.h"

#include "absl/strings/str_cat.h"

namespace fargpu::server {

absl::Status ImageStore::Begin(wire::ImageId id, uint8_t kind,
                               const std::vector<uint64_t>& part_bytes) {
  if (kind < static_cast<uint8_t>(driver_abi::ImageKind::kFatbinWrapper) ||
      kind > static_cast<uint8_t>(driver_abi::ImageKind::kPtx)) {
    return absl::InvalidArgumentError(absl::StrCat("image kind ", kind));
  }
  if (part_bytes.empty() || part_bytes.size() > kMaxParts) {
    return absl::InvalidArgumentError(absl::StrCat("an image of ", part_bytes.size(),
                                                   " parts; 1 to ", kMaxParts, " are possible"));
  }
  MutexLock lock(&mutex_);
  uint64_t total = 0;
  for (uint64_t bytes : part_bytes) {
    if (bytes > kMaxBytes - bytes_ - total) {
      return absl::ResourceExhaustedError(
          absl::StrCat("images of more than ", kMaxBytes, " bytes are on their way"));
    }
    total += bytes;
  }
  if (images_.size() >= kMaxImages) {
    return absl::ResourceExhaustedError(absl::StrCat(kMaxImages, " images are on their way"));
  }
  Incoming image{.kind = static_cast<driver_abi::ImageKind>(kind),
                 .part_bytes = part_bytes,
                 .parts = std::vector<std::string>(part_bytes.size()),
                 .total = total};
  if (!images_.try_emplace(id, std::move(image)).second) {
    return absl::InvalidArgumentError(absl::StrCat("image id ", id.value, " is in use"));
  }
  bytes_ += total;
  return absl::OkStatus();
}

absl::Status ImageStore::Append(wire::ImageId id, uint32_t part, uint64_t offset,
                                absl::Span<const char> bytes) {
  MutexLock lock(&mutex_);
  const auto found = images_.find(id);
  if (found == images_.end() || part >= found->second.parts.size()) {
    return absl::InvalidArgumentError(absl::StrCat("a piece of part ", part, " of image ", id.value,
                                                   ", which was not announced"));
  }
  Incoming& image = found->second;
  std::string& so_far = image.parts[part];
  if (offset != so_far.size() || bytes.size() > image.part_bytes[part] - so_far.size()) {
    return absl::InvalidArgumentError(absl::StrCat("piece of ", bytes.size(), " bytes at ", offset,
                                                   " of a part that has ", so_far.size(), " of ",
                                                   image.part_bytes[part]));
  }
  // Grows with what arrives, not with what was announced.
  so_far.append(bytes.data(), bytes.size());
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<driver_abi::ReassembledImage>> ImageStore::Take(wire::ImageId id) {
  Incoming image;
  {
    MutexLock lock(&mutex_);
    auto node = images_.extract(id);
    if (node.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("image ", id.value, " was not sent"));
    }
    image = std::move(node.mapped());
    bytes_ -= image.total;
  }
  for (size_t part = 0; part < image.parts.size(); ++part) {
    if (image.parts[part].size() != image.part_bytes[part]) {
      return absl::InvalidArgumentError(absl::StrCat("part ", part, " of image ", id.value, " has ",
                                                     image.parts[part].size(), " of ",
                                                     image.part_bytes[part], " bytes"));
    }
  }
  absl::StatusOr<driver_abi::ReassembledImage> whole =
      driver_abi::ReassembledImage::Create(image.kind, std::move(image.parts));
  if (!whole.ok()) return whole.status();
  return std::make_shared<driver_abi::ReassembledImage>(std::move(*whole));
}

}  // namespace fargpu::server
