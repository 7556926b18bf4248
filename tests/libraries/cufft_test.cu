// cuFFT: one to three dimensions, complex and real, powers of two, primes and a large one.
#include <cufft.h>

#include "library_test.h"

using namespace library_test;  // NOLINT: a test program

namespace {

using C = std::complex<float>;
using Z = std::complex<double>;

// Bluestein would do for any length; lengths here are small or powers of two.
std::vector<Z> Transform(const std::vector<Z>& in, bool inverse) {
  const size_t n = in.size();
  const double sign = inverse ? 2 * M_PI : -2 * M_PI;
  if (n == 1) return in;
  if (n % 2 != 0) {
    std::vector<Z> roots(n), out(n);
    for (size_t k = 0; k < n; ++k) {
      roots[k] = std::polar(1.0, sign * static_cast<double>(k) / static_cast<double>(n));
    }
    for (size_t k = 0; k < n; ++k) {
      for (size_t j = 0; j < n; ++j) out[k] += in[j] * roots[j * k % n];
    }
    return out;
  }
  std::vector<Z> even(n / 2), odd(n / 2), out(n);
  for (size_t k = 0; k < n / 2; ++k) {
    even[k] = in[2 * k];
    odd[k] = in[2 * k + 1];
  }
  even = Transform(even, inverse);
  odd = Transform(odd, inverse);
  for (size_t k = 0; k < n / 2; ++k) {
    const Z turned =
        odd[k] * std::polar(1.0, sign * static_cast<double>(k) / static_cast<double>(n));
    out[k] = even[k] + turned;
    out[k + n / 2] = even[k] - turned;
  }
  return out;
}

// Along each axis in turn; the last one is contiguous.
std::vector<Z> TransformAll(std::vector<Z> values, const std::vector<int>& shape, bool inverse) {
  size_t stride = 1;
  for (size_t axis = shape.size(); axis-- > 0;) {
    const auto n = static_cast<size_t>(shape[axis]);
    for (size_t start = 0; start < values.size(); ++start) {
      if (start / stride % n != 0) continue;
      std::vector<Z> line(n);
      for (size_t k = 0; k < n; ++k) line[k] = values[start + k * stride];
      line = Transform(line, inverse);
      for (size_t k = 0; k < n; ++k) values[start + k * stride] = line[k];
    }
    stride *= n;
  }
  return values;
}

std::string Name(const char* kind, const std::vector<int>& shape) {
  std::string name = kind;
  for (const int n : shape) name += "_" + std::to_string(n);
  return name;
}

}  // namespace

int main(int argc, char** argv) {
  ParseArguments(argc, argv);
  void* const library = OpenLibrary({"libcufft.so.12"});
  int version = 0;
  LIBRARY_SYMBOL(library, cufftGetVersion)(&version);
  PrintVersion("cuFFT " + DottedVersion(version, 1000, 100));
  const auto plan_many = LIBRARY_SYMBOL(library, cufftPlanMany);
  const auto destroy = LIBRARY_SYMBOL(library, cufftDestroy);
  const std::vector<std::vector<int>> shapes = {
      {8}, {64}, {1024}, {7}, {97}, {1009}, {360}, {1 << 20}, {32, 48}, {17, 30}, {16, 8, 12}};
  for (std::vector<int> shape : shapes) {
    size_t count = 1;
    for (const int n : shape) count *= static_cast<size_t>(n);
    Random random;
    std::vector<Z> in(count), real_in(count);
    for (size_t k = 0; k < count; ++k) {
      const double real = random.Next();
      in[k] = {static_cast<float>(real), static_cast<float>(random.Next())};
      real_in[k] = in[k].real();
    }
    const int rank = static_cast<int>(shape.size());
    const auto plan = [&](cufftType type) {
      cufftHandle handle = 0;
      const int status =
          plan_many(&handle, rank, shape.data(), nullptr, 1, 0, nullptr, 1, 0, type, 1);
      if (status != 0) std::printf("  plan: %d\n", status);
      return handle;
    };
    const auto narrow = [](const std::vector<Z>& values) {
      std::vector<C> result;
      for (const Z& value : values) result.push_back(C(value));
      return result;
    };
    const auto wide = [](const std::vector<C>& values) {
      return std::vector<Z>(values.begin(), values.end());
    };
    for (const int direction : {CUFFT_FORWARD, CUFFT_INVERSE}) {
      const bool inverse = direction == CUFFT_INVERSE;
      if (Wanted(Name("c2c", shape))) {
        const cufftHandle handle = plan(CUFFT_C2C);
        const Device<C> data(narrow(in));
        auto* const p = reinterpret_cast<cufftComplex*>(data.get());
        const int status = LIBRARY_SYMBOL(library, cufftExecC2C)(handle, p, p, direction);
        Check(Name("c2c", shape) + (inverse ? "_inverse" : ""), status,
              Error(wide(data.Read()), TransformAll(in, shape, inverse)), 2e-6);
        destroy(handle);
      }
      if (Wanted(Name("z2z", shape))) {
        const cufftHandle handle = plan(CUFFT_Z2Z);
        const Device<Z> data(in);
        auto* const p = reinterpret_cast<cufftDoubleComplex*>(data.get());
        const int status = LIBRARY_SYMBOL(library, cufftExecZ2Z)(handle, p, p, direction);
        Check(Name("z2z", shape) + (inverse ? "_inverse" : ""), status,
              Error(data.Read(), TransformAll(in, shape, inverse)), 1e-13);
        destroy(handle);
      }
    }
    // Real values give half of the last axis, and that gives them back.
    const size_t row = static_cast<size_t>(shape.back());
    const size_t half_row = row / 2 + 1;
    const std::vector<Z> full = TransformAll(real_in, shape, false);
    std::vector<Z> half;
    for (size_t k = 0; k < count; ++k) {
      if (k % row < half_row) half.push_back(full[k]);
    }
    std::vector<float> reals;
    for (const Z& value : real_in) reals.push_back(static_cast<float>(value.real()));
    if (Wanted(Name("r2c", shape))) {
      const cufftHandle handle = plan(CUFFT_R2C);
      const Device<float> from(reals);
      const Device<C> to(half.size());
      const int status = LIBRARY_SYMBOL(library, cufftExecR2C)(
          handle, from.get(), reinterpret_cast<cufftComplex*>(to.get()));
      Check(Name("r2c", shape), status, Error(wide(to.Read()), half), 2e-6);
      destroy(handle);
    }
    if (Wanted(Name("c2r", shape))) {
      const cufftHandle handle = plan(CUFFT_C2R);
      const Device<C> from(narrow(half));
      const Device<float> to(count);
      const int status = LIBRARY_SYMBOL(library, cufftExecC2R)(
          handle, reinterpret_cast<cufftComplex*>(from.get()), to.get());
      std::vector<float> scaled;
      for (const float value : reals) scaled.push_back(value * static_cast<float>(count));
      Check(Name("c2r", shape), status, Error(to.Read(), scaled), 2e-6);
      destroy(handle);
    }
  }
  return Finish();
}
