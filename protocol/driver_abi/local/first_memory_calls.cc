// Memory and arrays with the 32-bit addresses and sizes of CUDA 2: each is the call of the same
// name that came with CUDA 3.2. An address that does not fit is an error, a size becomes the
// largest one.

#include <algorithm>
#include <limits>

#include "local_calls.h"
#include "protocol/driver_abi/local/edge.h"

namespace fargpu::driver_abi::local {
namespace {

constexpr size_t kMost = std::numeric_limits<unsigned>::max();

bool Fits(CUdeviceptr address) { return address <= kMost; }
unsigned Narrow(size_t size) { return static_cast<unsigned>(std::min(size, kMost)); }

// Calls `call` with each argument as wide as it wants.
template <typename... New, typename... Old>
CUresult Widened(CUresult (*call)(New...), Old... arguments) {
  return call(static_cast<New>(arguments)...);
}

// A new allocation is given to the caller if its address fits.
CUresult GiveAllocation(CUdeviceptr address, CUdeviceptr_v1* out) {
  if (!Fits(address)) {
    ::cuMemFree_v2(address);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *out = static_cast<CUdeviceptr_v1>(address);
  return CUDA_SUCCESS;
}

CUDA_MEMCPY2D Wide(const CUDA_MEMCPY2D_v1& copy) {
  CUDA_MEMCPY2D wide = {};
  wide.srcXInBytes = copy.srcXInBytes;
  wide.srcY = copy.srcY;
  wide.srcMemoryType = copy.srcMemoryType;
  wide.srcHost = copy.srcHost;
  wide.srcDevice = copy.srcDevice;
  wide.srcArray = copy.srcArray;
  wide.srcPitch = copy.srcPitch;
  wide.dstXInBytes = copy.dstXInBytes;
  wide.dstY = copy.dstY;
  wide.dstMemoryType = copy.dstMemoryType;
  wide.dstHost = copy.dstHost;
  wide.dstDevice = copy.dstDevice;
  wide.dstArray = copy.dstArray;
  wide.dstPitch = copy.dstPitch;
  wide.WidthInBytes = copy.WidthInBytes;
  wide.Height = copy.Height;
  return wide;
}

CUDA_MEMCPY3D Wide(const CUDA_MEMCPY3D_v1& copy) {
  CUDA_MEMCPY3D wide = {};
  wide.srcXInBytes = copy.srcXInBytes;
  wide.srcY = copy.srcY;
  wide.srcZ = copy.srcZ;
  wide.srcLOD = copy.srcLOD;
  wide.srcMemoryType = copy.srcMemoryType;
  wide.srcHost = copy.srcHost;
  wide.srcDevice = copy.srcDevice;
  wide.srcArray = copy.srcArray;
  wide.reserved0 = copy.reserved0;
  wide.srcPitch = copy.srcPitch;
  wide.srcHeight = copy.srcHeight;
  wide.dstXInBytes = copy.dstXInBytes;
  wide.dstY = copy.dstY;
  wide.dstZ = copy.dstZ;
  wide.dstLOD = copy.dstLOD;
  wide.dstMemoryType = copy.dstMemoryType;
  wide.dstHost = copy.dstHost;
  wide.dstDevice = copy.dstDevice;
  wide.dstArray = copy.dstArray;
  wide.reserved1 = copy.reserved1;
  wide.dstPitch = copy.dstPitch;
  wide.dstHeight = copy.dstHeight;
  wide.WidthInBytes = copy.WidthInBytes;
  wide.Height = copy.Height;
  wide.Depth = copy.Depth;
  return wide;
}

CUDA_ARRAY_DESCRIPTOR Wide(const CUDA_ARRAY_DESCRIPTOR_v1& array) {
  CUDA_ARRAY_DESCRIPTOR wide = {};
  wide.Width = array.Width;
  wide.Height = array.Height;
  wide.Format = array.Format;
  wide.NumChannels = array.NumChannels;
  return wide;
}

CUDA_ARRAY3D_DESCRIPTOR Wide(const CUDA_ARRAY3D_DESCRIPTOR_v1& array) {
  CUDA_ARRAY3D_DESCRIPTOR wide = {};
  wide.Width = array.Width;
  wide.Height = array.Height;
  wide.Depth = array.Depth;
  wide.Format = array.Format;
  wide.NumChannels = array.NumChannels;
  wide.Flags = array.Flags;
  return wide;
}

// Runs call(&wide) with the wide form of `*narrow`; a null pointer stays one.
template <typename Narrow, typename Call>
CUresult WithWide(const Narrow* narrow, Call call) {
  if (narrow == nullptr) return call(nullptr);
  const auto wide = Wide(*narrow);
  return call(&wide);
}

}  // namespace

CUresult cuMemGetInfo(unsigned* free, unsigned* total) {
  size_t wide_free = 0, wide_total = 0;
  FARGPU_RETURN_IF_FAILED(::cuMemGetInfo_v2(free == nullptr ? nullptr : &wide_free,
                                            total == nullptr ? nullptr : &wide_total));
  *free = Narrow(wide_free);
  *total = Narrow(wide_total);
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(unsigned* bytes, CUdevice dev) {
  size_t wide = 0;
  FARGPU_RETURN_IF_FAILED(::cuDeviceTotalMem_v2(bytes == nullptr ? nullptr : &wide, dev));
  *bytes = Narrow(wide);
  return CUDA_SUCCESS;
}

CUresult cuMemAllocHost(void** pp, unsigned bytesize) {
  return Widened(&::cuMemAllocHost_v2, pp, bytesize);
}

CUresult cuMemAlloc(CUdeviceptr_v1* dptr, unsigned bytesize) {
  CUdeviceptr address = 0;
  FARGPU_RETURN_IF_FAILED(::cuMemAlloc_v2(dptr == nullptr ? nullptr : &address, bytesize));
  return GiveAllocation(address, dptr);
}

CUresult cuMemAllocPitch(CUdeviceptr_v1* dptr, unsigned* pPitch, unsigned WidthInBytes,
                         unsigned Height, unsigned ElementSizeBytes) {
  CUdeviceptr address = 0;
  size_t pitch = 0;
  FARGPU_RETURN_IF_FAILED(::cuMemAllocPitch_v2(dptr == nullptr ? nullptr : &address,
                                               pPitch == nullptr ? nullptr : &pitch, WidthInBytes,
                                               Height, ElementSizeBytes));
  FARGPU_RETURN_IF_FAILED(GiveAllocation(address, dptr));
  *pPitch = Narrow(pitch);
  return CUDA_SUCCESS;
}

CUresult cuMemFree(CUdeviceptr_v1 dptr) { return ::cuMemFree_v2(dptr); }

CUresult cuMemGetAddressRange(CUdeviceptr_v1* pbase, unsigned* psize, CUdeviceptr_v1 dptr) {
  CUdeviceptr base = 0;
  size_t size = 0;
  FARGPU_RETURN_IF_FAILED(::cuMemGetAddressRange_v2(&base, &size, dptr));
  // It may begin below and reach above what 32 bits name.
  if (!Fits(base)) return CUDA_ERROR_INVALID_VALUE;
  if (pbase != nullptr) *pbase = static_cast<CUdeviceptr_v1>(base);
  if (psize != nullptr) *psize = Narrow(size);
  return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr_v1* pdptr, void* p, unsigned Flags) {
  CUdeviceptr address = 0;
  FARGPU_RETURN_IF_FAILED(
      ::cuMemHostGetDevicePointer_v2(pdptr == nullptr ? nullptr : &address, p, Flags));
  if (!Fits(address)) return CUDA_ERROR_INVALID_VALUE;
  *pdptr = static_cast<CUdeviceptr_v1>(address);
  return CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal(CUdeviceptr_v1* dptr, unsigned* bytes, CUmodule hmod, const char* name) {
  CUdeviceptr address = 0;
  size_t size = 0;
  FARGPU_RETURN_IF_FAILED(::cuModuleGetGlobal_v2(&address, &size, hmod, name));
  if (dptr != nullptr && !Fits(address)) return CUDA_ERROR_INVALID_VALUE;
  if (dptr != nullptr) *dptr = static_cast<CUdeviceptr_v1>(address);
  if (bytes != nullptr) *bytes = Narrow(size);
  return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoD(CUdeviceptr_v1 dstDevice, const void* srcHost, unsigned ByteCount) {
  return Widened(&::cuMemcpyHtoD_v2, dstDevice, srcHost, ByteCount);
}

CUresult cuMemcpyDtoH(void* dstHost, CUdeviceptr_v1 srcDevice, unsigned ByteCount) {
  return Widened(&::cuMemcpyDtoH_v2, dstHost, srcDevice, ByteCount);
}

CUresult cuMemcpyDtoD(CUdeviceptr_v1 dstDevice, CUdeviceptr_v1 srcDevice, unsigned ByteCount) {
  return Widened(&::cuMemcpyDtoD_v2, dstDevice, srcDevice, ByteCount);
}

CUresult cuMemcpyDtoA(CUarray dstArray, unsigned dstOffset, CUdeviceptr_v1 srcDevice,
                      unsigned ByteCount) {
  return Widened(&::cuMemcpyDtoA_v2, dstArray, dstOffset, srcDevice, ByteCount);
}

CUresult cuMemcpyAtoD(CUdeviceptr_v1 dstDevice, CUarray srcArray, unsigned srcOffset,
                      unsigned ByteCount) {
  return Widened(&::cuMemcpyAtoD_v2, dstDevice, srcArray, srcOffset, ByteCount);
}

CUresult cuMemcpyHtoA(CUarray dstArray, unsigned dstOffset, const void* srcHost,
                      unsigned ByteCount) {
  return Widened(&::cuMemcpyHtoA_v2, dstArray, dstOffset, srcHost, ByteCount);
}

CUresult cuMemcpyAtoH(void* dstHost, CUarray srcArray, unsigned srcOffset, unsigned ByteCount) {
  return Widened(&::cuMemcpyAtoH_v2, dstHost, srcArray, srcOffset, ByteCount);
}

CUresult cuMemcpyAtoA(CUarray dstArray, unsigned dstOffset, CUarray srcArray, unsigned srcOffset,
                      unsigned ByteCount) {
  return Widened(&::cuMemcpyAtoA_v2, dstArray, dstOffset, srcArray, srcOffset, ByteCount);
}

CUresult cuMemcpyHtoAAsync(CUarray dstArray, unsigned dstOffset, const void* srcHost,
                           unsigned ByteCount, CUstream hStream) {
  return Widened(&::cuMemcpyHtoAAsync_v2, dstArray, dstOffset, srcHost, ByteCount, hStream);
}

CUresult cuMemcpyAtoHAsync(void* dstHost, CUarray srcArray, unsigned srcOffset, unsigned ByteCount,
                           CUstream hStream) {
  return Widened(&::cuMemcpyAtoHAsync_v2, dstHost, srcArray, srcOffset, ByteCount, hStream);
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr_v1 dstDevice, const void* srcHost, unsigned ByteCount,
                           CUstream hStream) {
  return Widened(&::cuMemcpyHtoDAsync_v2, dstDevice, srcHost, ByteCount, hStream);
}

CUresult cuMemcpyDtoHAsync(void* dstHost, CUdeviceptr_v1 srcDevice, unsigned ByteCount,
                           CUstream hStream) {
  return Widened(&::cuMemcpyDtoHAsync_v2, dstHost, srcDevice, ByteCount, hStream);
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr_v1 dstDevice, CUdeviceptr_v1 srcDevice, unsigned ByteCount,
                           CUstream hStream) {
  return Widened(&::cuMemcpyDtoDAsync_v2, dstDevice, srcDevice, ByteCount, hStream);
}

CUresult cuMemcpy2D(const CUDA_MEMCPY2D_v1* pCopy) { return WithWide(pCopy, &::cuMemcpy2D_v2); }

CUresult cuMemcpy2DUnaligned(const CUDA_MEMCPY2D_v1* pCopy) {
  return WithWide(pCopy, &::cuMemcpy2DUnaligned_v2);
}

CUresult cuMemcpy3D(const CUDA_MEMCPY3D_v1* pCopy) { return WithWide(pCopy, &::cuMemcpy3D_v2); }

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D_v1* pCopy, CUstream hStream) {
  return WithWide(pCopy,
                  [&](const CUDA_MEMCPY2D* wide) { return ::cuMemcpy2DAsync_v2(wide, hStream); });
}

CUresult cuMemcpy3DAsync(const CUDA_MEMCPY3D_v1* pCopy, CUstream hStream) {
  return WithWide(pCopy,
                  [&](const CUDA_MEMCPY3D* wide) { return ::cuMemcpy3DAsync_v2(wide, hStream); });
}

CUresult cuMemsetD8(CUdeviceptr_v1 dstDevice, unsigned char uc, unsigned N) {
  return Widened(&::cuMemsetD8_v2, dstDevice, uc, N);
}

CUresult cuMemsetD16(CUdeviceptr_v1 dstDevice, unsigned short us, unsigned N) {
  return Widened(&::cuMemsetD16_v2, dstDevice, us, N);
}

CUresult cuMemsetD32(CUdeviceptr_v1 dstDevice, unsigned ui, unsigned N) {
  return Widened(&::cuMemsetD32_v2, dstDevice, ui, N);
}

CUresult cuMemsetD2D8(CUdeviceptr_v1 dstDevice, unsigned dstPitch, unsigned char uc, unsigned Width,
                      unsigned Height) {
  return Widened(&::cuMemsetD2D8_v2, dstDevice, dstPitch, uc, Width, Height);
}

CUresult cuMemsetD2D16(CUdeviceptr_v1 dstDevice, unsigned dstPitch, unsigned short us,
                       unsigned Width, unsigned Height) {
  return Widened(&::cuMemsetD2D16_v2, dstDevice, dstPitch, us, Width, Height);
}

CUresult cuMemsetD2D32(CUdeviceptr_v1 dstDevice, unsigned dstPitch, unsigned ui, unsigned Width,
                       unsigned Height) {
  return Widened(&::cuMemsetD2D32_v2, dstDevice, dstPitch, ui, Width, Height);
}

CUresult cuArrayCreate(CUarray* pHandle, const CUDA_ARRAY_DESCRIPTOR_v1* pAllocateArray) {
  return WithWide(pAllocateArray, [&](const CUDA_ARRAY_DESCRIPTOR* wide) {
    return ::cuArrayCreate_v2(pHandle, wide);
  });
}

CUresult cuArray3DCreate(CUarray* pHandle, const CUDA_ARRAY3D_DESCRIPTOR_v1* pAllocateArray) {
  return WithWide(pAllocateArray, [&](const CUDA_ARRAY3D_DESCRIPTOR* wide) {
    return ::cuArray3DCreate_v2(pHandle, wide);
  });
}

CUresult cuArrayGetDescriptor(CUDA_ARRAY_DESCRIPTOR_v1* pArrayDescriptor, CUarray hArray) {
  CUDA_ARRAY_DESCRIPTOR wide = {};
  FARGPU_RETURN_IF_FAILED(
      ::cuArrayGetDescriptor_v2(pArrayDescriptor == nullptr ? nullptr : &wide, hArray));
  pArrayDescriptor->Width = Narrow(wide.Width);
  pArrayDescriptor->Height = Narrow(wide.Height);
  pArrayDescriptor->Format = wide.Format;
  pArrayDescriptor->NumChannels = wide.NumChannels;
  return CUDA_SUCCESS;
}

CUresult cuArray3DGetDescriptor(CUDA_ARRAY3D_DESCRIPTOR_v1* pArrayDescriptor, CUarray hArray) {
  CUDA_ARRAY3D_DESCRIPTOR wide = {};
  FARGPU_RETURN_IF_FAILED(
      ::cuArray3DGetDescriptor_v2(pArrayDescriptor == nullptr ? nullptr : &wide, hArray));
  pArrayDescriptor->Width = Narrow(wide.Width);
  pArrayDescriptor->Height = Narrow(wide.Height);
  pArrayDescriptor->Depth = Narrow(wide.Depth);
  pArrayDescriptor->Format = wide.Format;
  pArrayDescriptor->NumChannels = wide.NumChannels;
  pArrayDescriptor->Flags = wide.Flags;
  return CUDA_SUCCESS;
}

CUresult cuTexRefSetAddress(unsigned* ByteOffset, CUtexref hTexRef, CUdeviceptr_v1 dptr,
                            unsigned bytes) {
  size_t offset = 0;
  FARGPU_RETURN_IF_FAILED(::cuTexRefSetAddress_v2(&offset, hTexRef, dptr, bytes));
  if (ByteOffset != nullptr) *ByteOffset = Narrow(offset);
  return CUDA_SUCCESS;
}

CUresult cuTexRefSetAddress2D(CUtexref hTexRef, const CUDA_ARRAY_DESCRIPTOR_v1* desc,
                              CUdeviceptr_v1 dptr, unsigned Pitch) {
  return WithWide(desc, [&](const CUDA_ARRAY_DESCRIPTOR* wide) {
    return ::cuTexRefSetAddress2D_v3(hTexRef, wide, dptr, Pitch);
  });
}

CUresult cuTexRefGetAddress(CUdeviceptr_v1* pdptr, CUtexref hTexRef) {
  CUdeviceptr address = 0;
  FARGPU_RETURN_IF_FAILED(::cuTexRefGetAddress_v2(pdptr == nullptr ? nullptr : &address, hTexRef));
  if (!Fits(address)) return CUDA_ERROR_INVALID_VALUE;
  *pdptr = static_cast<CUdeviceptr_v1>(address);
  return CUDA_SUCCESS;
}

}  // namespace fargpu::driver_abi::local
