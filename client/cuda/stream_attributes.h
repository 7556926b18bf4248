#pragma once

#include <cuda.h>
#include <map>
#include <optional>

#include "client/cuda/graph.h"
#include "common/mutex.h"

namespace fargpu::client {

// What the program has set of streams' attributes. Any thread.
class StreamAttributes {
 public:
  using Values = std::map<int, CUstreamAttrValue>;  // by CUstreamAttrID

  std::optional<CUstreamAttrValue> Find(const StreamKey& stream, int attribute) const {
    MutexLock lock(&mutex_);
    const auto values = values_.find(stream);
    if (values == values_.end()) return std::nullopt;
    const auto value = values->second.find(attribute);
    if (value == values->second.end()) return std::nullopt;
    return value->second;
  }
  void Set(const StreamKey& stream, int attribute, const CUstreamAttrValue& value) {
    MutexLock lock(&mutex_);
    values_[stream][attribute] = value;
  }
  // Gives `to` all that `from` has, and returns it.
  Values Copy(const StreamKey& from, const StreamKey& to) {
    MutexLock lock(&mutex_);
    const auto values = values_.find(from);
    Values copy = values == values_.end() ? Values() : values->second;
    values_[to] = copy;
    return copy;
  }
  void Forget(const StreamKey& stream) {
    MutexLock lock(&mutex_);
    values_.erase(stream);
  }

 private:
  mutable Mutex mutex_;
  std::map<StreamKey, Values> values_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fargpu::client
