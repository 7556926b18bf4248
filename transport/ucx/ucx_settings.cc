#include "transport/ucx/ucx_settings.h"

#include <dirent.h>

#include <cstdlib>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace fargpu::transport {
namespace {

// System V segments for messages, process_vm_readv for bulk. UCX's "posix" would be a second set of
// buffers (2 MiB, touched at once) for the same purpose, and opens them by /proc/PID/fd, which a
// sandboxed worker forbids.
constexpr char kSharedMemory[] = "sysv,cma";

std::string FromEnvironment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// RDMA ports that are up, as UCX names them: "mlx5_0:1".
std::vector<std::string> RdmaPorts() {
  std::vector<std::string> ports;
  const std::string root = "/sys/class/infiniband";
  DIR* devices = opendir(root.c_str());
  if (devices == nullptr) return ports;
  while (const dirent* device = readdir(devices)) {
    if (device->d_name[0] == '.') continue;
    for (int port = 1; port <= 2; ++port) {
      std::ifstream file(absl::StrCat(root, "/", device->d_name, "/ports/", port, "/state"));
      std::string state;  // "4: ACTIVE"
      if (std::getline(file, state) && absl::StartsWith(state, "4:")) {
        ports.push_back(absl::StrCat(device->d_name, ":", port));
      }
    }
  }
  closedir(devices);
  return ports;
}

}  // namespace

absl::StatusOr<std::vector<std::pair<std::string, std::string>>> UcxSettings(
    const UcxOptions& options) {
  const std::string choice = FromEnvironment("FARGPU_TRANSPORT");
  const std::vector<std::string> ports = RdmaPorts();
  // An explicit list, never "all": a UCX built with CUDA would call the libcuda that calls us.
  std::string transports;
  if (choice == "tcp") {
    transports = "tcp";
  } else if (choice == "shm") {
    if (options.reach != Reach::kMachine) {
      return absl::FailedPreconditionError(
          "FARGPU_TRANSPORT=shm, but client and worker cannot share memory");
    }
    transports = kSharedMemory;
  } else if (choice == "rdma") {
    if (ports.empty()) {
      return absl::FailedPreconditionError(
          "FARGPU_TRANSPORT=rdma, but this machine has no RDMA port that is up");
    }
    transports = "rc,ud";
  } else if (choice.empty() || choice == "auto") {
    transports = "tcp";
    if (!ports.empty()) transports += ",rc,ud";
    if (options.reach == Reach::kMachine) absl::StrAppend(&transports, ",", kSharedMemory);
  } else {
    return absl::FailedPreconditionError(
        absl::StrCat("FARGPU_TRANSPORT=", choice, " is not one of auto, tcp, shm, rdma"));
  }

  std::string devices = FromEnvironment("FARGPU_NET_DEVICE");
  if (devices.empty() && !options.net_device.empty()) {
    std::vector<std::string> names = {options.net_device};
    if (absl::StrContains(transports, "rc")) names.insert(names.end(), ports.begin(), ports.end());
    devices = absl::StrJoin(names, ",");
  }

  std::vector<std::pair<std::string, std::string>> settings = {
      {"TLS", transports},
      // One lane per purpose, or messages overtake each other.
      {"MAX_EAGER_LANES", "1"},
      {"MAX_RNDV_LANES", "1"},
      // Without these three, endpoints that report errors silently use tcp for everything.
      {"MM_ERROR_HANDLING", "y"},
      {"MEMORY_INVALIDATE", "y"},
      // Room for 2 MiB, so that a sender seldom finds the queue full: nothing wakes it then.
      {"MM_FIFO_SIZE", "256"},
      {"KEEPALIVE_INTERVAL", "1s"},
      {"KEEPIDLE", "2s"},
      {"KEEPINTVL", "1s"},
      {"KEEPCNT", "3"},
  };
  if (!devices.empty()) settings.emplace_back("NET_DEVICES", devices);
  return settings;
}

std::string DescribeLanes(absl::string_view endpoint_info) {
  // "#   lane[0]:  2:sysv/memory md[2]  -> addr[1].md[2]/sysv/sysdev[255] am am_bw#0"
  std::string messages = "?";
  std::string bulk;
  for (const absl::string_view line : absl::StrSplit(endpoint_info, '\n')) {
    const size_t at = line.find("lane[");
    if (at == absl::string_view::npos) continue;
    std::string name;
    bool carries_messages = false;
    bool carries_bulk = false;
    for (const absl::string_view word : absl::StrSplit(line.substr(at), ' ', absl::SkipEmpty())) {
      const size_t slash = word.find('/');
      const size_t colon = word.find(':');
      if (name.empty() && slash != absl::string_view::npos && colon < slash) {
        name = std::string(word.substr(colon + 1, slash - colon - 1));
      }
      if (word == "am") carries_messages = true;
      if (absl::StartsWith(word, "rma_bw")) carries_bulk = true;
    }
    if (name == "sysv" || name == "posix" || name == "cma") name = "shm";
    for (const char* rdma : {"rc", "ud", "dc"}) {
      if (absl::StartsWith(name, rdma)) name = rdma;
    }
    if (carries_messages) messages = name;
    if (carries_bulk && bulk.empty()) bulk = name;
  }
  if (bulk.empty() || bulk == messages) return absl::StrCat("ucx/", messages);
  return absl::StrCat("ucx/", messages, "+", bulk);
}

}  // namespace fargpu::transport
