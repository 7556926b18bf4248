#include "softgpu/exec/device_printf.h"

#include <cstdio>
#include <cstring>

#include "softgpu/exec/launch_failure.h"

namespace fargpu::softgpu {
namespace {

// Bounds for what one conversion may print, so that "%999999999d" stays harmless.
constexpr int kMaxWidth = 4096;
constexpr size_t kMaxString = 1 << 20;

template <typename T>
T TakeArgument(const char* arguments, size_t* offset) {
  *offset = (*offset + sizeof(T) - 1) / sizeof(T) * sizeof(T);
  T value;
  std::memcpy(&value, arguments + *offset, sizeof value);
  *offset += sizeof value;
  return value;
}

template <typename T>
void Append(std::string* out, const std::string& spec, T value) {
  char small[256];
  const int n = std::snprintf(small, sizeof small, spec.c_str(), value);
  if (n < 0) return;
  if (static_cast<size_t>(n) < sizeof small) {
    out->append(small, static_cast<size_t>(n));
    return;
  }
  std::string large(static_cast<size_t>(n) + 1, '\0');
  std::snprintf(large.data(), large.size(), spec.c_str(), value);
  large.pop_back();
  *out += large;
}

}  // namespace

std::string FormatDevicePrintf(const char* format, const char* arguments, int* count,
                               uint64_t* outside) {
  std::string out;
  size_t offset = 0;
  *count = 0;
  for (const char* p = format; *p != '\0'; ++p) {
    if (*p != '%') {
      out += *p;
      continue;
    }
    const char* start = p++;
    if (*p == '%') {
      out += '%';
      continue;
    }
    std::string spec = "%";
    while (*p != '\0' && std::strchr("-+ #0", *p) != nullptr) spec += *p++;
    const auto number = [&] {
      int value = 0;
      if (*p == '*') {
        ++p;
        value = TakeArgument<int>(arguments, &offset);
        ++*count;
      } else {
        while (*p >= '0' && *p <= '9' && value < kMaxWidth) value = value * 10 + (*p++ - '0');
        while (*p >= '0' && *p <= '9') ++p;
      }
      return value > kMaxWidth ? kMaxWidth : value < -kMaxWidth ? -kMaxWidth : value;
    };
    if (*p == '*' || (*p >= '0' && *p <= '9')) {
      int width = number();
      if (width < 0) {
        spec += '-';
        width = -width;
      }
      spec += std::to_string(width);
    }
    int precision = -1;
    if (*p == '.') {
      ++p;
      precision = number();
      if (precision >= 0) spec += "." + std::to_string(precision);
    }
    int longs = 0;
    std::string length;
    while (*p != '\0' && std::strchr("hlLqjzt", *p) != nullptr) {
      longs += *p == 'l' ? 1 : (*p == 'j' || *p == 'z' || *p == 't' || *p == 'q') ? 2 : 0;
      if (*p == 'h') length += 'h';
      ++p;
    }
    const char conversion = *p;
    switch (conversion) {
      case 'd':
      case 'i':
        ++*count;
        if (longs > 0) {
          Append(&out, spec + "ll" + conversion, TakeArgument<long long>(arguments, &offset));
        } else {
          Append(&out, spec + length + conversion, TakeArgument<int>(arguments, &offset));
        }
        break;
      case 'u':
      case 'x':
      case 'X':
      case 'o':
        ++*count;
        if (longs > 0) {
          Append(&out, spec + "ll" + conversion,
                 TakeArgument<unsigned long long>(arguments, &offset));
        } else {
          Append(&out, spec + length + conversion, TakeArgument<unsigned>(arguments, &offset));
        }
        break;
      case 'c':
        ++*count;
        Append(&out, spec + 'c', TakeArgument<int>(arguments, &offset));
        break;
      case 'e':
      case 'E':
      case 'f':
      case 'F':
      case 'g':
      case 'G':
      case 'a':
      case 'A':
        ++*count;
        Append(&out, spec + conversion, TakeArgument<double>(arguments, &offset));
        break;
      case 's': {
        ++*count;
        const uint64_t address = TakeArgument<uint64_t>(arguments, &offset);
        if (address != 0 && !InWindow(address)) {
          *outside = address;
          return out;
        }
        const char* text = address == 0 ? "(null)" : reinterpret_cast<const char*>(address);
        const size_t limit = precision >= 0 ? static_cast<size_t>(precision) : kMaxString;
        const std::string copy(text, strnlen(text, limit));
        Append(&out, spec + 's', copy.c_str());
        break;
      }
      case 'p':
        ++*count;
        Append(&out, spec + 'p',
               reinterpret_cast<void*>(TakeArgument<uint64_t>(arguments, &offset)));
        break;
      default:
        // Not a conversion: printed as it stands.
        out.append(start, static_cast<size_t>(p - start) + (conversion != '\0'));
        if (conversion == '\0') return out;
    }
  }
  return out;
}

}  // namespace fargpu::softgpu
