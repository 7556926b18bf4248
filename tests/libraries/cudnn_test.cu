// cuDNN: convolutions forward and backward by every algorithm that it offers, softmax, batch
// normalisation, pooling, activations.
#include <cudnn.h>

#include <cuda_fp16.h>

#include "library_test.h"

using namespace library_test;  // NOLINT: a test program

namespace {

void* g_library = nullptr;
cudnnHandle_t g_handle = nullptr;
#define DNN(name) LIBRARY_SYMBOL(g_library, name)

struct Shape {
  int n, c, h, w;
  size_t count() const { return static_cast<size_t>(n) * c * h * w; }
  size_t At(int i, int j, int y, int x) const {
    return ((static_cast<size_t>(i) * c + j) * h + y) * w + x;
  }
};

std::vector<float> RandomVector(size_t count, uint64_t seed = 42) {
  Random random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(random.Next());
  return values;
}

class Tensor {
 public:
  Tensor(const Shape& shape, cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    DNN(cudnnCreateTensorDescriptor)(&descriptor_);
    const int status = DNN(cudnnSetTensor4dDescriptor)(descriptor_, CUDNN_TENSOR_NCHW, type,
                                                       shape.n, shape.c, shape.h, shape.w);
    if (status != 0) std::printf("  tensor: %d\n", status);
  }
  ~Tensor() { DNN(cudnnDestroyTensorDescriptor)(descriptor_); }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  cudnnTensorDescriptor_t get() const { return descriptor_; }

 private:
  cudnnTensorDescriptor_t descriptor_ = nullptr;
};

// ---- Convolutions

struct Convolution {
  std::string name;
  Shape x;
  Shape w;  // filters, channels per group, height, width
  int pad, stride, dilation, groups;
  Shape y() const {
    const auto out = [&](int in, int filter) {
      return (in + 2 * pad - dilation * (filter - 1) - 1) / stride + 1;
    };
    return {x.n, w.n, out(x.h, w.h), out(x.w, w.w)};
  }
};

// Calls visit(index in x, index in w, index in y) for each product.
template <typename Visit>
void ForEachProduct(const Convolution& conv, const Visit& visit) {
  const Shape y = conv.y();
  for (int i = 0; i < y.n; ++i) {
    for (int k = 0; k < y.c; ++k) {
      const int first = k / (conv.w.n / conv.groups) * conv.w.c;
      for (int oy = 0; oy < y.h; ++oy) {
        for (int ox = 0; ox < y.w; ++ox) {
          for (int c = 0; c < conv.w.c; ++c) {
            for (int fy = 0; fy < conv.w.h; ++fy) {
              const int iy = oy * conv.stride - conv.pad + fy * conv.dilation;
              if (iy < 0 || iy >= conv.x.h) continue;
              for (int fx = 0; fx < conv.w.w; ++fx) {
                const int ix = ox * conv.stride - conv.pad + fx * conv.dilation;
                if (ix < 0 || ix >= conv.x.w) continue;
                visit(conv.x.At(i, first + c, iy, ix), conv.w.At(k, c, fy, fx), y.At(i, k, oy, ox));
              }
            }
          }
        }
      }
    }
  }
}

std::vector<float> Narrow(const std::vector<double>& values) {
  return std::vector<float>(values.begin(), values.end());
}

class ConvolutionTest {
 public:
  explicit ConvolutionTest(const Convolution& conv) : conv_(conv), x_(conv.x), y_(conv.y()) {
    DNN(cudnnCreateFilterDescriptor)(&filter_);
    DNN(cudnnSetFilter4dDescriptor)
    (filter_, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NCHW, conv.w.n, conv.w.c, conv.w.h, conv.w.w);
    DNN(cudnnCreateConvolutionDescriptor)(&descriptor_);
    DNN(cudnnSetConvolution2dDescriptor)
    (descriptor_, conv.pad, conv.pad, conv.stride, conv.stride, conv.dilation, conv.dilation,
     CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT);
    DNN(cudnnSetConvolutionGroupCount)(descriptor_, conv.groups);
    DNN(cudnnSetConvolutionMathType)(descriptor_, CUDNN_FMA_MATH);
  }
  ~ConvolutionTest() {
    DNN(cudnnDestroyFilterDescriptor)(filter_);
    DNN(cudnnDestroyConvolutionDescriptor)(descriptor_);
  }

  // With the algorithm that cuDNN itself chooses, and with those of `algorithms`.
  void Forward(const std::vector<cudnnConvolutionFwdAlgo_t>& algorithms) {
    cudnnConvolutionFwdAlgoPerf_t chosen = {};
    int found = 0;
    const std::string name = "conv_forward_" + conv_.name;
    if (Wanted(name)) {
      const int status = DNN(cudnnGetConvolutionForwardAlgorithm_v7)(
          g_handle, x_.get(), filter_, descriptor_, y_.get(), 1, &found, &chosen);
      ForwardBy(name, status, chosen.algo);
    }
    for (const auto algorithm : algorithms) {
      const std::string with = name + "_algorithm" + std::to_string(static_cast<int>(algorithm));
      if (Wanted(with)) ForwardBy(with, 0, algorithm);
    }
  }
  void BackwardData() {
    const std::string name = "conv_backward_data_" + conv_.name;
    if (!Wanted(name)) return;
    const std::vector<float> w = RandomVector(conv_.w.count(), 9),
                             dy = RandomVector(conv_.y().count(), 7);
    std::vector<double> sums(conv_.x.count());
    ForEachProduct(conv_, [&](size_t in, size_t filter, size_t out) {
      sums[in] += static_cast<double>(w[filter]) * dy[out];
    });
    cudnnConvolutionBwdDataAlgoPerf_t chosen = {};
    int found = 0;
    int status = DNN(cudnnGetConvolutionBackwardDataAlgorithm_v7)(
        g_handle, filter_, y_.get(), descriptor_, x_.get(), 1, &found, &chosen);
    size_t bytes = 0;
    if (status == 0) {
      status = DNN(cudnnGetConvolutionBackwardDataWorkspaceSize)(
          g_handle, filter_, y_.get(), descriptor_, x_.get(), chosen.algo, &bytes);
    }
    const Device<float> dw(w), ddy(dy), dx(conv_.x.count());
    const Device<char> work(bytes);
    const float one = 1, none = 0;
    if (status == 0) {
      status = DNN(cudnnConvolutionBackwardData)(g_handle, &one, filter_, dw.get(), y_.get(),
                                                 ddy.get(), descriptor_, chosen.algo, work.get(),
                                                 bytes, &none, x_.get(), dx.get());
    }
    Check(name, status, Error(dx.Read(), Narrow(sums)), 2e-5);
  }
  void BackwardFilter() {
    const std::string name = "conv_backward_filter_" + conv_.name;
    if (!Wanted(name)) return;
    const std::vector<float> x = RandomVector(conv_.x.count()),
                             dy = RandomVector(conv_.y().count(), 7);
    std::vector<double> sums(conv_.w.count());
    ForEachProduct(conv_, [&](size_t in, size_t filter, size_t out) {
      sums[filter] += static_cast<double>(x[in]) * dy[out];
    });
    cudnnConvolutionBwdFilterAlgoPerf_t chosen = {};
    int found = 0;
    int status = DNN(cudnnGetConvolutionBackwardFilterAlgorithm_v7)(
        g_handle, x_.get(), y_.get(), descriptor_, filter_, 1, &found, &chosen);
    size_t bytes = 0;
    if (status == 0) {
      status = DNN(cudnnGetConvolutionBackwardFilterWorkspaceSize)(
          g_handle, x_.get(), y_.get(), descriptor_, filter_, chosen.algo, &bytes);
    }
    const Device<float> dx(x), ddy(dy), dw(conv_.w.count());
    const Device<char> work(bytes);
    const float one = 1, none = 0;
    if (status == 0) {
      status = DNN(cudnnConvolutionBackwardFilter)(g_handle, &one, x_.get(), dx.get(), y_.get(),
                                                   ddy.get(), descriptor_, chosen.algo, work.get(),
                                                   bytes, &none, filter_, dw.get());
    }
    Check(name, status, Error(dw.Read(), Narrow(sums)), 2e-5);
  }

 private:
  void ForwardBy(const std::string& name, int status, cudnnConvolutionFwdAlgo_t algorithm) {
    const std::vector<float> x = RandomVector(conv_.x.count()),
                             w = RandomVector(conv_.w.count(), 9);
    std::vector<double> sums(conv_.y().count());
    ForEachProduct(conv_, [&](size_t in, size_t filter, size_t out) {
      sums[out] += static_cast<double>(x[in]) * w[filter];
    });
    size_t bytes = 0;
    if (status == 0) {
      status = DNN(cudnnGetConvolutionForwardWorkspaceSize)(
          g_handle, x_.get(), filter_, descriptor_, y_.get(), algorithm, &bytes);
    }
    const Device<float> dx(x), dw(w), dy(sums.size());
    const Device<char> work(bytes);
    const float one = 1, none = 0;
    if (status == 0) {
      status = DNN(cudnnConvolutionForward)(g_handle, &one, x_.get(), dx.get(), filter_, dw.get(),
                                            descriptor_, algorithm, work.get(), bytes, &none,
                                            y_.get(), dy.get());
    }
    // Transforms (Winograd) round more often than a plain sum.
    const bool transforms = algorithm == CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED;
    Check(name, status, Error(dy.Read(), Narrow(sums)), transforms ? 2e-4 : 2e-5);
  }

  const Convolution conv_;
  const Tensor x_, y_;
  cudnnFilterDescriptor_t filter_ = nullptr;
  cudnnConvolutionDescriptor_t descriptor_ = nullptr;
};

// ---- Softmax, over channels for each pixel or over a whole image.

void CheckSoftmax(const char* what, cudnnSoftmaxAlgorithm_t algorithm, cudnnSoftmaxMode_t mode,
                  const Shape& shape) {
  const std::string name = std::string("softmax_") + what + "_" + std::to_string(shape.c) + "x" +
                           std::to_string(shape.h);
  if (!Wanted(name)) return;
  const bool log = algorithm == CUDNN_SOFTMAX_LOG;
  const bool instance = mode == CUDNN_SOFTMAX_MODE_INSTANCE;
  const std::vector<float> x = RandomVector(shape.count()), dy = RandomVector(shape.count(), 7);
  std::vector<double> y(x.size()), dx(x.size());
  const size_t pixels = static_cast<size_t>(shape.h) * shape.w;
  const size_t step = instance ? 1 : pixels;
  const size_t length = instance ? shape.c * pixels : shape.c;
  for (int i = 0; i < shape.n; ++i) {
    for (size_t pixel = 0; pixel < (instance ? 1 : pixels); ++pixel) {
      const size_t base = i * shape.c * pixels + pixel;
      double sum = 0, weighted = 0;
      for (size_t k = 0; k < length; ++k) sum += std::exp(x[base + k * step]);
      for (size_t k = 0; k < length; ++k) {
        const size_t at = base + k * step;
        y[at] = log ? x[at] - std::log(sum) : std::exp(x[at]) / sum;
        weighted += log ? dy[at] : dy[at] * y[at];
      }
      for (size_t k = 0; k < length; ++k) {
        const size_t at = base + k * step;
        dx[at] = log ? dy[at] - std::exp(y[at]) * weighted : y[at] * (dy[at] - weighted);
      }
    }
  }
  const Tensor tensor(shape);
  const Device<float> device_x(x), device_dy(dy), device_y(x.size()), device_dx(x.size());
  const float one = 1, none = 0;
  int status = DNN(cudnnSoftmaxForward)(g_handle, algorithm, mode, &one, tensor.get(),
                                        device_x.get(), &none, tensor.get(), device_y.get());
  Check(name, status, Error(device_y.Read(), Narrow(y)), 5e-6);
  status = DNN(cudnnSoftmaxBackward)(g_handle, algorithm, mode, &one, tensor.get(), device_y.get(),
                                     tensor.get(), device_dy.get(), &none, tensor.get(),
                                     device_dx.get());
  Check(name + "_backward", status, Error(device_dx.Read(), Narrow(dx)), 5e-6);
}

// ---- Batch normalisation

void CheckBatchNorm(const char* what, cudnnBatchNormMode_t mode, const Shape& shape) {
  const std::string name = std::string("batch_norm_") + what;
  if (!Wanted(name)) return;
  const bool spatial = mode != CUDNN_BATCHNORM_PER_ACTIVATION;
  const size_t pixels = static_cast<size_t>(shape.h) * shape.w;
  const size_t groups = spatial ? shape.c : shape.c * pixels;
  const auto group = [&](size_t at) {
    return spatial ? at / pixels % shape.c : at % (shape.c * pixels);
  };
  const std::vector<float> x = RandomVector(shape.count()), dy = RandomVector(shape.count(), 7);
  const std::vector<float> scale = RandomVector(groups), bias = RandomVector(groups, 9);
  const double count = static_cast<double>(x.size()) / static_cast<double>(groups);
  constexpr double kEpsilon = 1e-3;
  std::vector<double> mean(groups), inverse(groups), y(x.size()), dx(x.size()), dscale(groups),
      dbias(groups);
  for (size_t k = 0; k < x.size(); ++k) mean[group(k)] += x[k] / count;
  for (size_t k = 0; k < x.size(); ++k) {
    inverse[group(k)] += std::pow(x[k] - mean[group(k)], 2) / count;
  }
  for (double& value : inverse) value = 1 / std::sqrt(value + kEpsilon);
  const auto normal = [&](size_t k) { return (x[k] - mean[group(k)]) * inverse[group(k)]; };
  for (size_t k = 0; k < x.size(); ++k) {
    y[k] = scale[group(k)] * normal(k) + bias[group(k)];
    dscale[group(k)] += dy[k] * normal(k);
    dbias[group(k)] += dy[k];
  }
  for (size_t k = 0; k < x.size(); ++k) {
    const size_t g = group(k);
    dx[k] = scale[g] * inverse[g] * (dy[k] - (dbias[g] + normal(k) * dscale[g]) / count);
  }
  const Tensor tensor(shape);
  const std::vector<float> zeros(groups);
  const Tensor small(spatial ? Shape{1, shape.c, 1, 1} : Shape{1, shape.c, shape.h, shape.w});
  const Device<float> device_x(x), device_y(x.size()), device_scale(scale), device_bias(bias),
      device_mean(groups), device_inverse(groups), device_dy(dy), device_dx(x.size()),
      device_dscale(groups), device_dbias(groups), running_mean(zeros), running_variance(zeros);
  const float one = 1, none = 0;
  int status = DNN(cudnnBatchNormalizationForwardTraining)(
      g_handle, mode, &one, &none, tensor.get(), device_x.get(), tensor.get(), device_y.get(),
      small.get(), device_scale.get(), device_bias.get(), 1.0, running_mean.get(),
      running_variance.get(), kEpsilon, device_mean.get(), device_inverse.get());
  Check(name + "_training", status,
        std::max({Error(device_y.Read(), Narrow(y)), Error(running_mean.Read(), Narrow(mean)),
                  Error(device_inverse.Read(), Narrow(inverse))}),
        1e-5);
  status = DNN(cudnnBatchNormalizationBackward)(
      g_handle, mode, &one, &none, &one, &none, tensor.get(), device_x.get(), tensor.get(),
      device_dy.get(), tensor.get(), device_dx.get(), small.get(), device_scale.get(),
      device_dscale.get(), device_dbias.get(), kEpsilon, device_mean.get(), device_inverse.get());
  Check(name + "_backward", status,
        std::max({Error(device_dx.Read(), Narrow(dx)), Error(device_dscale.Read(), Narrow(dscale)),
                  Error(device_dbias.Read(), Narrow(dbias))}),
        1e-5);
  std::vector<double> variance(groups);
  for (size_t k = 0; k < groups; ++k) variance[k] = 1 / (inverse[k] * inverse[k]) - kEpsilon;
  const Device<float> device_variance(Narrow(variance)), exact_mean(Narrow(mean));
  status = DNN(cudnnBatchNormalizationForwardInference)(
      g_handle, mode, &one, &none, tensor.get(), device_x.get(), tensor.get(), device_dx.get(),
      small.get(), device_scale.get(), device_bias.get(), exact_mean.get(), device_variance.get(),
      kEpsilon);
  Check(name + "_inference", status, Error(device_dx.Read(), Narrow(y)), 1e-5);
}

// ---- Pooling and activation

void CheckPooling(const char* what, cudnnPoolingMode_t mode) {
  const std::string name = std::string("pooling_") + what;
  if (!Wanted(name)) return;
  const Shape in{2, 5, 12, 11}, out{2, 5, 6, 5};
  const std::vector<float> x = RandomVector(in.count());
  std::vector<double> y(out.count());
  const bool largest = mode == CUDNN_POOLING_MAX;
  for (int i = 0; i < out.n; ++i) {
    for (int c = 0; c < out.c; ++c) {
      for (int oy = 0; oy < out.h; ++oy) {
        for (int ox = 0; ox < out.w; ++ox) {
          double value = largest ? -INFINITY : 0;
          for (int k = 0; k < 4; ++k) {
            const double v = x[in.At(i, c, 2 * oy + k / 2, 2 * ox + k % 2)];
            value = largest ? std::max(value, v) : value + v / 4;
          }
          y[out.At(i, c, oy, ox)] = value;
        }
      }
    }
  }
  cudnnPoolingDescriptor_t pooling = nullptr;
  DNN(cudnnCreatePoolingDescriptor)(&pooling);
  DNN(cudnnSetPooling2dDescriptor)(pooling, mode, CUDNN_PROPAGATE_NAN, 2, 2, 0, 0, 2, 2);
  const Tensor tensor_x(in), tensor_y(out);
  const Device<float> device_x(x), device_y(y.size());
  const float one = 1, none = 0;
  const int status =
      DNN(cudnnPoolingForward)(g_handle, pooling, &one, tensor_x.get(), device_x.get(), &none,
                               tensor_y.get(), device_y.get());
  Check(name, status, Error(device_y.Read(), Narrow(y)), 1e-6);
  DNN(cudnnDestroyPoolingDescriptor)(pooling);
}

void CheckActivation(const char* what, cudnnActivationMode_t mode, double (*function)(double)) {
  const std::string name = std::string("activation_") + what;
  if (!Wanted(name)) return;
  const Shape shape{2, 3, 17, 19};
  const std::vector<float> x = RandomVector(shape.count());
  std::vector<double> y(x.begin(), x.end());
  for (double& value : y) value = function(value);
  cudnnActivationDescriptor_t activation = nullptr;
  DNN(cudnnCreateActivationDescriptor)(&activation);
  DNN(cudnnSetActivationDescriptor)(activation, mode, CUDNN_PROPAGATE_NAN, 0);
  const Tensor tensor(shape);
  const Device<float> device_x(x), device_y(x.size());
  const float one = 1, none = 0;
  const int status =
      DNN(cudnnActivationForward)(g_handle, activation, &one, tensor.get(), device_x.get(), &none,
                                  tensor.get(), device_y.get());
  Check(name, status, Error(device_y.Read(), Narrow(y)), 1e-6);
  DNN(cudnnDestroyActivationDescriptor)(activation);
}

}  // namespace

int main(int argc, char** argv) {
  ParseArguments(argc, argv);
  g_library = OpenLibrary({"libcudnn.so.9"});
  PrintVersion("cuDNN " + DottedVersion(static_cast<int>(DNN(cudnnGetVersion)()), 10000, 100));
  const int status = DNN(cudnnCreate)(&g_handle);
  if (status != 0) {
    std::printf("FATAL: cudnnCreate: %d\n", status);
    return EXIT_FAILURE;
  }
  CheckSoftmax("accurate", CUDNN_SOFTMAX_ACCURATE, CUDNN_SOFTMAX_MODE_CHANNEL, {3, 10, 7, 5});
  CheckSoftmax("log", CUDNN_SOFTMAX_LOG, CUDNN_SOFTMAX_MODE_CHANNEL, {4, 1000, 1, 1});
  CheckSoftmax("instance", CUDNN_SOFTMAX_ACCURATE, CUDNN_SOFTMAX_MODE_INSTANCE, {4, 8, 9, 9});
  CheckActivation("relu", CUDNN_ACTIVATION_RELU, [](double v) { return std::max(0.0, v); });
  CheckActivation("tanh", CUDNN_ACTIVATION_TANH, [](double v) { return std::tanh(v); });
  CheckActivation("sigmoid", CUDNN_ACTIVATION_SIGMOID,
                  [](double v) { return 1 / (1 + std::exp(-v)); });
  CheckPooling("max", CUDNN_POOLING_MAX);
  CheckPooling("average", CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING);
  CheckBatchNorm("spatial", CUDNN_BATCHNORM_SPATIAL, {6, 5, 14, 14});
  CheckBatchNorm("per_activation", CUDNN_BATCHNORM_PER_ACTIVATION, {8, 5, 4, 4});
  CheckBatchNorm("persistent", CUDNN_BATCHNORM_SPATIAL_PERSISTENT, {6, 5, 14, 14});
  const std::vector<Convolution> convolutions = {
      {"3x3", {2, 8, 14, 14}, {16, 8, 3, 3}, 1, 1, 1, 1},
      {"1x1", {2, 16, 9, 9}, {12, 16, 1, 1}, 0, 1, 1, 1},
      {"5x5_stride2", {1, 3, 20, 20}, {8, 3, 5, 5}, 2, 2, 1, 1},
      {"3x3_dilated", {1, 4, 16, 16}, {6, 4, 3, 3}, 2, 1, 2, 1},
      {"3x3_groups", {2, 8, 12, 12}, {8, 2, 3, 3}, 1, 1, 1, 4},
      {"3x3_depthwise", {2, 8, 12, 12}, {8, 1, 3, 3}, 1, 1, 1, 8},
  };
  for (const Convolution& convolution : convolutions) {
    ConvolutionTest test(convolution);
    std::vector<cudnnConvolutionFwdAlgo_t> algorithms;
    if (convolution.name == "3x3") {
      // Not CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD, which cuDNN offers for older cards only.
      algorithms = {CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM,
                    CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
                    CUDNN_CONVOLUTION_FWD_ALGO_GEMM, CUDNN_CONVOLUTION_FWD_ALGO_FFT,
                    CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED};
    }
    test.Forward(algorithms);
    test.BackwardData();
    test.BackwardFilter();
  }
  return Finish();
}
