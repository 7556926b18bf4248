#include "softgpu/runtime/device_models.h"

#include "absl/strings/str_cat.h"

namespace fargpu::softgpu {
namespace {

struct Model {
  const char* key;
  const char* name;
  uint64_t memory_mib;
  int multiprocessors;
  int capability_major;
  int capability_minor;
  int clock_mhz;
  int memory_clock_mhz;
  int memory_bus_bits;
  int l2_mib;
};

// As the vendor's tools report them.
constexpr Model kModels[] = {
    {"v100", "Tesla V100-SXM2-16GB", 16384, 80, 7, 0, 1530, 877, 4096, 6},
    {"t4", "Tesla T4", 15360, 40, 7, 5, 1590, 5001, 256, 4},
    {"a100-40", "NVIDIA A100-SXM4-40GB", 40960, 108, 8, 0, 1410, 1215, 5120, 40},
    {"a100", "NVIDIA A100-SXM4-80GB", 81920, 108, 8, 0, 1410, 1593, 5120, 40},
    {"rtx3090", "NVIDIA GeForce RTX 3090", 24576, 82, 8, 6, 1695, 9751, 384, 6},
    {"l4", "NVIDIA L4", 23034, 58, 8, 9, 2040, 6251, 192, 48},
    {"rtx4090", "NVIDIA GeForce RTX 4090", 24564, 128, 8, 9, 2520, 10501, 384, 72},
    {"h100", "NVIDIA H100 80GB HBM3", 81559, 132, 9, 0, 1980, 2619, 5120, 50},
    {"rtx5090", "NVIDIA GeForce RTX 5090", 32607, 170, 12, 0, 2407, 14001, 512, 96},
};

}  // namespace

bool ApplyModel(absl::string_view model, DeviceSpec* spec) {
  for (const Model& known : kModels) {
    if (model != known.key) continue;
    spec->name = known.name;
    spec->memory_bytes = known.memory_mib << 20;
    spec->multiprocessors = known.multiprocessors;
    spec->capability_major = known.capability_major;
    spec->capability_minor = known.capability_minor;
    spec->clock_khz = known.clock_mhz * 1000;
    spec->memory_clock_khz = known.memory_clock_mhz * 1000;
    spec->memory_bus_bits = known.memory_bus_bits;
    spec->l2_bytes = known.l2_mib << 20;
    return true;
  }
  return false;
}

std::string ModelNames() {
  std::string names;
  for (const Model& model : kModels) absl::StrAppend(&names, names.empty() ? "" : ", ", model.key);
  return names;
}

}  // namespace fargpu::softgpu
