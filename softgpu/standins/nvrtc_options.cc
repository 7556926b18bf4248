#include "softgpu/standins/nvrtc_options.h"

#include <algorithm>

namespace fargpu::standins {
namespace {

constexpr const char* kArchitecture[] = {"--gpu-architecture", "-arch"};

bool AsksForLto(const std::string& option) {
  return option == "-dlto" || option == "--dlink-time-opt" || option == "-dlto=true" ||
         option == "--dlink-time-opt=true";
}

bool ToVirtual(std::string* value) {
  if (value->rfind("sm_", 0) != 0) return false;
  *value = "compute_" + value->substr(3);
  return true;
}

}  // namespace

CompileOptions CompileForPtx(const std::vector<std::string>& options) {
  CompileOptions result;
  result.options = options;
  if (std::any_of(options.begin(), options.end(), AsksForLto)) return result;
  for (size_t i = 0; i < options.size(); ++i) {
    for (const std::string name : kArchitecture) {
      std::string& option = result.options[i];
      if (option == name && i + 1 < options.size()) {
        result.machine_code |= ToVirtual(&result.options[i + 1]);
      } else if (option.rfind(name + "=", 0) == 0) {
        std::string value = option.substr(name.size() + 1);
        if (!ToVirtual(&value)) continue;
        result.machine_code = true;
        option = name + "=" + value;
      }
    }
  }
  return result;
}

}  // namespace fargpu::standins
