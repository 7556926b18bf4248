// copy_model [OPERATIONS [MIB]]: random copies and sets by four threads, each on two streams that
// overlap, against a model in host memory; then one run of MIB mebibytes there and back.

#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "check.h"

namespace {

constexpr int kThreads = 4;
constexpr size_t kBytes = 1 << 20;  // of a lane's device memory
constexpr size_t kSizes[] = {0, 1, 4095, 4096, 4097};

using Random = std::mt19937;

size_t Below(Random& random, size_t limit) { return random() % limit; }

// A copy to the host that has not been looked at yet.
struct Arrival {
  char* at = nullptr;
  size_t pitch = 0, width = 0, rows = 0;
  std::vector<char> expected;  // rows without gaps
};

// A stream, its device memory, and what that memory must hold.
class Lane {
 public:
  explicit Lane(unsigned seed) : random_(seed), model_(kBytes) {
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    CHECK_CUDA(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
    CHECK_CUDA(cudaMalloc(&device_, kBytes));
    CHECK_CUDA(cudaMemsetAsync(device_, 0, kBytes, stream_));
  }
  ~Lane() {
    CHECK_CUDA(cudaStreamDestroy(stream_));
    CHECK_CUDA(cudaEventDestroy(event_));
    CHECK_CUDA(cudaFree(device_));
    for (char* const buffer : buffers_) CHECK_CUDA(cudaFreeHost(buffer));
  }

  void Step(Lane& other) {
    switch (Below(random_, 8)) {
      case 0:
        return Send();
      case 1:
        return Receive();
      case 2:
        return Move(*this);
      case 3:
        return Move(other);
      case 4:
        return Set();
      case 5:
        return Send2D();
      case 6:
        return Receive3D();
      default:
        if (Below(random_, 8) == 0) Settle();
        return Move2D();
    }
  }

  // Waits for all of the stream, and looks at what has come.
  void Settle() {
    CHECK_CUDA(cudaStreamSynchronize(stream_));
    for (const Arrival& arrival : arrivals_) {
      for (size_t row = 0; row < arrival.rows; ++row) {
        EXPECT(std::memcmp(arrival.at + row * arrival.pitch,
                           arrival.expected.data() + row * arrival.width, arrival.width) == 0);
      }
    }
    arrivals_.clear();
    used_ = 0;
  }

  // Everything at once, by a synchronous copy.
  void CheckAll() {
    Settle();
    std::vector<char> all(kBytes);
    CHECK_CUDA(cudaMemcpy(all.data(), device_, kBytes, cudaMemcpyDeviceToHost));
    EXPECT(all == model_);
  }
  uint64_t Sum() const { return Checksum(model_.data(), model_.size()); }

 private:
  static constexpr size_t kBuffers = 8;
  static constexpr size_t kBufferBytes = 256 << 10;

  size_t Size() {
    return Below(random_, 2) == 0 ? kSizes[Below(random_, 5)] : Below(random_, 64 << 10);
  }
  size_t Place(size_t size) { return Below(random_, kBytes - size + 1); }

  // Pinned memory that no copy under way uses.
  char* Buffer() {
    if (used_ == kBuffers) Settle();
    if (buffers_.size() == used_) {
      char* made = nullptr;
      CHECK_CUDA(cudaMallocHost(&made, kBufferBytes));
      buffers_.push_back(made);
    }
    return buffers_[used_++];
  }
  void Fill(char* bytes, size_t count) {
    unsigned value = random_();
    for (size_t k = 0; k < count; ++k)
      bytes[k] = static_cast<char>(value = value * 1664525 + 1013904223 >> 3);
  }

  void Send() {
    const size_t size = Size(), to = Place(size);
    if (Below(random_, 2) == 0) {
      char* const from = Buffer();
      Fill(from, size);
      CHECK_CUDA(cudaMemcpyAsync(device_ + to, from, size, cudaMemcpyHostToDevice, stream_));
      std::memcpy(model_.data() + to, from, size);
      return;
    }
    // Pageable memory may be used again as soon as the call returns.
    std::vector<char> from(size + 1);
    Fill(from.data(), size);
    std::memcpy(model_.data() + to, from.data(), size);
    CHECK_CUDA(cudaMemcpyAsync(device_ + to, from.data(), size, cudaMemcpyHostToDevice, stream_));
    std::memset(from.data(), 0x5a, size);
  }

  void Receive() {
    const size_t size = Size(), from = Place(size);
    char* const to = Buffer();
    CHECK_CUDA(cudaMemcpyAsync(to, device_ + from, size, cudaMemcpyDeviceToHost, stream_));
    arrivals_.push_back({to, size, size, 1, {model_.data() + from, model_.data() + from + size}});
  }

  // From `other`, in the order of both streams.
  void Move(Lane& other) {
    const size_t size = Size();
    size_t to = Place(size);
    const size_t from = Place(size);
    if (&other == this && to < from + size && from < to + size) return;  // overlaps
    if (&other != this) {
      CHECK_CUDA(cudaEventRecord(other.event_, other.stream_));
      CHECK_CUDA(cudaStreamWaitEvent(stream_, other.event_, 0));
    }
    CHECK_CUDA(cudaMemcpyAsync(device_ + to, other.device_ + from, size, cudaMemcpyDeviceToDevice,
                               stream_));
    std::memcpy(model_.data() + to, other.model_.data() + from, size);
    if (&other != this) {
      CHECK_CUDA(cudaEventRecord(event_, stream_));
      CHECK_CUDA(cudaStreamWaitEvent(other.stream_, event_, 0));
    }
  }

  void Set() {
    const size_t size = Size(), to = Place(size);
    const int value = static_cast<int>(Below(random_, 256));
    CHECK_CUDA(cudaMemsetAsync(device_ + to, value, size, stream_));
    std::memset(model_.data() + to, value, size);
  }

  // Boxes have odd pitches, and rows that do not fill them.
  struct Box {
    size_t width, rows, host_pitch, device_pitch, at;
  };
  Box RandomBox() {
    Box box;
    box.width = 1 + Below(random_, 300);
    box.rows = 1 + Below(random_, 60);
    box.host_pitch = box.width + Below(random_, 8) * 2 + 1;
    box.device_pitch = box.width + Below(random_, 16) * 2 + 1;
    box.at = Place(box.device_pitch * box.rows);
    return box;
  }

  void Send2D() {
    const Box box = RandomBox();
    char* const from = Buffer();
    Fill(from, box.host_pitch * box.rows);
    CHECK_CUDA(cudaMemcpy2DAsync(device_ + box.at, box.device_pitch, from, box.host_pitch,
                                 box.width, box.rows, cudaMemcpyHostToDevice, stream_));
    for (size_t row = 0; row < box.rows; ++row) {
      std::memcpy(model_.data() + box.at + row * box.device_pitch, from + row * box.host_pitch,
                  box.width);
    }
  }

  void Move2D() {
    const Box box = RandomBox();
    const size_t bytes = box.device_pitch * box.rows;
    const size_t from = Place(bytes);
    if (from < box.at + bytes && box.at < from + bytes) return;
    CHECK_CUDA(cudaMemcpy2DAsync(device_ + box.at, box.device_pitch, device_ + from,
                                 box.device_pitch, box.width, box.rows, cudaMemcpyDeviceToDevice,
                                 stream_));
    for (size_t row = 0; row < box.rows; ++row) {
      std::memcpy(model_.data() + box.at + row * box.device_pitch,
                  model_.data() + from + row * box.device_pitch, box.width);
    }
  }

  // Slices lie one row further apart than they have rows.
  void Receive3D() {
    const size_t width = 1 + Below(random_, 100), rows = 1 + Below(random_, 10);
    const size_t slices = 1 + Below(random_, 6), pitch = width + Below(random_, 16) * 2 + 1;
    const size_t slice_bytes = pitch * (rows + 1);
    const size_t from = Place(slice_bytes * slices);
    char* const to = Buffer();
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(device_ + from, pitch, width, rows + 1);
    copy.dstPtr = make_cudaPitchedPtr(to, width, width, rows);
    copy.extent = make_cudaExtent(width, rows, slices);
    copy.kind = cudaMemcpyDeviceToHost;
    CHECK_CUDA(cudaMemcpy3DAsync(&copy, stream_));
    Arrival arrival{to, width, width, rows * slices, {}};
    for (size_t k = 0; k < rows * slices; ++k) {
      const char* const row = model_.data() + from + k / rows * slice_bytes + k % rows * pitch;
      arrival.expected.insert(arrival.expected.end(), row, row + width);
    }
    arrivals_.push_back(std::move(arrival));
  }

  Random random_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t event_ = nullptr;
  char* device_ = nullptr;
  std::vector<char> model_;
  std::vector<char*> buffers_;
  size_t used_ = 0;
  std::deque<Arrival> arrivals_;
};

void RunThread(int thread, int operations, uint64_t* sum) {
  Lane first(2 * thread + 1), second(2 * thread + 2);
  Random random(thread + 100);
  for (int k = 0; k < operations; ++k) {
    if (Below(random, 2) == 0) {
      first.Step(second);
    } else {
      second.Step(first);
    }
  }
  first.CheckAll();
  second.CheckAll();
  *sum = first.Sum() * 31 + second.Sum();
}

// `bytes` there and back, in memory that repeats only after 4 GiB.
void RunLarge(size_t bytes) {
  std::vector<uint32_t> host(bytes / sizeof(uint32_t));
  for (size_t k = 0; k < host.size(); ++k) host[k] = static_cast<uint32_t>(k * 2654435761u);
  uint32_t* device = nullptr;
  CHECK_CUDA(cudaMalloc(&device, bytes));
  CHECK_CUDA(cudaMemcpy(device, host.data(), bytes, cudaMemcpyHostToDevice));
  std::memset(host.data(), 0, bytes);
  CHECK_CUDA(cudaMemcpy(host.data(), device, bytes, cudaMemcpyDeviceToHost));
  for (size_t k = 0; k < host.size(); ++k)
    EXPECT(host[k] == static_cast<uint32_t>(k * 2654435761u));
  CHECK_CUDA(cudaFree(device));
  std::printf("%zu MiB there and back: right\n", bytes >> 20);
}

}  // namespace

int main(int argc, char** argv) {
  const int operations = argc > 1 ? std::atoi(argv[1]) : 10000;
  const size_t mebibytes = argc > 2 ? static_cast<size_t>(std::atoi(argv[2])) : 256;
  std::vector<std::thread> threads;
  uint64_t sums[kThreads] = {};
  for (int k = 0; k < kThreads; ++k) {
    threads.emplace_back(RunThread, k, operations / kThreads, &sums[k]);
  }
  for (std::thread& thread : threads) thread.join();
  for (int k = 0; k < kThreads; ++k) {
    std::printf("thread %d: %016llx\n", k, static_cast<unsigned long long>(sums[k]));
  }
  if (mebibytes > 0) RunLarge(mebibytes << 20);
  return 0;
}
