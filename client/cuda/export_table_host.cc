#include "client/cuda/export_table_host.h"

#include <vector>

#include "client/cuda/edge.h"
#include "client/cuda/session.h"
#include "client_api.h"
#include "protocol/driver_abi/export_tables.h"

namespace fargpu::client {
namespace {

// Stand for the default streams, which have no handle of ours.
char default_streams[3];

class Host final : public driver_abi::ExportTableHost {
 public:
  int DriverVersion() override { return kDriverVersion; }

  std::vector<driver_abi::DeviceIdentity> Devices() override {
    const Session* session = SessionOrNull();
    if (session == nullptr) return {};
    return session->devices().Identities();
  }

  CUresult PrimaryContext(CUdevice device, CUcontext* context) override {
    return AtCudaEdge("primary context", [&](Session& session) -> absl::Status {
      RETURN_IF_ERROR(session.devices().Check(device));
      *context = session.primary(device)->handle;
      return absl::OkStatus();
    });
  }

  CUcontext CurrentContext() override { return CurrentThread().current(); }

  CUresult ContextId(CUcontext context, uint64_t* id) override {
    return AtCudaEdge("context id", [&](Session& session) -> absl::Status {
      ASSIGN_OR_RETURN(const Context* found, session.FindContext(context));
      *id = found->id.value;
      return absl::OkStatus();
    });
  }

  CUresult StreamObject(CUcontext context, CUstream stream, void** object) override {
    return AtCudaEdge("stream object", [&](Session& session) -> absl::Status {
      wire::StreamId id;
      RETURN_IF_ERROR(session.ToWire(stream, DefaultStream::kLegacy, &id));
      // Handles of streams are addresses of their own already; the default streams get some.
      *object = id.value < 3 ? static_cast<void*>(&default_streams[id.value]) : stream;
      return absl::OkStatus();
    });
  }

  CUresult StreamId(CUcontext context, void* object, uint64_t* id) override {
    return AtCudaEdge("stream id", [&](Session& session) -> absl::Status {
      if (const HandleSlot* slot = session.FindStream(static_cast<CUstream>(object))) {
        *id = slot->id;
        return absl::OkStatus();
      }
      const auto place = static_cast<char*>(object) - default_streams;
      if (place < 0 || place > 2) {
        return CudaError(CUDA_ERROR_INVALID_HANDLE, "the object is none of a stream");
      }
      // Each context has default streams of its own. Ids of contexts are far from overflowing.
      ASSIGN_OR_RETURN(const Context* owner, session.FindContext(context));
      *id = (uint64_t{1} << 63) + owner->id.value * 4 + static_cast<uint64_t>(place);
      return absl::OkStatus();
    });
  }

  CUresult ModuleFunctions(CUmodule module, std::vector<CUfunction>* functions) override {
    unsigned count = 0;
    if (const CUresult result = api::cuModuleGetFunctionCount(&count, module);
        result != CUDA_SUCCESS) {
      return result;
    }
    functions->resize(count);
    return api::cuModuleEnumerateFunctions(functions->data(), count, module);
  }

  CUresult LoadFatBinary(CUmodule* module, const void* wrapper) override {
    return api::cuModuleLoadFatBinary(module, wrapper);
  }
};

}  // namespace

void InstallExportTableHost() {
  // Leaked on purpose: tables are used until the process has ended.
  static Host* const host = new Host;
  driver_abi::InstallExportTableHost(host);
}

}  // namespace fargpu::client
