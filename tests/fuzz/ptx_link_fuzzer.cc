#include "absl/strings/str_split.h"

#include "softgpu/compiler.h"
#include "tests/fuzz/fuzz_target.h"

// Input: the text of one PTX module, or of several with a zero byte between them, which are parsed
// and linked as when a program is loaded. Nothing is compiled. Seeds: seeds/ptx.
namespace fargpu::fuzz {

std::vector<Seed> Seeds() {
  const std::string header = ".version 9.0\n.target sm_75\n.address_size 64\n";
  return {{"two_modules", header + ".extern .global .u32 v;\n.visible .entry k() { ret; }\n" +
                              std::string(1, '\0') + header + ".visible .global .u32 v = 3;\n"}};
}

}  // namespace fargpu::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fargpu::softgpu;  // NOLINT: one function
  using fargpu::fuzz::Require;
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const std::vector<std::string> modules = absl::StrSplit(text, '\0');
  std::string log;
  const auto program = Program::Link(modules, &log);
  if (!program.ok()) {
    Require(!log.empty(), "an error is in the log");
    return 0;
  }
  for (const KernelInfo& kernel : (*program)->kernels()) {
    uint64_t end = 0;
    for (const KernelParam& param : kernel.params) {
      Require(param.offset >= end, "parameters lie one behind the other");
      end = uint64_t{param.offset} + param.size;
    }
    Require(end <= kernel.param_bytes && kernel.param_bytes <= 32764,
            "parameters lie in the parameter block");
    Require(kernel.max_threads_per_block >= 1 && kernel.max_threads_per_block <= 1024,
            "a block has 1 to 1024 threads");
  }
  for (const VariableInfo& variable : (*program)->variables()) {
    Require(variable.alignment != 0 && (variable.alignment & (variable.alignment - 1)) == 0,
            "an alignment is a power of two");
  }
  return 0;
}
