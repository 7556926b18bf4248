// cuBLAS and cuBLASLt in half precision and bfloat16: all transposes, batches, epilogues.
#include <cublasLt.h>

#include <algorithm>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "library_test.h"
#include <cublas_v2.h>

using namespace library_test;  // NOLINT: a test program

namespace {

template <typename T>
struct Kind;
template <>
struct Kind<__half> {
  static constexpr cudaDataType kType = CUDA_R_16F;
  static constexpr const char* kName = "f16";
  static constexpr double kTolerance = 2e-3;  // of one rounding of the result
  static __half From(float value) { return __float2half(value); }
  static float To(__half value) { return __half2float(value); }
};
template <>
struct Kind<__nv_bfloat16> {
  static constexpr cudaDataType kType = CUDA_R_16BF;
  static constexpr const char* kName = "bf16";
  static constexpr double kTolerance = 1e-2;
  static __nv_bfloat16 From(float value) { return __float2bfloat16(value); }
  static float To(__nv_bfloat16 value) { return __bfloat162float(value); }
};
template <>
struct Kind<float> {
  static constexpr cudaDataType kType = CUDA_R_32F;
  static constexpr const char* kName = "f32";
  static constexpr double kTolerance = 1e-5;
  static float From(float value) { return value; }
  static float To(float value) { return value; }
};

template <typename T>
std::vector<T> RandomVector(size_t count, uint64_t seed) {
  Random random(seed);
  std::vector<T> values(count);
  for (T& value : values) value = Kind<T>::From(static_cast<float>(random.Next()));
  return values;
}

template <typename T>
std::vector<float> Widen(const std::vector<T>& values) {
  std::vector<float> wide;
  for (const T value : values) wide.push_back(Kind<T>::To(value));
  return wide;
}

const char* Name(cublasOperation_t op) { return op == CUBLAS_OP_N ? "N" : "T"; }

// op(a) op(b), column-major without gaps, from what the device is given.
template <typename T>
std::vector<float> Product(cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k,
                           const T* a, const T* b) {
  std::vector<float> rows(static_cast<size_t>(m) * k), columns(static_cast<size_t>(k) * n);
  for (int i = 0; i < m; ++i) {
    for (int p = 0; p < k; ++p) {
      rows[static_cast<size_t>(i) * k + p] =
          Kind<T>::To(op_a == CUBLAS_OP_N ? a[i + static_cast<size_t>(p) * m]
                                          : a[p + static_cast<size_t>(i) * k]);
    }
  }
  for (int j = 0; j < n; ++j) {
    for (int p = 0; p < k; ++p) {
      columns[static_cast<size_t>(j) * k + p] =
          Kind<T>::To(op_b == CUBLAS_OP_N ? b[p + static_cast<size_t>(j) * k]
                                          : b[j + static_cast<size_t>(p) * n]);
    }
  }
  std::vector<float> result(static_cast<size_t>(m) * n);
  for (int j = 0; j < n; ++j) {
    for (int i = 0; i < m; ++i) {
      double sum = 0;
      for (int p = 0; p < k; ++p) {
        sum +=
            double{rows[static_cast<size_t>(i) * k + p]} * columns[static_cast<size_t>(j) * k + p];
      }
      result[i + static_cast<size_t>(j) * m] = static_cast<float>(sum);
    }
  }
  return result;
}

using GemmEx = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int,
                                  int, const void*, const void*, cudaDataType, int, const void*,
                                  cudaDataType, int, const void*, void*, cudaDataType, int,
                                  cublasComputeType_t, cublasGemmAlgo_t);

template <typename In, typename Out>
void CheckGemmEx(cublasHandle_t handle, GemmEx gemm_ex, const std::vector<int>& sizes) {
  for (const int size : sizes) {
    for (const cublasOperation_t op_a : {CUBLAS_OP_N, CUBLAS_OP_T}) {
      for (const cublasOperation_t op_b : {CUBLAS_OP_N, CUBLAS_OP_T}) {
        const std::string name = std::string("gemm_") + Kind<In>::kName + "_" + Kind<Out>::kName +
                                 "_" + std::to_string(size) + Name(op_a) + Name(op_b);
        if (!Wanted(name)) continue;
        const int m = size, n = size - size / 8, k = size + size / 4;
        const auto a = RandomVector<In>(static_cast<size_t>(m) * k, 1);
        const auto b = RandomVector<In>(static_cast<size_t>(k) * n, 2);
        const Device<In> da(a), db(b);
        const Device<Out> dc(static_cast<size_t>(m) * n);
        const float one = 1, none = 0;
        const int status = gemm_ex(handle, op_a, op_b, m, n, k, &one, da.get(), Kind<In>::kType,
                                   op_a == CUBLAS_OP_N ? m : k, db.get(), Kind<In>::kType,
                                   op_b == CUBLAS_OP_N ? k : n, &none, dc.get(), Kind<Out>::kType,
                                   m, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
        Check(name, status,
              Error(Widen(dc.Read()), Product(op_a, op_b, m, n, k, a.data(), b.data())),
              Kind<Out>::kTolerance);
      }
    }
  }
}

// Computed in halves: each step of a sum rounds.
void CheckHgemm(cublasHandle_t handle, void* library) {
  const auto hgemm = LIBRARY_SYMBOL(library, cublasHgemm);
  const auto batched = LIBRARY_SYMBOL(library, cublasHgemmStridedBatched);
  const __half one = __float2half(1), none = __float2half(0);
  for (const int size : {8, 17, 64, 100, 256, 1000}) {
    for (const cublasOperation_t op_a : {CUBLAS_OP_N, CUBLAS_OP_T}) {
      for (const cublasOperation_t op_b : {CUBLAS_OP_N, CUBLAS_OP_T}) {
        const std::string name = "hgemm_" + std::to_string(size) + Name(op_a) + Name(op_b);
        if (!Wanted(name)) continue;
        const auto a = RandomVector<__half>(static_cast<size_t>(size) * size, 3);
        const auto b = RandomVector<__half>(static_cast<size_t>(size) * size, 4);
        const Device<__half> da(a), db(b), dc(a.size());
        const int status = hgemm(handle, op_a, op_b, size, size, size, &one, da.get(), size,
                                 db.get(), size, &none, dc.get(), size);
        Check(name, status,
              Error(Widen(dc.Read()), Product(op_a, op_b, size, size, size, a.data(), b.data())),
              3e-2);
      }
    }
  }
  if (Wanted("hgemm_batched")) {
    const int size = 40, batch = 7, matrix = size * size;
    const auto a = RandomVector<__half>(matrix * batch, 5);
    const auto b = RandomVector<__half>(matrix * batch, 6);
    const Device<__half> da(a), db(b), dc(a.size());
    const int status =
        batched(handle, CUBLAS_OP_N, CUBLAS_OP_T, size, size, size, &one, da.get(), size, matrix,
                db.get(), size, matrix, &none, dc.get(), size, matrix, batch);
    std::vector<float> expected;
    for (int k = 0; k < batch; ++k) {
      const auto product = Product(CUBLAS_OP_N, CUBLAS_OP_T, size, size, size,
                                   a.data() + k * matrix, b.data() + k * matrix);
      expected.insert(expected.end(), product.begin(), product.end());
    }
    Check("hgemm_batched", status, Error(Widen(dc.Read()), expected), 1e-2);
  }
}

template <typename T>
void CheckLt(void* lt, cublasLtHandle_t handle) {
  const auto set = LIBRARY_SYMBOL(lt, cublasLtMatmulDescSetAttribute);
  const struct {
    cublasLtEpilogue_t epilogue;
    const char* name;
  } kEpilogues[] = {{CUBLASLT_EPILOGUE_DEFAULT, "none"},
                    {CUBLASLT_EPILOGUE_RELU, "relu"},
                    {CUBLASLT_EPILOGUE_BIAS, "bias"},
                    {CUBLASLT_EPILOGUE_RELU_BIAS, "relu_bias"},
                    {CUBLASLT_EPILOGUE_GELU_BIAS, "gelu_bias"}};
  for (const auto& [epilogue, suffix] : kEpilogues) {
    const std::string name = std::string("lt_") + Kind<T>::kName + "_" + suffix;
    if (!Wanted(name)) continue;
    const int size = 128;
    const auto a = RandomVector<T>(size * size, 7);
    const auto b = RandomVector<T>(size * size, 8);
    const auto bias = RandomVector<T>(size, 9);
    // As most programs use it: the first operand transposed.
    auto expected = Product(CUBLAS_OP_T, CUBLAS_OP_N, size, size, size, a.data(), b.data());
    const bool has_bias =
        epilogue != CUBLASLT_EPILOGUE_DEFAULT && epilogue != CUBLASLT_EPILOGUE_RELU;
    for (int k = 0; k < size * size; ++k) {
      float& value = expected[k];
      if (has_bias) value += Kind<T>::To(bias[k % size]);
      if (epilogue == CUBLASLT_EPILOGUE_RELU || epilogue == CUBLASLT_EPILOGUE_RELU_BIAS) {
        value = std::max(0.0f, value);
      }
      if (epilogue == CUBLASLT_EPILOGUE_GELU_BIAS) {
        const double x = value;
        value = static_cast<float>(0.5 * x *
                                   (1 + std::tanh(0.7978845608 * (x + 0.044715 * x * x * x))));
      }
    }
    const Device<T> da(a), db(b), dbias(bias), dc(a.size());
    cublasLtMatmulDesc_t description = nullptr;
    cublasLtMatrixLayout_t layout = nullptr;
    LIBRARY_SYMBOL(lt, cublasLtMatmulDescCreate)(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    LIBRARY_SYMBOL(lt, cublasLtMatrixLayoutCreate)(&layout, Kind<T>::kType, size, size, size);
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const T* const bias_pointer = dbias.get();
    set(description, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    set(description, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (has_bias) {
      set(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias_pointer, sizeof bias_pointer);
    }
    const float one = 1, none = 0;
    const int status = LIBRARY_SYMBOL(lt, cublasLtMatmul)(
        handle, description, &one, da.get(), layout, db.get(), layout, &none, dc.get(), layout,
        dc.get(), layout, nullptr, nullptr, 0, nullptr);
    Check(name, status, Error(Widen(dc.Read()), expected), Kind<T>::kTolerance);
  }
}

}  // namespace

int main(int argc, char** argv) {
  ParseArguments(argc, argv);
  void* const library = OpenLibrary({"libcublas.so.13"});
  cublasHandle_t handle = nullptr;
  if (LIBRARY_SYMBOL(library, cublasCreate_v2)(&handle) != CUBLAS_STATUS_SUCCESS) {
    std::printf("FATAL: no handle of cuBLAS\n");
    return EXIT_FAILURE;
  }
  CheckHgemm(handle, library);
  const auto gemm_ex = Symbol<GemmEx>(library, "cublasGemmEx");
  CheckGemmEx<__half, __half>(handle, gemm_ex, {8, 17, 64, 256});
  CheckGemmEx<__half, float>(handle, gemm_ex, {8, 100, 256});
  CheckGemmEx<__nv_bfloat16, __nv_bfloat16>(handle, gemm_ex, {8, 17, 64, 256, 1000});
  CheckGemmEx<__nv_bfloat16, float>(handle, gemm_ex, {8, 100, 256});
  void* const lt = OpenLibrary({"libcublasLt.so.13"});
  cublasLtHandle_t lt_handle = nullptr;
  if (LIBRARY_SYMBOL(lt, cublasLtCreate)(&lt_handle) != CUBLAS_STATUS_SUCCESS) {
    std::printf("FATAL: no handle of cuBLASLt\n");
    return EXIT_FAILURE;
  }
  CheckLt<__half>(lt, lt_handle);
  CheckLt<__nv_bfloat16>(lt, lt_handle);
  return Finish();
}
