#pragma once

#include <cuda.h>

// Values that libraries attach to a context under a key of theirs (CONTEXT_LOCAL_STORAGE). State of
// the process, never destroyed: the runtime still deletes entries after our static destructors ran.
//
// All functions may be called from any thread. Get takes no lock: each runtime call makes one.
// `context` is never dereferenced; nullptr gives CUDA_ERROR_INVALID_CONTEXT.
namespace fargpu::driver_abi {

using ContextStorageDestructor = void (*)(CUcontext context, void* key, void* value);

// Replaces an entry of the same key without calling its destructor. `destructor` may be null.
CUresult PutContextStorage(CUcontext context, void* key, void* value,
                           ContextStorageDestructor destructor);

// CUDA_ERROR_INVALID_HANDLE if there is no entry; `*value` is then left as it was.
CUresult GetContextStorage(void** value, CUcontext context, void* key);

// Drops an entry without calling its destructor. CUDA_ERROR_INVALID_HANDLE if there is none.
CUresult DeleteContextStorage(CUcontext context, void* key);

// Drops all entries of `context` and calls each destructor once, with no lock held. For
// cuCtxDestroy and cuDevicePrimaryCtxReset, while `context` is still a valid handle.
void DestroyContextStorage(CUcontext context);

}  // namespace fargpu::driver_abi
