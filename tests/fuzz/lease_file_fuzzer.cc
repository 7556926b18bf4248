#include "protocol/lease_file.h"
#include "tests/fuzz/fuzz_target.h"
#include "transport/control/endpoint.h"

// Input: the text of a lease file, then its endpoints as Dial() takes them.
namespace fargpu::fuzz {

std::vector<Seed> Seeds() {
  LeaseFile lease;
  lease.lease.bytes.fill(0x5f);
  lease.secret.bytes.fill(0x90);
  lease.endpoints = {"unix:/run/fargpu/fargpud.sock", "tcp:10.0.0.7:4833", "tcp:[::1]:4833"};
  lease.memory_bytes = uint64_t{4} << 30;
  lease.cores_percent = 30;
  const std::string text = FormatLeaseFile(lease);
  return {{"plain", text}, {"comments", "# a comment\n\n" + text + "from_the_future 1 2 3\n"}};
}

}  // namespace fargpu::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fargpu;        // NOLINT: one function
  using namespace fargpu::fuzz;  // NOLINT
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<LeaseFile> lease = ParseLeaseFile(text);
  if (!lease.ok()) return 0;
  for (const std::string& endpoint : lease->endpoints) {
    transport::ParseEndpoint(endpoint).status().IgnoreError();
  }
  const absl::StatusOr<LeaseFile> again = ParseLeaseFile(FormatLeaseFile(*lease));
  Require(again.ok() && again->lease == lease->lease &&
              SecretsEqual(again->secret, lease->secret) && again->endpoints == lease->endpoints &&
              again->memory_bytes == lease->memory_bytes &&
              again->cores_percent == lease->cores_percent,
          "a lease file that is written again says the same");
  return 0;
}
