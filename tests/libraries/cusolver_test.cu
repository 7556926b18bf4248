// cuSOLVER's dense factorisations: what the factors multiply back to is the matrix.
#include <cusolverDn.h>

#include "library_test.h"

using namespace library_test;  // NOLINT: a test program

namespace {

void* g_library = nullptr;
cusolverDnHandle_t g_handle = nullptr;
#define SOLVER(name) LIBRARY_SYMBOL(g_library, name)

// Column-major, square.
template <typename T>
struct Matrix {
  explicit Matrix(int size) : n(size), values(static_cast<size_t>(size) * size) {}
  T& operator()(int row, int column) { return values[row + static_cast<size_t>(column) * n]; }
  T operator()(int row, int column) const { return values[row + static_cast<size_t>(column) * n]; }
  int n;
  std::vector<T> values;
};

template <typename T>
Matrix<T> RandomMatrix(int n) {
  Matrix<T> matrix(n);
  Random random;
  for (T& value : matrix.values) value = static_cast<T>(random.Next());
  return matrix;
}

// In doubles; kTransposed is of `a`.
enum class Transposed { kNo, kYes };
template <typename T>
Matrix<T> Product(const Matrix<T>& a, Transposed transposed, const Matrix<T>& b) {
  Matrix<T> result(a.n);
  std::vector<double> rows(a.values.size());
  for (int i = 0; i < a.n; ++i) {
    for (int k = 0; k < a.n; ++k) {
      rows[static_cast<size_t>(i) * a.n + k] = transposed == Transposed::kYes ? a(k, i) : a(i, k);
    }
  }
  for (int j = 0; j < a.n; ++j) {
    for (int i = 0; i < a.n; ++i) {
      double sum = 0;
      for (int k = 0; k < a.n; ++k) sum += rows[static_cast<size_t>(i) * a.n + k] * b(k, j);
      result(i, j) = static_cast<T>(sum);
    }
  }
  return result;
}

template <typename T>
Matrix<T> Symmetric(int n, double diagonal) {
  const Matrix<T> random = RandomMatrix<T>(n);
  Matrix<T> matrix(n);
  for (int j = 0; j < n; ++j) {
    for (int i = 0; i < n; ++i) matrix(i, j) = (random(i, j) + random(j, i)) / 2;
    matrix(j, j) += static_cast<T>(diagonal);
  }
  return matrix;
}

template <typename T>
Matrix<T> FromDevice(int n, const Device<T>& data) {
  Matrix<T> matrix(n);
  const std::vector<T> values = data.Read();
  if (!values.empty()) matrix.values = values;
  return matrix;
}

template <typename T>
constexpr bool kDouble = std::is_same_v<T, double>;
// Of both precisions of a function, the one for T.
#define SOLVER_FOR(T, single, precise) Pick<T>(SOLVER(single), SOLVER(precise))
template <typename T, typename Single, typename Precise>
auto Pick(Single single, Precise precise) {
  if constexpr (kDouble<T>) {
    return precise;
  } else {
    return single;
  }
}

template <typename T>
std::string Name(const char* function, int n) {
  return std::string(kDouble<T> ? "d" : "s") + function + "_" + std::to_string(n);
}
// Rounding grows with the size.
template <typename T>
double Tolerance(int n) {
  return (kDouble<T> ? 1e-15 : 5e-7) * (20 + n);
}

// What the function reports beside its status: 0, or which pivot or argument was bad.
int Info(const Device<int>& info) {
  const std::vector<int> values = info.Read();
  return values.empty() ? 0 : values[0];
}

template <typename T>
void CheckCholesky(int n) {
  const std::string name = Name<T>("potrf", n);
  if (!Wanted(name)) return;
  const Matrix<T> a = Symmetric<T>(n, n);
  const Device<T> da(a.values);
  const Device<int> info(1);
  int count = 0;
  int status = SOLVER_FOR(T, cusolverDnSpotrf_bufferSize, cusolverDnDpotrf_bufferSize)(
      g_handle, CUBLAS_FILL_MODE_LOWER, n, da.get(), n, &count);
  const Device<T> work(count);
  if (status == 0) {
    status = SOLVER_FOR(T, cusolverDnSpotrf, cusolverDnDpotrf)(
        g_handle, CUBLAS_FILL_MODE_LOWER, n, da.get(), n, work.get(), count, info.get());
  }
  if (status == 0) status = Info(info);
  Matrix<T> lower = FromDevice(n, da), transposed(n);
  for (int j = 0; j < n; ++j) {
    for (int i = 0; i < n; ++i) {
      if (i < j) lower(i, j) = 0;
    }
  }
  for (int j = 0; j < n; ++j) {
    for (int i = 0; i < n; ++i) transposed(i, j) = lower(j, i);
  }
  Check(name, status, Error(Product(lower, Transposed::kNo, transposed).values, a.values),
        Tolerance<T>(n));
}

template <typename T>
void CheckLu(int n) {
  const std::string name = Name<T>("getrf", n);
  if (!Wanted(name)) return;
  const Matrix<T> a = RandomMatrix<T>(n);
  const Device<T> da(a.values);
  const Device<int> info(1), pivots(n);
  int count = 0;
  int status = SOLVER_FOR(T, cusolverDnSgetrf_bufferSize, cusolverDnDgetrf_bufferSize)(
      g_handle, n, n, da.get(), n, &count);
  const Device<T> work(count);
  if (status == 0) {
    status = SOLVER_FOR(T, cusolverDnSgetrf, cusolverDnDgetrf)(
        g_handle, n, n, da.get(), n, work.get(), pivots.get(), info.get());
  }
  if (status == 0) status = Info(info);
  const Matrix<T> factors = FromDevice(n, da);
  Matrix<T> lower(n), upper(n);
  for (int j = 0; j < n; ++j) {
    for (int i = 0; i < n; ++i) (i > j ? lower : upper)(i, j) = factors(i, j);
    lower(j, j) = 1;
  }
  Matrix<T> back = Product(lower, Transposed::kNo, upper);
  const std::vector<int> rows = pivots.Read();
  for (int i = n - 1; i >= 0 && !rows.empty(); --i) {
    const int other = rows[i] - 1;
    if (other < 0 || other >= n) {
      std::printf("  pivot %d is row %d of %d\n", i, other, n);
      break;
    }
    for (int j = 0; j < n; ++j) std::swap(back(i, j), back(other, j));
  }
  Check(name, status, Error(back.values, a.values), Tolerance<T>(n));

  // And solves with the factors.
  const Matrix<T> x = RandomMatrix<T>(n);
  const Matrix<T> b = Product(a, Transposed::kNo, x);
  const Device<T> db(b.values);
  status = SOLVER_FOR(T, cusolverDnSgetrs, cusolverDnDgetrs)(
      g_handle, CUBLAS_OP_N, n, n, da.get(), n, pivots.get(), db.get(), n, info.get());
  if (status == 0) status = Info(info);
  Check(Name<T>("getrs", n), status,
        Error(Product(a, Transposed::kNo, FromDevice(n, db)).values, b.values), Tolerance<T>(n));
}

template <typename T>
void CheckQr(int n) {
  const std::string name = Name<T>("geqrf", n);
  if (!Wanted(name)) return;
  const Matrix<T> a = RandomMatrix<T>(n);
  const Device<T> da(a.values), tau(n);
  const Device<int> info(1);
  int count = 0;
  int status = SOLVER_FOR(T, cusolverDnSgeqrf_bufferSize, cusolverDnDgeqrf_bufferSize)(
      g_handle, n, n, da.get(), n, &count);
  const Device<T> work(count);
  if (status == 0) {
    status = SOLVER_FOR(T, cusolverDnSgeqrf, cusolverDnDgeqrf)(
        g_handle, n, n, da.get(), n, tau.get(), work.get(), count, info.get());
  }
  if (status == 0) status = Info(info);
  Matrix<T> upper = FromDevice(n, da);
  for (int j = 0; j < n; ++j) {
    for (int i = j + 1; i < n; ++i) upper(i, j) = 0;
  }
  Check(
      name, status,
      Error(Product(upper, Transposed::kYes, upper).values, Product(a, Transposed::kYes, a).values),
      Tolerance<T>(n));

  status = SOLVER_FOR(T, cusolverDnSorgqr_bufferSize, cusolverDnDorgqr_bufferSize)(
      g_handle, n, n, n, da.get(), n, tau.get(), &count);
  const Device<T> more_work(count);
  if (status == 0) {
    status = SOLVER_FOR(T, cusolverDnSorgqr, cusolverDnDorgqr)(
        g_handle, n, n, n, da.get(), n, tau.get(), more_work.get(), count, info.get());
  }
  if (status == 0) status = Info(info);
  Check(Name<T>("orgqr", n), status,
        Error(Product(FromDevice(n, da), Transposed::kNo, upper).values, a.values),
        Tolerance<T>(n));
}

template <typename T>
void CheckEigen(int n) {
  const std::string name = Name<T>("syevd", n);
  if (!Wanted(name)) return;
  const Matrix<T> a = Symmetric<T>(n, 0);
  const Device<T> da(a.values), dw(n);
  const Device<int> info(1);
  int count = 0;
  int status = SOLVER_FOR(T, cusolverDnSsyevd_bufferSize, cusolverDnDsyevd_bufferSize)(
      g_handle, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, n, da.get(), n, dw.get(), &count);
  const Device<T> work(count);
  if (status == 0) {
    status = SOLVER_FOR(T, cusolverDnSsyevd, cusolverDnDsyevd)(
        g_handle, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, n, da.get(), n, dw.get(),
        work.get(), count, info.get());
  }
  if (status == 0) status = Info(info);
  const Matrix<T> vectors = FromDevice(n, da);
  const std::vector<T> w = dw.Read();
  Matrix<T> scaled = vectors, identity(n);
  for (int j = 0; j < n; ++j) {
    for (int i = 0; i < n && !w.empty(); ++i) scaled(i, j) *= w[j];
    identity(j, j) = 1;
  }
  Check(name, status,
        std::max(Error(Product(a, Transposed::kNo, vectors).values, scaled.values),
                 Error(Product(vectors, Transposed::kYes, vectors).values, identity.values)),
        Tolerance<T>(n));
}

template <typename T>
void CheckSvd(int n) {
  const std::string name = Name<T>("gesvd", n);
  if (!Wanted(name)) return;
  const Matrix<T> a = RandomMatrix<T>(n);
  const Device<T> da(a.values), ds(n), du(a.values.size()), dv(a.values.size());
  const Device<int> info(1);
  int count = 0;
  int status = SOLVER_FOR(T, cusolverDnSgesvd_bufferSize, cusolverDnDgesvd_bufferSize)(g_handle, n,
                                                                                       n, &count);
  const Device<T> work(count), rwork(n);
  if (status == 0) {
    status = SOLVER_FOR(T, cusolverDnSgesvd, cusolverDnDgesvd)(
        g_handle, 'A', 'A', n, n, da.get(), n, ds.get(), du.get(), n, dv.get(), n, work.get(),
        count, rwork.get(), info.get());
  }
  if (status == 0) status = Info(info);
  Matrix<T> scaled = FromDevice(n, du);
  const std::vector<T> s = ds.Read();
  for (int j = 0; j < n && !s.empty(); ++j) {
    for (int i = 0; i < n; ++i) scaled(i, j) *= s[j];
  }
  Check(name, status, Error(Product(scaled, Transposed::kNo, FromDevice(n, dv)).values, a.values),
        Tolerance<T>(n));
}

template <typename T>
void CheckAll(int n) {
  CheckCholesky<T>(n);
  CheckLu<T>(n);
  CheckQr<T>(n);
  CheckEigen<T>(n);
}

}  // namespace

int main(int argc, char** argv) {
  ParseArguments(argc, argv);
  g_library = OpenLibrary({"libcusolver.so.12"});
  int version = 0;
  SOLVER(cusolverGetVersion)(&version);
  PrintVersion("cuSOLVER " + DottedVersion(version, 1000, 100));
  const int status = SOLVER(cusolverDnCreate)(&g_handle);
  if (status != 0) {
    std::printf("FATAL: cusolverDnCreate: %d\n", status);
    return EXIT_FAILURE;
  }
  for (const int n : {8, 100, 300}) {
    CheckAll<float>(n);
    CheckAll<double>(n);
  }
  CheckSvd<float>(40);
  CheckSvd<double>(40);
  return Finish();
}
