// Thrust and CUB on 10^6 elements: sort, scan, reduce, select, unique.
#include <algorithm>
#include <numeric>

#include "library_test.h"
#include <cub/cub.cuh>
#include <thrust/copy.h>
#include <thrust/device_vector.h>
#include <thrust/reduce.h>
#include <thrust/scan.h>
#include <thrust/sort.h>
#include <thrust/unique.h>

using namespace library_test;  // NOLINT: a test program

namespace {

struct IsEven {
  __host__ __device__ bool operator()(unsigned value) const { return value % 2 == 0; }
};

template <typename T>
double Differs(const thrust::device_vector<T>& got, const std::vector<T>& expected) {
  std::vector<T> values(got.size());
  thrust::copy(got.begin(), got.end(), values.begin());
  return values == expected ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  ParseArguments(argc, argv);
  PrintVersion("Thrust and CUB " + DottedVersion(THRUST_VERSION, 100000, 100));
  constexpr size_t kCount = 1000000;
  std::vector<unsigned> values(kCount);
  Random random;
  for (unsigned& value : values) value = static_cast<unsigned>((random.Next() + 1) * 5e5);
  const thrust::device_vector<unsigned> original = values;
  std::vector<unsigned> sorted = values;
  std::sort(sorted.begin(), sorted.end());
  std::vector<unsigned> sums(kCount);
  std::partial_sum(values.begin(), values.end(), sums.begin());
  std::vector<unsigned> even;
  std::copy_if(values.begin(), values.end(), std::back_inserter(even), IsEven());
  std::vector<unsigned> distinct = sorted;
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());

  if (Wanted("thrust_reduce")) {
    const unsigned sum = thrust::reduce(original.begin(), original.end());
    Check("thrust_reduce", 0, sum == sums.back() ? 0 : 1, 0);
  }
  if (Wanted("thrust_scan")) {
    thrust::device_vector<unsigned> out(kCount);
    thrust::inclusive_scan(original.begin(), original.end(), out.begin());
    Check("thrust_scan", 0, Differs(out, sums), 0);
  }
  if (Wanted("thrust_sort")) {
    thrust::device_vector<unsigned> data = original;
    thrust::sort(data.begin(), data.end());
    Check("thrust_sort", 0, Differs(data, sorted), 0);
  }
  if (Wanted("thrust_merge_sort")) {
    thrust::device_vector<unsigned> data = original;
    thrust::stable_sort(data.begin(), data.end(),
                        [] __device__(unsigned a, unsigned b) { return a < b; });
    Check("thrust_merge_sort", 0, Differs(data, sorted), 0);
  }
  if (Wanted("thrust_copy_if")) {
    thrust::device_vector<unsigned> out(kCount);
    const auto end = thrust::copy_if(original.begin(), original.end(), out.begin(), IsEven());
    out.resize(end - out.begin());
    Check("thrust_copy_if", 0, Differs(out, even), 0);
  }
  if (Wanted("thrust_unique")) {
    thrust::device_vector<unsigned> data = sorted;
    data.resize(thrust::unique(data.begin(), data.end()) - data.begin());
    Check("thrust_unique", 0, Differs(data, distinct), 0);
  }
  if (Wanted("cub_histogram")) {
    const Device<int> bins(100);
    size_t bytes = 0;
    const unsigned* const in = thrust::raw_pointer_cast(original.data());
    cub::DeviceHistogram::HistogramEven(nullptr, bytes, in, bins.get(), 101, 0u, 1000000u,
                                        static_cast<int>(kCount));
    const Device<char> scratch(bytes);
    const cudaError_t status = cub::DeviceHistogram::HistogramEven(
        scratch.get(), bytes, in, bins.get(), 101, 0u, 1000000u, static_cast<int>(kCount));
    std::vector<int> expected(100);
    for (const unsigned value : values) {
      if (value < 1000000) ++expected[value / 10000];
    }
    Check("cub_histogram", status, bins.Read() == expected ? 0 : 1, 0);
  }
  return Finish();
}
