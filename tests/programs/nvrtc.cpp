// The driver API with a kernel compiled at run time. Linked with -lcuda and -lnvrtc; no part of the
// runtime is used.
#include <nvrtc.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cuda.h>
#include <string>
#include <vector>

#define CHECK_DRIVER(call)                                                       \
  do {                                                                           \
    const CUresult result_ = (call);                                             \
    if (result_ != CUDA_SUCCESS) {                                               \
      const char* name_ = "unknown";                                             \
      cuGetErrorName(result_, &name_);                                           \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, name_); \
      std::exit(1);                                                              \
    }                                                                            \
  } while (false)

#define CHECK_NVRTC(call)                                                \
  do {                                                                   \
    const nvrtcResult result_ = (call);                                  \
    if (result_ != NVRTC_SUCCESS) {                                      \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, \
                   nvrtcGetErrorString(result_));                        \
      std::exit(1);                                                      \
    }                                                                    \
  } while (false)

constexpr char kSource[] = R"(
struct Pair { float scale; int offset; };

__constant__ float bias;

extern "C" __global__ void Saxpy(Pair pair, const float* x, float* y, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i + pair.offset < count) y[i] = pair.scale * x[i + pair.offset] + y[i] + bias;
}

template <typename T>
__global__ void Fill(T* values, T value, int count) {
  extern __shared__ char shared_bytes[];
  T* shared = reinterpret_cast<T*>(shared_bytes);
  shared[threadIdx.x] = value;
  __syncthreads();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] = shared[blockDim.x - 1 - threadIdx.x];
}
)";

// The newest virtual architecture that both the device and NVRTC know, 9.0 at most: a device may be
// newer than the compiler, and PTX runs on all later ones.
int ChooseArchitecture(CUdevice device) {
  int major = 0;
  int minor = 0;
  CHECK_DRIVER(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device));
  CHECK_DRIVER(cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device));
  const int own = 10 * major + minor;
  const int limit = std::min(own, 90);
  int count = 0;
  CHECK_NVRTC(nvrtcGetNumSupportedArchs(&count));
  std::vector<int> known(count);
  CHECK_NVRTC(nvrtcGetSupportedArchs(known.data()));
  std::printf("the device's own architecture is %s to NVRTC\n",
              std::count(known.begin(), known.end(), own) == 0 ? "not known" : "known");
  int best = 0;
  for (const int arch : known) {
    if (arch <= limit) best = std::max(best, arch);
  }
  if (best == 0) {
    std::fprintf(stderr, "NVRTC knows no architecture up to %d\n", limit);
    std::exit(1);
  }
  return best;
}

// Compiles kSource; `*fill_name` is the mangled name of Fill<int>.
std::string Compile(int arch, std::string* fill_name) {
  nvrtcProgram program;
  CHECK_NVRTC(nvrtcCreateProgram(&program, kSource, "kernels.cu", 0, nullptr, nullptr));
  CHECK_NVRTC(nvrtcAddNameExpression(program, "Fill<int>"));
  const std::string option = "--gpu-architecture=compute_" + std::to_string(arch);
  const char* options[] = {option.c_str()};
  if (nvrtcCompileProgram(program, 1, options) != NVRTC_SUCCESS) {
    size_t size = 0;
    CHECK_NVRTC(nvrtcGetProgramLogSize(program, &size));
    std::string log(size, '\0');
    CHECK_NVRTC(nvrtcGetProgramLog(program, log.data()));
    std::fprintf(stderr, "%s\n", log.c_str());
    std::exit(1);
  }
  const char* lowered = nullptr;
  CHECK_NVRTC(nvrtcGetLoweredName(program, "Fill<int>", &lowered));
  *fill_name = lowered;
  size_t size = 0;
  CHECK_NVRTC(nvrtcGetPTXSize(program, &size));
  std::string ptx(size, '\0');
  CHECK_NVRTC(nvrtcGetPTX(program, ptx.data()));
  CHECK_NVRTC(nvrtcDestroyProgram(&program));
  return ptx;
}

int main() {
  CHECK_DRIVER(cuInit(0));
  CUdevice device;
  CHECK_DRIVER(cuDeviceGet(&device, 0));
  CUcontext context;
  CHECK_DRIVER(cuDevicePrimaryCtxRetain(&context, device));
  CHECK_DRIVER(cuCtxSetCurrent(context));

  std::string fill_name;
  const std::string ptx = Compile(ChooseArchitecture(device), &fill_name);
  CUmodule module;
  CHECK_DRIVER(cuModuleLoadData(&module, ptx.c_str()));
  CUfunction saxpy, fill;
  CHECK_DRIVER(cuModuleGetFunction(&saxpy, module, "Saxpy"));
  CHECK_DRIVER(cuModuleGetFunction(&fill, module, fill_name.c_str()));
  CUfunction missing;
  if (cuModuleGetFunction(&missing, module, "NoSuchKernel") != CUDA_ERROR_NOT_FOUND) {
    std::fprintf(stderr, "a kernel was found that does not exist\n");
    return 1;
  }

  CUdeviceptr bias_address;
  size_t bias_size = 0;
  CHECK_DRIVER(cuModuleGetGlobal(&bias_address, &bias_size, module, "bias"));
  const float bias = 0.25f;
  if (bias_size != sizeof(bias)) {
    std::fprintf(stderr, "bias has %zu bytes\n", bias_size);
    return 1;
  }
  CHECK_DRIVER(cuMemcpyHtoD(bias_address, &bias, sizeof(bias)));

  struct Pair {
    float scale;
    int offset;
  };
  Pair pair = {2.0f, 3};
  int count = 10000;
  std::vector<float> x(count), y(count), result(count);
  for (int i = 0; i < count; ++i) {
    x[i] = static_cast<float>(i % 1000);
    y[i] = static_cast<float>(i % 77) * 0.5f;
  }
  CUdeviceptr device_x, device_y;
  const size_t bytes = count * sizeof(float);
  CHECK_DRIVER(cuMemAlloc(&device_x, bytes));
  CHECK_DRIVER(cuMemAlloc(&device_y, bytes));
  CUstream stream;
  CHECK_DRIVER(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CHECK_DRIVER(cuMemcpyHtoDAsync(device_x, x.data(), bytes, stream));
  CHECK_DRIVER(cuMemcpyHtoDAsync(device_y, y.data(), bytes, stream));
  void* arguments[] = {&pair, &device_x, &device_y, &count};
  CHECK_DRIVER(
      cuLaunchKernel(saxpy, (count + 255) / 256, 1, 1, 256, 1, 1, 0, stream, arguments, nullptr));
  CHECK_DRIVER(cuMemcpyDtoHAsync(result.data(), device_y, bytes, stream));
  CHECK_DRIVER(cuStreamSynchronize(stream));
  for (int i = 0; i < count; ++i) {
    const float expected = i + 3 < count ? 2.0f * x[i + 3] + y[i] + bias : y[i];
    if (result[i] != expected) {
      std::fprintf(stderr, "Saxpy: element %d is %g, expected %g\n", i, result[i], expected);
      return 1;
    }
  }
  std::printf("Saxpy: %d values are right\n", count);

  // Dynamic shared memory, and arguments as one packed buffer.
  struct Packed {
    CUdeviceptr values;
    int value;
    int count;
  } packed = {device_x, 4711, count};
  size_t packed_size = sizeof(packed);
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE,
                   &packed_size, CU_LAUNCH_PARAM_END};
  CHECK_DRIVER(cuLaunchKernel(fill, (count + 127) / 128, 1, 1, 128, 1, 1, 128 * sizeof(int),
                              nullptr, nullptr, extra));
  CHECK_DRIVER(cuCtxSynchronize());
  std::vector<int> filled(count);
  CHECK_DRIVER(cuMemcpyDtoH(filled.data(), device_x, bytes));
  if (std::count(filled.begin(), filled.end(), 4711) != count) {
    std::fprintf(stderr, "Fill left a wrong value\n");
    return 1;
  }
  std::printf("Fill: %d values are right\n", count);

  CHECK_DRIVER(cuStreamDestroy(stream));
  CHECK_DRIVER(cuMemFree(device_x));
  CHECK_DRIVER(cuMemFree(device_y));
  CHECK_DRIVER(cuModuleUnload(module));
  CHECK_DRIVER(cuDevicePrimaryCtxRelease(device));
  return 0;
}
