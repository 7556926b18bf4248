#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace fargpu::softgpu {

// Compiled code on disk, from process to process. A file's name is the hash of everything that its
// contents depend on; the contents are checked against a hash of their own and never trusted: a
// file that is truncated, damaged, of another version or of another user is no entry.
//
// Any number of processes may use one folder. A file appears whole or not at all (it is written
// under another name and renamed); of two writers of one entry either wins. When the files exceed
// the limit those that have not been used for longest go. Failures (a full disk, a folder that
// cannot be made) cost time, never correctness: they are logged and the code is compiled again.
class CodeCache {
 public:
  using Key = std::array<uint8_t, 32>;

  // A cache that holds nothing if `folder` is empty or `limit_bytes` is 0.
  CodeCache(std::string folder, uint64_t limit_bytes);
  // FARGPU_CACHE_DIR, else $XDG_CACHE_HOME/fargpu, else $HOME/.cache/fargpu, folder softgpu;
  // FARGPU_CACHE_BYTES (default 1 GiB; 0 turns the cache off).
  static CodeCache FromEnvironment();

  bool enabled() const { return !folder_.empty(); }
  const std::string& folder() const { return folder_; }

  std::optional<std::string> Find(const Key& key) const;
  void Store(const Key& key, absl::string_view contents) const;

 private:
  void Evict(uint64_t room) const;

  std::string folder_;
  uint64_t limit_bytes_ = 0;
};

// Hashes parts one after another, each with its length.
class CodeCacheHash {
 public:
  CodeCacheHash();
  ~CodeCacheHash();
  CodeCacheHash& Add(absl::string_view part);
  CodeCacheHash& Add(uint64_t number);
  CodeCache::Key Finish();

 private:
  struct State;
  State* state_;
};

// Identifies the build of this library, and with it the way it compiles; empty if the linker left
// no build id, and then nothing may be cached.
std::string CompilerBuildId();

}  // namespace fargpu::softgpu
