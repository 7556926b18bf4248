#include "protocol/driver_abi/export_tables.h"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"

#include "common/log.h"
#include "protocol/driver_abi/context_storage.h"
#include "protocol/driver_abi/proc_address.h"

namespace fargpu::driver_abi {
namespace {

std::atomic<ExportTableHost*> installed_host{nullptr};

ExportTableHost* Host() { return installed_host.load(std::memory_order_acquire); }

enum TableIndex {
  kCudartInterface,
  kToolsRuntimeHooks,
  kToolsTls,
  kContextLocalStorage,
  kContextChecks,
  kIntegrityCheck,
  kContextTools,
  kModuleTools,
};

// Names as in the literature on other drivers; the last two have none, so they go by the first
// bytes of their UUID.
constexpr const char* kTableNames[] = {
    "CUDART_INTERFACE", "TOOLS_RUNTIME_HOOKS", "TOOLS_TLS", "CONTEXT_LOCAL_STORAGE",
    "CONTEXT_CHECKS",   "INTEGRITY_CHECK",     "2131",      "6e16"};

using Slot = const void*;

template <typename Function>
Slot AsSlot(Function* function) {
  return reinterpret_cast<Slot>(function);
}

// What a slot holds that no program was ever seen to call. Each has a function of its own, so that
// the log line can say which it was.
template <int kTable, size_t kSlot>
CUresult UnusedSlot() {
  static std::atomic<bool> logged{false};
  if (!logged.exchange(true, std::memory_order_relaxed)) {
    FARGPU_LOG(kWarning, "export table ", kTableNames[kTable], ": slot ", kSlot,
               " was called, which is not supported");
  }
  return CUDA_ERROR_NOT_SUPPORTED;
}

template <int kTable, size_t... kSlots>
std::array<Slot, sizeof...(kSlots)> UnusedSlots(std::index_sequence<kSlots...>) {
  return {AsSlot(&UnusedSlot<kTable, kSlots>)...};
}

// A table of kSlots slots: the size in bytes, then functions.
template <int kTable, size_t kSlots>
std::array<Slot, kSlots> SizedTable() {
  std::array<Slot, kSlots> slots = UnusedSlots<kTable>(std::make_index_sequence<kSlots>());
  slots[0] = reinterpret_cast<Slot>(sizeof(slots));
  return slots;
}

// An explicit context, or the calling thread's current one.
CUcontext ContextOrCurrent(CUcontext context) {
  if (context != nullptr) return context;
  ExportTableHost* host = Host();
  return host != nullptr ? host->CurrentContext() : nullptr;
}

// CUDART_INTERFACE

CUresult CudartLoadFatBinary(CUmodule* module, const void* wrapper) {
  if (module == nullptr || wrapper == nullptr) return CUDA_ERROR_INVALID_VALUE;
  ExportTableHost* host = Host();
  if (host == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  return host->LoadFatBinary(module, wrapper);
}

CUresult CudartPrimaryContext(CUcontext* context, CUdevice device) {
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  ExportTableHost* host = Host();
  if (host == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  return host->PrimaryContext(device, context);
}

// The runtime of 13.2 and later calls this once, without arguments, before it first uses a device,
// and passes on what it returns.
CUresult CudartStarts() { return CUDA_SUCCESS; }

// TOOLS_RUNTIME_HOOKS

// One flag per callback id of the runtime; a nonzero one makes the runtime call a tool. The runtime
// writes its own size of these arrays and reads them at every call: 523 and 14 entries in 13.0,
// more in later ones.
constexpr size_t kRuntimeCallbacks = 4096;
constexpr size_t kResourceCallbacks = 64;
uint32_t runtime_callback_flags[kRuntimeCallbacks];
uint32_t resource_callback_flags[kResourceCallbacks];

void RuntimeCallbackFlags(uint32_t** flags, size_t* count) {
  if (flags != nullptr) *flags = runtime_callback_flags;
  if (count != nullptr) *count = kRuntimeCallbacks;
}

void ResourceCallbackFlags(uint32_t** flags, size_t* count) {
  if (flags != nullptr) *flags = resource_callback_flags;
  if (count != nullptr) *count = kResourceCallbacks;
}

// TOOLS_TLS

CUresult ToolsCurrentContext(CUcontext* context) {
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *context = ContextOrCurrent(nullptr);
  return CUDA_SUCCESS;
}

// CONTEXT_LOCAL_STORAGE

CUresult StoragePut(CUcontext context, void* key, void* value,
                    ContextStorageDestructor destructor) {
  return PutContextStorage(ContextOrCurrent(context), key, value, destructor);
}

CUresult StorageDelete(CUcontext context, void* key) {
  return DeleteContextStorage(ContextOrCurrent(context), key);
}

CUresult StorageGet(void** value, CUcontext context, void* key) {
  return GetContextStorage(value, ContextOrCurrent(context), key);
}

// CONTEXT_CHECKS

CUresult CheckContext(CUcontext context, uint32_t* flag, const void** detail) {
  if (flag != nullptr) *flag = 0;
  if (detail != nullptr) *detail = nullptr;
  return CUDA_SUCCESS;
}

uint32_t CheckProcess() { return 0; }

// INTEGRITY_CHECK

CUresult CheckIntegrity(uint32_t version, uint64_t seconds, uint64_t* answer);

// 2131

CUresult ContextToolsId(CUcontext context, uint64_t* id) {
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  ExportTableHost* host = Host();
  if (host == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  context = ContextOrCurrent(context);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return host->ContextId(context, id);
}

CUresult ContextToolsStreamObject(CUcontext context, CUstream stream, void** object) {
  if (object == nullptr) return CUDA_ERROR_INVALID_VALUE;
  ExportTableHost* host = Host();
  if (host == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  context = ContextOrCurrent(context);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return host->StreamObject(context, stream, object);
}

CUresult ContextToolsStreamId(CUcontext context, void* object, uint64_t* id) {
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  ExportTableHost* host = Host();
  if (host == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  context = ContextOrCurrent(context);
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return host->StreamId(context, object, id);
}

// 6e16

// Returns the number of functions, not a CUresult; 0 is what its caller takes for an error.
uint32_t EnumerateModuleFunctions(CUcontext context, CUmodule module,
                                  void (*callback)(void* user, CUfunction function, uint64_t owner),
                                  void* user) {
  ExportTableHost* host = Host();
  if (host == nullptr || callback == nullptr) return 0;
  std::vector<CUfunction> functions;
  if (const CUresult result = host->ModuleFunctions(module, &functions); result != CUDA_SUCCESS) {
    FARGPU_LOG(kWarning, "the functions of a module cannot be listed: CUresult ",
               static_cast<int>(result));
    return 0;
  }
  for (CUfunction function : functions) {
    callback(user, function, reinterpret_cast<uintptr_t>(module));
  }
  return static_cast<uint32_t>(functions.size());
}

struct Tables {
  Tables() {
    cudart[1] = AsSlot(&CudartLoadFatBinary);
    cudart[2] = AsSlot(&CudartPrimaryContext);
    cudart[12] = AsSlot(&CudartStarts);
    hooks[2] = AsSlot(&RuntimeCallbackFlags);
    hooks[6] = AsSlot(&ResourceCallbackFlags);
    tls[2] = AsSlot(&ToolsCurrentContext);
    // The only table without a size.
    storage[0] = AsSlot(&StoragePut);
    storage[1] = AsSlot(&StorageDelete);
    storage[2] = AsSlot(&StorageGet);
    checks[2] = AsSlot(&CheckContext);
    checks[3] = AsSlot(&CheckProcess);
    integrity[1] = AsSlot(&CheckIntegrity);
    context_tools[4] = AsSlot(&ContextToolsId);
    context_tools[39] = AsSlot(&ContextToolsStreamId);
    context_tools[51] = AsSlot(&ContextToolsStreamObject);
    module_tools[7] = AsSlot(&EnumerateModuleFunctions);
  }

  std::array<Slot, 13> cudart = SizedTable<kCudartInterface, 13>();
  std::array<Slot, 7> hooks = SizedTable<kToolsRuntimeHooks, 7>();
  std::array<Slot, 4> tls = SizedTable<kToolsTls, 4>();
  std::array<Slot, 4> storage = UnusedSlots<kContextLocalStorage>(std::make_index_sequence<4>());
  std::array<Slot, 4> checks = SizedTable<kContextChecks, 4>();
  std::array<Slot, 3> integrity = SizedTable<kIntegrityCheck, 3>();
  // At least 52 and 8 slots are looked at; the rest is room for other versions of the libraries.
  std::array<Slot, 64> context_tools = SizedTable<kContextTools, 64>();
  std::array<Slot, 64> module_tools = SizedTable<kModuleTools, 64>();
};

const Tables& TheTables() {
  // Leaked on purpose: the runtime uses its tables after our static destructors have run.
  static const Tables* const tables = new Tables;
  return *tables;
}

CUresult CheckIntegrity(uint32_t version, uint64_t seconds, uint64_t* answer) {
  if (answer == nullptr) return CUDA_ERROR_INVALID_VALUE;
  ExportTableHost* host = Host();
  if (host == nullptr) return CUDA_ERROR_NOT_INITIALIZED;
  const Tables& tables = TheTables();
  IntegrityQuestion question;
  question.driver_version = static_cast<uint32_t>(host->DriverVersion());
  question.version = version;
  question.process_id = static_cast<uint32_t>(getpid());
  question.thread_id = static_cast<uint32_t>(static_cast<uint64_t>(pthread_self()));
  question.cudart_table = reinterpret_cast<uintptr_t>(tables.cudart.data());
  question.integrity_table = reinterpret_cast<uintptr_t>(tables.integrity.data());
  // Read back from the table: &CheckIntegrity may be another address of the same function.
  question.integrity_function = reinterpret_cast<uintptr_t>(tables.integrity[1]);
  question.seconds = seconds;
  question.devices = host->Devices();
  const std::array<uint64_t, 2> words = AnswerIntegrityQuestion(question);
  answer[0] = words[0];
  answer[1] = words[1];
  return CUDA_SUCCESS;
}

struct TableRow {
  uint8_t uuid[16];
  const Slot* (*slots)(const Tables&);
};

constexpr TableRow kTableRows[] = {
    {{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d,
      0xf9},
     [](const Tables& tables) { return tables.cudart.data(); }},
    {{0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a,
      0x66},
     [](const Tables& tables) { return tables.hooks.data(); }},
    {{0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec,
      0xdc},
     [](const Tables& tables) { return tables.tls.data(); }},
    {{0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95,
      0x93},
     [](const Tables& tables) { return tables.storage.data(); }},
    {{0x26, 0x3e, 0x88, 0x60, 0x7c, 0xd2, 0x61, 0x43, 0x92, 0xf6, 0xbb, 0xd5, 0x00, 0x6d, 0xfa,
      0x7e},
     [](const Tables& tables) { return tables.checks.data(); }},
    {{0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b, 0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1,
      0xf2},
     [](const Tables& tables) { return tables.integrity.data(); }},
    {{0x21, 0x31, 0x8c, 0x60, 0x97, 0x14, 0x32, 0x48, 0x8c, 0xa6, 0x41, 0xff, 0x73, 0x24, 0xc8,
      0xf2},
     [](const Tables& tables) { return tables.context_tools.data(); }},
    {{0x6e, 0x16, 0x3f, 0xbe, 0xb9, 0x58, 0x44, 0x4d, 0x83, 0x5c, 0xe1, 0x82, 0xaf, 0xf1, 0x99,
      0x1e},
     [](const Tables& tables) { return tables.module_tools.data(); }},
};

}  // namespace

void InstallExportTableHost(ExportTableHost* host) {
  installed_host.store(host, std::memory_order_release);
}

CUresult GetExportTable(const void** table, const CUuuid* id) {
  RuntimeHasItsFunctions();
  if (table == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *table = nullptr;
  if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (const TableRow& row : kTableRows) {
    if (std::memcmp(row.uuid, id->bytes, sizeof(row.uuid)) == 0) {
      *table = row.slots(TheTables());
      return CUDA_SUCCESS;
    }
  }
  FARGPU_LOG(kDebug, "export table ",
             absl::BytesToHexString(absl::string_view(id->bytes, sizeof(id->bytes))),
             " is not offered");
  return CUDA_ERROR_INVALID_VALUE;
}

}  // namespace fargpu::driver_abi
