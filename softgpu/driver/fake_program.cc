#include "softgpu/driver/fake_program.h"

#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "common/mutex.h"

namespace fargpu::softgpu {
namespace {

struct Registry {
  Mutex mutex;
  std::map<std::string, std::pair<KernelInfo, FakeKernelBody>> kernels ABSL_GUARDED_BY(mutex);
};

Registry& GetRegistry() {
  static Registry* const registry = new Registry;
  return *registry;
}

class FakeProgram : public Program {
 public:
  const std::vector<KernelInfo>& kernels() const override { return kernels_; }
  const std::vector<VariableInfo>& variables() const override { return variables_; }
  void BindVariables(absl::Span<const uint64_t> addresses) override {
    addresses_.assign(addresses.begin(), addresses.end());
  }
  std::vector<char> InitialContents(size_t variable) const override {
    return std::vector<char>(variables_[variable].size, values_[variable]);
  }
  absl::Status Launch(size_t kernel, const LaunchConfig& config) override {
    return bodies_[kernel](config);
  }

  absl::Status AddLine(const std::vector<std::string>& words) {
    if (words[0] == ".entry") {
      Registry& registry = GetRegistry();
      MutexLock lock(&registry.mutex);
      const auto found = registry.kernels.find(words.at(1));
      if (found == registry.kernels.end()) {
        return absl::InvalidArgumentError(absl::StrCat("no fake kernel ", words[1]));
      }
      kernels_.push_back(found->second.first);
      bodies_.push_back(found->second.second);
    } else if (words[0] == ".global" || words[0] == ".managed") {
      VariableInfo info;
      info.name = words.at(1);
      info.managed = words[0] == ".managed";
      int value = 0;
      if (!absl::SimpleAtoi(words.at(2), &info.size) || !absl::SimpleAtoi(words.at(3), &value)) {
        return absl::InvalidArgumentError("bad variable");
      }
      variables_.push_back(info);
      values_.push_back(static_cast<char>(value));
    } else if (words[0] == ".error") {
      return absl::InvalidArgumentError(words.at(1));
    }
    return absl::OkStatus();
  }

 private:
  std::vector<KernelInfo> kernels_;
  std::vector<FakeKernelBody> bodies_;
  std::vector<VariableInfo> variables_;
  std::vector<char> values_;
  std::vector<uint64_t> addresses_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Program>> Program::Link(absl::Span<const std::string> ptx_modules,
                                                       std::string* log) {
  auto program = std::make_unique<FakeProgram>();
  for (const std::string& text : ptx_modules) {
    for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipWhitespace())) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
      if (absl::Status status = program->AddLine(words); !status.ok()) {
        absl::StrAppend(log, std::string(status.message()), "\n");
        return status;
      }
    }
  }
  return program;
}

// Fake kernels look at LaunchConfig::interrupted themselves.
void InterruptLaunches(std::atomic<bool>* flag) { flag->store(true); }
void ReleaseHeap(uint64_t) {}

void RegisterFakeKernel(KernelInfo info, FakeKernelBody body) {
  Registry& registry = GetRegistry();
  MutexLock lock(&registry.mutex);
  std::string name = info.name;
  registry.kernels[std::move(name)] = {std::move(info), std::move(body)};
}

KernelInfo FakeKernelInfo(std::string name, std::vector<uint32_t> param_sizes) {
  KernelInfo info;
  info.name = std::move(name);
  for (uint32_t size : param_sizes) {
    const uint32_t alignment = size >= 8 ? 8 : size;
    info.param_bytes = (info.param_bytes + alignment - 1) / alignment * alignment;
    info.params.push_back({info.param_bytes, size});
    info.param_bytes += size;
  }
  info.registers = 32;
  info.ptx_version = 90;
  info.binary_version = 75;
  return info;
}

}  // namespace fargpu::softgpu
