#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

// The answer that NVIDIA's runtime wants from a driver's INTEGRITY_CHECK table before it goes on.
// Everything here is a pure function of its arguments.
namespace fargpu::driver_abi {

using Md2Digest = std::array<uint8_t, 16>;

// MD2 as RFC 1319 defines it, and HMAC (RFC 2104, blocks of 16 bytes) over it.
Md2Digest Md2(absl::Span<const uint8_t> message);
Md2Digest HmacMd2(absl::Span<const uint8_t> key, absl::Span<const uint8_t> message);

// A device as the program sees it: values must equal what cuDeviceGetUuid (v1) and
// cuDeviceGetAttribute (PCI_DOMAIN_ID, PCI_BUS_ID, PCI_DEVICE_ID) give, after any renumbering.
struct DeviceIdentity {
  std::array<uint8_t, 16> uuid{};
  int32_t pci_domain = 0;
  int32_t pci_bus = 0;
  int32_t pci_device = 0;
};

struct IntegrityQuestion {
  uint32_t driver_version = 0;  // what cuDriverGetVersion gives
  uint32_t version = 0;         // first argument of the call, e.g. 13002
  uint32_t process_id = 0;
  uint32_t thread_id = 0;  // low half of pthread_self() of the calling thread
  uint64_t cudart_table = 0;
  uint64_t integrity_table = 0;
  uint64_t integrity_function = 0;  // as stored in slot 1 of the table
  uint64_t seconds = 0;             // second argument of the call
  std::vector<DeviceIdentity> devices;
};

// Answers a question; the last digit of `version` says which of the three kinds it is. Kinds that
// are not known get two zeros.
std::array<uint64_t, 2> AnswerIntegrityQuestion(const IntegrityQuestion& question);

}  // namespace fargpu::driver_abi
