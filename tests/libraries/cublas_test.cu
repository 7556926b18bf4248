// cuBLAS and cuBLASLt.
#include <cublasLt.h>

#include <complex>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "library_test.h"
#include <cublas_v2.h>

using namespace library_test;  // NOLINT: a test program

namespace {

using Complex = std::complex<float>;

template <typename T>
T RandomValue(Random* random) {
  return static_cast<T>(random->Next());
}
template <>
Complex RandomValue<Complex>(Random* random) {
  const double real = random->Next();
  return {static_cast<float>(real), static_cast<float>(random->Next())};
}

template <typename T>
std::vector<T> RandomVector(size_t count) {
  Random random;
  std::vector<T> values(count);
  for (T& value : values) value = RandomValue<T>(&random);
  return values;
}

template <typename T>
T Conjugate(T value) {
  return value;
}
template <>
Complex Conjugate<Complex>(Complex value) {
  return std::conj(value);
}

// op(a) at (row, column), column-major.
template <typename T>
T At(const std::vector<T>& a, int ld, cublasOperation_t op, int row, int column) {
  if (op == CUBLAS_OP_N) return a[row + static_cast<size_t>(column) * ld];
  const T value = a[column + static_cast<size_t>(row) * ld];
  return op == CUBLAS_OP_C ? Conjugate(value) : value;
}

// In doubles where T is real.
template <typename T, typename Sum>
std::vector<T> Product(cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k, T alpha,
                       const std::vector<T>& a, int lda, const std::vector<T>& b, int ldb, T beta,
                       const std::vector<T>& c) {
  std::vector<Sum> rows(static_cast<size_t>(m) * k), columns(static_cast<size_t>(k) * n);
  for (int i = 0; i < m; ++i) {
    for (int p = 0; p < k; ++p) rows[static_cast<size_t>(i) * k + p] = At(a, lda, op_a, i, p);
  }
  for (int j = 0; j < n; ++j) {
    for (int p = 0; p < k; ++p) columns[static_cast<size_t>(j) * k + p] = At(b, ldb, op_b, p, j);
  }
  std::vector<T> result(static_cast<size_t>(m) * n);
  for (int j = 0; j < n; ++j) {
    for (int i = 0; i < m; ++i) {
      Sum sum = 0;
      for (int p = 0; p < k; ++p) {
        sum += rows[static_cast<size_t>(i) * k + p] * columns[static_cast<size_t>(j) * k + p];
      }
      const size_t at = i + static_cast<size_t>(j) * m;
      result[at] = static_cast<T>(Sum(alpha) * sum + Sum(beta) * Sum(c[at]));
    }
  }
  return result;
}

const char* Name(cublasOperation_t op) {
  return op == CUBLAS_OP_N ? "N" : op == CUBLAS_OP_T ? "T" : "C";
}

template <typename T, typename Sum, typename Call>
void CheckGemm(const char* type, double tolerance, const std::vector<int>& sizes, bool complex,
               const Call& call) {
  for (const int n : sizes) {
    for (const cublasOperation_t op_a : {CUBLAS_OP_N, CUBLAS_OP_T, CUBLAS_OP_C}) {
      for (const cublasOperation_t op_b : {CUBLAS_OP_N, CUBLAS_OP_T, CUBLAS_OP_C}) {
        if (!complex && (op_a == CUBLAS_OP_C || op_b == CUBLAS_OP_C)) continue;
        const int m = n, k = n + n / 4, columns = n - n / 8;
        const std::string name =
            std::string(type) + "gemm_" + std::to_string(n) + Name(op_a) + Name(op_b);
        if (!Wanted(name)) continue;
        const int lda = op_a == CUBLAS_OP_N ? m : k;
        const int ldb = op_b == CUBLAS_OP_N ? k : columns;
        const auto a = RandomVector<T>(static_cast<size_t>(m) * k);
        const auto b = RandomVector<T>(static_cast<size_t>(k) * columns);
        const auto c = RandomVector<T>(static_cast<size_t>(m) * columns);
        const T alpha = static_cast<T>(1.5f), beta = static_cast<T>(-0.5f);
        const Device<T> da(a), db(b), dc(c);
        const int status = call(op_a, op_b, m, columns, k, &alpha, da.get(), lda, db.get(), ldb,
                                &beta, dc.get(), m);
        Check(name, status,
              Error(dc.Read(),
                    Product<T, Sum>(op_a, op_b, m, columns, k, alpha, a, lda, b, ldb, beta, c)),
              tolerance);
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  ParseArguments(argc, argv);
  void* const library = OpenLibrary({"libcublas.so.13"});
  cublasHandle_t handle = nullptr;
  Check("cublasCreate", LIBRARY_SYMBOL(library, cublasCreate_v2)(&handle), 0, 0);
  if (handle == nullptr) return Finish();
  int version = 0;
  LIBRARY_SYMBOL(library, cublasGetVersion_v2)(handle, &version);
  PrintVersion("cuBLAS " + DottedVersion(version, 10000, 100));
  const std::vector<int> sizes = {8, 17, 64, 100, 256, 1000};

  const auto sgemm = LIBRARY_SYMBOL(library, cublasSgemm_v2);
  CheckGemm<float, double>("s", 1e-5, sizes, false,
                           [&](auto... arguments) { return sgemm(handle, arguments...); });
  const auto dgemm = LIBRARY_SYMBOL(library, cublasDgemm_v2);
  CheckGemm<double, double>("d", 1e-12, sizes, false,
                            [&](auto... arguments) { return dgemm(handle, arguments...); });
  const auto cgemm = LIBRARY_SYMBOL(library, cublasCgemm_v2);
  CheckGemm<Complex, std::complex<double>>(
      "c", 1e-5, {8, 17, 64, 256}, true,
      [&](cublasOperation_t op_a, cublasOperation_t op_b, int m, int n, int k, const Complex* alpha,
          const Complex* a, int lda, const Complex* b, int ldb, const Complex* beta, Complex* c,
          int ldc) {
        const auto as = [](const Complex* p) { return reinterpret_cast<const cuComplex*>(p); };
        return cgemm(handle, op_a, op_b, m, n, k, as(alpha), as(a), lda, as(b), ldb, as(beta),
                     reinterpret_cast<cuComplex*>(c), ldc);
      });
  const auto hgemm = LIBRARY_SYMBOL(library, cublasHgemm);
  using GemmEx = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int,
                                    int, const void*, const void*, cudaDataType, int, const void*,
                                    cudaDataType, int, const void*, void*, cudaDataType, int,
                                    cublasComputeType_t, cublasGemmAlgo_t);
  const auto gemm_ex = Symbol<GemmEx>(library, "cublasGemmEx");
  for (const int n : {8, 64, 256}) {
    const std::string name = "hgemm_" + std::to_string(n);
    if (!Wanted(name)) continue;
    std::vector<__half> a(n * n), b(n * n), c(n * n);
    std::vector<float> wide_a(n * n), wide_b(n * n), zero(n * n);
    Random random;
    for (int k = 0; k < n * n; ++k) {
      a[k] = __float2half(static_cast<float>(random.Next()));
      b[k] = __float2half(static_cast<float>(random.Next()));
      wide_a[k] = __half2float(a[k]);
      wide_b[k] = __half2float(b[k]);
    }
    const auto expected = Product<float, double>(CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, 1.0f, wide_a, n,
                                                 wide_b, n, 0.0f, zero);
    const auto widen = [](const std::vector<__half>& values) {
      std::vector<float> wide;
      for (const __half value : values) wide.push_back(__half2float(value));
      return wide;
    };
    const Device<__half> da(a), db(b), dc(c);
    const __half one = __float2half(1), none = __float2half(0);
    int status = hgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one, da.get(), n, db.get(), n,
                       &none, dc.get(), n);
    Check(name, status, Error(widen(dc.Read()), expected), 2e-2);
    const Device<float> df(zero);
    const float one_f = 1, none_f = 0;
    status = gemm_ex(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, n, n, &one_f, da.get(), CUDA_R_16F, n,
                     db.get(), CUDA_R_16F, n, &none_f, df.get(), CUDA_R_32F, n, CUBLAS_COMPUTE_32F,
                     CUBLAS_GEMM_DEFAULT);
    Check(name + "_f32", status, Error(df.Read(), expected), 1e-5);
  }

  const int n = 300;
  const auto a = RandomVector<float>(n * n);
  const auto x = RandomVector<float>(n);
  const auto y = RandomVector<float>(2 * n);
  const std::vector<float> y_head(y.begin(), y.begin() + n);
  const float alpha = 1.25f, beta = 0.5f;
  const Device<float> da(a), dx(x);
  for (const cublasOperation_t op : {CUBLAS_OP_N, CUBLAS_OP_T}) {
    if (!Wanted("sgemv")) break;
    const Device<float> dy(y_head);
    const int status = LIBRARY_SYMBOL(library, cublasSgemv_v2)(handle, op, n, n, &alpha, da.get(),
                                                               n, dx.get(), 1, &beta, dy.get(), 1);
    Check(std::string("sgemv_") + Name(op), status,
          Error(dy.Read(),
                Product<float, double>(op, CUBLAS_OP_N, n, 1, n, alpha, a, n, x, n, beta, y_head)),
          1e-5);
  }
  if (Wanted("sger")) {
    const Device<float> dc(a), dy(y_head);
    const int status = LIBRARY_SYMBOL(library, cublasSger_v2)(handle, n, n, &alpha, dx.get(), 1,
                                                              dy.get(), 1, dc.get(), n);
    std::vector<float> expected = a;
    for (int j = 0; j < n; ++j) {
      for (int i = 0; i < n; ++i) expected[i + j * n] += alpha * x[i] * y[j];
    }
    Check("sger", status, Error(dc.Read(), expected), 1e-6);
  }
  if (Wanted("sdot")) {
    const Device<float> dy(y_head);
    float dot = 0;
    const int status =
        LIBRARY_SYMBOL(library, cublasSdot_v2)(handle, n, dx.get(), 1, dy.get(), 1, &dot);
    double expected = 0;
    for (int k = 0; k < n; ++k) expected += static_cast<double>(x[k]) * y[k];
    Check("sdot", status, std::fabs(dot - expected) / (1 + std::fabs(expected)), 1e-5);
  }
  for (const cublasOperation_t op : {CUBLAS_OP_N, CUBLAS_OP_T}) {
    for (const cublasFillMode_t fill : {CUBLAS_FILL_MODE_LOWER, CUBLAS_FILL_MODE_UPPER}) {
      if (!Wanted("strsm")) break;
      std::vector<float> triangle = a;
      for (int k = 0; k < n; ++k) triangle[k + k * n] = 30 + triangle[k + k * n];
      const auto b = RandomVector<float>(n * 64);
      const Device<float> dt(triangle), db(b);
      const int status = LIBRARY_SYMBOL(library, cublasStrsm_v2)(handle, CUBLAS_SIDE_LEFT, fill, op,
                                                                 CUBLAS_DIAG_NON_UNIT, n, 64,
                                                                 &alpha, dt.get(), n, db.get(), n);
      // Multiply back.
      for (int j = 0; j < n; ++j) {
        for (int i = 0; i < n; ++i) {
          if (fill == CUBLAS_FILL_MODE_LOWER ? i < j : i > j) triangle[i + j * n] = 0;
        }
      }
      const std::vector<float> solution = db.Read();
      const std::vector<float> back =
          solution.empty() ? solution
                           : Product<float, double>(op, CUBLAS_OP_N, n, 64, n, 1 / alpha, triangle,
                                                    n, solution, n, 0.0f, b);
      Check(std::string("strsm_") + (fill == CUBLAS_FILL_MODE_LOWER ? "L" : "U") + Name(op), status,
            Error(back, b), 1e-4);
    }
  }
  if (Wanted("batched")) {
    const int size = 24, batch = 10;
    const auto ba = RandomVector<float>(size * size * batch);
    const Device<float> dba(ba), dbc(static_cast<size_t>(size) * size * batch);
    const float one = 1, none = 0;
    int status = LIBRARY_SYMBOL(library, cublasSgemmStridedBatched)(
        handle, CUBLAS_OP_N, CUBLAS_OP_T, size, size, size, &one, dba.get(), size, size * size,
        dba.get(), size, size * size, &none, dbc.get(), size, size * size, batch);
    std::vector<float> expected;
    for (int k = 0; k < batch; ++k) {
      const std::vector<float> one_a(ba.begin() + k * size * size,
                                     ba.begin() + (k + 1) * size * size);
      const auto one_c = Product<float, double>(CUBLAS_OP_N, CUBLAS_OP_T, size, size, size, 1.0f,
                                                one_a, size, one_a, size, 0.0f, one_a);
      expected.insert(expected.end(), one_c.begin(), one_c.end());
    }
    Check("sgemm_strided_batched", status, Error(dbc.Read(), expected), 1e-5);
    std::vector<const float*> pointers_a;
    std::vector<float*> pointers_c;
    const Device<float> dbc2(expected.size());
    for (int k = 0; k < batch; ++k) {
      pointers_a.push_back(dba.get() + k * size * size);
      pointers_c.push_back(dbc2.get() + k * size * size);
    }
    const Device<const float*> dpa(pointers_a);
    const Device<float*> dpc(pointers_c);
    status = LIBRARY_SYMBOL(library, cublasSgemmBatched)(
        handle, CUBLAS_OP_N, CUBLAS_OP_T, size, size, size, &one, dpa.get(), size, dpa.get(), size,
        &none, dpc.get(), size, batch);
    Check("sgemm_batched", status, Error(dbc2.Read(), expected), 1e-5);
  }

  // cuBLASLt, with a bias and a ReLU behind the product.
  if (Wanted("lt_")) {
    void* const lt = OpenLibrary({"libcublasLt.so.13"});
    cublasLtHandle_t lt_handle = nullptr;
    Check("lt_create", LIBRARY_SYMBOL(lt, cublasLtCreate)(&lt_handle), 0, 0);
    const auto set = LIBRARY_SYMBOL(lt, cublasLtMatmulDescSetAttribute);
    for (const cublasLtEpilogue_t epilogue :
         {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_RELU_BIAS}) {
      const int size = 128;
      const auto ma = RandomVector<float>(size * size);
      const auto mb = RandomVector<float>(size * size);
      const auto bias = RandomVector<float>(size);
      auto expected = Product<float, double>(CUBLAS_OP_N, CUBLAS_OP_N, size, size, size, 1.0f, ma,
                                             size, mb, size, 0.0f, ma);
      if (epilogue == CUBLASLT_EPILOGUE_RELU_BIAS) {
        for (int k = 0; k < size * size; ++k) {
          expected[k] = std::max(0.0f, expected[k] + bias[k % size]);
        }
      }
      const Device<float> dma(ma), dmb(mb), dbias(bias), dmc(ma.size());
      cublasLtMatmulDesc_t desc = nullptr;
      cublasLtMatrixLayout_t layout = nullptr;
      LIBRARY_SYMBOL(lt, cublasLtMatmulDescCreate)(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
      LIBRARY_SYMBOL(lt, cublasLtMatrixLayoutCreate)(&layout, CUDA_R_32F, size, size, size);
      const float* const bias_pointer = dbias.get();
      set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
      if (epilogue == CUBLASLT_EPILOGUE_RELU_BIAS) {
        set(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias_pointer, sizeof bias_pointer);
      }
      const float one = 1, none = 0;
      const int status = LIBRARY_SYMBOL(lt, cublasLtMatmul)(
          lt_handle, desc, &one, dma.get(), layout, dmb.get(), layout, &none, dmc.get(), layout,
          dmc.get(), layout, nullptr, nullptr, 0, nullptr);
      Check("lt_matmul_" + std::to_string(epilogue), status, Error(dmc.Read(), expected), 1e-5);
    }
  }
  return Finish();
}
