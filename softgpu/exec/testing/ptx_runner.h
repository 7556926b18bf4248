#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"

#include "softgpu/compiler.h"

namespace fargpu::softgpu {

// Makes one range of the program's memory reachable for kernels (window_double.cc).
void RegisterHostRange(uint64_t address, uint64_t bytes);

// Memory in the device window, for tests.
template <typename T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(size_t count, T fill = T{}) : count_(count) {
    address_ = ReserveWindowRange(count * sizeof(T));
    for (size_t i = 0; i < count; ++i) (*this)[i] = fill;
  }
  explicit DeviceBuffer(const std::vector<T>& values) : DeviceBuffer(values.size()) {
    for (size_t i = 0; i < count_; ++i) (*this)[i] = values[i];
  }
  ~DeviceBuffer() { ReleaseWindowRange(address_, count_ * sizeof(T)); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  uint64_t address() const { return address_; }
  size_t size() const { return count_; }
  T& operator[](size_t i) { return reinterpret_cast<T*>(address_)[i]; }
  std::vector<T> Values() { return std::vector<T>(&(*this)[0], &(*this)[0] + count_); }

 private:
  uint64_t address_ = 0;
  size_t count_ = 0;
};

// A program whose variables are placed and initialised.
class PtxRunner {
 public:
  static absl::StatusOr<std::unique_ptr<PtxRunner>> Load(const std::vector<std::string>& modules) {
    auto runner = std::make_unique<PtxRunner>();
    absl::StatusOr<std::unique_ptr<Program>> program = Program::Link(modules, &runner->log);
    if (!program.ok()) return program.status();
    runner->program = *std::move(program);
    for (const VariableInfo& v : runner->program->variables()) {
      runner->addresses.push_back(ReserveWindowRange(v.size == 0 ? 1 : v.size));
    }
    runner->program->BindVariables(runner->addresses);
    for (size_t k = 0; k < runner->addresses.size(); ++k) {
      const std::vector<char> bytes = runner->program->InitialContents(k);
      std::memcpy(reinterpret_cast<void*>(runner->addresses[k]), bytes.data(), bytes.size());
    }
    return runner;
  }

  // Launches kernel `name` with parameters laid out from `args`, each at its own offset.
  template <typename... Args>
  absl::Status Run(const std::string& name, Dim3 grid, Dim3 block, uint32_t shared, Args... args) {
    for (size_t k = 0; k < program->kernels().size(); ++k) {
      const KernelInfo& info = program->kernels()[k];
      if (info.name != name) continue;
      std::vector<char> params(info.param_bytes);
      size_t next = 0;
      [[maybe_unused]] const auto put = [&](const auto& value) {
        if (next < info.params.size())
          std::memcpy(
              params.data() + info.params[next].offset, &value,
              info.params[next].size < sizeof value ? info.params[next].size : sizeof value);
        ++next;
      };
      (put(args), ...);
      LaunchConfig config;
      config.grid = grid;
      config.block = block;
      config.dynamic_shared_bytes = shared;
      config.cooperative = cooperative;
      config.params = params;
      config.printf_sink = [this](absl::string_view text) {
        printed.append(text.data(), text.size());
      };
      return program->Launch(k, config);
    }
    return absl::NotFoundError("no kernel " + name);
  }

  std::unique_ptr<Program> program;
  std::vector<uint64_t> addresses;
  std::string log;
  std::string printed;
  bool cooperative = false;
};

}  // namespace fargpu::softgpu
