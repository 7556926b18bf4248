// cuSPARSE's generic interface: products of sparse matrices with vectors, dense and sparse
// matrices, triangular solves, conversions.
#include <cusparse.h>

#include <map>

#include "library_test.h"

using namespace library_test;  // NOLINT: a test program

namespace {

struct Csr {
  int rows = 0, columns = 0;
  std::vector<int> offsets, indices;
  std::vector<double> values;
  int nonzeros() const { return static_cast<int>(indices.size()); }
};

// Rows of very different lengths, some of them empty, one full.
Csr RandomMatrix(int rows, int columns, double density) {
  Random random;
  Csr matrix;
  matrix.rows = rows;
  matrix.columns = columns;
  matrix.offsets.push_back(0);
  for (int row = 0; row < rows; ++row) {
    const double chance = row % 7 == 3 ? 0 : row == 5 ? 1 : density * (1 + row % 3);
    for (int column = 0; column < columns; ++column) {
      const double dice = (random.Next() + 1) / 2;
      if (dice >= chance) continue;
      matrix.indices.push_back(column);
      matrix.values.push_back(random.Next());
    }
    matrix.offsets.push_back(matrix.nonzeros());
  }
  return matrix;
}

Csr Multiply(const Csr& a, const Csr& b) {
  Csr c;
  c.rows = a.rows;
  c.columns = b.columns;
  c.offsets.push_back(0);
  for (int row = 0; row < a.rows; ++row) {
    std::map<int, double> sums;
    for (int k = a.offsets[row]; k < a.offsets[row + 1]; ++k) {
      for (int j = b.offsets[a.indices[k]]; j < b.offsets[a.indices[k] + 1]; ++j) {
        sums[b.indices[j]] += a.values[k] * b.values[j];
      }
    }
    for (const auto& [column, sum] : sums) {
      c.indices.push_back(column);
      c.values.push_back(sum);
    }
    c.offsets.push_back(c.nonzeros());
  }
  return c;
}

template <typename T>
std::vector<T> As(const std::vector<double>& values) {
  return std::vector<T>(values.begin(), values.end());
}

template <typename T>
std::vector<T> RandomVector(size_t count) {
  Random random;
  std::vector<T> values(count);
  for (T& value : values) value = static_cast<T>(random.Next());
  return values;
}

template <typename T>
constexpr cudaDataType kType = CUDA_R_32F;
template <>
constexpr cudaDataType kType<double> = CUDA_R_64F;
template <>
constexpr cudaDataType kType<std::complex<float>> = CUDA_C_32F;
template <typename T>
constexpr double kTolerance = 1e-5;
template <>
constexpr double kTolerance<double> = 1e-13;
template <typename T>
constexpr const char* kName = "f32";
template <>
constexpr const char* kName<double> = "f64";
template <>
constexpr const char* kName<std::complex<float>> = "c32";

void* g_library = nullptr;
cusparseHandle_t g_handle = nullptr;
#define SPARSE(name) LIBRARY_SYMBOL(g_library, name)

// A sparse matrix on the device and what describes it.
template <typename T>
struct DeviceMatrix {
  explicit DeviceMatrix(const Csr& matrix, const char* format = "csr")
      : offsets(matrix.offsets), indices(matrix.indices), values(As<T>(matrix.values)) {
    int status = 0;
    if (std::strcmp(format, "csr") == 0) {
      status = SPARSE(cusparseCreateCsr)(
          &descriptor, matrix.rows, matrix.columns, matrix.nonzeros(), offsets.get(), indices.get(),
          values.get(), CUSPARSE_INDEX_32I, CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, kType<T>);
    } else {
      std::vector<int> rows;
      for (int row = 0; row < matrix.rows; ++row) {
        rows.insert(rows.end(), matrix.offsets[row + 1] - matrix.offsets[row], row);
      }
      coordinates = std::make_unique<Device<int>>(rows);
      status = SPARSE(cusparseCreateCoo)(
          &descriptor, matrix.rows, matrix.columns, matrix.nonzeros(), coordinates->get(),
          indices.get(), values.get(), CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, kType<T>);
    }
    if (status != 0) std::printf("  descriptor: %d\n", status);
  }
  ~DeviceMatrix() { SPARSE(cusparseDestroySpMat)(descriptor); }
  Device<int> offsets, indices;
  Device<T> values;
  std::unique_ptr<Device<int>> coordinates;
  cusparseSpMatDescr_t descriptor = nullptr;
};

template <typename T>
void CheckSpmv(const Csr& matrix, const char* format, cusparseOperation_t operation,
               cusparseSpMVAlg_t algorithm) {
  const std::string name = std::string("spmv_") + format + "_" + kName<T> +
                           (operation == CUSPARSE_OPERATION_TRANSPOSE ? "_transposed" : "") +
                           (algorithm == CUSPARSE_SPMV_ALG_DEFAULT
                                ? ""
                                : "_algorithm" + std::to_string(static_cast<int>(algorithm)));
  if (!Wanted(name)) return;
  const bool transposed = operation == CUSPARSE_OPERATION_TRANSPOSE;
  const auto x = RandomVector<T>(transposed ? matrix.rows : matrix.columns);
  const auto y = RandomVector<T>(transposed ? matrix.columns : matrix.rows);
  const T alpha = T(1.5f), beta = T(-0.5f);
  std::vector<T> expected(y.size());
  std::vector<std::complex<double>> sums(y.size());
  for (int row = 0; row < matrix.rows; ++row) {
    for (int k = matrix.offsets[row]; k < matrix.offsets[row + 1]; ++k) {
      const int column = matrix.indices[k];
      sums[transposed ? column : row] +=
          matrix.values[k] * std::complex<double>(x[transposed ? row : column]);
    }
  }
  for (size_t k = 0; k < y.size(); ++k) {
    const std::complex<double> sum = 1.5 * sums[k] - 0.5 * std::complex<double>(y[k]);
    if constexpr (std::is_floating_point_v<T>) {
      expected[k] = static_cast<T>(sum.real());
    } else {
      expected[k] = T(sum);
    }
  }
  const DeviceMatrix<T> a(matrix, format);
  const Device<T> dx(x), dy(y);
  cusparseDnVecDescr_t vx = nullptr, vy = nullptr;
  SPARSE(cusparseCreateDnVec)(&vx, static_cast<int64_t>(x.size()), dx.get(), kType<T>);
  SPARSE(cusparseCreateDnVec)(&vy, static_cast<int64_t>(y.size()), dy.get(), kType<T>);
  size_t bytes = 0;
  int status = SPARSE(cusparseSpMV_bufferSize)(g_handle, operation, &alpha, a.descriptor, vx, &beta,
                                               vy, kType<T>, algorithm, &bytes);
  const Device<char> buffer(bytes);
  if (status == 0) {
    status = SPARSE(cusparseSpMV)(g_handle, operation, &alpha, a.descriptor, vx, &beta, vy,
                                  kType<T>, algorithm, buffer.get());
  }
  Check(name, status, Error(dy.Read(), expected), kTolerance<T>);
  SPARSE(cusparseDestroyDnVec)(vx);
  SPARSE(cusparseDestroyDnVec)(vy);
}

template <typename T>
void CheckSpmm(const Csr& matrix, int width, cusparseOrder_t order, cusparseSpMMAlg_t algorithm) {
  const std::string name = std::string("spmm_") + kName<T> + "_" + std::to_string(width) +
                           (order == CUSPARSE_ORDER_ROW ? "_rows" : "_columns") +
                           (algorithm == CUSPARSE_SPMM_ALG_DEFAULT
                                ? ""
                                : "_algorithm" + std::to_string(static_cast<int>(algorithm)));
  if (!Wanted(name)) return;
  const bool by_row = order == CUSPARSE_ORDER_ROW;
  const auto b = RandomVector<T>(static_cast<size_t>(matrix.columns) * width);
  const auto c = RandomVector<T>(static_cast<size_t>(matrix.rows) * width);
  const auto at = [&](int rows, int row, int column) {
    return by_row ? static_cast<size_t>(row) * width + column
                  : row + static_cast<size_t>(column) * rows;
  };
  std::vector<T> expected(c.size());
  for (int row = 0; row < matrix.rows; ++row) {
    for (int column = 0; column < width; ++column) {
      double sum = 0;
      for (int k = matrix.offsets[row]; k < matrix.offsets[row + 1]; ++k) {
        sum += matrix.values[k] * b[at(matrix.columns, matrix.indices[k], column)];
      }
      const size_t k = at(matrix.rows, row, column);
      expected[k] = static_cast<T>(1.5 * sum - 0.5 * c[k]);
    }
  }
  const DeviceMatrix<T> a(matrix);
  const Device<T> db(b), dc(c);
  cusparseDnMatDescr_t mb = nullptr, mc = nullptr;
  SPARSE(cusparseCreateDnMat)
  (&mb, matrix.columns, width, by_row ? width : matrix.columns, db.get(), kType<T>, order);
  SPARSE(cusparseCreateDnMat)
  (&mc, matrix.rows, width, by_row ? width : matrix.rows, dc.get(), kType<T>, order);
  const T alpha = T(1.5f), beta = T(-0.5f);
  const auto plain = CUSPARSE_OPERATION_NON_TRANSPOSE;
  size_t bytes = 0;
  int status = SPARSE(cusparseSpMM_bufferSize)(g_handle, plain, plain, &alpha, a.descriptor, mb,
                                               &beta, mc, kType<T>, algorithm, &bytes);
  const Device<char> buffer(bytes);
  if (status == 0) {
    status = SPARSE(cusparseSpMM)(g_handle, plain, plain, &alpha, a.descriptor, mb, &beta, mc,
                                  kType<T>, algorithm, buffer.get());
  }
  Check(name, status, Error(dc.Read(), expected), kTolerance<T>);
  SPARSE(cusparseDestroyDnMat)(mb);
  SPARSE(cusparseDestroyDnMat)(mc);
}

template <typename T>
void CheckSpgemm(const Csr& a, const Csr& b) {
  const std::string name = std::string("spgemm_") + kName<T> + "_" + std::to_string(a.rows);
  if (!Wanted(name)) return;
  const DeviceMatrix<T> da(a), db(b);
  const Device<int> offsets(a.rows + 1);
  const auto plain = CUSPARSE_OPERATION_NON_TRANSPOSE;
  const auto algorithm = CUSPARSE_SPGEMM_DEFAULT;
  const T alpha = 1, beta = 0;
  cusparseSpMatDescr_t c = nullptr;
  SPARSE(cusparseCreateCsr)
  (&c, a.rows, b.columns, 0, offsets.get(), nullptr, nullptr, CUSPARSE_INDEX_32I,
   CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, kType<T>);
  cusparseSpGEMMDescr_t step = nullptr;
  SPARSE(cusparseSpGEMM_createDescr)(&step);
  const auto estimate = SPARSE(cusparseSpGEMM_workEstimation);
  const auto compute = SPARSE(cusparseSpGEMM_compute);
  size_t bytes = 0;
  int status = estimate(g_handle, plain, plain, &alpha, da.descriptor, db.descriptor, &beta, c,
                        kType<T>, algorithm, step, &bytes, nullptr);
  const Device<char> first(bytes);
  if (status == 0) {
    status = estimate(g_handle, plain, plain, &alpha, da.descriptor, db.descriptor, &beta, c,
                      kType<T>, algorithm, step, &bytes, first.get());
  }
  bytes = 0;
  if (status == 0) {
    status = compute(g_handle, plain, plain, &alpha, da.descriptor, db.descriptor, &beta, c,
                     kType<T>, algorithm, step, &bytes, nullptr);
  }
  const Device<char> second(bytes);
  if (status == 0) {
    status = compute(g_handle, plain, plain, &alpha, da.descriptor, db.descriptor, &beta, c,
                     kType<T>, algorithm, step, &bytes, second.get());
  }
  int64_t rows = 0, columns = 0, nonzeros = 0;
  SPARSE(cusparseSpMatGetSize)(c, &rows, &columns, &nonzeros);
  const Csr expected = Multiply(a, b);
  double error = nonzeros == expected.nonzeros() ? 0 : INFINITY;
  if (status == 0 && error == 0) {
    const Device<int> indices(nonzeros);
    const Device<T> values(nonzeros);
    SPARSE(cusparseCsrSetPointers)(c, offsets.get(), indices.get(), values.get());
    status = SPARSE(cusparseSpGEMM_copy)(g_handle, plain, plain, &alpha, da.descriptor,
                                         db.descriptor, &beta, c, kType<T>, algorithm, step);
    if (offsets.Read() != expected.offsets || indices.Read() != expected.indices) error = INFINITY;
    error = std::max(error, Error(values.Read(), As<T>(expected.values)));
  }
  Check(name, status, error, kTolerance<T>);
  SPARSE(cusparseSpGEMM_destroyDescr)(step);
  SPARSE(cusparseDestroySpMat)(c);
}

// Solves with the lower triangle of a matrix whose diagonal dominates, and multiplies back.
template <typename T>
void CheckSpsv(int rows) {
  const std::string name = std::string("spsv_") + kName<T> + "_" + std::to_string(rows);
  if (!Wanted(name)) return;
  Random random;
  Csr lower;
  lower.rows = lower.columns = rows;
  lower.offsets.push_back(0);
  for (int row = 0; row < rows; ++row) {
    for (int column = std::max(0, row - 40); column <= row; ++column) {
      if (column != row && random.Next() < 0.5) continue;
      lower.indices.push_back(column);
      lower.values.push_back(column == row ? 4 : random.Next() / 4);
    }
    lower.offsets.push_back(lower.nonzeros());
  }
  const auto b = RandomVector<T>(rows);
  const DeviceMatrix<T> a(lower);
  auto fill = CUSPARSE_FILL_MODE_LOWER;
  auto diagonal = CUSPARSE_DIAG_TYPE_NON_UNIT;
  SPARSE(cusparseSpMatSetAttribute)(a.descriptor, CUSPARSE_SPMAT_FILL_MODE, &fill, sizeof fill);
  SPARSE(cusparseSpMatSetAttribute)
  (a.descriptor, CUSPARSE_SPMAT_DIAG_TYPE, &diagonal, sizeof diagonal);
  const Device<T> db(b), dx(b.size());
  cusparseDnVecDescr_t vb = nullptr, vx = nullptr;
  SPARSE(cusparseCreateDnVec)(&vb, rows, db.get(), kType<T>);
  SPARSE(cusparseCreateDnVec)(&vx, rows, dx.get(), kType<T>);
  cusparseSpSVDescr_t step = nullptr;
  SPARSE(cusparseSpSV_createDescr)(&step);
  const auto plain = CUSPARSE_OPERATION_NON_TRANSPOSE;
  const auto algorithm = CUSPARSE_SPSV_ALG_DEFAULT;
  const T one = 1;
  size_t bytes = 0;
  int status = SPARSE(cusparseSpSV_bufferSize)(g_handle, plain, &one, a.descriptor, vb, vx,
                                               kType<T>, algorithm, step, &bytes);
  const Device<char> buffer(bytes);
  if (status == 0) {
    status = SPARSE(cusparseSpSV_analysis)(g_handle, plain, &one, a.descriptor, vb, vx, kType<T>,
                                           algorithm, step, buffer.get());
  }
  if (status == 0) {
    status = SPARSE(cusparseSpSV_solve)(g_handle, plain, &one, a.descriptor, vb, vx, kType<T>,
                                        algorithm, step);
  }
  const std::vector<T> x = dx.Read();
  std::vector<T> back(x.size());
  for (size_t row = 0; row < x.size(); ++row) {
    double sum = 0;
    for (int k = lower.offsets[row]; k < lower.offsets[row + 1]; ++k) {
      sum += lower.values[k] * x[lower.indices[k]];
    }
    back[row] = static_cast<T>(sum);
  }
  Check(name, status, Error(back, b), kTolerance<T>);
  SPARSE(cusparseSpSV_destroyDescr)(step);
  SPARSE(cusparseDestroyDnVec)(vb);
  SPARSE(cusparseDestroyDnVec)(vx);
}

template <typename T>
void CheckConversions(const Csr& matrix) {
  const size_t count = static_cast<size_t>(matrix.rows) * matrix.columns;
  std::vector<T> dense(count);
  for (int row = 0; row < matrix.rows; ++row) {
    for (int k = matrix.offsets[row]; k < matrix.offsets[row + 1]; ++k) {
      dense[static_cast<size_t>(row) * matrix.columns + matrix.indices[k]] =
          static_cast<T>(matrix.values[k]);
    }
  }
  cusparseDnMatDescr_t descriptor = nullptr;
  size_t bytes = 0;
  if (Wanted(std::string("sparse_to_dense_") + kName<T>)) {
    const DeviceMatrix<T> a(matrix);
    const Device<T> to(count);
    SPARSE(cusparseCreateDnMat)
    (&descriptor, matrix.rows, matrix.columns, matrix.columns, to.get(), kType<T>,
     CUSPARSE_ORDER_ROW);
    int status = SPARSE(cusparseSparseToDense_bufferSize)(
        g_handle, a.descriptor, descriptor, CUSPARSE_SPARSETODENSE_ALG_DEFAULT, &bytes);
    const Device<char> buffer(bytes);
    if (status == 0) {
      status = SPARSE(cusparseSparseToDense)(g_handle, a.descriptor, descriptor,
                                             CUSPARSE_SPARSETODENSE_ALG_DEFAULT, buffer.get());
    }
    Check(std::string("sparse_to_dense_") + kName<T>, status, Error(to.Read(), dense), 0);
    SPARSE(cusparseDestroyDnMat)(descriptor);
  }
  if (Wanted(std::string("dense_to_sparse_") + kName<T>)) {
    const Device<T> from(dense);
    const Device<int> offsets(matrix.rows + 1), indices(matrix.nonzeros());
    const Device<T> values(matrix.nonzeros());
    SPARSE(cusparseCreateDnMat)
    (&descriptor, matrix.rows, matrix.columns, matrix.columns, from.get(), kType<T>,
     CUSPARSE_ORDER_ROW);
    cusparseSpMatDescr_t sparse = nullptr;
    SPARSE(cusparseCreateCsr)
    (&sparse, matrix.rows, matrix.columns, 0, offsets.get(), nullptr, nullptr, CUSPARSE_INDEX_32I,
     CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, kType<T>);
    const auto algorithm = CUSPARSE_DENSETOSPARSE_ALG_DEFAULT;
    int status =
        SPARSE(cusparseDenseToSparse_bufferSize)(g_handle, descriptor, sparse, algorithm, &bytes);
    const Device<char> buffer(bytes);
    if (status == 0) {
      status = SPARSE(cusparseDenseToSparse_analysis)(g_handle, descriptor, sparse, algorithm,
                                                      buffer.get());
    }
    int64_t rows = 0, columns = 0, nonzeros = 0;
    SPARSE(cusparseSpMatGetSize)(sparse, &rows, &columns, &nonzeros);
    double error = 0;
    if (nonzeros != matrix.nonzeros()) {
      std::printf("  %d values that are not zero, expected %d\n", static_cast<int>(nonzeros),
                  matrix.nonzeros());
      error = INFINITY;
    }
    if (status == 0 && error == 0) {
      SPARSE(cusparseCsrSetPointers)(sparse, offsets.get(), indices.get(), values.get());
      status = SPARSE(cusparseDenseToSparse_convert)(g_handle, descriptor, sparse, algorithm,
                                                     buffer.get());
      // Each lane of the kernel keeps what it finds, so that columns of a row come in another
      // order.
      std::vector<T> got(count);
      const std::vector<int> columns_read = indices.Read();
      const std::vector<T> values_read = values.Read();
      if (offsets.Read() != matrix.offsets) error = INFINITY;
      for (int row = 0; row < matrix.rows && !columns_read.empty() && error == 0; ++row) {
        for (int k = matrix.offsets[row]; k < matrix.offsets[row + 1]; ++k) {
          if (columns_read[k] < 0 || columns_read[k] >= matrix.columns) {
            error = INFINITY;
            break;
          }
          got[static_cast<size_t>(row) * matrix.columns + columns_read[k]] += values_read[k];
        }
      }
      error = std::max(error, Error(got, dense));
    }
    Check(std::string("dense_to_sparse_") + kName<T>, status, error, 0);
    SPARSE(cusparseDestroySpMat)(sparse);
    SPARSE(cusparseDestroyDnMat)(descriptor);
  }
}

}  // namespace

int main(int argc, char** argv) {
  ParseArguments(argc, argv);
  g_library = OpenLibrary({"libcusparse.so.12"});
  if (SPARSE(cusparseCreate)(&g_handle) != 0) {
    std::printf("FATAL: cusparseCreate\n");
    return EXIT_FAILURE;
  }
  int version = 0;
  SPARSE(cusparseGetVersion)(g_handle, &version);
  PrintVersion("cuSPARSE " + DottedVersion(version, 1000, 100));

  const Csr small = RandomMatrix(200, 150, 0.05);
  const Csr large = RandomMatrix(5000, 4000, 0.003);
  const auto plain = CUSPARSE_OPERATION_NON_TRANSPOSE;
  const auto transposed = CUSPARSE_OPERATION_TRANSPOSE;
  CheckSpmv<float>(small, "csr", plain, CUSPARSE_SPMV_ALG_DEFAULT);
  CheckSpmv<double>(large, "csr", plain, CUSPARSE_SPMV_ALG_DEFAULT);
  CheckSpmv<std::complex<float>>(large, "csr", plain, CUSPARSE_SPMV_ALG_DEFAULT);
  CheckSpmv<float>(large, "csr", plain, CUSPARSE_SPMV_CSR_ALG2);
  CheckSpmv<double>(large, "csr", transposed, CUSPARSE_SPMV_ALG_DEFAULT);
  CheckSpmv<float>(large, "coo", plain, CUSPARSE_SPMV_ALG_DEFAULT);
  CheckSpmv<double>(large, "coo", plain, CUSPARSE_SPMV_COO_ALG2);
  CheckSpmv<float>(large, "coo", transposed, CUSPARSE_SPMV_ALG_DEFAULT);
  for (const auto order : {CUSPARSE_ORDER_ROW, CUSPARSE_ORDER_COL}) {
    CheckSpmm<float>(large, 4, order, CUSPARSE_SPMM_ALG_DEFAULT);
    CheckSpmm<float>(large, 33, order, CUSPARSE_SPMM_ALG_DEFAULT);
    CheckSpmm<double>(large, 33, order, CUSPARSE_SPMM_ALG_DEFAULT);
  }
  CheckSpmm<float>(large, 32, CUSPARSE_ORDER_ROW, CUSPARSE_SPMM_CSR_ALG2);
  CheckSpmm<float>(large, 32, CUSPARSE_ORDER_ROW, CUSPARSE_SPMM_CSR_ALG3);
  CheckConversions<float>(small);
  CheckConversions<double>(small);
  CheckSpgemm<float>(RandomMatrix(200, 150, 0.05), RandomMatrix(150, 180, 0.05));
  CheckSpgemm<double>(RandomMatrix(2000, 1500, 0.004), RandomMatrix(1500, 1800, 0.004));
  CheckSpsv<float>(500);
  CheckSpsv<double>(3000);
  return Finish();
}
