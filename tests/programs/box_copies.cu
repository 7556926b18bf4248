// Copies and sets of 2 and 3 dimensions with odd pitches, in all directions, random but the same in
// every run. Each is also done on a model in the CPU's memory, and all bytes are compared.
#include <cstring>
#include <vector>

#include "check.h"

namespace {

constexpr size_t kBytes = 3 << 20;  // more than travels in one message
constexpr int kOperations = 300;

uint32_t Random() {
  static uint32_t state = 2463534242u;
  state ^= state << 13;
  state ^= state >> 17;
  state ^= state << 5;
  return state;
}
size_t Below(size_t limit) { return Random() % limit; }

// A box inside a buffer: where it begins, and how far rows and slices are apart.
struct Place {
  size_t begin = 0, pitch = 0, rows = 0;
};
struct Box {
  size_t width = 0, height = 0, depth = 0;
};

Box RandomBox() {
  switch (Below(4)) {
    case 0:
      return {1 + Below(100), 1 + Below(20), 1 + Below(5)};
    case 1:
      return {1 + Below(2000), 1 + Below(40), 1};
    case 2:
      return {1 + Below(4096), 1 + Below(16), 1 + Below(8)};
    default:
      return {100000 + Below(1400000), 1, 1 + Below(2)};  // a row that is cut into pieces
  }
}

// Somewhere in a buffer, with a pitch that is tight every third time.
bool RandomPlace(const Box& box, Place* place) {
  place->pitch = box.width + (Below(3) == 0 ? 0 : Below(77));
  place->rows = box.height + (Below(3) == 0 ? 0 : Below(3));
  const size_t extent =
      (box.depth - 1) * place->rows * place->pitch + (box.height - 1) * place->pitch + box.width;
  if (extent > kBytes) return false;
  place->begin = Below(kBytes - extent + 1);
  return true;
}

void CopyModel(char* to, const Place& to_place, const char* from, const Place& from_place,
               const Box& box) {
  for (size_t z = 0; z < box.depth; ++z) {
    for (size_t y = 0; y < box.height; ++y) {
      std::memcpy(to + to_place.begin + (z * to_place.rows + y) * to_place.pitch,
                  from + from_place.begin + (z * from_place.rows + y) * from_place.pitch,
                  box.width);
    }
  }
}

// Two buffers on the card, one in pageable and one in pinned memory, and a model of each.
struct Buffer {
  char* memory = nullptr;
  bool on_device = false;
  std::vector<char> model;
};

void Operate(Buffer& to, const Buffer& from, cudaMemcpyKind kind, cudaStream_t stream) {
  const Box box = RandomBox();
  Place to_place, from_place;
  if (!RandomPlace(box, &to_place) || !RandomPlace(box, &from_place)) return;
  CopyModel(to.model.data(), to_place, from.model.data(), from_place, box);
  char* const destination = to.memory + to_place.begin;
  char* const source = from.memory + from_place.begin;
  if (box.depth == 1 && Below(2) == 0) {
    if (stream == nullptr) {
      CHECK_CUDA(cudaMemcpy2D(destination, to_place.pitch, source, from_place.pitch, box.width,
                              box.height, kind));
    } else {
      CHECK_CUDA(cudaMemcpy2DAsync(destination, to_place.pitch, source, from_place.pitch, box.width,
                                   box.height, kind, stream));
    }
    return;
  }
  cudaMemcpy3DParms parameters = {};
  parameters.dstPtr = make_cudaPitchedPtr(destination, to_place.pitch, box.width, to_place.rows);
  parameters.srcPtr = make_cudaPitchedPtr(source, from_place.pitch, box.width, from_place.rows);
  parameters.extent = make_cudaExtent(box.width, box.height, box.depth);
  parameters.kind = kind;
  if (stream == nullptr) {
    CHECK_CUDA(cudaMemcpy3D(&parameters));
  } else {
    CHECK_CUDA(cudaMemcpy3DAsync(&parameters, stream));
  }
}

void Set(Buffer& to, cudaStream_t stream) {
  const Box box = {1 + Below(5000), 1 + Below(50), 1};
  Place place;
  if (!RandomPlace(box, &place)) return;
  const int value = static_cast<int>(Below(256));
  for (size_t y = 0; y < box.height; ++y) {
    std::memset(to.model.data() + place.begin + y * place.pitch, value, box.width);
  }
  CHECK_CUDA(cudaMemset2DAsync(to.memory + place.begin, place.pitch, value, box.width, box.height,
                               stream));
}

}  // namespace

int main() {
  Buffer buffers[4];
  std::vector<char> pageable(kBytes);
  CHECK_CUDA(cudaMalloc(&buffers[0].memory, kBytes));
  CHECK_CUDA(cudaMalloc(&buffers[1].memory, kBytes));
  CHECK_CUDA(cudaMallocHost(&buffers[2].memory, kBytes));
  buffers[3].memory = pageable.data();
  buffers[0].on_device = buffers[1].on_device = true;
  for (Buffer& buffer : buffers) {
    buffer.model.resize(kBytes);
    for (char& byte : buffer.model) byte = static_cast<char>(Random());
    CHECK_CUDA(cudaMemcpy(buffer.memory, buffer.model.data(), kBytes, cudaMemcpyDefault));
  }
  cudaStream_t stream = nullptr;
  CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));

  for (int i = 0; i < kOperations; ++i) {
    Buffer& to = buffers[Below(4)];
    Buffer& from = buffers[Below(4)];
    // Now and then everything changes to the other stream.
    if (i % 50 == 0) CHECK_CUDA(cudaDeviceSynchronize());
    cudaStream_t const where = i % 100 < 50 ? stream : nullptr;
    if (to.on_device && Below(5) == 0) {
      Set(to, where);
    } else if (&to != &from) {
      const cudaMemcpyKind kinds[2][2] = {{cudaMemcpyHostToHost, cudaMemcpyHostToDevice},
                                          {cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice}};
      // A source of the program's own may change once the call is over; pinned memory may not.
      if (!from.on_device) CHECK_CUDA(cudaStreamSynchronize(where));
      Operate(to, from, kinds[from.on_device][to.on_device], where);
    }
  }
  CHECK_CUDA(cudaDeviceSynchronize());

  const char* const names[] = {"device 0", "device 1", "pinned", "pageable"};
  for (int i = 0; i < 4; ++i) {
    std::vector<char> result(kBytes);
    CHECK_CUDA(cudaMemcpy(result.data(), buffers[i].memory, kBytes, cudaMemcpyDefault));
    ExpectEqual(names[i], result.data(), buffers[i].model.data(), kBytes);
  }

  // What cannot be right.
  char host[64] = {};
  EXPECT_CUDA_ERROR(cudaMemcpy2D(buffers[0].memory, 16, host, 32, 32, 2, cudaMemcpyHostToDevice),
                    cudaErrorInvalidPitchValue);
  EXPECT_CUDA_ERROR(cudaMemcpy2D(buffers[0].memory + kBytes - 8, 32, host, 32, 32, 1,
                                 cudaMemcpyHostToDevice),
                    cudaErrorInvalidValue);
  CHECK_CUDA(cudaMemcpy2D(buffers[0].memory, 16, host, 32, 0, 2, cudaMemcpyHostToDevice));
  CHECK_CUDA(cudaStreamDestroy(stream));
  CHECK_CUDA(cudaFreeHost(buffers[2].memory));
  CHECK_CUDA(cudaFree(buffers[0].memory));
  CHECK_CUDA(cudaFree(buffers[1].memory));
  std::printf("errors are right\n");
  return 0;
}
