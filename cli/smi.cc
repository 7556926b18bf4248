// fargpu smi: the cards of this lease, or of the pool, as users of nvidia-smi expect them.
#include <dlfcn.h>

#include <cstdlib>
#include <iostream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "cli/table.h"
#include "cli/verb.h"

#include "common/install_paths.h"
#include "common/status_macros.h"
#include "protocol/lease_file.h"

namespace fargpu::cli {
namespace {

constexpr char kUnknown[] = "N/A";
constexpr uint64_t kMib = 1 << 20;

std::string Used(uint64_t used_bytes, uint64_t total_bytes) {
  // What is in use counts as a MiB when it is part of one.
  return absl::StrCat((used_bytes + kMib - 1) / kMib, "MiB / ", total_bytes / kMib, "MiB");
}

// NVML, called like any program calls it: what this verb shows is what programs see.
class Nvml {
 public:
  using Device = void*;
  struct Process {
    uint32_t pid;
    uint64_t used_bytes;
    uint32_t instances[2];
  };

  // kUnavailable if the library does not see the lease.
  static absl::StatusOr<std::unique_ptr<Nvml>> Open() {
    ASSIGN_OR_RETURN(const std::string folder, ClientLibraryDir());
    const std::string path = absl::StrCat(folder, "/libnvidia-ml.so.1");
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return absl::NotFoundError(dlerror());
    auto nvml = std::unique_ptr<Nvml>(new Nvml(library));
    RETURN_IF_ERROR(nvml->Call("nvmlInit_v2"));
    nvml->initialized_ = true;
    return nvml;
  }
  ~Nvml() {
    if (initialized_) Call("nvmlShutdown").IgnoreError();
  }

  template <typename... Arguments>
  absl::Status Call(const char* name, Arguments... arguments) const {
    using Function = int (*)(Arguments...);
    const auto function = reinterpret_cast<Function>(dlsym(library_, name));
    if (function == nullptr) return absl::UnimplementedError(absl::StrCat("there is no ", name));
    const int result = function(arguments...);
    if (result == 0) return absl::OkStatus();
    using ErrorString = const char* (*)(int);
    const auto text = reinterpret_cast<ErrorString>(dlsym(library_, "nvmlErrorString"));
    return absl::UnavailableError(
        absl::StrCat(name, ": ", text != nullptr ? text(result) : "failed"));
  }
  // What the calls that give text give.
  template <typename... Arguments>
  absl::StatusOr<std::string> Text(const char* name, Arguments... arguments) const {
    char text[128] = {};
    RETURN_IF_ERROR(Call(name, arguments..., &text[0], static_cast<uint32_t>(sizeof(text))));
    return std::string(text);
  }

 private:
  explicit Nvml(void* library) : library_(library) {}

  void* const library_;  // stays loaded
  bool initialized_ = false;
};

// A measured number, or N/A where the library does not know it.
template <typename... Arguments>
std::string Measured(const Nvml& nvml, const char* name, uint32_t divisor, const char* unit,
                     Arguments... arguments) {
  uint32_t value[2] = {};
  if (!nvml.Call(name, arguments..., &value[0]).ok()) return kUnknown;
  return absl::StrCat(value[0] / divisor, unit);
}

absl::StatusOr<std::string> DescribeLease(const std::string& lease_path) {
  ASSIGN_OR_RETURN(const LeaseFile lease, ReadLeaseFile(lease_path));
  ASSIGN_OR_RETURN(const std::unique_ptr<Nvml> nvml, Nvml::Open());
  ASSIGN_OR_RETURN(const std::string driver, nvml->Text("nvmlSystemGetDriverVersion"));
  int cuda = 0;
  RETURN_IF_ERROR(nvml->Call("nvmlSystemGetCudaDriverVersion", &cuda));
  uint32_t count = 0;
  RETURN_IF_ERROR(nvml->Call("nvmlDeviceGetCount_v2", &count));

  std::vector<std::vector<std::string>> cards = {
      {"GPU", "Name", "Bus-Id", "Temp", "Power", "Memory-Usage", "Cores", "GPU-Util"}};
  std::vector<std::vector<std::string>> processes = {{"GPU", "PID", "Process name", "GPU Memory"}};
  for (uint32_t i = 0; i < count; ++i) {
    Nvml::Device device = nullptr;
    RETURN_IF_ERROR(nvml->Call("nvmlDeviceGetHandleByIndex_v2", i, &device));
    ASSIGN_OR_RETURN(const std::string name, nvml->Text("nvmlDeviceGetName", device));
    struct {
      char legacy_bus_id[16];
      uint32_t numbers[5];
      char bus_id[32];
    } place = {};
    RETURN_IF_ERROR(nvml->Call("nvmlDeviceGetPciInfo_v3", device, &place));
    struct {
      uint64_t total, free, used;
    } memory = {};
    RETURN_IF_ERROR(nvml->Call("nvmlDeviceGetMemoryInfo", device, &memory));
    cards.push_back({absl::StrCat(i), name, std::string(place.bus_id),
                     Measured(*nvml, "nvmlDeviceGetTemperature", 1, "C", device, 0u),
                     Measured(*nvml, "nvmlDeviceGetPowerUsage", 1000, "W", device),
                     Used(memory.used, memory.total), absl::StrCat(lease.cores_percent, "%"),
                     Measured(*nvml, "nvmlDeviceGetUtilizationRates", 1, "%", device)});

    std::vector<Nvml::Process> found(256);  // as many sessions as a lease can have
    auto number = static_cast<uint32_t>(found.size());
    RETURN_IF_ERROR(
        nvml->Call("nvmlDeviceGetComputeRunningProcesses_v3", device, &number, found.data()));
    found.resize(number);
    for (const Nvml::Process& process : found) {
      // One that has just ended has no name any more.
      const absl::StatusOr<std::string> program =
          nvml->Text("nvmlSystemGetProcessName", process.pid);
      processes.push_back({absl::StrCat(i), absl::StrCat(process.pid),
                           program.ok() ? *program : kUnknown,
                           absl::StrCat((process.used_bytes + kMib - 1) / kMib, "MiB")});
    }
  }
  if (processes.size() == 1) processes.push_back({"No running processes found"});
  return absl::StrCat(
      FormatBox(absl::StrCat("FarGPU " FARGPU_VERSION "   lease ", ToString(lease.lease)) +
                    absl::StrCat("   Driver Version: ", driver, "   CUDA Version: ", cuda / 1000,
                                 ".", cuda % 1000 / 10),
                cards),
      "\n", FormatBox("Processes:", processes));
}

absl::StatusOr<std::string> DescribePool(const GlobalOptions& globals) {
  ASSIGN_OR_RETURN(const std::unique_ptr<BrokerClient> client, ConnectToBroker(globals));
  grpc::ClientContext context;
  SetCallDeadline(&context);
  broker::v1::ListNodesResponse response;
  RETURN_IF_ERROR(FromGrpcStatus(client->stub().ListNodes(&context, {}, &response)));

  std::vector<std::vector<std::string>> cards = {
      {"GPU", "Name", "Node", "Bus-Id", "Memory-Usage", "Memory-Lent", "Cores-Lent", "Leases"}};
  int index = 0;
  for (const broker::v1::Node& node : response.nodes()) {
    const bool alive = node.state() == broker::v1::NODE_STATE_ALIVE;
    for (const broker::v1::Card& card : node.cards()) {
      cards.push_back({absl::StrCat(index++), card.model(),
                       alive ? node.name() : absl::StrCat(node.name(), " (silent)"),
                       card.pci_bus_id().empty() ? kUnknown : card.pci_bus_id(),
                       Used(card.used_memory_bytes(), card.memory_bytes()),
                       Used(card.lent_memory_bytes(), card.memory_bytes()),
                       absl::StrCat(card.lent_cores_percent(), "% / ", card.cores_percent(), "%"),
                       absl::StrCat(card.lease_count())});
    }
  }
  if (cards.size() == 1) cards.push_back({"No cards"});
  return FormatBox(absl::StrCat("FarGPU " FARGPU_VERSION "   pool of ", client->address()), cards);
}

int Show(const absl::StatusOr<std::string>& text) {
  if (!text.ok()) return Fail(text.status());
  std::cout << *text;
  return 0;
}

}  // namespace

void AddSmi(CLI::App& app, const GlobalOptions& globals, Action* action) {
  const auto pool = std::make_shared<bool>(false);
  CLI::App* verb = app.add_subcommand(
      "smi", "Show the cards of this lease (under `fargpu run`) or of the pool, like nvidia-smi");
  verb->add_flag("--pool", *pool, "The pool, also under `fargpu run`");
  verb->footer("Example:\n  fargpu run --memory 4GiB -- fargpu smi");
  verb->callback([&globals, action, pool] {
    *action = [&globals, pool] {
      const char* lease = std::getenv("FARGPU_LEASE");
      const bool has_lease = lease != nullptr && *lease != '\0';
      return Show(has_lease && !*pool ? DescribeLease(lease) : DescribePool(globals));
    };
  });
}

}  // namespace fargpu::cli
