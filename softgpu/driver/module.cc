#include "softgpu/driver/module.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

#include "common/cuda_error.h"
#include "common/status_macros.h"
#include "protocol/driver_abi/fatbin_decompress.h"
#include "protocol/driver_abi/image.h"
#include "softgpu/driver/driver.h"

namespace fargpu::softgpu {
namespace {

// Variables start at least at this alignment, whatever PTX says, as with NVIDIA's driver: programs
// copy whole vectors to symbols.
constexpr uint64_t kVariableAlignment = 256;

uint64_t RoundUp(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

absl::StatusOr<std::vector<std::string>> TextsOf(const driver_abi::Image& image, int capability) {
  absl::StatusOr<std::vector<driver_abi::PtxText>> ptx = driver_abi::PtxTexts(image, capability);
  if (!ptx.ok()) return CudaError(CUDA_ERROR_INVALID_IMAGE, ptx.status().message());
  std::vector<std::string> texts;
  for (driver_abi::PtxText& text : *ptx) {
    std::vector<std::string> parts = ReadPtx(std::move(text.text));
    std::move(parts.begin(), parts.end(), std::back_inserter(texts));
  }
  return texts;
}

// A comment to PTX. What cuLinkComplete gives must stand by itself, be copied and written to files,
// so it is text.
constexpr absl::string_view kNextModule = "\n//// the next module of a linked image\n";

driver_abi::ImageKind FileKind(absl::string_view contents) {
  if (absl::StartsWith(contents,
                       "\x7f"
                       "ELF"))
    return driver_abi::ImageKind::kElf;
  if (absl::StartsWith(contents, "\x50\xed\x55\xba")) return driver_abi::ImageKind::kFatbin;
  return driver_abi::ImageKind::kPtx;
}

}  // namespace

std::string JoinPtx(const std::vector<std::string>& texts) {
  return absl::StrJoin(texts, kNextModule);
}

std::vector<std::string> ReadPtx(std::string text) {
  return absl::StrSplit(text, absl::ByString(kNextModule));
}

std::shared_ptr<Function> Module::FindFunction(absl::string_view name) const {
  for (const std::shared_ptr<Function>& function : functions) {
    if (function->info.name == name) return function;
  }
  return nullptr;
}

const Variable* Module::FindVariable(absl::string_view name) const {
  for (const Variable& variable : variables) {
    if (variable.info.name == name) return &variable;
  }
  return nullptr;
}

absl::StatusOr<JitOptions> JitOptions::Parse(unsigned count, const CUjit_option* options,
                                             void** values) {
  JitOptions parsed;
  if (count == 0) return parsed;
  if (options == nullptr) return CudaError(CUDA_ERROR_INVALID_VALUE, "options is null");
  for (unsigned i = 0; i < count; ++i) {
    if (options[i] < 0 || options[i] >= CU_JIT_NUM_OPTIONS) {
      return CudaError(CUDA_ERROR_INVALID_VALUE,
                       absl::StrCat("JIT option ", static_cast<int>(options[i])));
    }
    if (values == nullptr) return CudaError(CUDA_ERROR_INVALID_VALUE, "optionValues is null");
    // Sizes are passed in the pointer itself, and what was used is written over it.
    void* const value = values[i];
    switch (options[i]) {
      case CU_JIT_INFO_LOG_BUFFER:
        parsed.info_log = static_cast<char*>(value);
        break;
      case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
        parsed.info_log_bytes = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(value));
        parsed.info_log_bytes_value = &values[i];
        break;
      case CU_JIT_ERROR_LOG_BUFFER:
        parsed.error_log = static_cast<char*>(value);
        break;
      case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
        parsed.error_log_bytes = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(value));
        parsed.error_log_bytes_value = &values[i];
        break;
      case CU_JIT_WALL_TIME:
        parsed.wall_time_value = &values[i];
        break;
      default:
        // Optimisation levels, targets and the like say how to make machine code of NVIDIA's.
        break;
    }
  }
  return parsed;
}

void JitOptions::WriteLogs(absl::string_view log, float milliseconds) const {
  size_t written = 0;
  if (error_log != nullptr && error_log_bytes > 0) {
    written = std::min(log.size(), error_log_bytes - 1);
    std::memcpy(error_log, log.data(), written);
    error_log[written] = '\0';
  }
  if (error_log_bytes_value != nullptr) {
    *error_log_bytes_value = reinterpret_cast<void*>(written);
  }
  if (info_log != nullptr && info_log_bytes > 0) info_log[0] = '\0';
  if (info_log_bytes_value != nullptr) *info_log_bytes_value = nullptr;
  if (wall_time_value != nullptr) {
    *wall_time_value = nullptr;
    std::memcpy(wall_time_value, &milliseconds, sizeof(milliseconds));
  }
}

absl::StatusOr<std::vector<std::string>> ReadImage(const void* image, int capability) {
  if (image == nullptr) return CudaError(CUDA_ERROR_INVALID_VALUE, "image is null");
  ASSIGN_OR_RETURN(const driver_abi::Image parts, driver_abi::ImageParts(image));
  return TextsOf(parts, capability);
}

absl::StatusOr<std::vector<std::string>> ReadImageFile(const char* path, int capability) {
  if (path == nullptr) return CudaError(CUDA_ERROR_INVALID_VALUE, "file name is null");
  std::ifstream file(path, std::ios::binary);
  if (!file) return CudaError(CUDA_ERROR_FILE_NOT_FOUND, absl::StrCat("cannot open ", path));
  std::string contents((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  // A file has a known end, so unlike an image in memory it can be checked whole.
  driver_abi::Image image;
  image.kind = FileKind(contents);
  if (image.kind == driver_abi::ImageKind::kPtx) {
    contents.resize(std::min(contents.find('\0'), contents.size()));
  }
  image.parts = {contents};
  RETURN_IF_ERROR(driver_abi::CheckImage(image.kind, image.parts));
  return TextsOf(image, capability);
}

absl::StatusOr<std::unique_ptr<Program>> LinkProgram(const std::vector<std::string>& texts,
                                                     std::string* log) {
  absl::StatusOr<std::unique_ptr<Program>> program = Program::Link(texts, log);
  if (program.ok()) return program;
  if (log->empty()) *log = std::string(program.status().message());
  if (absl::IsInvalidArgument(program.status())) {
    return CudaError(CUDA_ERROR_INVALID_PTX, program.status().message());
  }
  return program.status();
}

absl::StatusOr<uint64_t> PlaceManagedVariable(Driver& driver, const Program& program, size_t index,
                                              int device, uint64_t context) {
  const VariableInfo& info = program.variables()[index];
  const uint64_t size = std::max<uint64_t>(info.size, 1);
  ASSIGN_OR_RETURN(const uint64_t address,
                   driver.memory.Allocate(AllocationKind::kManaged, device, context, size));
  driver.managed.Add(address, size);
  const std::vector<char> initial = program.InitialContents(index);
  std::memcpy(reinterpret_cast<void*>(address), initial.data(),
              std::min<size_t>(initial.size(), info.size));
  return address;
}

absl::StatusOr<std::shared_ptr<Module>> PlaceProgram(Driver& driver, std::unique_ptr<Program> owned,
                                                     Context& context,
                                                     absl::Span<const uint64_t> managed) {
  auto module = std::make_shared<Module>();
  module->context = context.weak_from_this();
  module->context_id = context.id;
  if (owned == nullptr) {
    module->has_code = false;
    return module;
  }
  const std::shared_ptr<Program> program = std::move(owned);

  // All variables but managed ones share one allocation; first their offsets.
  const std::vector<VariableInfo>& infos = program->variables();
  uint64_t bytes = 0;
  for (const VariableInfo& info : infos) {
    if (info.managed) {
      module->variables.push_back({info, 0});
      continue;
    }
    bytes = RoundUp(bytes, std::max<uint64_t>(info.alignment, kVariableAlignment));
    module->variables.push_back({info, bytes});
    bytes += std::max<uint64_t>(info.size, 1);
  }
  if (bytes > 0) {
    ASSIGN_OR_RETURN(
        module->variable_memory,
        driver.memory.Allocate(AllocationKind::kDevice, context.device, context.id, bytes));
    // Blocks may be reused: what has no initialiser is zero.
    std::memset(reinterpret_cast<void*>(module->variable_memory), 0, bytes);
  }
  std::vector<uint64_t> addresses;
  for (size_t i = 0; i < infos.size(); ++i) {
    Variable& variable = module->variables[i];
    if (!infos[i].managed) {
      variable.address += module->variable_memory;
    } else if (i < managed.size()) {
      variable.address = managed[i];
    } else {
      ASSIGN_OR_RETURN(variable.address,
                       PlaceManagedVariable(driver, *program, i, context.device, context.id));
      module->managed_memory.push_back(variable.address);
    }
    addresses.push_back(variable.address);
  }
  if (!addresses.empty()) program->BindVariables(addresses);
  for (size_t i = 0; i < infos.size(); ++i) {
    if (infos[i].managed) continue;
    const std::vector<char> initial = program->InitialContents(i);
    const size_t size = std::min<size_t>(initial.size(), infos[i].size);
    if (size > 0) std::memcpy(reinterpret_cast<void*>(addresses[i]), initial.data(), size);
  }

  for (size_t i = 0; i < program->kernels().size(); ++i) {
    auto function = std::make_shared<Function>();
    function->info = program->kernels()[i];
    function->index = i;
    function->program = program;
    function->context = context.weak_from_this();
    function->context_id = context.id;
    function->device = context.device;
    module->functions.push_back(std::move(function));
  }
  return module;
}

}  // namespace fargpu::softgpu
